"""einsum and tensordot: values of NumPy's, gradients against finite differences, BLAS, messages."""

from __future__ import annotations

import string

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adjoint as ad
from adjoint.core.namespace import raw
from adjoint.errors import ArgumentError, InputError, ShapeError

RNG = np.random.default_rng(0)


def real(*shape):
    return RNG.standard_normal(shape)


def cplx(*shape):
    return real(*shape) + 1j * real(*shape)


def same(ours, theirs, tol=1e-11):
    theirs = np.asarray(theirs)
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    np.testing.assert_allclose(ours.detach().numpy(), theirs, rtol=tol, atol=tol)


def check_gradients(f, *args):
    """Compare gradients, and the gradients of gradients, with central differences."""
    tensors = [ad.tensor(a, requires_grad=True) for a in args]
    y = f(*tensors)
    g = cplx(*y.shape) if y.dtype.kind == "c" else real(*y.shape)
    grads = ad.gradients(y, tensors, g, create_graph=True)
    directions = [cplx(*a.shape) if a.dtype.kind == "c" else real(*a.shape) for a in args]

    def value(t):
        out = f(*(a + t * d for a, d in zip(args, directions, strict=True)))
        return float(np.sum((np.conj(g) * out.numpy()).real))

    def slope(t):
        moved = [ad.tensor(a + t * d, requires_grad=True) for a, d in zip(args, directions, strict=True)]
        parts = ad.gradients(f(*moved), moved, g)
        return sum(
            float(np.sum((np.conj(d) * p.numpy()).real)) for d, p in zip(directions, parts, strict=True)
        )

    h = 1e-5
    assert slope(0.0) == pytest.approx((value(h) - value(-h)) / (2 * h), rel=1e-6, abs=1e-6)
    total = sum(ad.sum(ad.real(ad.conj(d) * p)) for d, p in zip(directions, grads, strict=True))
    if total.requires_grad:
        second = ad.gradients(total, tensors, allow_unused=True)
        found = sum(
            float(np.sum((np.conj(d) * p.numpy()).real))
            for d, p in zip(directions, second, strict=True)
            if p is not None
        )
        assert found == pytest.approx((slope(h) - slope(-h)) / (2 * h), rel=1e-5, abs=1e-5)


EXPRESSIONS = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("ij,jk", (2, 3), (3, 4)),
    ("ij,jk->ki", (2, 3), (3, 4)),
    ("ji,jk->ik", (3, 2), (3, 4)),
    ("ij,kj->ik", (2, 3), (4, 3)),
    ("bij,bjk->bik", (5, 2, 3), (5, 3, 4)),
    ("bqhd,bkhd->bhqk", (2, 3, 2, 4), (2, 5, 2, 4)),
    ("bhqk,bkhd->bqhd", (2, 2, 3, 5), (2, 5, 2, 4)),
    ("ijb,jkb->bik", (2, 3, 5), (3, 4, 5)),
    ("...ij,...jk->...ik", (5, 2, 3), (3, 4)),
    ("...ij,...jk", (1, 2, 3), (5, 3, 4)),
    ("i...,i...->...", (2, 3, 1), (2, 3, 4)),
    ("i...j->j...", (2, 3, 4)),
    ("i,i->", (3,), (3,)),
    ("i,i->i", (3,), (3,)),
    ("i,j->ij", (3,), (2,)),
    ("i,j->", (3,), (2,)),
    ("ii->i", (3, 3)),
    ("ii", (3, 3)),
    ("ii->", (3, 3)),
    ("iij->j", (3, 3, 2)),
    ("ijij->", (2, 3, 2, 3)),
    ("ijji->ij", (2, 3, 3, 2)),
    ("ba", (2, 3)),
    ("ij->", (2, 3)),
    ("ij->j", (2, 3)),
    ("iij,jk->ik", (3, 3, 2), (2, 4)),
    ("ij,ij->", (2, 3), (2, 3)),
    ("ij,ij->ij", (1, 3), (2, 3)),
    ("ij,jk->ik", (2, 1), (3, 4)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)),
    ("i,ij,j", (2,), (2, 3), (3,)),
    ("ab,bc,cd,da->", (2, 3), (3, 4), (4, 2), (2, 2)),
    ("i,i,i,i->i", (3,), (3,), (3,), (3,)),
    (",ij,->ij", (), (2, 3), ()),
    (",", (), ()),
    ("->", ()),
    ("...", (2, 3)),
    ("i->...i", (3,)),
    ("i...->i", (2, 3)),
    (" i j , j k -> i k ", (2, 3), (3, 4)),
    ("Ab,bC->AC", (2, 3), (3, 4)),
    ("ij,jk->ik", (0, 3), (3, 4)),
    ("ij,jk->ik", (2, 0), (0, 4)),
    ("ij,jk->ik", (1, 1), (1, 1)),
]


@pytest.mark.parametrize(("text", "shapes"), [(e[0], e[1:]) for e in EXPRESSIONS])
def test_every_form_is_numpy_and_differentiates(text, shapes):
    for make in (real, cplx):
        args = [make(*shape) for shape in shapes]
        expected = np.einsum(text, *args, optimize=True)
        same(ad.einsum(text, *args), expected)
        if np.asarray(expected).size:
            check_gradients(lambda *xs: ad.einsum(text, *xs), *args)


def test_interleaved_form():
    x, y = real(2, 3), real(3, 4)
    same(ad.einsum(x, [0, 1], y, [1, 2], [0, 2]), x @ y)
    same(ad.einsum(x, [0, 1], y, [1, 2]), x @ y)
    same(ad.einsum(x, [1, 0]), np.einsum(x, [1, 0]))
    same(ad.einsum(x, [Ellipsis, 30], [30, Ellipsis]), x.T)
    same(ad.einsum(x, (27, 3)), np.einsum(x, (27, 3)))


@st.composite
def expressions(draw):
    sizes = dict(zip("abcde", draw(st.lists(st.integers(1, 3), min_size=5, max_size=5)), strict=True))
    terms = draw(st.lists(st.text("abcde", max_size=4), min_size=1, max_size=4))
    used = sorted(set("".join(terms)))
    output = "".join(draw(st.permutations([c for c in used if draw(st.booleans())])))
    arrow = draw(st.booleans())
    return ",".join(terms) + ("->" + output if arrow else ""), [tuple(sizes[c] for c in t) for t in terms]


@settings(max_examples=120, deadline=None, derandomize=True)
@given(expressions())
def test_random_expressions(case):
    text, shapes = case
    rng = np.random.default_rng(len(text))
    args = [rng.integers(-3, 4, s).astype(float) for s in shapes]
    expected = np.asarray(np.einsum(text, *args))
    tensors = [ad.tensor(a, requires_grad=True) for a in args]
    y = ad.einsum(text, *tensors)
    np.testing.assert_array_equal(y.detach().numpy(), expected)
    assert y.shape == expected.shape
    # it is linear in each operand, so <g, y> = <dx, x> for every one
    g = rng.integers(-3, 4, expected.shape).astype(float)
    for x, dx in zip(args, ad.gradients(y, tensors, g), strict=True):
        assert np.sum(dx.numpy() * x) == np.sum(g * expected)


def test_dtypes():
    same(ad.einsum("ij,jk", np.arange(6).reshape(2, 3), np.arange(6).reshape(3, 2)), [[10, 13], [28, 40]])
    a = np.array([[True, False], [True, True]])
    same(ad.einsum("ij->i", a), np.einsum("ij->i", a))
    same(ad.einsum("ij,jk->ik", a, a), np.einsum("ij,jk->ik", a, a))
    small = np.full((2, 3), 100, np.int8)
    same(ad.einsum("ij->i", small), np.einsum("ij->i", small))
    x, y = real(2, 3).astype(np.float32), real(3, 4)
    same(ad.einsum("ij,jk", x, y), np.einsum("ij,jk", x, y))
    t = ad.tensor(x, requires_grad=True)
    (dx,) = ad.gradients(ad.einsum("ij,jk", t, y), [t], np.ones((2, 4)))
    assert dx.dtype == np.float32
    half = ad.einsum("i,i->", np.full(4096, 1.0, np.float16), np.full(4096, 1.0, np.float16))
    assert half.dtype == np.float16
    assert float(half) == 4096  # counted in float16 it would stop at 2048
    assert ad.einsum("i->i", np.ones(2), dtype=np.float32).dtype == np.float32


def test_non_contiguous_input():
    x = np.asfortranarray(real(6, 8))[::2, ::-2]
    y = real(5, 4, 3)[:, ::2].transpose(1, 2, 0)
    same(ad.einsum("ij,bik->bjk", x, y), np.einsum("ij,bik->bjk", x, y))


@pytest.mark.parametrize(
    "optimize",
    [False, True, "greedy", "optimal", ["einsum_path", (0, 1), (0, 1)], ["einsum_path", (0, 1, 2)]],
)
def test_every_path_gives_the_same(optimize):
    args = real(2, 3), real(3, 4), real(4, 5)
    same(ad.einsum("ij,jk,kl->il", *args, optimize=optimize), args[0] @ args[1] @ args[2])


def test_a_chain_is_contracted_in_the_cheap_order():
    x, y, z = (ad.tensor(real(*s), requires_grad=True) for s in ((30, 2), (2, 30), (30, 1)))
    out = ad.einsum("ij,jk,kl->il", x, y, z)
    assert [p.op.name for p in (out._node, *out._node.parents) if hasattr(p, "op")] == ["matmul", "matmul"]
    inner = next(p for p in out._node.parents if hasattr(p, "op"))
    assert inner.shape == (2, 1)  # y z first


def test_two_operands_are_one_matmul(monkeypatch):
    """Forward and rule go to BLAS, not through c_einsum."""
    calls = []
    matmul = np.matmul
    monkeypatch.setattr(
        np, "matmul", lambda *a, **k: calls.append(tuple(x.shape for x in a)) or matmul(*a, **k)
    )
    from adjoint.ops import contraction

    contraction._einsum_plan.cache_clear()
    x, y = ad.tensor(real(2, 3, 2, 4), requires_grad=True), ad.tensor(real(2, 5, 2, 4), requires_grad=True)
    out = ad.einsum("bqhd,bkhd->bhqk", x, y)
    assert calls == [((2, 2, 3, 4), (2, 2, 4, 5))]
    out.backward(ad.ones(out.shape))
    assert len(calls) == 3


def test_np_einsum_and_relatives_take_tensors():
    x, y = (ad.tensor(real(*s), requires_grad=True) for s in ((2, 3), (3, 4)))
    for z in (
        np.einsum("ij,jk->ik", x, y),
        np.tensordot(x, y, 1),
        np.dot(x, y),
        np.matmul(x, y),
        x @ y,
        x.dot(y),
    ):
        same(z, x.numpy() @ y.numpy())
        assert z.requires_grad
    same(np.inner(x, x), np.inner(x.numpy(), x.numpy()))
    same(np.outer(x, y), np.outer(x.numpy(), y.numpy()))
    same(np.vdot(x, x), np.vdot(x.numpy(), x.numpy()))
    same(np.vecdot(x, x), np.vecdot(x.numpy(), x.numpy()))
    same(np.vecdot(x, x, axis=0), np.vecdot(x.numpy(), x.numpy(), axis=0))
    assert (
        np.einsum_path("ij,jk,kl->il", x, y, y.mT)[0]
        == np.einsum_path("ij,jk,kl->il", x.numpy(), y.numpy(), y.numpy().T)[0]
    )
    same(np.trace(x, offset=1), np.trace(x.numpy(), offset=1))
    same(np.cross(x, x[::-1]), np.cross(x.numpy(), x.numpy()[::-1]))


def test_the_adjoint_puts_values_onto_diagonals_and_repeats_them():
    x = np.array([1.0, 2.0])
    y = raw.relabel(x, labels="i", output="iik", extra=(("k", 3),))
    assert y.shape == (2, 2, 3)
    np.testing.assert_array_equal(y[..., 0], np.diag(x))
    np.testing.assert_array_equal(y[..., 2], np.diag(x))


# tensordot, dot, inner, outer, vdot, vecdot, cross, trace ----------------------------------------


@pytest.mark.parametrize("axes", [0, 1, 2, ((0,), (1,)), (1, 0), ([-1, 0], [0, 1]), ((), ())])
def test_tensordot(axes):
    x, y = real(4, 3, 4), real(4, 4, 3)
    if axes in (2,):
        y = real(3, 4, 2)
    if axes == (1, 0):
        y = real(3, 2)
    same(ad.tensordot(x, y, axes=axes), np.tensordot(x, y, axes=axes))
    check_gradients(lambda a, b: ad.tensordot(a, b, axes=axes), x[:, :, :], y)


@pytest.mark.parametrize(
    "shapes",
    [
        ((), ()),
        ((), (2,)),
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((3,), (3, 2)),
        ((2, 3), (3, 4)),
        ((2, 3), (4, 3, 2)),
        ((2, 4, 3), (5, 3, 2)),
        ((2, 4, 3), (3,)),
    ],
)
def test_dot(shapes):
    for make in (real, cplx):
        x, y = (make(*s) for s in shapes)
        same(ad.dot(x, y), np.dot(x, y))
        check_gradients(ad.dot, x, y)


@pytest.mark.parametrize(
    "shapes", [((), (2,)), ((3,), (3,)), ((2, 3), (3,)), ((2, 3), (4, 3)), ((2, 4, 3), (5, 3))]
)
def test_inner_outer_vdot(shapes):
    for make in (real, cplx):
        x, y = (make(*s) for s in shapes)
        same(ad.inner(x, y), np.inner(x, y))
        same(ad.outer(x, y), np.outer(x, y))
        same(ad.vdot(x, x), np.vdot(x, x))
        check_gradients(ad.inner, x, y)
        check_gradients(ad.outer, x, y)
        check_gradients(ad.vdot, x, make(*shapes[0]))


def test_vecdot_matvec_vecmat():
    for make in (real, cplx):
        x, y = make(4, 1, 3), make(2, 3)
        same(ad.vecdot(x, y), np.vecdot(x, y))
        same(ad.vecdot(x, x, axis=0), np.vecdot(x, x, axis=0))
        check_gradients(ad.vecdot, x, y)
        check_gradients(ad.vecdot, make(3), make(3))
        m = make(5, 1, 2, 3)
        if hasattr(np, "matvec"):  # from NumPy 2.2 on
            same(ad.matvec(m, y), np.matvec(m, y))
            same(ad.vecmat(y[..., :2], m), np.vecmat(y[..., :2], m))
        check_gradients(ad.matvec, m, y)


def test_cross():
    for make in (real, cplx):
        x, y = make(2, 3), make(3)
        same(ad.cross(x, y), np.cross(x, y))
        same(ad.cross(x.T, x.T[:, :1], axis=0), np.cross(x.T, x.T[:, :1], axis=0))
        check_gradients(ad.cross, x, y)


@pytest.mark.parametrize("offset", [-4, -1, 0, 1, 2, 7])
def test_trace(offset):
    x = real(3, 4, 5)
    same(ad.trace(x, offset), np.trace(x, offset))
    same(ad.trace(x, offset, 2, 0), np.trace(x, offset, 2, 0))
    same(ad.linalg.trace(x, offset=offset), np.linalg.trace(x, offset=offset))
    same(ad.linalg.diagonal(x, offset=offset), np.linalg.diagonal(x, offset=offset))
    same(ad.trace(np.eye(3, dtype=np.int8) * 100), np.trace(np.eye(3, dtype=np.int8) * 100))
    check_gradients(lambda a: ad.linalg.trace(a, offset=offset), x)
    check_gradients(lambda a: ad.linalg.diagonal(a, offset=offset), x)


# Mistakes ----------------------------------------------------------------------------------------

X, Y = np.ones((2, 3)), np.ones((4, 5))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ad.einsum("ij,jk->ik", X, Y), ShapeError,
         "einsum 'ij,jk->ik': label 'j' has length 3 in operand 0 and 4 in operand 1 (shapes (2, 3), (4, 5)).\n"
         "  Axes with the same label must have the same length."),
        (lambda: ad.einsum("ij,jk->iz", X, X.T), ArgumentError,
         "einsum 'ij,jk->iz': the output has the label 'z', but no operand has it.\n"
         "  Labels of the operands: i, j, k."),
        (lambda: ad.einsum("ij,jk->ii", X, X.T), ArgumentError, "einsum 'ij,jk->ii': the output has the label 'i' twice."),
        (lambda: ad.einsum("ij,jk->ik", X), ArgumentError,
         "einsum 'ij,jk->ik': the subscripts describe 2 operands, but 1 were passed (shapes (2, 3))."),
        (lambda: ad.einsum("ij->i", X, X), ArgumentError,
         "einsum 'ij->i': the subscripts describe 1 operand, but 2 were passed (shapes (2, 3), (2, 3))."),
        (lambda: ad.einsum("ijk->i", X), ShapeError,
         "einsum 'ijk->i': the subscripts 'ijk' are for 3 axes, but operand 0 has shape (2, 3).\n"
         "  Use one letter per axis, or ... for axes without a letter."),
        (lambda: ad.einsum("...ijk->i", X), ShapeError,
         "einsum '...ijk->i': the subscripts '...ijk' are for 3 axes or more, but operand 0 has shape (2, "
         "3).\n"
         "  Use one letter per axis, or ... for axes without a letter."),
        (lambda: ad.einsum("i1->i", X), ArgumentError,
         "einsum 'i1->i': '1' is not a label.\n"
         "  Label the axes with letters, separate the operands by commas, and write the output after \"->\"."),
        (lambda: ad.einsum("i..->i", X), ArgumentError,
         "einsum 'i..->i': an ellipsis must be three dots, and an operand can have only one.\n"
         "  Label the axes with letters, separate the operands by commas, and write the output after \"->\"."),
        (lambda: ad.einsum("ii", X), ShapeError,
         "einsum 'ii': label 'i' has length 2 in operand 0 and 3 in operand 0 (shapes (2, 3)).\n"
         "  Axes with the same label must have the same length."),
        (lambda: ad.einsum("...,...", X, Y), ShapeError,
         "einsum '...,...': an axis of the ellipsis has length 2 in operand 0 and 4 in operand 1 (shapes (2, 3), "
         "(4, 5)).\n"
         "  Axes with the same label must have the same length."),
        (lambda: ad.einsum(), InputError,
         'einsum: expected subscripts and operands, as in einsum("ij,jk->ik", x, y).'),
        (lambda: ad.einsum(X), InputError, 'einsum: subscripts must be a string, as in einsum("ij,jk->ik", x, y).'),
        (lambda: ad.einsum(X, Y), InputError,
         "einsum: each operand must be followed by a list that numbers its axes, as in einsum(x, [0, 1], y, [1, "
         "2], [0, 2]), but got an ndarray instead of a list."),
        (lambda: ad.einsum(X, [0, 52]), ArgumentError,
         "einsum: an axis label must be a number from 0 to 51 or Ellipsis, not 52."),
        (lambda: ad.tensordot(X, Y), ShapeError,
         "tensordot: shapes (2, 3) and (4, 5) do not match: axis 0 of the first tensor has length 2, but axis 0 of "
         "the second has length 4."),
        (lambda: ad.tensordot(X, Y, axes=3), ArgumentError,
         "tensordot: axes must be from 0 to 2 for shapes (2, 3) and (4, 5), but is 3."),
        (lambda: ad.tensordot(X, X, axes=((0, 1), (0,))), ArgumentError,
         "tensordot: axes must list equally many axes of both tensors, but ((0, 1), (0,)) lists 2 of the first and "
         "1 of the second."),
        (lambda: ad.dot(X, Y), ShapeError,
         "dot: shapes (2, 3) and (4, 5) do not match: axis -1 of the first tensor has length 3, but axis -2 of the "
         "second has length 4."),
        (lambda: ad.inner(X, Y), ShapeError,
         "inner: shapes (2, 3) and (4, 5) do not match: axis -1 of the first tensor has length 3, but axis -1 of "
         "the second has length 5."),
        (lambda: ad.vdot(X, Y), ShapeError, "vdot: both tensors must have the same number of elements, but shapes (2, 3) and (4, 5) have 6 and 20."),
        (lambda: ad.vecdot(X, Y), ShapeError,
         "vecdot: the vectors must have equally many elements, but have 3 and 5 (axis -1 of shapes (2, 3) and (4, "
         "5))."),
        (lambda: ad.cross(X[:, :2], X[:, :2]), ShapeError,
         "cross: vectors must have 3 elements, but axis -1 of shape (2, 2) has 2.\n"
         "  For vectors in the plane use x[..., 0] * y[..., 1] - x[..., 1] * y[..., 0]."),
        (lambda: ad.trace(X[0]), ShapeError, "trace: x must have at least two axes, but has shape (3,)."),
    ],
)  # fmt: skip
def test_messages(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message


def test_many_labels():
    x = np.ones((1,) * 26)
    assert ad.einsum(x, list(range(26)), x, list(range(26, 52)), []).shape == ()
    text = string.ascii_letters
    assert ad.einsum(f"{text[:26]},{text[26:]}->", x, x).shape == ()


@pytest.mark.parametrize("optimize", [3, "fast", None])
def test_unknown_orders_of_contraction_are_named(optimize):
    with pytest.raises(
        ad.errors.ArgumentError, match="optimize must be True, False, 'greedy', 'optimal' or a path"
    ):
        ad.einsum("ij,jk->ik", ad.ones((2, 2)), ad.ones((2, 2)), optimize=optimize)
