"""The discrete distributions: ``logpmf``, ``pmf``, ``cdf``, ``sf`` and their logarithms."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjoint.core.convert import array_of
from adjoint.core.lifted import Unknown, refusal
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor, Traced, held
from adjoint.core.values import unknown
from adjoint.errors import InputError
from adjoint.scipy.stats.base import INF, NAN, Distribution, quiet

__all__ = ["bernoulli", "betabinom", "binom", "geom", "nbinom", "poisson"]


class Discrete(Distribution):
    """A distribution of integers; rules define the form with location 0.

    Parameters
    ----------
    name : str
        SciPy's name.
    shapes : sequence of str
        The names of the parameters.
    low : float
        The smallest integer of the support.
    **rules : callable
        The rules, as in ``Distribution``.
    """

    def __init__(self, name: str, shapes: Any, low: float = 0.0, **rules: Any) -> None:
        super().__init__(name, shapes, ("loc",), **rules)
        self.low = low

    def _valid(self, *shapes: Any) -> list[Any]:
        raise NotImplementedError

    def _high(self, *shapes: Any) -> Any:
        return INF

    def _logpmf(self, k: Any, *shapes: Any) -> Any:
        raise NotImplementedError

    def _cdf(self, k: Any, *shapes: Any) -> Any:
        raise NotImplementedError

    def _sf(self, k: Any, *shapes: Any) -> Any:
        return 1 - self._cdf(k, *shapes)

    @quiet
    def logpmf(self, k: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Return the logarithm of the probability of each outcome."""
        k, *shapes, loc = self.arguments("logpmf", k, args, kwargs)
        shapes = self._valid(*shapes)
        k = k - loc
        outside = rec.logical_or(k < self.low, k > self._high(*shapes))
        outside = rec.logical_or(outside, k != rec.floor(k))
        return rec.where(outside, -INF, self._logpmf(rec.where(outside, self.low, k), *shapes))

    @quiet
    def pmf(self, k: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Return the probability of each outcome."""
        return rec.exp(self.logpmf(k, *args, **kwargs))

    def _between(self, method: str, k: Any, args: Any, kwargs: Any, below: float, above: float) -> Tensor:
        k, *shapes, loc = self.arguments(method, k, args, kwargs)
        shapes = self._valid(*shapes)
        k = rec.floor(k - loc)
        left, right = k < self.low, rec.logical_or(k >= self._high(*shapes), k == INF)
        outside = rec.logical_or(left, right)
        value = getattr(self, f"_{method}")(rec.where(outside, self.low, k), *shapes)
        invalid = sum((rec.isnan(s) * 1.0 for s in shapes if isinstance(s, Tensor)), 0 * k)
        value = rec.where(left, below, rec.where(right, above, value))
        return rec.where(invalid > 0, NAN, value)

    @quiet
    def cdf(self, k: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Return the cumulative distribution function."""
        return self._between("cdf", k, args, kwargs, 0.0, 1.0)

    @quiet
    def sf(self, k: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Return the survival function, 1 - cdf."""
        return self._between("sf", k, args, kwargs, 1.0, 0.0)

    @quiet
    def logcdf(self, k: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Return the logarithm of the cumulative distribution function."""
        return rec.log(self.cdf(k, *args, **kwargs))

    @quiet
    def logsf(self, k: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Return the logarithm of the survival function."""
        return rec.log(self.sf(k, *args, **kwargs))


def _probability(p: Any) -> Any:
    return rec.where(rec.logical_and(p >= 0, p <= 1), p, NAN)


def _count(n: Any) -> Any:
    return rec.where(rec.logical_and(n >= 0, n == rec.floor(n)), n, NAN)


def _log_choose(n: Any, k: Any) -> Any:
    return -rec.log(n + 1) - rec.betaln(n - k + 1, k + 1)


poisson = Discrete(
    "poisson", ("mu",),
    valid=lambda mu: [rec.where(mu >= 0, mu, NAN)],
    logpmf=lambda k, mu: rec.xlogy(k, mu) - rec.gammaln(k + 1) - mu,
    cdf=lambda k, mu: rec.gammaincc(k + 1, mu),
    sf=lambda k, mu: rec.gammainc(k + 1, mu),
)  # fmt: skip
binom = Discrete(
    "binom", ("n", "p"),
    valid=lambda n, p: [_count(n), _probability(p)],
    high=lambda n, p: n,
    logpmf=lambda k, n, p: _log_choose(n, k) + rec.xlogy(k, p) + rec.xlog1py(n - k, -p),
    cdf=lambda k, n, p: rec.betaincc(k + 1, rec.maximum(n - k, 1.0), p),
    sf=lambda k, n, p: rec.betainc(k + 1, rec.maximum(n - k, 1.0), p),
)  # fmt: skip
bernoulli = Discrete(
    "bernoulli", ("p",),
    valid=lambda p: [_probability(p)],
    high=lambda p: 1.0,
    logpmf=lambda k, p: rec.xlogy(k, p) + rec.xlog1py(1 - k, -p),
    cdf=lambda k, p: 1 - p + 0 * k,
    sf=lambda k, p: p + 0 * k,
)  # fmt: skip
nbinom = Discrete(
    "nbinom", ("n", "p"),
    valid=lambda n, p: [rec.where(n > 0, n, NAN), rec.where(rec.logical_and(p > 0, p <= 1), p, NAN)],
    logpmf=lambda k, n, p: -rec.betaln(n, k + 1) - rec.log(n + k) + n * rec.log(p) + rec.xlog1py(k, -p),
    cdf=lambda k, n, p: rec.betainc(n, k + 1, p),
    sf=lambda k, n, p: rec.betaincc(n, k + 1, p),
)  # fmt: skip
geom = Discrete(
    "geom", ("p",), low=1.0,
    valid=lambda p: [rec.where(rec.logical_and(p > 0, p <= 1), p, NAN)],
    logpmf=lambda k, p: rec.xlog1py(k - 1, -p) + rec.log(p),
    cdf=lambda k, p: -rec.expm1(k * rec.log1p(-p)),
    sf=lambda k, p: rec.exp(k * rec.log1p(-p)),
)  # fmt: skip


class _BetaBinom(Discrete):
    """The beta-binomial distribution.

    Its methods have a further parameter ``given``, a list with the argument n as the user passed it, because
    the number of terms of a sum depends on the value of n.
    """

    def _alike(self, values: list[Any]) -> list[Any]:
        *found, loc = super()._alike(values)
        return [*found, [values[1]], loc]

    def _valid(self, n: Any, a: Any, b: Any, given: Any) -> list[Any]:
        return [_count(n), rec.where(a > 0, a, NAN), rec.where(b > 0, b, NAN), given]

    def _high(self, n: Any, a: Any, b: Any, given: Any) -> Any:
        return n

    def _logpmf(self, k: Any, n: Any, a: Any, b: Any, given: Any = None) -> Any:
        return _log_choose(n, k) + rec.betaln(k + a, n - k + b) - rec.betaln(a, b)

    def _sum(self, k: Any, n: Any, a: Any, b: Any, given: Any, upper: bool) -> Any:
        """Return the sum of the probabilities up to k, or above k if ``upper``.

        n, a and b are the parameters of the distribution.
        """
        top = _largest(*given)
        if top is None:
            raise refusal(
                InputError(
                    "betabinom: inside ad.compile, sums of probabilities need the value of n.\n"
                    "  Use an n that is not an argument of the compiled function."
                )
            )
        n, a, b, k = (v[..., None] for v in (n, a, b, k))
        each = np.arange(top + 1).astype(k.dtype)
        inside = rec.logical_and(each <= n, each > k if upper else each <= k)
        p = rec.exp(self._logpmf(rec.minimum(each, n), n, a, b))
        return rec.sum(rec.where(inside, p, 0.0), axis=(-1,), keepdims=False)

    def _cdf(self, k: Any, n: Any, a: Any, b: Any, given: Any) -> Any:
        return self._sum(k, n, a, b, given, upper=False)

    def _sf(self, k: Any, n: Any, a: Any, b: Any, given: Any) -> Any:
        return self._sum(k, n, a, b, given, upper=True)


def _largest(n: Any) -> int | None:
    """Return the largest value of ``n``, or None if the values are not known, as inside ``ad.compile``."""
    if isinstance(n, Unknown) or unknown(n) is not None:
        return None
    values = held(n) if isinstance(n, Traced) else array_of(n)
    return int(np.nan_to_num(values).max(initial=0))


betabinom = _BetaBinom("betabinom", ("n", "a", "b"))
