"""Versions of NumPy's functions for tensors, with NumPy's parameters.

They are called by ``np.f(tensor)`` if ``ad.f`` does not exist or has different parameters.  Such a version is
called the *form* of a function; ``FORMS`` maps NumPy's functions to their forms.  ``PLAIN`` lists functions
without a gradient, which are called with arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint import ops, tree, words
from adjoint.core.conversion import check_conversion
from adjoint.core.convert import array_of, asarray, weak_tensor
from adjoint.core.namespace import raw, rec
from adjoint.core.shapes import canonical_axis, listed
from adjoint.core.tensor import Tensor, differentiable
from adjoint.core.values import varies
from adjoint.errors import ArgumentError, InputError, ShapeError
from adjoint.interop.writers import write
from adjoint.ops.half import is_half, widened
from adjoint.ops.reduce import narrowed
from adjoint.ops.scatter import as_index

__all__ = ["FORMS", "PLAIN", "plain"]

our: Callable[[str], Any] = ops.function  # our("sum") is adjoint's function ``sum``

PLAIN = """
    array_repr array_str array2string array_equiv isin digitize
    histogram histogram_bin_edges argpartition lexsort nanargmax nanargmin min_scalar_type common_type
    shares_memory may_share_memory tril_indices_from triu_indices_from diag_indices_from
    ravel_multi_index unravel_index isscalar
""".split()

_EDGES = ("histogram", "histogram_bin_edges")


def plain(function: Any, args: Any, kwargs: Any) -> Any:
    """Call a function of NumPy with arrays instead of tensors; return arrays in the result as tensors."""
    if function.__name__ in _EDGES:  # the edges of the bins depend on the values
        for t in tree.flatten((args, kwargs))[0]:
            if isinstance(t, Tensor):
                check_conversion(
                    t, f"an array for np.{function.__name__}", "np.bincount differentiates in weights."
                )
    args = tuple(_values(a) for a in args)
    return _wrapped(function(*args, **{k: _values(v) for k, v in kwargs.items()}))


def _values(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.numpy()
    return type(value)(map(_values, value)) if type(value) in (list, tuple) else value


def _wrapped(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return asarray(value)
    return (
        tuple(map(_wrapped, value))
        if type(value) is tuple and value and isinstance(value[0], np.ndarray)
        else value
    )


# Reductions with where= and initial= -----------------------------------------------------------

_NEUTRAL = {"sum": 0, "prod": 1, "any": False, "all": True}
_COMBINE = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}


def _reduction(name: str) -> Callable[..., Any]:
    """Return a function like the reduction ``ad.<name>`` that also accepts ``where`` and ``initial``."""
    function = our(name)
    base = name.removeprefix("nan")

    def reduce(
        a: Any,
        axis: Any = None,
        dtype: Any = None,
        *,
        keepdims: Any = False,
        initial: Any = None,
        where: Any = None,
    ) -> Tensor:
        x = asarray(a)
        extreme = base in ("max", "min")
        if where is not None:
            if extreme and initial is None:
                raise ArgumentError(
                    f"np.{name}: where= needs initial=, the result if no element is selected."
                )
            x = rec.where(where, x, initial if extreme else _NEUTRAL[base])
        if initial is not None and x.size == 0 and extreme:
            shape = np.empty(x.shape).sum(axis, keepdims=keepdims).shape
            return our("full")(shape, initial, dtype=x.dtype)
        options = {} if dtype is None else {"dtype": dtype}
        y: Tensor = function(x, axis, keepdims=keepdims, **options)
        return y if initial is None else getattr(rec, _COMBINE[base])(y, initial)

    return reduce


def _mean(
    a: Any, axis: Any = None, dtype: Any = None, *, where: Any = None, keepdims: bool = False
) -> Tensor:
    x = asarray(a)
    if where is None:
        return our("mean")(x, axis, dtype, keepdims=keepdims)
    chosen = np.broadcast_to(array_of(where), x.shape).sum(axis, keepdims=keepdims)
    total = our("sum")(rec.where(where, widened(rec, x), 0), axis, dtype, keepdims=keepdims)
    mean = total / chosen.astype(total.dtype if differentiable(total.dtype) else float)
    return narrowed(mean, x.dtype if dtype is None and is_half(x) else None)


def _without_nan(name: str, fill: int) -> Callable[..., Any]:
    def scan(a: Any, axis: Any = None, dtype: Any = None) -> Tensor:
        x = asarray(a)
        return our(name)(rec.where(rec.isnan(x), fill, x), axis, dtype)

    return scan


def _nanvar(
    a: Any, axis: Any = None, dtype: Any = None, *, ddof: float = 0, keepdims: bool = False
) -> Tensor:
    return _moment(asarray(a, dtype=dtype), axis, ddof, keepdims)


def _moment(x: Tensor, axis: Any, ddof: float, keepdims: bool, root: bool = False) -> Tensor:
    """Return the variance, or the standard deviation if ``root`` is True; NaNs are ignored.

    ``ddof`` is NumPy's: the divisor is the number of elements minus ``ddof``.  Half precision is computed in
    float32, because squares overflow.
    """
    if is_half(x):
        return rec.astype(_moment(widened(rec, x), axis, ddof, keepdims, root), dtype=x.dtype)
    missing = rec.isnan(x)
    centred = x - our("nanmean")(x, axis, keepdims=True)
    squares = rec.abs(rec.where(missing, 0, centred)) ** 2
    present = (~missing.numpy()).sum(axis, keepdims=keepdims)
    total = our("sum")(squares, axis, keepdims=keepdims)
    var = total / np.maximum(present - ddof, 0).astype(total.dtype)
    return rec.sqrt(var) if root else var


def _nanstd(
    a: Any, axis: Any = None, dtype: Any = None, *, ddof: float = 0, keepdims: bool = False
) -> Tensor:
    return _moment(asarray(a, dtype=dtype), axis, ddof, keepdims, root=True)


# Joining and choosing --------------------------------------------------------------------------


def _joined(name: str) -> Callable[..., Any]:
    """Return a function like ``ad.<name>``, which joins arrays, with ``dtype`` and ``casting`` added."""
    function = our(name)

    def join(arrays: Any, axis: Any = 0, *, dtype: Any = None, casting: Any = "same_kind") -> Tensor:
        options = {} if name in ("hstack", "vstack") else {"axis": axis}
        y: Tensor = function(arrays, **options)
        if dtype is None:
            return y
        if not np.can_cast(y.dtype, dtype, casting):
            raise ArgumentError(
                f"np.{name}: {y.dtype} cannot be cast to {np.dtype(dtype)} with casting={casting!r}."
            )
        return y.astype(dtype)

    return join


def _append(arr: Any, values: Any, axis: int | None = None) -> Tensor:
    if axis is None:
        return our("concat")([our("ravel")(arr), our("ravel")(values)])
    return our("concat")([arr, values], axis=axis)


def _block(arrays: Any) -> Tensor:
    """Join nested lists of arrays: the innermost lists along the last axis, the next along the one before."""

    def depth(value: Any) -> int:
        return 1 + depth(value[0]) if isinstance(value, list) else 0

    levels = depth(arrays)
    ndim = levels

    def widest(value: Any) -> int:
        return max(map(widest, value)) if isinstance(value, list) else asarray(value).ndim

    ndim = max(levels, widest(arrays))

    def join(value: Any, level: int) -> Tensor:
        if isinstance(value, list):
            return our("concat")([join(v, level - 1) for v in value], axis=-level)
        x = asarray(value)
        return rec.reshape(x, shape=(1,) * (ndim - x.ndim) + x.shape)

    return join(arrays, levels)


def _delete(arr: Any, obj: Any, axis: int | None = None) -> Tensor:
    x = our("ravel")(arr) if axis is None else asarray(arr)
    where = canonical_axis("delete", 0 if axis is None else axis, x.ndim)
    kept = np.delete(np.arange(x.shape[where]), _values(obj))
    return our("take")(x, kept, axis=where)


def _choose(a: Any, choices: Any, mode: str = "raise") -> Tensor:
    options = our("broadcast_arrays")(*choices)
    picks = array_of(a)
    shape = np.broadcast_shapes(picks.shape, options[0].shape)
    stacked = our("stack")([rec.broadcast_to(o, shape=shape) for o in options])
    if picks.dtype.kind in "iu":
        picks = as_index(raw, picks)
    index = np.broadcast_to(picks, shape)
    if mode == "clip":
        index = np.clip(index, 0, len(options) - 1)
    elif mode == "wrap":
        index = index % len(options)
    return our("take_along_axis")(stacked, index[None], axis=0)[0]


def _resize(a: Any, new_shape: Any) -> Tensor:
    x = our("ravel")(a)
    index = np.resize(np.arange(x.size), new_shape)
    return x[index] if x.size else our("zeros")(index.shape, dtype=x.dtype)


def _partition(a: Any, kth: Any, axis: int | None = -1) -> Tensor:
    x = our("ravel")(a) if axis is None else asarray(a)
    where = -1 if axis is None else axis
    return our("take_along_axis")(x, np.argpartition(x.numpy(), kth, where), axis=where)


def _ix_(*args: Any) -> tuple[Tensor, ...]:
    found = []
    for i, given in enumerate(args):
        x = asarray(given)
        if x.ndim != 1:
            raise ShapeError(f"np.ix_: each argument must be a vector, but argument {i} has shape {x.shape}.")
        x = our("nonzero")(x)[0] if x.dtype.kind == "b" else x
        found.append(rec.reshape(x, shape=tuple(x.shape[0] if k == i else 1 for k in range(len(args)))))
    return tuple(found)


def _roll(a: Any, shift: Any, axis: Any = None) -> Tensor:
    shifts = [int(s) for s in np.ravel(_values(shift))]  # NumPy rounds floats towards zero
    return our("roll")(a, shifts[0] if len(shifts) == 1 else shifts, _values(listed(axis)))


def _triangle(name: str) -> Callable[..., Any]:
    """Return a version of ``ad.tril`` or ``ad.triu`` that repeats a vector in all rows, as NumPy does."""

    def part(m: Any, k: int = 0) -> Tensor:
        x = asarray(m)
        x = rec.broadcast_to(x, shape=(x.shape[0], x.shape[0])) if x.ndim == 1 else x
        return our(name)(x, k)

    return part


def _frequencies(name: str) -> Callable[..., Any]:
    """Return a version of ``fftfreq`` or ``rfftfreq`` whose distance ``d`` may be an array."""
    of_one = getattr(np.fft, name)
    return lambda n, d=1.0, device=None: asarray(of_one(n)) / d


def _matrix_rank(A: Any, tol: Any = None, hermitian: bool = False, *, rtol: Any = None) -> Any:
    x = asarray(A)
    if x.ndim < 2:  # a vector has rank 0 or 1
        return rec.astype(our("any")(x != 0), dtype=np.dtype(np.int64))
    return our_rank(x, tol, hermitian, rtol=rtol)


our_rank: Callable[..., Any] = ops.NAMESPACES["linalg"].matrix_rank


def _rollaxis(a: Any, axis: int, start: int = 0) -> Tensor:
    x = asarray(a)
    order = np.rollaxis(np.empty((1,) * x.ndim), axis, start)  # raises for an axis out of range
    axis, start = axis % order.ndim, start + order.ndim if start < 0 else start
    return our("moveaxis")(x, axis, start - 1 if axis < start else start)


# Differences, sums of products and curves ------------------------------------------------------


def _ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Tensor:
    steps = our("diff")(our("ravel")(ary))
    ends = [None if end is None else our("ravel")(end) for end in (to_begin, to_end)]
    if differentiable(steps.dtype):  # the ends get the dtype of the tensor, as in NumPy
        ends = [None if end is None else narrowed(end, steps.dtype) for end in ends]
    return our("concat")([part for part in (ends[0], steps, ends[1]) if part is not None])


def _trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Tensor:
    y = our("moveaxis")(y, axis, -1)
    if x is not None:
        x = asarray(x)
        dx = our("diff")(x if x.ndim == 1 else our("moveaxis")(x, axis, -1), axis=-1)
    return our("sum")((y[..., 1:] + y[..., :-1]) * dx / 2.0, axis=-1)


def _gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    f = asarray(f)
    f = f if differentiable(f.dtype) else rec.astype(f, dtype=np.dtype(float))
    several = range(f.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    axes = [canonical_axis("gradient", a, f.ndim) for a in several]
    spacing = list(varargs) if varargs else [1.0]
    if len(spacing) == 1:
        spacing *= len(axes)
    if len(spacing) != len(axes):
        raise ArgumentError(
            f"np.gradient: there must be one spacing, or one per axis, but there are {len(spacing)} spacings "
            f"for {words.count(len(axes), 'axis', 'axes')}."
        )
    if edge_order not in (1, 2):
        raise ArgumentError(f"np.gradient: edge_order must be 1 or 2, not {edge_order!r}.")
    parts = [_slope(f, h, a, edge_order) for h, a in zip(spacing, axes, strict=True)]
    return parts[0] if len(parts) == 1 else tuple(parts)


def _slope(f: Tensor, h: Any, axis: int, edge_order: int) -> Tensor:
    """Return the derivative along one axis: central differences inside, one-sided differences at the edges.

    ``h`` is the distance between samples, or an array of their coordinates.  ``edge_order``, 1 or 2, is the
    order of the one-sided differences.
    """
    f = our("moveaxis")(f, axis, -1)
    n = f.shape[-1]
    if n < edge_order + 1:
        raise ShapeError(f"np.gradient: an axis of length {n} is too short for edge_order={edge_order}.")
    h = weak_tensor(h, f.dtype)
    steps = rec.broadcast_to(h, shape=(n - 1,)) if h.ndim == 0 else our("diff")(h)
    if steps.shape != (n - 1,):
        raise ShapeError(
            f"np.gradient: there must be {n} coordinates, one per element of the axis, but got {h.shape[0]}."
        )
    rise = our("diff")(f) / steps  # the slope of each step
    left, right = steps[:-1], steps[1:]
    inside = (right * rise[..., :-1] + left * rise[..., 1:]) / (left + right)
    first, last = rise[..., :1], rise[..., -1:]
    if edge_order == 2:
        # extrapolate the slope in the middle of the first step to its end
        first = first - (rise[..., 1:2] - first) * steps[:1] / (steps[:1] + steps[1:2])
        last = last + (last - rise[..., -2:-1]) * steps[-1:] / (steps[-1:] + steps[-2:-1])
    return our("moveaxis")(our("concat")([first, inside, last], axis=-1), -1, axis)


def _interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None) -> Tensor:
    x, xp, fp = asarray(x), asarray(xp), asarray(fp)
    i = our("clip")(our("searchsorted")(xp, x, side="right") - 1, 0, max(xp.size - 2, 0))
    j = our("minimum")(i + 1, xp.size - 1)
    width = xp[j] - xp[i] if xp.size > 1 else np.ones(x.shape)
    inside = fp[i] + (fp[j] - fp[i]) * ((x - xp[i]) / width)
    below = fp[0] if left is None else left
    above = fp[-1] if right is None else right
    return rec.where(x < xp[0], below, rec.where(x > xp[-1], above, inside))


def _convolve(a: Any, v: Any, mode: str = "full") -> Tensor:
    a, v = (our("atleast_1d")(t) for t in (a, v))
    if a.ndim > 1 or v.ndim > 1 or not a.size or not v.size:
        raise ShapeError(
            f"np.convolve: the arguments must be non-empty vectors, but have shapes {a.shape} and {v.shape}."
        )
    if v.size > a.size:
        a, v = v, a
    n, k = a.size, v.size
    if mode not in ("full", "same", "valid"):
        raise ArgumentError(f"np.convolve: mode must be 'full', 'same' or 'valid', not {mode!r}.")
    start, stop = {"full": (0, n + k - 1), "same": ((k - 1) // 2, (k - 1) // 2 + n), "valid": (k - 1, n)}[
        mode
    ]
    padded = our("pad")(a, k - 1)
    windows = our("sliding_window_view")(padded, k)[start:stop]
    return windows @ v[::-1]


def _correlate(a: Any, v: Any, mode: str = "valid") -> Tensor:
    a, v = (our("atleast_1d")(t) for t in (a, v))
    if v.size > a.size:  # like NumPy, exchange a and v and reverse the result
        return rec.conj(_correlate(v, a, mode))[::-1]
    return _convolve(a, rec.conj(v[::-1]), mode)


def _cov(
    m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: int | None = None,
    fweights: Any = None, aweights: Any = None,
) -> Tensor:  # fmt: skip
    if fweights is not None or aweights is not None:
        raise InputError("np.cov: adjoint does not support weights.  Compute a weighted average of products.")
    x = our("atleast_2d")(m)
    if not rowvar and asarray(m).ndim != 1:
        x = our("matrix_transpose")(x)
    if y is not None:
        other = our("atleast_2d")(y)
        x = our("concat")(
            [x, our("matrix_transpose")(other) if not rowvar and asarray(y).ndim != 1 else other]
        )
    dtype = x.dtype
    x = widened(rec, x)
    x = x - our("mean")(x, axis=-1, keepdims=True)
    lost = (0 if bias else 1) if ddof is None else ddof
    products = x @ rec.conj(our("matrix_transpose")(x)) / float(max(x.shape[-1] - lost, 0))
    return narrowed(our("squeeze")(products), dtype if differentiable(dtype) else None)


def _corrcoef(x: Any, y: Any = None, rowvar: bool = True) -> Tensor:
    c = _cov(x, y, rowvar)
    if c.ndim == 0:
        return c / c
    spread = rec.sqrt(rec.real(our("diagonal")(c)))
    return c / spread[:, None] / spread[None, :]


def _bincount(x: Any, weights: Any = None, minlength: int = 0) -> Tensor:
    index = array_of(x)
    counts = np.bincount(index, minlength=minlength)
    if weights is None:
        return asarray(counts)
    weights = asarray(weights)
    return our("zeros")(counts.size, dtype=np.result_type(weights.dtype, np.float64)).at[index].add(weights)


def _polyval(p: Any, x: Any) -> Tensor:
    p, x = asarray(p), asarray(x)
    total = our("zeros_like")(x)
    for i in range(p.shape[0]):
        total = total * x + p[i]
    return total


def _vander(x: Any, N: int | None = None, increasing: bool = False) -> Tensor:
    x = asarray(x)
    n = x.shape[0] if N is None else N
    powers = np.arange(n)
    return x[:, None] ** (powers if increasing else powers[::-1]).astype(x.dtype)


def _unwrap(p: Any, discont: float | None = None, axis: int = -1, *, period: float = 2 * np.pi) -> Tensor:
    p = asarray(p)
    x = widened(rec, p)
    jumps = our("diff")(x.detach(), axis=axis)
    dtype = np.result_type(jumps.dtype, period)
    whole = dtype.kind in "iu"
    half = period // 2 if whole else period / 2
    wrapped = our("remainder")(jumps + half, period) - half
    if not whole or period % 2 == 0:  # a jump by half a period keeps its sign
        wrapped = our("where")((wrapped == -half) & (jumps > 0), half, wrapped)
    small = abs(jumps) < (period / 2 if discont is None else discont)
    # multiples of the period are added; they are constants, so they have no gradient
    added = our("cumsum")(our("where")(small, 0, wrapped - jumps), axis=axis)
    before = [(int(i == axis % x.ndim), 0) for i in range(x.ndim)]
    return narrowed(x + our("pad")(added.astype(dtype), before), p.dtype if is_half(p) else None)


# Functions that adjoint has with different parameters --------------------------------------------


def _cross(
    a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> Tensor:
    if axis is not None:
        axisa = axisb = axisc = axis
    out = our("cross")(our("moveaxis")(a, axisa, -1), our("moveaxis")(b, axisb, -1))
    return our("moveaxis")(out, -1, axisc) if out.ndim else out


def _shaped(name: str) -> Callable[..., Any]:
    """Return a version of ``zeros`` or ``empty`` with a signature; NumPy's have none before version 2.4."""
    return lambda shape, dtype=None, *, device=None: our(name)(shape, dtype=dtype, device=device)


def _like(name: str) -> Callable[..., Any]:
    """Return a version of ``zeros_like`` or a similar function that has NumPy's parameter ``shape``."""

    def make(a: Any, dtype: Any = None, *, shape: Any = None, device: Any = None) -> Tensor:
        x = asarray(a)
        return our(name)(x.shape if shape is None else shape, dtype=dtype or x.dtype, device=device)

    return make


def _full_like(
    a: Any, fill_value: Any, dtype: Any = None, *, shape: Any = None, device: Any = None
) -> Tensor:
    x = asarray(a)
    return our("full")(x.shape if shape is None else shape, fill_value, dtype=dtype or x.dtype, device=device)


def _broadcast_arrays(*args: Any, subok: bool = False) -> list[Any]:
    """Leave None, texts and objects arrays, as in calls of plotting libraries."""
    xs = [np.asarray(x) if x is None or isinstance(x, str) else x for x in args]
    xs = [x if isinstance(x, np.ndarray) and x.dtype.kind not in "biufcV" else asarray(x) for x in xs]
    if all(isinstance(x, Tensor) for x in xs):
        return list(our("broadcast_arrays")(*xs))
    shape = np.broadcast_shapes(*(x.shape for x in xs))
    return [our("broadcast_to")(x, shape) if isinstance(x, Tensor) else np.broadcast_to(x, shape) for x in xs]


def _diagflat(v: Any, k: int = 0) -> Tensor:
    return our("diag")(our("ravel")(v), k)


def _nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    if not copy and isinstance(x, (Tensor, np.ndarray)):
        write("np.nan_to_num", np.nan_to_num, [x], (x, False, nan, posinf, neginf), {})
        return x
    x = asarray(x)
    chosen = {"nan": (rec.isnan(x), nan), "posinf": (x == np.inf, posinf), "neginf": (x == -np.inf, neginf)}
    plain = {}
    for name, (where, value) in chosen.items():
        if isinstance(value, Tensor) and varies(value):
            x = rec.where(where, value, x)
        else:
            plain[name] = value
    return our("nan_to_num")(x, **plain)


def _can_cast(from_: Any, to: Any, casting: Any = "safe") -> bool:
    return np.can_cast(from_.dtype if isinstance(from_, Tensor) else from_, to, casting)


def _size(a: Any, axis: int | None = None) -> int:
    return asarray(a).size if axis is None else asarray(a).shape[axis]


FORMS: dict[Any, Callable[..., Any]] = {
    **{
        getattr(np, f.__name__[1:]): f
        for f in (
            _size, _mean, _nanvar, _nanstd, _append, _block, _delete, _choose, _resize, _partition,
            _rollaxis, _ediff1d, _trapezoid, _gradient, _interp, _convolve, _correlate, _cov, _corrcoef,
            _bincount, _polyval, _vander, _unwrap, _cross, _full_like, _diagflat, _nan_to_num, _can_cast,
            _roll, _ix_, _broadcast_arrays,
        )
    },
    # these read only the shape and dtype, so they work inside transforms
    np.shape: lambda a: asarray(a).shape,
    np.ndim: lambda a: asarray(a).ndim,
    np.iscomplexobj: lambda x: asarray(x).dtype.kind == "c",
    np.isrealobj: lambda x: asarray(x).dtype.kind != "c",
    **{getattr(np, name): _reduction(name) for name in "sum prod max min any all nansum nanprod".split()},
    np.tril: _triangle("tril"),
    np.triu: _triangle("triu"),
    np.fft.fftfreq: _frequencies("fftfreq"),
    np.fft.rfftfreq: _frequencies("rfftfreq"),
    np.linalg.matrix_rank: _matrix_rank,
    np.nancumsum: _without_nan("cumsum", 0),
    np.nancumprod: _without_nan("cumprod", 1),
    np.concatenate: _joined("concat"),
    np.stack: _joined("stack"),
    np.hstack: _joined("hstack"),
    np.vstack: _joined("vstack"),
    np.zeros: _shaped("zeros"),
    np.empty: _shaped("empty"),
    np.zeros_like: _like("zeros"),
    np.ones_like: _like("ones"),
    np.empty_like: _like("empty"),
}  # fmt: skip
