"""Base classes of the distributions: parameters, location and scale, supports, frozen distributions."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adjoint import words
from adjoint.config import get_default_dtype
from adjoint.core.convert import asarray, weak_tensor
from adjoint.core.lifted import Unknown
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor, differentiable
from adjoint.errors import InputError
from adjoint.scipy.fallback import drop_in_methods, scipy_method
from adjoint.tracebacks import door

__all__ = ["Continuous", "Distribution", "Frozen", "log1mexp", "quiet"]

INF, NAN = math.inf, math.nan


def quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator that disables NumPy's warnings in a function.

    The logarithms of densities are infinite at the edges of a support, which needs no warning.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*args, **kwargs)

    return call


def log1mexp(x: Any) -> Any:
    """Return log(1 - exp(-x)) for x ≥ 0, accurate for small and large x."""
    small = x < math.log(2)
    near, far = rec.where(small, x, 1.0), rec.where(small, 1.0, x)
    return rec.where(small, rec.log(-rec.expm1(-near)), rec.log1p(-rec.exp(-far)))


def _log_part(part: Any, rest: Any) -> Any:
    """Return the logarithm of the probability ``part``, whose complement is ``rest``.

    It is computed from the smaller of the two probabilities, which is more accurate.
    """
    most = part > 0.5
    return rec.where(most, rec.log1p(-rec.where(most, rest, 0.0)), rec.log(rec.where(most, 1.0, part)))


class Distribution:
    """Base class of continuous and discrete distributions.

    Parameters
    ----------
    name : str
        SciPy's name.
    shapes : sequence of str
        The names of the shape parameters.
    last : sequence of str
        The names of the other parameters, which have defaults: "loc", and "scale" of continuous ones.
    **rules : callable
        Functions of the standard form that replace methods: ``cdf=`` replaces ``_cdf``.
    """

    def __init_subclass__(cls) -> None:
        drop_in_methods(cls)

    def __init__(self, name: str, shapes: Sequence[str], last: Sequence[str], **rules: Any) -> None:
        self.name, self.shapes, self.last = name, tuple(shapes), tuple(last)
        vars(self).update({f"_{method}": rule for method, rule in rules.items()})
        self.__name__, self.__module__ = name, "scipy.stats"
        self.__doc__ = f"The distribution ``scipy.stats.{name}`` on tensors."

    def arguments(self, method: str, x: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return a list of the argument ``x`` and all parameters, as tensors of one dtype.

        ``args`` and ``kwargs`` are the user's parameters.  ``method`` is the name of the caller, for errors.
        """
        names = (*self.shapes, *self.last)
        if len(args) > len(names):
            raise InputError(
                f"{self.name}.{method}: at most {words.count(len(names), 'parameter')} "
                f"({', '.join(names)}) can follow the first argument, but {len(args)} were passed."
            )
        given = dict(zip(names, args, strict=False))
        for key, value in kwargs.items():
            if key not in names or key in given:
                state = "was passed twice" if key in given else "does not exist"
                raise InputError(
                    f"{self.name}.{method}: the parameter {key} {state}.\n  The parameters are: "
                    f"{', '.join(names)}."
                )
            given[key] = value
        for key in self.shapes:
            if key not in given:
                raise InputError(f"{self.name}.{method}: the parameter {key} is missing.")
        given.setdefault("loc", 0)
        if "scale" in self.last:
            given.setdefault("scale", 1)
        return self._alike([x, *(given[key] for key in names)])

    def _alike(self, values: list[Any]) -> list[Any]:
        plain = [type(v) in (int, float, bool) or isinstance(v, Unknown) for v in values]
        found = [None if p else asarray(v) for v, p in zip(values, plain, strict=True)]
        floats = [t.dtype for t in found if t is not None and differentiable(t.dtype)]
        if any(d.kind == "c" for d in floats):
            raise InputError(
                f"{self.name}: the argument and the parameters must be real, but one is complex."
            )
        dtype = np.result_type(*floats) if floats else get_default_dtype()
        tensors = [weak_tensor(v, dtype) if t is None else t for v, t in zip(values, found, strict=True)]
        return [t if t.dtype == dtype else rec.astype(t, dtype=dtype) for t in tensors]

    def __call__(self, *args: Any, **kwargs: Any) -> Frozen:
        """Return a ``Frozen``: this distribution with the given parameters, for methods without them."""
        return Frozen(self, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        """Return SciPy's own method, which raises an error for a tensor that requires grad."""
        if name.startswith("_"):
            raise AttributeError(name)
        if "name" not in vars(self):  # copy and pickle look up attributes before __init__ has set any
            raise AttributeError(name)
        return scipy_method(self.name, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _distribution, (self.name,)

    def __repr__(self) -> str:
        return f"<distribution {self.name!r}>"


def _distribution(name: str) -> Any:
    """Return the distribution ``name``, for pickle and copy."""
    return getattr(importlib.import_module("adjoint.scipy.stats"), name)


class Frozen:
    """A distribution with fixed parameters.

    Parameters
    ----------
    distribution : Distribution
        The distribution.
    args : tuple
        Its parameters.
    kwargs : dict
        Its parameters by name.
    """

    def __init__(self, distribution: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.dist, self.args, self.kwds = distribution, args, kwargs

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        method = getattr(self.dist, name)
        if name in _WITHOUT_ARGUMENT:
            return door(lambda *args, **kwargs: method(*self.args, *args, **{**self.kwds, **kwargs}))
        return door(lambda x, *args, **kwargs: method(x, *self.args, *args, **{**self.kwds, **kwargs}))


_WITHOUT_ARGUMENT = frozenset("rvs mean var std median entropy stats support".split())


class Continuous(Distribution):
    """A continuous distribution with location and scale; rules define the standard form.

    Parameters
    ----------
    name : str
        SciPy's name.
    shapes : sequence of str
        The names of the shape parameters.
    low : float
        The lower end of the support.
    high : float
        The upper end of the support.
    inside : float
        A point of the support.
    **rules : callable
        The rules, as in ``Distribution``.
    """

    def __init__(
        self,
        name: str,
        shapes: Sequence[str] = (),
        low: float = -INF,
        high: float = INF,
        inside: float = 0.0,
        **rules: Any,
    ) -> None:
        super().__init__(name, shapes, ("loc", "scale"), **rules)
        self.low, self.high, self.inside = low, high, inside

    # methods of the standard form (location 0 and scale 1), which rules replace

    def _valid(self, *shapes: Any) -> list[Any]:
        """Return the shape parameters, with NaN in place of values that are not positive."""
        return [rec.where(s > 0, s, NAN) for s in shapes]

    def _support(self, *shapes: Any) -> tuple[Any, Any]:
        return self.low, self.high

    def _logpdf(self, y: Any, *shapes: Any) -> Any:
        raise NotImplementedError

    def _cdf(self, y: Any, *shapes: Any) -> Any:
        raise NotImplementedError

    def _sf(self, y: Any, *shapes: Any) -> Any:
        return 1 - self._cdf(y, *shapes)

    def _logcdf(self, y: Any, *shapes: Any) -> Any:
        return _log_part(self._cdf(y, *shapes), self._sf(y, *shapes))

    def _logsf(self, y: Any, *shapes: Any) -> Any:
        return _log_part(self._sf(y, *shapes), self._cdf(y, *shapes))

    def _ppf(self, q: Any, *shapes: Any) -> Any:
        raise NotImplementedError

    def _isf(self, q: Any, *shapes: Any) -> Any:
        return self._ppf(1 - q, *shapes)

    def _standard(self, method: str, x: Any, args: Any, kwargs: Any) -> tuple[Any, list[Any], Any, Any]:
        x, *shapes, loc, scale = self.arguments(method, x, args, kwargs)
        scale, shapes = rec.where(scale > 0, scale, NAN), self._valid(*shapes)
        y = (x - loc) / scale
        for shape in shapes:  # NaN in a parameter that is out of range makes the result NaN everywhere
            y = rec.where(rec.isnan(shape), NAN, y)
        return y, shapes, loc, scale

    # public methods

    @quiet
    def logpdf(self, x: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Return the logarithm of the probability density at ``x``."""
        y, shapes, _, scale = self._standard("logpdf", x, args, kwargs)
        low, high = self._support(*shapes)
        if low is self.low and (low, high) == (-INF, INF):
            return self._logpdf(y, *shapes) - rec.log(scale)
        outside = rec.logical_or(y < low, y > high)
        density = self._logpdf(rec.where(outside, self._point(low, high), y), *shapes) - rec.log(scale)
        return rec.where(outside, -INF, density)

    def _point(self, low: Any, high: Any) -> Any:
        return self.inside

    @quiet
    def pdf(self, x: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Return the probability density at ``x``."""
        return rec.exp(self.logpdf(x, *args, **kwargs))

    def _between(self, method: str, x: Any, args: Any, kwargs: Any, below: float, above: float) -> Tensor:
        """Return the value of ``cdf`` or another ``method`` at ``x``, by the method of the standard form.

        The standard form, with location 0 and scale 1, has a method of this name with an underscore, such as
        ``_cdf``.  The result is ``below`` for arguments below the support, and ``above`` for arguments above
        it.
        """
        y, shapes, _, _ = self._standard(method, x, args, kwargs)
        low, high = self._support(*shapes)
        # infinite arguments count as outside of every support
        left, right = rec.logical_or(y <= low, y == -INF), rec.logical_or(y >= high, y == INF)
        outside = rec.logical_or(left, right)
        value = getattr(self, f"_{method}")(rec.where(outside, self._point(low, high), y), *shapes)
        return rec.where(left, below, rec.where(right, above, value))

    @quiet
    def cdf(self, x: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Return the cumulative distribution function."""
        return self._between("cdf", x, args, kwargs, 0.0, 1.0)

    @quiet
    def sf(self, x: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Return the survival function, 1 - cdf, accurate in the upper tail."""
        return self._between("sf", x, args, kwargs, 1.0, 0.0)

    @quiet
    def logcdf(self, x: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Return the logarithm of the cumulative distribution function."""
        return self._between("logcdf", x, args, kwargs, -INF, 0.0)

    @quiet
    def logsf(self, x: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Return the logarithm of the survival function."""
        return self._between("logsf", x, args, kwargs, 0.0, -INF)

    def _inverse(self, method: str, q: Any, args: Any, kwargs: Any) -> Tensor:
        q, *shapes, loc, scale = self.arguments(method, q, args, kwargs)
        shapes, scale = self._valid(*shapes), rec.where(scale > 0, scale, NAN)
        low, high = self._support(*shapes)
        first, last = (low, high) if method == "ppf" else (high, low)
        zero, one = q == 0, q == 1
        edge = rec.logical_or(zero, one)
        inside = rec.where(rec.logical_or(edge, rec.logical_or(q < 0, q > 1)), 0.5, q)
        y = getattr(self, f"_{method}")(inside, *shapes)
        y = rec.where(zero, first, rec.where(one, last, y))
        return rec.where(rec.logical_or(q < 0, q > 1), NAN, y * scale + loc)

    @quiet
    def ppf(self, q: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Return the quantiles of the probabilities ``q``: the inverse of ``cdf``."""
        return self._inverse("ppf", q, args, kwargs)

    @quiet
    def isf(self, q: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Return the arguments at which the survival function is ``q``: the inverse of ``sf``."""
        return self._inverse("isf", q, args, kwargs)
