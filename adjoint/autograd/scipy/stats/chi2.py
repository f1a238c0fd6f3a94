"""The distribution ``adjoint.scipy.stats.chi2`` as a module."""

from typing import Any

from adjoint.scipy import stats as _stats


def __getattr__(name: str) -> Any:
    """Return the method of the distribution."""
    return getattr(_stats.chi2, name)
