"""Random calls of NumPy's functions that write into an argument: on arrays, then on tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import adjoint as ad
import adjoint.numpy as anp
from adjoint.errors import AdjointError

SHAPES = [(), (1,), (4,), (0,), (2, 3), (3, 3), (1, 4), (3, 0), (2, 3, 2), (2, 2, 2)]
DTYPES = ["float64", "float32", "float16", "complex128", "int64", "int8", "uint8", "bool"]
VALUES = ["float64", "float32", "int64", "bool", "complex64"]

# An older NumPy does not name the parameters of dot, so that out must be passed by name.
NAMED = np.lib.NumpyVersion(np.__version__) >= "2.4.0"

# A call is a function of the namespace, the target and the other arguments.
Call = Callable[[Any, Any, list[Any]], Any]


def _array(rng: Any, shape: tuple[int, ...], dtype: str) -> Any:
    a = rng.normal(size=shape) * 3
    if rng.random() < 0.2:
        a = np.where(rng.random(shape) < 0.4, rng.choice([np.nan, np.inf, -np.inf]), a)
    with np.errstate(all="ignore"):
        return np.array(a + 1j * rng.normal(size=shape) if dtype.startswith("c") else a).astype(dtype)


def _shape_like(rng: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to ``shape``, most of the time."""
    if rng.random() < 0.1:
        return SHAPES[rng.integers(len(SHAPES))]
    cut = shape[rng.integers(len(shape) + 1) :]
    return tuple(1 if rng.random() < 0.2 else n for n in cut)


def random_call(rng: Any) -> tuple[str, Call, list[Any]]:
    """Return a name, a call, and the arrays: the target first."""
    shape, dtype = SHAPES[rng.integers(len(SHAPES))], str(rng.choice(DTYPES))
    a = _array(rng, shape, dtype)
    v = _array(rng, _shape_like(rng, shape), str(rng.choice(VALUES)))
    mask = np.array(rng.random(_shape_like(rng, shape)) < 0.5)
    places = rng.integers(-5, 5, size=rng.integers(0, 4))
    axis = int(rng.integers(-1, max(len(shape), 1)))
    casting = str(rng.choice(["same_kind", "unsafe", "safe"]))
    mode, flag, seed = (
        str(rng.choice(["raise", "wrap", "clip"])),
        bool(rng.random() < 0.5),
        int(rng.integers(99)),
    )
    unary = str(rng.choice("negative exp sqrt square isnan conjugate".split()))
    binary = str(rng.choice("add multiply maximum divide power bitwise_and".split()))
    reduction = str(
        rng.choice("sum prod max mean std any cumsum cumprod median nansum argmax nanargmax".split())
    )

    def shuffled(np: Any, t: Any, _: list[Any]) -> Any:
        np.random.seed(seed)
        return np.random.shuffle(t)

    def reduced(np: Any, t: Any, more: list[Any]) -> Any:
        return getattr(np, reduction)(more[0], axis, out=t)

    calls: dict[str, tuple[Call, list[Any]]] = {
        "copyto": (lambda np, t, m: np.copyto(t, m[0], casting=casting), [v]),
        "copyto where": (lambda np, t, m: np.copyto(t, m[0], where=m[1], casting=casting), [v, mask]),
        "copyto itself": (lambda np, t, m: np.copyto(t, t[::-1]), []),
        "put": (lambda np, t, m: np.put(t, m[0], m[1], mode=mode), [places, v]),
        "place": (lambda np, t, m: np.place(t, m[0], m[1]), [np.resize(mask, shape), v]),
        "putmask": (lambda np, t, m: np.putmask(t, m[0], m[1]), [np.resize(mask, shape), v]),
        "fill_diagonal": (lambda np, t, m: np.fill_diagonal(t, m[0], wrap=flag), [v]),
        "put_along_axis": (
            lambda np, t, m: np.put_along_axis(t, m[0], m[1], axis),
            [rng.integers(0, 2, size=shape), v],
        ),
        "nan_to_num": (lambda np, t, m: np.nan_to_num(t, copy=False, nan=2.0, posinf=3), []),
        "shuffle": (shuffled, []),
        "unary out": (lambda np, t, m: getattr(np, unary)(m[0], out=t, casting=casting), [v]),
        "unary of itself": (lambda np, t, m: getattr(np, unary)(t, t), []),
        "binary out": (lambda np, t, m: getattr(np, binary)(t, m[0], out=t), [v]),
        "binary where": (
            lambda np, t, m: getattr(np, binary)(m[0], m[0], out=t, where=m[1], casting=casting),
            [v, mask],
        ),
        "at": (lambda np, t, m: getattr(np, binary).at(t, m[0], m[1]), [places, v]),
        "unary at": (lambda np, t, m: getattr(np, unary).at(t, m[0]), [places]),
        "reduce": (lambda np, t, m: np.add.reduce(m[0], axis=axis, out=t), [v]),
        "accumulate": (lambda np, t, m: np.multiply.accumulate(m[0], axis=0, out=t), [v]),
        "outer": (lambda np, t, m: np.multiply.outer(m[0], m[0], out=t), [v]),
        "reduction": (reduced, [v]),
        "clip": (lambda np, t, m: np.clip(t, -1, 1, out=t), []),
        "clip by place": (lambda np, t, m: np.clip(t, -1, m[0], t), [v]),
        "take": (lambda np, t, m: np.take(m[0], m[1], 0, t, mode), [v, places]),
        "concatenate": (lambda np, t, m: np.concatenate([m[0], m[0]], out=t, casting=casting), [v]),
        "stack": (lambda np, t, m: np.stack([m[0], m[0]], out=t), [v]),
        "matmul": (lambda np, t, m: np.matmul(t, m[0], out=t), [v]),
        "dot": (lambda np, t, m: np.dot(m[0], m[0], t) if NAMED else np.dot(m[0], m[0], out=t), [v]),
        "round": (lambda np, t, m: np.round(t, 1, out=t), []),
        "modf": (lambda np, t, m: np.modf(m[0], out=(t, None)), [v]),
        "fft": (lambda np, t, m: np.fft.fft(m[0], out=t), [v]),
        "einsum": (lambda np, t, m: np.einsum("...i->...", m[0], out=t), [v]),
    }  # fmt: skip
    name = str(rng.choice(list(calls)))
    call, arrays = calls[name]
    return f"{name} {unary} {binary} {reduction} {shape} {dtype} axis {axis}", call, [a, *arrays]


def _outcome(call: Call, np_: Any, target: Any, more: list[Any]) -> Any:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return call(np_, target, more)
        except Exception as error:
            return error


def _same(a: Any, b: Any) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    equal = a.dtype.kind in "fc" and b.dtype.kind in "fc"
    return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b, equal_nan=equal)


def check(seed: int) -> str:
    """Compare one random call on tensors with NumPy's; return "wrote" or "raised"."""
    rng = np.random.default_rng(seed)
    name, call, (a, *more) = random_call(rng)
    space = np if rng.random() < 0.5 and not name.startswith("shuffle") else anp
    wanted = a.copy()
    expected = _outcome(call, np, wanted, [m.copy() for m in more])
    raised = isinstance(expected, Exception)
    t = ad.tensor(a)
    version = t._version
    others = [ad.tensor(m) if rng.random() < 0.5 else m.copy() for m in more]
    got = _outcome(call, space, t, others)
    where = f"seed {seed}, {name}: {got!r}, NumPy {expected!r}"
    assert isinstance(got, Exception) == raised, where
    if raised:
        assert _same(t.numpy(), a), where  # all or nothing, though NumPy may have begun to write
        return "raised"
    assert _same(t.numpy(), wanted), where
    assert t._version != version, where
    if expected is wanted:
        assert got is t, where
    _check_recorded(call, space, a, more, where)
    return "wrote"


def _leaf(m: Any) -> Any:
    return ad.tensor(m, requires_grad=True)


def _check_recorded(call: Call, space: Any, a: Any, more: list[Any], where: str) -> None:
    """A target or a value that requires grad is an error that points to ``x.at``, and nothing is written."""
    for i, m in enumerate([a, *more]):
        if m.dtype.kind not in "fc":
            continue
        for recorded in (_leaf, lambda m: _leaf(m).copy()):
            given = [recorded(x) if i == k else ad.tensor(x) for k, x in enumerate([a, *more])]
            before = given[0].numpy().copy()
            got = _outcome(call, space, given[0], given[1:])
            assert isinstance(got, AdjointError), f"{where}: argument {i} of a graph gives {got!r}"
            assert ".at[" in str(got), f"{where}: {got}"
            assert _same(given[0].numpy(), before), where
