"""``autograd.scipy.stats``: distributions, which are modules in autograd."""

from typing import Any

from adjoint.autograd.scipy.stats import beta, chi2, dirichlet, gamma, multivariate_normal, norm, poisson, t
from adjoint.scipy import stats as _namespace

__all__ = [
    "beta",
    "chi2",
    "dirichlet",
    "gamma",
    "multivariate_normal",
    "norm",
    "poisson",
    "t",
]


def __getattr__(name: str) -> Any:
    """Return the name of ``adjoint.scipy.stats``."""
    return getattr(_namespace, name)
