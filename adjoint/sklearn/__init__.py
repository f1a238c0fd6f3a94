"""Estimators for scikit-learn that train modules of adjoint."""

from adjoint.sklearn.estimators import Classifier, Regressor

__all__ = ["Classifier", "Regressor"]
__dir__ = sorted(__all__).copy
