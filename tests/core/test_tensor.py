"""What a tensor is and does, apart from differentiation."""

from __future__ import annotations

import copy
import importlib
import math
import operator
import pickle
import re
import weakref
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import errors, hints


def test_tensors_own_their_memory() -> None:
    a = np.array([1.0, 2.0])
    t, s = ad.tensor(a), ad.asarray(a)
    a[0] = 9.0
    assert t.tolist() == s.tolist() == [1.0, 2.0]
    frozen = np.array([1.0, 2.0])
    frozen.flags.writeable = False
    kept = ad.asarray(frozen)
    frozen.flags.writeable = True
    frozen[0] = 9.0
    assert kept.tolist() == [1.0, 2.0]
    assert ad.asarray(t) is t

    class Holder:
        def __init__(self) -> None:
            self.array = np.array([1.0, 2.0])

        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            return self.array

    holder = Holder()
    made = ad.asarray(holder)
    holder.array[0] = 9.0
    assert made.tolist() == [1.0, 2.0]
    with pytest.raises(errors.ArgumentError, match="without a copy"):
        ad.asarray(a, copy=False)


def test_creation_functions_follow_numpy() -> None:
    x = ad.tensor([[1.0, 2.0]])
    pairs = [
        (ad.zeros((2, 3)), np.zeros((2, 3))),
        (ad.ones(3, dtype=np.float32), np.ones(3, np.float32)),
        (ad.full((2,), 7), np.full((2,), 7)),
        (ad.arange(5), np.arange(5)),
        (ad.arange(1, 2, 0.25), np.arange(1, 2, 0.25)),
        (ad.linspace(0, 1, 5), np.linspace(0, 1, 5)),
        (ad.eye(2, 3, k=1), np.eye(2, 3, k=1)),
        (ad.zeros_like(x), np.zeros((1, 2))),
        (ad.ones_like(x, dtype=int), np.ones((1, 2), int)),
        (ad.full_like(x, 3.5), np.full((1, 2), 3.5)),
    ]
    for ours, theirs in pairs:
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        assert (np.asarray(ours) == theirs).all()
    assert ad.empty((2, 0)).shape == (2, 0) and ad.empty_like(x).shape == (1, 2)
    assert ad.ones(2, requires_grad=True).requires_grad


def test_default_dtype_is_that_of_python_floats_alone() -> None:
    try:
        ad.set_default_dtype(np.float32)
        assert ad.tensor([1.0]).dtype == ad.zeros(2).dtype == np.float32
        assert ad.tensor([1]).dtype == np.int64
        assert ad.tensor(np.array([1.0])).dtype == np.float64
    finally:
        ad.set_default_dtype(np.float64)


def test_facts() -> None:
    t = ad.tensor(np.zeros((2, 3), np.float32))
    assert (t.shape, t.ndim, t.size, t.dtype, t.device) == ((2, 3), 2, 6, np.float32, "cpu")
    assert (t.itemsize, t.nbytes) == (4, 24)
    assert t.T.shape == t.mT.shape == (3, 2)
    assert t.is_leaf and t.grad is None and t.grad_fn is None and not t.requires_grad


BINARY = "add sub mul truediv floordiv mod pow eq ne lt le gt ge".split()


@pytest.mark.parametrize("name", BINARY)
def test_operators_and_reflected_operators(name: str) -> None:
    function = getattr(operator, name)
    x, y = np.array([1.5, 2.0, 3.0]), np.array([2.0, 2.0, 0.5])
    for a, b in ((x, y), (x, 2), (2, x), (x, 2.5), (np.float64(2.5), x)):
        expected = function(a, b)
        for left, right in (
            (ad.tensor(a), ad.tensor(b)),
            (ad.tensor(a), b) if isinstance(a, np.ndarray) else (a, ad.tensor(b)),
        ):
            got = function(left, right)
            assert isinstance(got, ad.Tensor) and got.dtype == expected.dtype
            assert (np.asarray(got) == expected).all()


def test_matmul_bits_and_unary_operators() -> None:
    x = ad.tensor([[1.0, -2.0], [0.5, 3.0]])
    assert ((x @ x).numpy() == x.numpy() @ x.numpy()).all()
    assert ((x.numpy() @ x).numpy() == x.numpy() @ x.numpy()).all()
    assert (-x).tolist() == (-x.numpy()).tolist() and (+x).tolist() == x.tolist()
    assert abs(x).tolist() == np.abs(x.numpy()).tolist()
    i = ad.tensor([1, 2, 4])
    assert (~i).tolist() == [-2, -3, -5] and (i & 6).tolist() == [0, 2, 4] and (1 | i).tolist() == [1, 3, 5]
    assert (i ^ i).tolist() == [0, 0, 0] and (i << 1).tolist() == [2, 4, 8] and (8 >> i).tolist() == [4, 2, 0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64])
def test_python_numbers_are_weak(dtype: type) -> None:
    x = ad.tensor(np.ones(2, dtype))
    assert (x * 2).dtype == (2.5 + x).dtype == (x / 3).dtype == (x**2).dtype == dtype
    assert (ad.tensor([1, 2]) * 2.5).dtype == np.float64
    assert (ad.tensor([1, 2], dtype=np.int8) + 1).dtype == np.int8


def test_python_protocols() -> None:
    t = ad.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert len(t) == 2 and [r.tolist() for r in t] == [[1.0, 2.0], [3.0, 4.0]]
    assert 3.0 in t and 5.0 not in t
    assert float(ad.tensor([2.5])) == 2.5 and int(ad.tensor(3)) == 3 and complex(ad.tensor(1j)) == 1j
    assert bool(ad.tensor([True])) and [10, 20, 30][ad.tensor(1)] == 20
    assert f"{ad.tensor(1.23456):.2f}" == "1.23"
    assert len({t, ad.tensor(1.0), t}) == 2
    assert ad.tensor([[1.5]]).item() == 1.5


def test_repr_shows_values_dtype_and_history() -> None:
    x = ad.tensor([1.0, 2.0], requires_grad=True)
    assert repr(x) == "tensor([1., 2.], dtype=float64, requires_grad=True)"
    assert repr(x.tanh().sum()).endswith(", dtype=float64, grad_fn=<sum>)")
    assert repr(ad.tensor(np.zeros((2, 0), np.float32))) == "tensor([], shape=(2, 0), dtype=float32)"
    assert len(repr(ad.zeros(10**6))) < 200


def test_copies_of_results_are_recorded() -> None:
    for copied in (copy.copy, copy.deepcopy):
        assert ad.grad(lambda v, c=copied: (c(v) * v).sum())(np.array([1.0, 2.0])).tolist() == [2.0, 4.0]
        assert ad.vmap(ad.grad(lambda v, c=copied: c(v) * v))(np.array([1.0, 2.0])).tolist() == [2.0, 4.0]
        assert ad.jvp(lambda v, c=copied: c(v) * v, (2.0,), (1.0,))[1].item() == 4.0
        with ad.no_grad():
            assert copied(ad.tensor([1.0], requires_grad=True) * 2).is_leaf


def test_copies_of_leaves_are_leaves() -> None:
    x = ad.tensor([1.0, 2.0], requires_grad=True)
    y = x * 2
    for t in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(y)), pickle.loads(pickle.dumps(x))):
        assert t.is_leaf and t.requires_grad and t.shape == (2,)
    assert copy.copy(x.detach()).requires_grad is False
    twin = copy.deepcopy(x)
    with ad.no_grad():
        twin[0] = 7.0
    assert x.tolist() == [1.0, 2.0]


def test_arrays_handed_out_are_read_only_or_copies() -> None:
    x = ad.tensor([1.0, 2.0])
    for view in (x.numpy(), np.asarray(x, copy=False)):
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 5.0
    for free in (x.numpy(copy=True), np.asarray(x)):
        free[0] = 5.0
    assert x.tolist() == [1.0, 2.0]
    assert np.asarray(x, dtype=np.float32).dtype == np.float32


# Writing ---------------------------------------------------------------------------------------


def test_a_write_is_never_seen_through_another_tensor() -> None:
    x = ad.tensor([1.0, 2.0, 3.0])
    others = [x.detach(), x.reshape(3, 1), x[1:], x.T, ad.asarray(x.numpy())]
    before = [t.tolist() for t in others]
    view = x.numpy()
    x[0] = 9.0
    assert x.tolist() == [9.0, 2.0, 3.0]
    assert [t.tolist() for t in others] == before and view.tolist() == [1.0, 2.0, 3.0]
    y = x.reshape(3, 1).copy()
    y[...] = 0.0
    assert x.tolist() == [9.0, 2.0, 3.0]


def test_a_write_that_nobody_else_sees_does_not_copy() -> None:
    x = ad.zeros(4)
    x[0] = 1.0
    memory = x._data
    address = memory.ctypes.data
    del memory
    x.copy_(5.0)
    assert x._data.ctypes.data == address and x.tolist() == [5.0] * 4


def test_gradients_that_share_memory_are_written_apart() -> None:
    a, b = ad.tensor([1.0, 2.0], requires_grad=True), ad.tensor([3.0, 4.0], requires_grad=True)
    (a + b).backward(ad.tensor([1.0, 1.0]))
    assert a.grad is not None and b.grad is not None
    a.grad[0] = 100.0
    assert b.grad.tolist() == [1.0, 1.0]


def test_writing_into_a_graph_is_refused() -> None:
    x = ad.tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(errors.InPlaceError, match=r"x\.at\[i\]\.set"):
        x[0] = 1.0
    y = x * 2
    for write in (lambda: y.copy_(1.0), lambda: operator.setitem(y, 0, 1.0)):
        with pytest.raises(errors.InPlaceError, match="the result of 'multiply'"), ad.no_grad():
            write()
    with ad.no_grad():
        x.copy_([5.0, 6.0])
    assert x.tolist() == [5.0, 6.0]


def test_setitem_checks_shape_and_dtype_before_it_writes() -> None:
    x = ad.tensor([1, 2, 3])
    with pytest.raises(errors.ShapeError, match=r"\(2,\)"):
        x[...] = [1, 2]
    with pytest.raises(errors.DTypeError, match="float64"):
        x[0] = 1.5
    with pytest.raises(errors.IndexingError, match="out of range"):
        x[3] = 1
    assert x.tolist() == [1, 2, 3]


@pytest.mark.parametrize("key", [0, slice(1, None), [0, 2], [True, False, True], Ellipsis])
def test_at_updates(key: object) -> None:
    a = np.array([1.0, 2.0, 3.0])
    for name, ufunc in (("add", np.add), ("mul", np.multiply), ("max", np.maximum), ("min", np.minimum)):
        expected = a.copy()
        expected[key] = ufunc(expected[key], 2.5)
        assert getattr(ad.tensor(a).at[key], name)(2.5).tolist() == expected.tolist()
    expected = a.copy()
    expected[key] = 7.0
    assert ad.tensor(a).at[key].set(7.0).tolist() == expected.tolist()
    assert ad.tensor(a).at[key].get().tolist() == np.asarray(a[key]).tolist()


def test_at_counts_every_repeat() -> None:
    x = ad.tensor([1.0, 2.0, 3.0], requires_grad=True)
    v = ad.tensor([10.0, 20.0, 30.0], requires_grad=True)
    key = [0, 0, 2]
    assert x.at[key].add(v).tolist() == [31.0, 2.0, 33.0]
    assert x.at[key].set(v).tolist() == [20.0, 2.0, 30.0]
    gx, gv = ad.gradients(x.at[key].mul(v).sum(), [x, v])
    assert gx is not None and gv is not None
    assert gx.tolist() == [200.0, 1.0, 30.0] and gv.tolist() == [20.0, 10.0, 3.0]
    gx, gv = ad.gradients(x.at[key].set(v).sum(), [x, v])
    assert gx is not None and gv is not None
    assert gx.tolist() == [0.0, 1.0, 0.0] and gv.tolist() == [0.0, 1.0, 1.0]


def test_comparing_with_none_or_text_is_no_error() -> None:
    x = ad.ones(2)
    assert (x == None) is False and (x != None) is True and (x == "a") is False  # noqa: E711
    assert x not in [None, "a"]


@pytest.mark.parametrize(
    "make", [lambda a: pickle.loads(pickle.dumps(ad.tensor(a))), lambda a: ad.tensor(a.astype(">c16"))]
)
def test_complex_gradients_are_the_same_whatever_made_the_tensor(make: object) -> None:
    z = make(np.array([1 + 2j])).requires_grad_()  # type: ignore[operator]
    (g,) = ad.gradients((z * z).real.sum(), [z])
    assert g is not None and g.tolist() == [2 - 4j]


OTHER_DTYPES = {
    "pickled": lambda a: pickle.loads(pickle.dumps(a)),
    "metadata": lambda a: a.astype(np.dtype(a.dtype, metadata={"unit": "m"})),
    "swapped": lambda a: a.astype(a.dtype.newbyteorder()),
}


@pytest.mark.parametrize("name", OTHER_DTYPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_numbers_do_not_depend_on_the_dtype_object_of_an_array(name: str, dtype: Any) -> None:
    """Ops compare dtypes by identity, so an equal object would take other paths, with other bits."""
    plain = np.linspace(0.1, 5, 7).astype(dtype)
    other = OTHER_DTYPES[name](plain)
    assert other.dtype is not plain.dtype
    t = ad.tensor(other)
    tensors = [t, ad.asarray(other), ad.ones(7, dtype=other.dtype), t * other, t.astype(other.dtype)]
    tensors.append(pickle.loads(pickle.dumps(t)))
    assert [u.dtype is plain.dtype for u in tensors] == [True] * 6
    if plain.dtype.kind == "f":
        f = ad.grad(lambda x: (ad.tanh(x) * ad.sigmoid(x)).sum())
        assert f(other).tobytes() == f(plain).tobytes() == ad.compile(f, backend="replay")(other).tobytes()


def test_a_finished_graph_does_not_keep_its_inputs() -> None:
    w = ad.ones(3, requires_grad=True)
    batch = ad.ones(3)
    loss = ((batch * w - 1) ** 2).mean()
    loss.backward()
    left = weakref.ref(batch)
    del batch
    assert left() is None and loss.item() == 0.0


def test_divmod_is_quotient_and_remainder() -> None:
    a = np.array([7.5, -7.5])
    x = ad.tensor(a, requires_grad=True)
    for found, expected in (
        (divmod(x, 2), divmod(a, 2)),
        (divmod(7, x), divmod(7, a)),
        (divmod(a, x), divmod(a, a)),
        (divmod(x, x), divmod(a, a)),
    ):
        for y, e in zip(found, expected, strict=True):
            assert type(y) is ad.Tensor
            assert np.array_equal(y.numpy(), e)
    quotient, rest = divmod(x, 2)
    (quotient + rest).sum().backward()
    assert x.grad.tolist() == [1, 1]


def test_round_returns_a_tensor() -> None:
    x = ad.tensor([1.26, 2.5])
    assert round(x, 1).tolist() == [1.3, 2.5]
    assert round(x).tolist() == [1, 2]
    with pytest.raises(errors.InputError, match="round: decimals must be an integer"):
        round(x, 0.5)


@pytest.mark.parametrize("name", ["trunc", "floor", "ceil"])
def test_math_makes_an_int_of_one_element(name: str) -> None:
    convert = getattr(math, name)
    for value in (-1.5, 1.5, 2.0, 3):
        found = convert(ad.tensor(value))
        assert type(found) is int
        assert found == convert(value)
    assert convert(ad.tensor([[2.5]])) == convert(2.5)
    with pytest.raises(errors.ShapeError) as caught:
        convert(ad.ones(3))
    assert str(caught.value) == (
        f"math.{name}: the tensor must have one element, but has shape (3,).\n  Use ad.{name}(x) for all elements."
    )


# Names from elsewhere ----------------------------------------------------------------------------


def resolves(path: str) -> bool:
    """Whether a dotted name such as ad.linalg.norm or x.reshape leads somewhere."""
    head, *rest = path.split(".")
    value: Any = {
        "ad": ad,
        "np": np,
        "x": ad.ones((2, 2)),
        "w": ad.ones((2, 2)),
        "model": OWNERS["MODULES"][0],
        "optimizer": OWNERS["OPTIMIZERS"][0],
        "scaler": OWNERS["SCALERS"][0],
    }[head]
    for name in rest:
        if not hasattr(value, name):
            return False
        value = getattr(value, name)
    return True


OWNERS = {
    "METHODS": (ad.ones(2), hints.ATTRIBUTES["Tensor"]),
    "FUNCTIONS": (ad, hints.FUNCTIONS),
    "MODULES": (ad.nn.Linear(2, 2), hints.ATTRIBUTES["Module"]),
    "OPTIMIZERS": (ad.optim.SGD([ad.ones(2, requires_grad=True)]), hints.ATTRIBUTES["Optimizer"]),
    "SCALERS": (ad.GradScaler(), hints.ATTRIBUTES["GradScaler"]),
    "UPDATES": (ad.ones(2).at[0], hints.ATTRIBUTES["At"]),
    **{name: (importlib.import_module(name), table) for name, table in hints.PARTS.items()},
}


@pytest.mark.parametrize("table", OWNERS)
def test_what_is_said_to_be_used_instead_is_there(table):
    owner, found = OWNERS[table]
    for name, hint in found.items():
        assert not hasattr(owner, name), f"{name} is there"
        assert name not in dir(owner)
        with pytest.raises(AttributeError) as info:
            getattr(owner, name)
        assert str(info.value).endswith(f".  Use {hint}.")
        for path in re.findall(r"\b(?:x|w|ad|np|model|optimizer|scaler)(?:\.\w+)+", hint):
            assert resolves(path), f"{name}: {hint}"


def test_names_of_networks_from_elsewhere_are_explained():
    x = ad.ones((3, 2, 2))
    model, optimizer = ad.nn.Linear(2, 2), ad.optim.SGD([ad.ones(2, requires_grad=True)])
    for look, message in (
        (lambda: model.double(), "Linear has no 'double'.  Use model.astype(np.float64)."),
        (
            lambda: optimizer.add_param_group({}),
            "SGD has no 'add_param_group'.  Use optimizer.add_group(group).",
        ),
        (
            lambda: ad.nn.MultiheadAttention,
            "module 'adjoint.nn' has no attribute 'MultiheadAttention'.  Use ad.nn.MultiHeadAttention.",
        ),
        (lambda: ad.nn.Linearr, "module 'adjoint.nn' has no attribute 'Linearr'"),
    ):
        with pytest.raises(AttributeError) as info:
            look()
        assert str(info.value) == message
    model.to = model.half = 3  # names of one's own
    assert (model.to, model.half) == (3, 3) and {"to", "half"} <= set(dir(model))
    with pytest.raises(ad.errors.ArgumentError) as info:
        x.flatten(1)
    assert str(info.value) == (
        "ravel: order must be 'C' or 'F', not 1.\n"
        "  To flatten all axes but the first, use x.reshape(x.shape[0], -1) or nn.Flatten()."
    )
    assert x.reshape(*x.shape[:1], -1).shape == ad.nn.Flatten()(x).shape == (3, 4)


def test_names_from_elsewhere_are_explained():
    x = ad.ones(3)
    with pytest.raises(AttributeError, match=r"a tensor has no 'view'\.  Use x\.reshape\(shape\)\."):
        x.view(3, 1)
    with pytest.raises(AttributeError, match=r"Use ad\.concat\(tensors, axis\)\."):
        ad.cat([x, x])
    with pytest.raises(AttributeError, match=r"Use np\.interp, which accepts tensors"):
        _ = ad.interp
    with pytest.raises(AttributeError, match=r"'concatt'$") as info:
        _ = ad.concatt
    assert (info.value.name, info.value.obj) == ("concatt", ad)  # from which Python suggests
    with pytest.raises(AttributeError, match=r"no attribute '__numpy_submodules__'$"):
        _ = ad.__numpy_submodules__
    assert not set(hints.ATTRIBUTES["Tensor"]) & set(dir(x)) and "reshape" in dir(x)
    assert ad.concatenate([x, x]).shape == np.concatenate([x, x]).shape == (6,)
