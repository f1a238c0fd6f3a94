"""Estimators for scikit-learn that train modules of adjoint."""

from adjoint.hints import add_hints as _add_hints
from adjoint.sklearn.estimators import Classifier, Regressor

__all__ = ["Classifier", "Regressor"]
__dir__ = sorted(__all__).copy

_add_hints(__name__)
