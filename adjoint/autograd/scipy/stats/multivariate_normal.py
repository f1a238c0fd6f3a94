"""The distribution ``adjoint.scipy.stats.multivariate_normal`` as a module."""

from typing import Any

from adjoint.scipy import stats as _stats


def __getattr__(name: str) -> Any:
    """Return the method of the distribution."""
    return getattr(_stats.multivariate_normal, name)
