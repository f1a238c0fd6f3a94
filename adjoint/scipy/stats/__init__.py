"""``scipy.stats`` on tensors: distributions with differentiable densities and distribution functions.

Continuous distributions have ``logpdf``, ``pdf``, ``cdf``, ``logcdf``, ``sf``, ``logsf``, ``ppf`` and
``isf``, discrete ones ``logpmf``, ``pmf``, ``cdf`` and ``sf``, with SciPy's parameters; gradients flow to the
argument and to all parameters.  Other methods, and other names of ``scipy.stats``, are SciPy's own.

>>> import adjoint as ad
>>> from adjoint.scipy import stats
>>> float(ad.grad(lambda mu: stats.norm.logpdf(3.0, mu, 2.0))(1.0))
0.5
"""

from typing import Any

from adjoint.scipy.fallback import scipy_only as _scipy_only
from adjoint.scipy.stats import continuous as _continuous
from adjoint.scipy.stats import discrete as _discrete
from adjoint.scipy.stats import multivariate as _multivariate
from adjoint.scipy.stats.continuous import *
from adjoint.scipy.stats.discrete import *
from adjoint.scipy.stats.multivariate import *

__all__ = [*_continuous.__all__, *_discrete.__all__, *_multivariate.__all__]
__dir__ = sorted(__all__).copy


def __getattr__(name: str) -> Any:
    """Return SciPy's own function, which raises an error for a tensor that requires grad."""
    return _scipy_only("stats", name)
