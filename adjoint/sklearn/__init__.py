"""Estimators for scikit-learn that train modules of adjoint."""

from adjoint.sklearn.estimators import Classifier, Regressor

__all__ = ["Classifier", "Regressor"]


def __dir__() -> list[str]:
    return sorted(__all__)
