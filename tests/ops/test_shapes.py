"""Shapes: NumPy's values by every way of calling, derivatives, and what is said of mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages import message_of
from numpy.lib.stride_tricks import sliding_window_view
from numpy_calls import Call, call, check_gradients, check_values, distinct

import adjoint as ad
from adjoint.core.namespace import raw
from adjoint.errors import ArgumentError, InputError, ShapeError
from adjoint.testing import gradcheck

CALLS = [
    # reshape and permute
    call("reshape", (2, 3), (3, 2)), call("reshape", (2, 3), -1), call("reshape", (2, 3), (1, -1, 2)),
    call("reshape", (), (1, 1)), call("reshape", (1,), ()), call("reshape", (0, 3), (3, 0)),
    call("reshape", (2, 3), shape=(6,)), call("reshape", (2, 3), (3, 2), order="F"), call("reshape", (2, 3), (4,)),
    call("reshape", (2, 3), (-1, -1)), call("reshape", (2, 3), (0, -1)),
    call("ravel", (2, 3)), call("ravel", (2, 3), "F"), call("ravel", ()),
    call("transpose", (2, 3, 4)), call("transpose", (2, 3, 4), (1, 0, 2)), call("transpose", (2, 3, 4), axes=(-1, 0, 1)),
    call("transpose", (2, 3), (0, 0)), call("transpose", (2, 3), (0, 2)), call("transpose", ()),
    call("permute_dims", (2, 3, 4), (2, 0, 1)), call("permute_dims", (2, 3), (0,)),
    call("matrix_transpose", (2, 3, 4)), call("matrix_transpose", (3,)),
    call("swapaxes", (2, 3, 4), 0, -1), call("swapaxes", (2, 3), 0, 2),
    call("moveaxis", (2, 3, 4), 0, -1), call("moveaxis", (2, 3, 4), (0, 1), (-1, -2)), call("moveaxis", (2, 3), 0, (0, 1)),
    call("moveaxis", (2, 3, 4), (0, 0), (1, 2)),
    call("expand_dims", (2, 3), 0), call("expand_dims", (2, 3), (0, -1)), call("expand_dims", (2, 3), 3),
    call("expand_dims", (), 0), call("squeeze", (1, 3, 1)), call("squeeze", (1, 3, 1), 0),
    call("squeeze", (1, 3, 1), (0, -1)), call("squeeze", (2, 3), 0), call("squeeze", (1, 3), (0, 0)),
    # broadcast, flip, roll, pad
    call("broadcast_to", (3, 1), (2, 3, 4)), call("broadcast_to", (), (2,)), call("broadcast_to", (1,), (0,)),
    call("broadcast_to", (3,), (2,)), call("broadcast_to", (2, 3), (3,)), call("broadcast_to", (0, 1), (0, 4)),
    call("flip", (2, 3)), call("flip", (2, 3), 0), call("flip", (2, 3), (0, -1)), call("flip", (2, 3), 2),
    call("flipud", (2, 3)), call("fliplr", (2, 3)), call("fliplr", (3,)),
    call("roll", (2, 3), 1), call("roll", (2, 3), -2, 1), call("roll", (2, 3), (1, 2), (0, 1)), call("roll", (2, 3), 1, (0, 1)),
    call("roll", (2, 3), (1, 2), axis=1), call("roll", (0,), 1), call("roll", (2, 3), 1, 2),
    call("pad", (2, 3), 1), call("pad", (2, 3), ((1, 2), (0, 1))), call("pad", (2, 3), (1, 2), mode="edge"),
    call("pad", (4,), 2, "reflect"), call("pad", (4,), 3, mode="symmetric"), call("pad", (4,), 5, mode="wrap"),
    call("pad", (2, 3), 1, constant_values=7.0), call("pad", (2, 3), -1), call("pad", (2, 3), ((1, 1),) * 3),
    # repeats and rotations
    call("repeat", (2, 3), 2), call("repeat", (2, 3), 2, 1), call("repeat", (2, 3), [1, 2], 0), call("repeat", (3,), [0, 1, 3]),
    call("repeat", (2, 3), 0, 0), call("repeat", (3,), [2]), call("repeat", (3,), [1, 2]), call("repeat", (3,), -1),
    call("repeat", (), 3), call("repeat", (2, 3), [2, 0, 1], -1),
    call("tile", (3,), 2), call("tile", (2, 3), (2, 1, 2)), call("tile", (2, 3), 2), call("tile", (), 3),
    call("tile", (2, 3), (0, 1)), call("tile", (2, 3), ()), call("tile", (3,), (2, 2)),
    *(call("rot90", (2, 3), k) for k in (-1, 0, 1, 2, 3, 5)), call("rot90", (2, 3, 4), 1, (1, 2)),
    call("rot90", (2, 3, 4), 3, (0, -1)), call("rot90", (2, 3), 1, (0, 0)), call("rot90", (3,)),
    # diagonals and triangles
    *(call("diagonal", (3, 4), k) for k in (-4, -2, 0, 1, 3)), call("diagonal", (2, 3, 4), 1, 0, 2), call("diagonal", (2, 3, 4)),
    call("diagonal", (2, 3, 4), 0, -1, 1), call("diagonal", (3,)), call("diagonal", (2, 3), 0, 0, 0),
    call("diag", (3,)), call("diag", (3,), 1), call("diag", (3,), -2), call("diag", (3, 4)), call("diag", (3, 4), -1),
    call("diag", (0,)), call("tril", (3, 4)), call("tril", (2, 3, 4), 1), call("triu", (3, 3), -1), call("triu", (4, 2)),
    # cuts
    call("split", (6,), 3), call("split", (6,), [1, 4]), call("split", (2, 6), 2, 1), call("split", (6,), [4, 2]),
    call("split", (6,), [-2]), call("split", (6,), [10]), call("split", (6,), 4), call("split", (), 1),
    call("array_split", (7,), 3), call("array_split", (2, 5), 3, axis=1), call("array_split", (2,), 3),
    call("hsplit", (2, 4), 2), call("hsplit", (4,), 2), call("vsplit", (4, 2), [1]), call("dsplit", (2, 2, 4), 2),
    call("vsplit", (4,), 2), call("dsplit", (2, 2), 2),
    call("atleast_1d", ()), call("atleast_2d", (3,)), call("atleast_3d", ()), call("atleast_3d", (3,)), call("atleast_3d", (2, 3)),
]  # fmt: skip


@pytest.mark.parametrize("c", CALLS, ids=str)
def test_calls_are_as_in_numpy(c: Call) -> None:
    check_values(c, distinct(c.shape), 0.0)


@pytest.mark.parametrize("c", CALLS, ids=str)
def test_derivatives(c: Call) -> None:
    a = distinct(c.shape)
    try:
        getattr(ad, c.name)(ad.tensor(a), *c.args, **c.kwargs)
    except (ValueError, TypeError, IndexError):
        return  # a call that raises, tested above
    check_gradients(c, a, order=1)


def test_whole_numbers_and_booleans_keep_their_dtype() -> None:
    for c in CALLS:
        if c.kwargs.get("constant_values") is None:
            check_values(c, np.arange(int(np.prod(c.shape))).reshape(c.shape) % 2 == 0, 0.0)


# Methods with lengths and axes one by one ------------------------------------------------------


def test_methods_take_lengths_and_axes_one_by_one() -> None:
    x = ad.tensor(distinct((2, 3, 4)))
    assert x.reshape(4, 6).shape == (4, 6)
    assert x.reshape(4, -1).shape == (4, 6)
    assert x.reshape((4, 6)).shape == (4, 6)
    assert x.reshape(24).shape == (24,)
    assert x.transpose(1, 0, 2).shape == (3, 2, 4)
    assert x.transpose((1, 0, 2)).shape == (3, 2, 4)
    assert x.transpose().shape == (4, 3, 2)
    assert x.T.shape == (4, 3, 2)
    assert x.mT.shape == (2, 4, 3)
    assert x.sum(0).shape == (3, 4)
    assert x.flatten().shape == (24,)


# Functions of several tensors ------------------------------------------------------------------

SEVERAL = {
    "concat": [((2, 3), (1, 3)), ((2,), (3,), (0,))],
    "stack": [((2, 3), (2, 3)), ((), ())],
    "hstack": [((2,), (3,)), ((2, 1), (2, 2)), ((), ()), ((2, 1, 2), (2, 3, 2))],
    "vstack": [((3,), (3,)), ((2, 3), (3,)), ((1, 3), (2, 3)), ((), ())],
    "dstack": [((3,), (3,)), ((2, 3), (2, 3)), ((2, 3, 1), (2, 3, 2))],
    "column_stack": [((3,), (3,)), ((3, 2), (3,)), ((3, 1), (3, 2))],
}


@pytest.mark.parametrize("name", SEVERAL)
def test_joins_are_as_in_numpy_and_differentiate(name: str) -> None:
    for shapes in SEVERAL[name]:
        arrays = [distinct(s) for s in shapes]
        join = getattr(ad, name)
        expected = getattr(np, name)(arrays)
        tensors = [ad.tensor(a) for a in arrays]
        for y in (join(tensors), getattr(np, name)(tensors), join(tuple(arrays))):
            assert isinstance(y, ad.Tensor)
            assert y.shape == expected.shape
            assert np.array_equal(y.numpy(), expected)
        assert gradcheck(lambda *xs, join=join: join(xs), arrays, order=2)


def test_joins_along_every_axis() -> None:
    a, b = distinct((2, 3, 4)), distinct((2, 3, 4)) + 5
    for axis in range(-3, 3):
        assert np.array_equal(ad.concat([a, b], axis=axis).numpy(), np.concatenate([a, b], axis=axis))
        assert np.array_equal(np.concatenate([ad.tensor(a), b], axis).numpy(), np.concatenate([a, b], axis))
    for axis in range(-4, 4):
        assert np.array_equal(ad.stack([a, b], axis=axis).numpy(), np.stack([a, b], axis=axis))
    assert np.array_equal(ad.concat([a, b[0]], axis=None).numpy(), np.concatenate([a, b[0]], axis=None))
    assert np.array_equal(ad.concat(ad.tensor(a)).numpy(), np.concatenate(a))


def test_joins_promote_and_gradients_come_back_in_their_own_dtype() -> None:
    x, y = ad.ones(2, dtype=np.float32, requires_grad=True), ad.ones(2, requires_grad=True)
    z = ad.concat([x, y, ad.tensor([1])])
    assert z.dtype == np.float64
    z.sum().backward()
    assert (x.grad.dtype, y.grad.dtype) == (np.float32, np.float64)


def test_unstack_is_the_way_back_from_stack() -> None:
    a = distinct((2, 3, 4))
    for axis in range(-3, 3):
        parts = ad.unstack(a, axis=axis)
        assert isinstance(parts, tuple)
        assert np.array_equal(ad.stack(parts, axis=axis).numpy(), a)
    assert gradcheck(lambda x: ad.unstack(x, axis=1), [a])
    assert [p.shape for p in ad.tensor(a).split(2, axis=2)] == [(2, 3, 2)] * 2


def test_all_parts_come_from_one_node_so_that_backward_is_linear_in_their_number() -> None:
    x = ad.tensor(distinct((5, 2)), requires_grad=True)
    for parts in (ad.unstack(x), list(x), ad.split(x, 5), ad.array_split(x, 3), ad.split(x, [1, 1, 4])):
        assert len({p.grad_fn.parents[0] for p in parts}) == 1
        x.grad = None
        (2 * parts[1]).sum().backward()  # the others are not used
        expected = np.zeros((5, 2))
        start = 0 if parts[0].ndim == 1 else parts[0].shape[0]
        expected[1 if parts[0].ndim == 1 else slice(start, start + parts[1].shape[0])] = 2
        assert np.array_equal(x.grad.numpy(), expected)


def test_parts_of_parts_and_their_second_derivatives() -> None:
    assert gradcheck(
        lambda x: [a * b for a, b in zip(ad.unstack(x), ad.unstack(x)[1:], strict=False)],
        [distinct((4, 2))],
        order=2,
    )
    assert gradcheck(lambda x: ad.split(x, [1, 3])[1] ** 2, [distinct((4, 2))], order=2)


def test_broadcast_arrays_and_meshgrid() -> None:
    a, b = distinct((3, 1)), distinct((4,))
    for ours, theirs in zip(ad.broadcast_arrays(a, b), np.broadcast_arrays(a, b), strict=True):
        assert np.array_equal(ours.numpy(), theirs)
    assert gradcheck(ad.broadcast_arrays, [a, b])
    vectors = distinct((3,)), distinct((4,)), distinct((2,))
    for indexing in ("xy", "ij"):
        for k in (0, 1, 2, 3):
            ours, theirs = (f(*vectors[:k], indexing=indexing) for f in (ad.meshgrid, np.meshgrid))
            assert [y.shape for y in ours] == [y.shape for y in theirs]
            assert all(np.array_equal(y.numpy(), e) for y, e in zip(ours, theirs, strict=True))
    assert gradcheck(lambda *xs: ad.meshgrid(*xs, indexing="ij"), list(vectors))
    assert np.array_equal(
        np.meshgrid(ad.tensor(vectors[0]), vectors[1])[0].numpy(), np.meshgrid(*vectors[:2])[0]
    )


def test_kron() -> None:
    for s, t in [
        ((2, 3), (3, 2)),
        ((2,), (3,)),
        ((2, 3), (2,)),
        ((2,), (2, 3)),
        ((), (2,)),
        ((2, 1, 2), (3, 2)),
    ]:
        a, b = distinct(s), distinct(t)
        for y in (ad.kron(a, b), np.kron(ad.tensor(a), b)):
            assert y.shape == np.kron(a, b).shape
            assert np.allclose(y.numpy(), np.kron(a, b), rtol=1e-15)
        assert gradcheck(ad.kron, [a, b], order=2)


WINDOWS: list[tuple[tuple[int, ...], Any, Any]] = [
    ((5,), 2, None), ((5,), 5, None), ((5,), 1, 0), ((4, 5), (2, 3), None), ((4, 5), 3, 1), ((4, 5), 3, -2),
    ((4, 5), (2, 4), (1, 0)), ((6,), (3, 2), (0, 0)), ((2, 0), 0, 1),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "window", "axis"), WINDOWS)
def test_windows_are_as_in_numpy_and_differentiate(shape: Any, window: Any, axis: Any) -> None:
    a = distinct(shape)
    expected = sliding_window_view(a, window, axis)
    for y in (ad.sliding_window_view(a, window, axis), sliding_window_view(ad.tensor(a), window, axis)):
        assert y.shape == expected.shape
        assert np.array_equal(y.numpy(), expected)
    assert gradcheck(lambda x: ad.sliding_window_view(x, window, axis), [a], order=2)


# Views -----------------------------------------------------------------------------------------

sides = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@given(sides, st.lists(st.integers(0, 3), max_size=2).map(tuple), st.booleans())
def test_broadcasting_by_strides_is_numpys(
    shape: tuple[int, ...], lead: tuple[int, ...], turned: bool
) -> None:
    a = distinct(shape)
    a = a.T if turned else a
    target = (*lead, *(3 if n == 1 else n for n in a.shape))
    view = raw.broadcast_to(a, shape=target)
    assert view.shape == target
    assert np.array_equal(view, np.broadcast_to(a, target))


def test_broadcasting_a_number_of_any_dtype() -> None:
    for value in (np.float64(2.5), np.float32(2.5), np.complex128(1j), np.asarray(3)):
        view = raw.broadcast_to(value, shape=(2, 3))
        assert view.dtype == value.dtype
        assert np.array_equal(view, np.full((2, 3), value))


def test_a_gradient_that_was_broadcast_can_be_written_to_alone() -> None:
    x = ad.ones(3, requires_grad=True)
    x.sum().backward()
    with ad.no_grad():
        x.grad[0] = 5.0
    assert x.grad.tolist() == [5, 1, 1]


def test_a_reshaped_view_does_not_follow_writes_into_its_source() -> None:
    x = ad.tensor([1.0, 2.0, 3.0, 4.0])
    views = [x.reshape(2, 2), x.T, ad.diagonal(ad.diag(x)), ad.sliding_window_view(x, 2), x[::2], ad.flip(x)]
    before = [v.tolist() for v in views]
    x[0] = 100.0
    assert [v.tolist() for v in views] == before


# Mistakes --------------------------------------------------------------------------------------

a23 = np.ones((2, 3))
MISTAKES = [
    (ShapeError, lambda: ad.reshape(a23, (4, -1)),
     "reshape: a tensor of shape (2, 3) with 6 elements cannot be reshaped to (4, -1).\n"
     "  The product of the lengths must be the number of elements; one length may be -1."),
    (InputError, lambda: ad.reshape(a23, 2.5), "reshape: a shape must consist of integers, but is 2.5."),
    (InputError, lambda: ad.tensor(a23).reshape(),
     "reshape: pass one shape, as in x.reshape((2, 3)), x.reshape(2, 3) or x.reshape(shape=(2, 3))."),
    (ArgumentError, lambda: ad.reshape(a23, 6, order="K"), "reshape: order must be 'C' or 'F', not 'K'."),
    (ShapeError, lambda: ad.transpose(a23, 0, 0),
     "transpose: axes must be a permutation of the 2 axes of shape (2, 3), but is (0, 0).\n"
     "  List each axis once."),
    (ShapeError, lambda: ad.ones((2, 3, 4)).transpose(1, 2),
     "transpose: axes must be a permutation of the 3 axes of shape (2, 3, 4), but is (1, 2).\n"
     "  Use x.swapaxes(1, 2) to exchange two axes."),
    (InputError, lambda: ad.ones((2, 3)).repeat(1, 3, 1, 1),
     "repeat: repeats is one argument, and repeats elements.  For copies of the whole tensor use ad.tile(x, (1, 3, 1, 1))."),
    (ShapeError, lambda: ad.tensor([1.0]).mT, "matrix_transpose: x must have at least two axes, but has shape (1,)."),
    (ShapeError, lambda: ad.moveaxis(a23, (0, 1), 0),
     "moveaxis: source and destination must list equally many axes, each axis once, but are (0, 1) and 0."),
    (ShapeError, lambda: ad.squeeze(a23, 1),
     "squeeze: only axes of length 1 can be removed, but axis -1 of shape (2, 3) has length 3."),
    (ShapeError, lambda: ad.broadcast_to(a23, (4, 3)),
     "broadcast_to: shapes (2, 3) and (4, 3) do not broadcast: axis -2 has length 2 in one and 4 in another.\n"
     "  The lengths of each axis, counted from the end, must be equal or 1.  Reshape or transpose one of the arguments."),
    (ShapeError, lambda: ad.broadcast_to(a23, (3,)), "broadcast_to: shape (2, 3) cannot be broadcast to (3,)."),
    (ShapeError, lambda: ad.concat([a23, np.ones((2, 2))]),
     "concat: the shapes must be equal except along axis 0, but are (2, 3) and (2, 2).\n"
     "  Pad, slice or reshape the tensors, or join them along another axis."),
    (ShapeError, lambda: ad.concat([]), "concat: at least one tensor is required, but the list is empty."),
    (InputError, lambda: ad.concat(1.0), "concat: expected a list or tuple of tensors, but got float."),
    (ShapeError, lambda: ad.concat([1.0, 2.0]),
     "concat: 0-d tensors have no axis to join along.  Use ad.stack, or axis=None."),
    (ShapeError, lambda: ad.stack([a23, a23[0]]),
     "stack: all tensors must have the same shape, but two have shapes (2, 3) and (3,).\n"
     "  Use ad.concat to join along an existing axis."),
    (ShapeError, lambda: ad.vstack([np.ones(3), np.ones(2)]),
     "vstack: the shapes must be equal except along axis 0, but are (1, 3) and (1, 2).\n"
     "  Pad, slice or reshape the tensors, or join them along another axis."),
    (ShapeError, lambda: ad.split(np.ones(5), 2),
     "split: 5 elements along axis 0 cannot be divided into 2 equal parts.\n"
     "  Pass the indices at which to split, or use ad.array_split."),
    (ArgumentError, lambda: ad.split(np.ones(5), 0), "split: the number of parts must be at least 1, but is 0."),
    (InputError, lambda: ad.split(np.ones(5), 2.5),
     "split: pass the number of parts, or a list of the indices at which to split, not 2.5."),
    (InputError, lambda: ad.split(np.ones(5), [1.5]), "split: the indices at which to split must be integers, but got 1.5."),
    (ShapeError, lambda: ad.vsplit(np.ones(4), 2), "vsplit: x must have at least 2 axes, but has shape (4,)."),
    (ShapeError, lambda: ad.roll(a23, (1, 2), (0, 1, 0)), "roll: there must be one shift per axis, but there are 2 shifts and 3 axes."),
    (ShapeError, lambda: ad.repeat(a23, [1, 2], axis=1),
     "repeat: repeats must be one number or 3 numbers, one for each element along axis 1, but has shape (2,)."),
    (InputError, lambda: ad.repeat(a23, 1.5), "repeat: repeats must be integers, but got float64."),
    (ArgumentError, lambda: ad.tile(a23, -1), "tile: reps must not be negative, but got -1."),
    (ShapeError, lambda: ad.rot90(a23, 1, 0), "rot90: axes must be a pair of axes, such as (0, 1), but is 0."),
    (InputError, lambda: ad.tril(a23, 0.5), "tril: k must be an integer, but got 0.5."),
    (InputError, lambda: ad.roll(a23, 0.5), "roll: shift must be an integer, but got 0.5."),
    (ShapeError, lambda: ad.rot90(a23, 1, (0, 0)), "rot90: axes must be two different axes, but (0, 0) names one axis twice."),
    (ShapeError, lambda: ad.diag(np.ones((2, 2, 2))),
     "diag: x must be a vector or a matrix, but has shape (2, 2, 2).  Use ad.diagonal."),
    (ShapeError, lambda: ad.tril(np.ones(3)), "tril: x must have at least two axes, but has shape (3,)."),
    (ArgumentError, lambda: ad.meshgrid([1.0], indexing="yx"), "meshgrid: indexing must be 'xy' or 'ij', not 'yx'."),
    (ShapeError, lambda: ad.meshgrid(a23), "meshgrid: each argument must be a vector or a number, but one has shape (2, 3)."),
    (ShapeError, lambda: ad.sliding_window_view(a23, 2),
     "sliding_window_view: window_shape (2,) has 1 lengths, but the windows slide along 2 axes of shape (2, "
     "3).\n"
     "  Pass one length per axis, or choose the axes with axis=."),
    (ShapeError, lambda: ad.sliding_window_view(a23, 4, axis=1),
     "sliding_window_view: the window length along axis -1 must be from 0 to 3, the axis's length, but is 4."),
]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "mistake", "expected"), MISTAKES, ids=[m[2].split(".")[0] for m in MISTAKES]
)
def test_message(error: type[Exception], mistake: Any, expected: str) -> None:
    assert message_of(error, mistake) == expected
