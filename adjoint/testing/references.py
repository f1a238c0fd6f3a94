"""Reference implementations of the ops: plain, slow formulas that share no code with the ops.

``reference(op)`` returns a function of arrays and parameters; the tests over the op table compare the op with
it, for every case.  ``UNCHECKED`` lists the ops that a check leaves out, with the reasons.
``adjoint ops --markdown`` prints the kind of reference and the exceptions of each op.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from adjoint.core.op import Op
from adjoint.testing.special_references import SCIPY, SPECIAL

__all__ = ["TABLES", "UNCHECKED", "reference", "source", "unchecked"]

# For each check of the tests over the op table: the ops that it leaves out, and the reasons.
UNCHECKED: dict[str, dict[str, str]] = {
    "values": {},
    "numpy": {},
    "variants": {},
    "first": {},
    "second": {},
    "minimal": {},
    "complex": {
        "eigh": "complex vectors have an arbitrary phase; test_oracle_linalg compares what does not vary",
        "svd": "as eigh",
        "eig": "complex vectors have an arbitrary sign; test_scipy_linalg compares what does not vary",
    },
    "zero": {},
}  # fmt: skip


def unchecked(op: str, check: str) -> str:
    """Return the reason why the tests leave out a check for an op, or "" if the op is checked."""
    return UNCHECKED[check].get(op, "")


def source(op: Op) -> str:
    """Return the kind of reference for an op: "NumPy", "SciPy", "formula", or "" if there is none."""
    if callable(op.reference) or op.reference == "formula":
        return "formula"
    if op.reference:
        return "SciPy" if op.reference.startswith("scipy") else "NumPy"
    return "NumPy" if callable(getattr(np, op.name, None)) else ""


def reference(op: Op) -> Callable[..., Any] | None:
    """Return the function that the tests compare an op with, or None if its library is not installed.

    ``reference=`` in the definition of the op is the function itself, "module:name", or the name of a table
    of functions in ``TABLES``, such as "numpy" or "formula".  The default is NumPy's function of the same
    name.
    """
    if callable(op.reference):
        return op.reference
    if op.reference == "scipy" and importlib.util.find_spec("scipy") is None:
        return None
    if op.reference in TABLES:
        return TABLES[op.reference][op.name]
    module, _, name = (op.reference or f"numpy:{op.name}").partition(":")
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except ImportError:
        return None
    # in SciPy, the order n is the first argument
    return (lambda x, n: function(n, x)) if module == "scipy.special" and op.params else function


# NumPy's functions whose parameters differ from those of the op ------------------------------------

NUMPY: dict[str, Callable[..., Any]] = {
    "pad": lambda x, widths, value: np.pad(x, widths, constant_values=value),
    "windows": lambda x, size, axis: np.lib.stride_tricks.sliding_window_view(x, size, axis),
    "astype": lambda x, dtype: np.asarray(x).astype(dtype),
    "fftn": lambda x, n, axes, norm, inverse: (np.fft.ifftn if inverse else np.fft.fftn)(x, n, axes, norm),
    "rfftn": lambda x, n, axes, norm: np.fft.rfftn(x, n, axes, norm),
    "irfftn": lambda x, n, axes, norm: np.fft.irfftn(x, n, axes, norm),
    "index": lambda x, key: x[key],
    "concat": lambda *xs, axis: np.concatenate(xs, axis),
    "stack": lambda *xs, axis: np.stack(xs, axis),
    "split": lambda x, cuts, axis: np.split(x, [b for _, b in cuts[:-1]], axis),
    "eigh": lambda A, lower: list(np.linalg.eigh(A, "L" if lower else "U")),
    "eig": lambda A: [v.astype(complex) for v in np.linalg.eig(A)],
    "eigvalsh": lambda A, lower: np.linalg.eigvalsh(A, "L" if lower else "U"),
    "is_hermitian": lambda A: np.isclose(A, A.swapaxes(-1, -2).conj()).all(axis=(-2, -1), keepdims=True),
    "mirror": lambda A: np.tril(A) + np.tril(A, -1).swapaxes(-1, -2).conj(),
    "inv_or_nan": lambda A: np.linalg.inv(A),
    "lstsq": lambda A, B, rtol: np.linalg.pinv(A, rtol) @ B,
    "off_range": lambda A, B, rtol: B - A @ (np.linalg.pinv(A, rtol) @ B),
    "truncated": lambda A, rtol: np.linalg.pinv(np.linalg.pinv(A, rtol)),
    "take": lambda x, i, axis, sparse_grad=False: np.take(x, i, axis),
    "binary_exponent": lambda x: np.frexp(x)[1],
    "fraction": lambda x: np.modf(x)[0],
}  # fmt: skip


# Formulas ---------------------------------------------------------------------------------------


def _undiagonal(x: Any, offset: int, shape: Any) -> Any:
    out = np.zeros((*x.shape[:-1], *shape), x.dtype)
    for k in range(x.shape[-1]):
        out[..., k - min(offset, 0), k + max(offset, 0)] = x[..., k]
    return out


def _overlap_add(x: Any, axis: int, length: int) -> Any:
    x = np.moveaxis(x, axis - 1, 0)  # axis - 1, because x has one more axis at the end: the window
    out = np.zeros((length, *x.shape[1:-1]), x.dtype)
    for start, offset in np.ndindex(x.shape[0], x.shape[-1]):
        out[start + offset] += x[start, ..., offset]
    return np.moveaxis(out, 0, axis)


def _products(operands: Any, labels: Any, output: str, extra: Any) -> Any:
    """Return an Einstein sum, computed by a loop over all combinations of the indices.

    ``labels`` has a string for each operand, with one character per axis; ``output`` is that of the result.
    ``extra`` has the lengths of labels that no operand has.
    """
    sizes = dict(extra)
    for x, names in zip(operands, labels, strict=True):
        sizes |= dict(zip(names, x.shape, strict=True))
    out = np.zeros([sizes[n] for n in output], np.result_type(*operands))
    for values in itertools.product(*map(range, sizes.values())):
        at = dict(zip(sizes, values, strict=True))
        terms = (x[tuple(at[n] for n in names)] for x, names in zip(operands, labels, strict=True))
        out[tuple(at[n] for n in output)] += np.prod(list(terms))
    return out


def _windows(
    size: Any, kernel: Any, stride: Any, padding: Any, dilation: Any
) -> Iterator[tuple[Any, list[tuple[Any, Any]]]]:
    """Yield, for each window, its index in the output and a list of pairs (kernel index, input index).

    Elements of a window in the padding are left out.
    """
    full = [s + a + b for s, (a, b) in zip(size, padding, strict=True)]
    spans = zip(full, kernel, stride, dilation, strict=True)
    places = [(n - (k - 1) * d - 1) // s + 1 for n, k, s, d in spans]
    for at in np.ndindex(*places):
        seen = []
        for k in np.ndindex(*kernel):
            steps = zip(at, k, stride, dilation, padding, strict=True)
            where = tuple(p * s + j * d - left for p, j, s, d, (left, _) in steps)
            if all(0 <= i < n for i, n in zip(where, size, strict=True)):
                seen.append((k, where))
        yield at, seen


def _conv_terms(size: Any, weight: Any, channels: Any, groups: int, p: dict[str, Any]) -> Iterator[Any]:
    """Yield the indices of output, input and weight for each product that a convolution adds up.

    ``weight`` is the shape of the kernel, ``channels`` is the pair (output channels, input channels per
    group), and ``p`` has the stride, padding and dilation.
    """
    out, inner = channels
    for at, seen in _windows(size, weight, **p):
        for (k, where), o, c in itertools.product(seen, range(out), range(inner)):
            yield (slice(None), o, *at), (slice(None), o // (out // groups) * inner + c, *where), (o, c, *k)


def _conv(x: Any, w: Any, groups: int, **p: Any) -> Any:
    terms = list(_conv_terms(x.shape[2:], w.shape[2:], w.shape[:2], groups, p))
    last = [max(a[i] for a, _, _ in terms) + 1 for i in range(2, x.ndim)] if terms else [0] * (x.ndim - 2)
    out = np.zeros((x.shape[0], w.shape[0], *last), x.dtype)
    for a, b, k in terms:
        out[a] += x[b] * w[k]
    return out


def _conv_input(g: Any, w: Any, size: Any, groups: int, **p: Any) -> Any:
    out = np.zeros((g.shape[0], w.shape[1] * groups, *size), g.dtype)
    for a, b, k in _conv_terms(size, w.shape[2:], w.shape[:2], groups, p):
        out[b] += g[a] * w[k]
    return out


def _conv_weight(x: Any, g: Any, kernel: Any, groups: int, **p: Any) -> Any:
    out = np.zeros((g.shape[1], x.shape[1] // groups, *kernel), g.dtype)
    for a, b, k in _conv_terms(x.shape[2:], kernel, out.shape[:2], groups, p):
        out[k] += (x[b] * g[a]).sum()
    return out


def _pool(x: Any, combine: Callable[..., Any], kernel: Any, **p: Any) -> Any:
    size = x.shape[x.ndim - len(kernel) :]
    found = {
        at: combine(at, [(..., *where) for _, where in seen]) for at, seen in _windows(size, kernel, **p)
    }
    shape = [max(at[i] for at in found) + 1 for i in range(len(kernel))]
    stacked = np.stack(list(found.values()), -1)
    return stacked.reshape(*stacked.shape[:-1], *shape)


def _window_spread(g: Any, size: Any, kernel: Any, **p: Any) -> Any:
    out = np.zeros((*g.shape[: g.ndim - len(kernel)], *size), g.dtype)
    for at, seen in _windows(size, kernel, **p):
        for _, where in seen:
            out[(..., *where)] += g[(..., *at)]
    return out


def _max_spread(g: Any, x: Any, y: Any, kernel: Any, **p: Any) -> Any:
    out = np.zeros_like(x)
    for at, seen in _windows(x.shape[x.ndim - len(kernel) :], kernel, **p):
        ties = [x[(..., *where)] == y[(..., *at)] for _, where in seen]
        for (_, where), tie in zip(seen, ties, strict=True):
            out[(..., *where)] += g[(..., *at)] * tie / np.sum(ties, 0)
    return out


def _max_gather(h: Any, x: Any, y: Any, **p: Any) -> Any:
    def mean(at: Any, seen: Any) -> Any:
        ties = [x[where] == y[(..., *at)] for where in seen]
        return sum(h[where] * tie for where, tie in zip(seen, ties, strict=True)) / np.sum(ties, 0)

    return _pool(x, mean, **p)


def _unindex(x: Any, key: Any, shape: Any) -> Any:
    out = np.zeros(shape, x.dtype)
    np.add.at(out, key, x)
    return out


def _index_set(x: Any, v: Any, key: Any) -> Any:
    out = np.array(x)
    out[key] = v
    return out


def _untake(x: Any, i: Any, axis: int, length: int) -> Any:
    ndim = x.ndim - i.ndim + 1
    first = ndim + axis
    rows = np.moveaxis(x, range(first, first + i.ndim), range(i.ndim))
    out = np.zeros((length, *rows.shape[i.ndim :]), x.dtype)
    for at in np.ndindex(*i.shape):
        out[i[at]] += rows[at]
    return np.moveaxis(out, 0, axis)


def _untake_along_axis(x: Any, i: Any, axis: int, length: int) -> Any:
    x, i = np.moveaxis(x, axis, 0), np.moveaxis(i, axis, 0)
    out = np.zeros((length, *x.shape[1:]), x.dtype)
    for at in np.ndindex(*x.shape):
        out[(i[at], *at[1:])] += x[at]
    return np.moveaxis(out, 0, axis)


def _put_along_axis(x: Any, i: Any, v: Any, axis: int) -> Any:
    out = np.array(x)
    np.put_along_axis(out, i, v, axis)
    return out


def _order(x: Any, axis: int, descending: bool, stable: bool) -> Any:
    return np.argsort(-x if descending else x, axis, kind="stable")


def _cofactor(A: Any) -> Any:
    out = np.empty_like(A)
    n = A.shape[-1]
    for i, j in np.ndindex(n, n):
        minor = np.delete(np.delete(A, i, -2), j, -1)
        out[..., i, j] = (-1) ** (i + j) * np.linalg.det(minor)
    return out


def _solve_triangular(A: Any, B: Any, lower: bool, unit: bool) -> Any:
    T = np.tril(A) if lower else np.triu(A)
    if unit:
        eye = np.eye(A.shape[-1])
        T = T * (1 - eye) + eye
    return np.linalg.solve(T, B)


def _softmax(x: Any, axis: int) -> Any:
    return np.exp(x) / np.exp(x).sum(axis, keepdims=True)


def _nll(x: Any, t: Any) -> Any:
    return -np.log(np.take_along_axis(_softmax(x, -1), np.asarray(t)[..., None], -1))[..., 0]


def _standardize(x: Any, axis: Any, eps: float) -> list[Any]:
    mean, var = x.mean(axis, keepdims=True), x.var(axis, keepdims=True)
    return [(x - mean) / np.sqrt(var + eps), mean, var]


def _rms_standardize(x: Any, axis: Any, eps: float) -> list[Any]:
    square = (x * x).mean(axis, keepdims=True)
    return [x / np.sqrt(square + eps), square]


def _lstm_cell(gates: Any, c: Any) -> list[Any]:
    i, f, u, o = np.split(gates, 4, -1)
    i, f, o = (1 / (1 + np.exp(-z)) for z in (i, f, o))
    new = f * c + i * np.tanh(u)
    return [o * np.tanh(new), new]


def _lstm_sequence(p: Any, w: Any, b: Any, h: Any, c: Any) -> list[Any]:
    hidden, parts = [], []
    for row in p:
        i, f, u, o = np.split(row + h @ w.T + b, 4, -1)
        i, f, o = (1 / (1 + np.exp(-z)) for z in (i, f, o))
        before, c = c, f * c + i * np.tanh(u)
        h = o * np.tanh(c)
        hidden.append(h)
        parts.append([o, i, f, np.tanh(u), before, np.tanh(c)])
    return [np.array(hidden), c, np.array(parts)]


def _lstm_slopes(parts: Any) -> Any:
    o, i, f, u, c, t = np.moveaxis(parts, 1, 0)
    following = np.concatenate([f[1:], 0 * f[:1]])
    k = [o * (1 - o) * t, i * (1 - i) * u, f * (1 - f) * c, i * (1 - u**2), o * (1 - t**2), following]
    return np.stack(k, 1)


def _at(a: Any, t: int) -> Any:
    return a[t] if np.ndim(a) else 0


def _lstm_push(x: Any, y: Any, k: Any, w: Any) -> list[Any]:
    h = c = f = np.zeros_like(k[0, 0])
    found = []
    for t in range(len(k)):
        a = _at(x, t) + h @ w.T
        i, g, u, o = np.split(a, 4, -1)
        c = _at(y, t) + f * c + k[t, 1] * i + k[t, 2] * g + k[t, 3] * u
        h = k[t, 0] * o + k[t, 4] * c
        f = k[t, 5]
        found.append((h, c, a))
    return [np.array(each) for each in zip(*found, strict=True)]


def _lstm_pull(gh: Any, gc: Any, ga: Any, k: Any, w: Any) -> list[Any]:
    d, b, found = np.zeros((k.shape[2], w.shape[0])), np.zeros_like(k[0, 0]), []
    for t in reversed(range(len(k))):
        e = _at(gh, t) + d @ w
        b = _at(gc, t) + k[t, 4] * e + k[t, 5] * b
        d = _at(ga, t) + np.concatenate([k[t, 1] * b, k[t, 2] * b, k[t, 3] * b, k[t, 0] * e], -1)
        found.append((d, b))
    return [np.array(each[::-1]) for each in zip(*found, strict=True)]


def _gru_sequence(p: Any, w: Any, b: Any, h: Any) -> list[Any]:
    hidden, parts = [], []
    for row in p:
        r, z, m = np.split(h @ w.T + b, 3, -1)
        pr, pz, pn = np.split(row, 3, -1)
        r, z = 1 / (1 + np.exp(-r - pr)), 1 / (1 + np.exp(-z - pz))
        n = np.tanh(pn + r * m)
        h = (1 - z) * n + z * h
        hidden.append(h)
        parts.append([r, z, n, m])
    return [np.array(hidden), np.array(parts)]


def _gru_push(x: Any, y: Any, k: Any, w: Any) -> list[Any]:
    h, found = np.zeros_like(k[0, 0]), []
    for t in range(len(k)):
        a = _at(x, t) + h @ w.T
        r, z, m = np.split(a, 3, -1)
        h = _at(y, t) + k[t, 3] * h + k[t, 0] * r + k[t, 1] * z + k[t, 2] * m
        found.append((h, a))
    return [np.array(each) for each in zip(*found, strict=True)]


def _gru_pull(gh: Any, ga: Any, k: Any, w: Any) -> list[Any]:
    d, kept, found = np.zeros((k.shape[2], w.shape[0])), np.zeros_like(k[0, 0]), []
    for t in reversed(range(len(k))):
        e = _at(gh, t) + kept + d @ w
        d = _at(ga, t) + np.concatenate([k[t, j] * e for j in range(3)], -1)
        kept = k[t, 3] * e
        found.append((d, e))
    return [np.array(each[::-1]) for each in zip(*found, strict=True)]


def _layer_norm(x: Any, w: Any, b: Any, eps: float) -> Any:
    return _standardize(x, -1, eps)[0] * w + b


def _attention(q: Any, k: Any, v: Any, m: Any, scale: float, causal: bool) -> list[Any]:
    s = q @ np.swapaxes(k, -1, -2) * scale
    s = np.where(m, s, -np.inf) if np.asarray(m).dtype == bool else s + m
    if causal:
        s = np.where(np.tri(s.shape[-2], s.shape[-1], dtype=bool), s, -np.inf)
    total = np.exp(s).sum(-1, keepdims=True)
    weights = np.exp(s) / total
    return [weights if v is None else weights @ v, np.log(total)]


def _tanh_gelu(x: Any) -> list[Any]:
    gate = (1 + np.tanh(_ROOT * (x + 0.044715 * x**3))) / 2
    return [x * gate, gate]


def _tanh_gelu_slope(x: Any, y: Any, gate: Any) -> Any:
    return x * (gate + y * gate * (1 - gate) * 2 * _ROOT * (1 + 3 * 0.044715 * y * y))


_ROOT = np.sqrt(2 / np.pi)


def _by_eigenvalues(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of square matrices that applies ``function`` to their eigenvalues."""

    def apply(x: Any) -> Any:
        w, v = np.linalg.eig(x.astype(complex))
        y = (v * function(w)[..., None, :]) @ np.linalg.inv(v)
        return y if x.dtype.kind == "c" else y.real

    return apply


def _sylvester(x: Any, y: Any, q: Any) -> Any:
    m, n = q.shape[-2:]
    return np.linalg.solve(np.kron(x, np.eye(n)) + np.kron(np.eye(m), y.T), q.reshape(-1)).reshape(m, n)


def _lu(x: Any) -> list[Any]:
    if x.ndim > 2:
        return [np.stack(parts) for parts in zip(*map(_lu, x), strict=True)]
    n = len(x)
    rows, u = np.arange(n), x.copy()
    lower = np.zeros_like(x)
    for k in range(n):
        best = k + int(np.argmax(np.abs(u[k:, k])))
        for a in (rows, u, lower):
            a[[k, best]] = a[[best, k]]
        lower[k + 1 :, k] = u[k + 1 :, k] / u[k, k]
        u[k + 1 :] -= np.outer(lower[k + 1 :, k], u[k])
    return [np.eye(n)[rows].T, lower + np.eye(n), u]


def _lu_rows(A: Any) -> Any:
    if A.ndim > 2:
        return np.stack([_lu_rows(a) for a in A])
    rows, left = list(range(len(A))), A.copy()
    for k in range(min(A.shape)):
        best = k + int(np.argmax(abs(left[k:, k])))
        rows[k], rows[best] = rows[best], rows[k]
        left[[k, best]] = left[[best, k]]
        left[k + 1 :] -= np.outer(left[k + 1 :, k] / left[k, k], left[k])
    return np.eye(len(A))[rows].T


def _argcummax(x: Any, axis: int, largest: bool) -> Any:
    out = np.zeros(x.shape, np.intp)
    for at in np.ndindex(x.shape):
        line = list(np.moveaxis(x, axis, 0)[(slice(at[axis] + 1), *np.delete(at, axis))])
        best = max(line) if largest else min(line)
        out[at] = max(i for i, value in enumerate(line) if value == best)
    return out


def _scatter_extreme(x: Any, index: Any, v: Any, axis: int, largest: bool) -> Any:
    out = x.copy()
    for at in np.ndindex(v.shape):
        to = list(at)
        to[axis] = index[at]
        out[tuple(to)] = (max if largest else min)(out[tuple(to)], v[at])
    return out


FORMULAS: dict[str, Callable[..., Any]] = {
    **{
        f.__name__[1:]: f
        for f in (
            _lu, _lu_rows, _argcummax, _scatter_extreme, _tanh_gelu, _tanh_gelu_slope, _undiagonal,
            _overlap_add, _conv, _conv_input, _conv_weight, _window_spread, _max_spread, _max_gather,
            _softmax, _layer_norm, _attention, _standardize, _rms_standardize, _lstm_cell, _lstm_sequence,
            _lstm_slopes, _lstm_push, _lstm_pull, _gru_sequence, _gru_push, _gru_pull, _unindex, _index_set,
            _untake, _untake_along_axis, _put_along_axis, _cofactor, _solve_triangular,
        )
    },
    "expm": _by_eigenvalues(np.exp),
    "logm": _by_eigenvalues(np.log),
    "sqrtm": _by_eigenvalues(np.sqrt),
    "solve_sylvester": _sylvester,
    "logcumsumexp": lambda x, axis: np.log(np.cumsum(np.exp(x), axis)),
    **SPECIAL,
    "leaky_relu": lambda x, slope: np.where(x > 0, x, slope * x),
    "hardtanh": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "elu": lambda x, alpha, scale: scale * np.where(x > 0, x, alpha * (np.exp(x) - 1)),
    "relu": lambda x: np.where(x > 0, x, 0),
    "softplus": lambda x: np.log(1 + np.exp(x)),
    "mish_gate": lambda x: np.tanh(np.log(1 + np.exp(x))),
    "huber": lambda x, delta: np.where(abs(x) <= delta, x * x / 2, delta * (abs(x) - delta / 2)),
    "bce_logits": lambda x, t: np.log(1 + np.exp(x)) - t * x,
    "bce": lambda p, t: -t * np.log(p) - (1 - t) * np.log(1 - p),
    "gap_product": lambda x, low, high: -x * x + (low + high) * x - low * high,
    "atan_slope": lambda x: np.cos(np.arctan(x)) ** 2,
    "cosine": lambda x, y: np.cos(np.arctan2(y, x)),
    "sech_squared": lambda x, y: x / np.cosh(y) ** 2,
    "logistic_slope": lambda x, y: 0.25 * x / np.cosh(y / 2) ** 2,
    "shares": lambda x, axis: np.exp(x) / np.exp(x).sum(axis, keepdims=True),
    "einsum": lambda x, y, left, right, output, extra: _products([x, y], [left, right], output, extra),
    "relabel": lambda x, labels, output, extra: _products([x], [labels], output, extra),
    "window_sum": lambda x, **p: _pool(x, lambda _, seen: np.sum([x[s] for s in seen], 0), **p),
    "max_pool": lambda x, **p: _pool(x, lambda _, seen: np.max([x[s] for s in seen], 0), **p),
    "log_softmax": lambda x, axis: np.log(_softmax(x, axis)),
    "softmax_nll": _nll,
    "mse": lambda x, t: np.mean((x - t) ** 2),
    "logsumexp": lambda x, axis, keepdims: np.log(np.exp(x).sum(axis, keepdims=keepdims)),
    "linear": lambda x, w, b: np.einsum("...i,oi->...o", x, w) + b,
    "attention_weights": lambda q, k, m, **p: _attention(q, k, None, m, **p)[0],
    "argsort": _order,
    "sort": lambda x, axis, **p: np.take_along_axis(x, _order(x, axis, **p), axis),
    "argtopk": lambda x, k, axis, largest: np.take(_order(x, axis, largest, True), range(k), axis),
    "gauge_quotient": lambda x, y, size, span, **p: np.where(y == 0, 0, x / np.where(y == 0, 1, y)),
    "spectral_sum": lambda x, s, u, vh, op: np.einsum("...i,...mi,...in->...mn", x, u, vh),
}  # fmt: skip

TABLES = {"numpy": NUMPY, "formula": FORMULAS, "scipy": SCIPY}
