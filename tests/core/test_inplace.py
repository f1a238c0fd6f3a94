"""Augmented assignment and writes into views: a write is seen, or it is an error."""

from __future__ import annotations

import contextlib
import operator
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import adjoint as ad
from adjoint import errors, nn
from adjoint.core.inplace import AUGMENTED

FLOATS = {"+=": operator.iadd, "-=": operator.isub, "*=": operator.imul, "/=": operator.itruediv,
          "//=": operator.ifloordiv, "%=": operator.imod, "**=": operator.ipow}  # fmt: skip
INTS = {
    "&=": operator.iand,
    "|=": operator.ior,
    "^=": operator.ixor,
    "<<=": operator.ilshift,
    ">>=": operator.irshift,
}


@pytest.mark.parametrize("sign", FLOATS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int64])
@pytest.mark.parametrize("other", [2, np.array([2, 3, 4]), "tensor"])
def test_numpy_gives_the_same(sign, dtype, other):
    start = np.array([5, 6, 7], dtype)
    if isinstance(other, str):
        other = ad.tensor(np.array([2, 3, 4], dtype))
    array, x = start.copy(), ad.tensor(start)
    same = x
    value = other.numpy() if isinstance(other, ad.Tensor) else other
    if np.dtype(dtype).kind == "i" and sign == "/=":
        with pytest.raises(errors.DTypeError, match=r"^x /= y: the result is float64, but x is int64\."):
            FLOATS[sign](x, other)
        assert x.tolist() == [5, 6, 7]
        return
    x = FLOATS[sign](x, other)
    FLOATS[sign](array, value)
    assert x is same and x.dtype == dtype and x.tolist() == array.tolist()


@pytest.mark.parametrize("sign", INTS)
def test_bits(sign):
    array, x = np.array([5, 6, 7]), ad.tensor([5, 6, 7])
    same = x
    x = INTS[sign](x, 1)
    assert x is same and x.tolist() == INTS[sign](array, 1).tolist()


def test_matrix_product():
    m, start = ad.tensor([[0.0, 1.0], [1.0, 0.0]]), ad.tensor([[1.0, 2.0], [3.0, 4.0]])
    x = start
    x @= m
    assert x is start and x.tolist() == [[2.0, 1.0], [4.0, 3.0]]
    assert len(AUGMENTED) == len(FLOATS) + len(INTS) + 1


def test_a_result_that_does_not_fit():
    x = ad.tensor([1.0, 2.0])
    with pytest.raises(errors.ShapeError) as info:
        x += np.ones((3, 2))
    assert str(info.value) == (
        "x += y: the result has shape (3, 2), but x has shape (2,).\n  Make a new tensor: x = x + y."
    )
    with pytest.raises(errors.ShapeError, match="broadcast"):
        x += np.ones(3)
    i = ad.tensor([1, 2])
    with pytest.raises(errors.DTypeError) as caught:
        i += 1.5
    assert str(caught.value) == (
        "x += y: the result is float64, but x is int64.\n  Make a new tensor: x = x + y."
    )
    assert x.tolist() == [1.0, 2.0] and i.tolist() == [1, 2]


def test_narrow_floats_stay_narrow():
    x = ad.tensor([1.0, 2.0], dtype=np.float32)
    x += np.array([0.5, 0.5])
    assert x.dtype == np.float32 and x.tolist() == [1.5, 2.5]
    ml_dtypes = pytest.importorskip("ml_dtypes")
    b = ad.tensor([1.0, 2.0], dtype=ml_dtypes.bfloat16)
    b *= 0.5
    assert b.dtype == ml_dtypes.bfloat16 and b.tolist() == [0.5, 1.0]
    with pytest.raises(errors.DTypeError, match="the result is complex64, but x is bfloat16"):
        b += ad.tensor([1j, 2.0], dtype=np.complex64)


@pytest.mark.parametrize("sign", FLOATS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("other", ["tensor", "float", "int"])
def test_half_precision_rounds_as_the_op_does(sign, dtype, other):
    target = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else np.float16
    rng = np.random.default_rng(0)
    values, others = rng.uniform(0.5, 4.0, (2, 500))
    y = {"tensor": ad.tensor(others, dtype=target), "float": 2.3, "int": 3}[other]
    x, before = ad.tensor(values, dtype=target), ad.tensor(values, dtype=target)
    x = FLOATS[sign](x, y)
    expected = getattr(operator, FLOATS[sign].__name__[1:])(before, y)
    assert x.dtype == expected.dtype == target and x.tolist() == expected.tolist()


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3)])
def test_shapes_at_the_edges(shape):
    x = ad.ones(shape)
    same = x
    x += 1
    x *= ad.full(shape, 3.0)
    assert x is same and (x.numpy() == 6).all() and x.shape == shape


# Histories -------------------------------------------------------------------------------------


def test_a_leaf_refuses_outside_no_grad():
    w = ad.ones(2, requires_grad=True)
    with pytest.raises(errors.InPlaceError) as info:
        w += 1
    assert str(info.value) == (
        "this leaf requires grad, and writing into it is not differentiable.\n"
        "  To update its value, write under ad.no_grad(); for a differentiable result make a new tensor: "
        "y = x + 1, or y = x.at[i].set(v)."
    )
    with ad.no_grad():
        w += 1
    assert w.tolist() == [2.0, 2.0] and w.is_leaf and w.requires_grad


def test_sgd_by_hand_is_that_of_the_library():
    nets = [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    optimizer = ad.optim.SGD(nets[1].parameters(), lr=0.1)
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    for _ in range(5):
        for net in nets:
            net(x).sum().backward()
        with ad.no_grad():
            for p in nets[0].parameters():
                p -= 0.1 * p.grad
                p.grad = None
        optimizer.step()
        optimizer.zero_grad()
    for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert a.tolist() == b.tolist()


def test_a_write_beside_an_optimiser_is_kept():
    w = ad.ones(2, requires_grad=True)
    b = ad.ones(2, requires_grad=True)
    optimizer = ad.optim.SGD([w, b], lr=0.5)
    (w + b).sum().backward()
    optimizer.step()  # the parameters are views of one block now
    with ad.no_grad():
        w *= 4.0
    optimizer.step()
    assert w.tolist() == [1.5, 1.5] and b.tolist() == [0.0, 0.0]


def test_an_intermediate_takes_part_in_the_graph():
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    y = w * 2
    first = y
    y *= w
    y += 1
    assert first is y
    y.sum().backward()
    assert w.grad.tolist() == [4.0, 8.0]


def test_a_constant_that_meets_a_history():
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    total = ad.zeros(2)
    for _ in range(3):
        total += w * w
    total.sum().backward()
    assert total.requires_grad and w.grad.tolist() == [6.0, 12.0]


def test_a_saved_value_that_is_written_to_is_an_error():
    w, c = ad.tensor([1.0], requires_grad=True), ad.tensor([3.0])
    y = w * c
    c += 1
    with pytest.raises(errors.ModifiedError):
        y.backward()


def test_a_saved_intermediate_that_is_replaced_is_not():
    w = ad.tensor([3.0], requires_grad=True)
    h = w * 2
    y = h * h
    h += 1
    (y + h).backward()
    assert w.grad.tolist() == [26.0]  # d(4w² + 2w + 1)


def test_under_no_grad_an_intermediate_keeps_its_history():
    w = ad.tensor([3.0], requires_grad=True)
    y = w * w
    with ad.no_grad():
        y += 1
    assert y.tolist() == [10.0]
    y.backward()
    assert w.grad.tolist() == [6.0]


def test_gradients_are_changed_in_place():
    w = ad.ones(2, requires_grad=True)
    (w.sum() * 3).backward()
    g = w.grad
    g *= 0.5
    assert w.grad is g and w.grad.tolist() == [1.5, 1.5]


def test_gradients_that_share_memory_are_changed_apart():
    a, w = ad.ones((2, 2), requires_grad=True), ad.ones((2, 2), requires_grad=True)
    ((a + w.T) * ad.tensor([[1.0, 2.0], [3.0, 4.0]])).sum().backward()
    w.grad *= 10.0
    assert w.grad.tolist() == [[10.0, 30.0], [20.0, 40.0]] and a.grad.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_inside_transforms():
    def total(x):
        acc = ad.zeros(())
        for i in range(3):
            acc += x[i] ** 2
        return acc

    x = np.array([1.0, 2.0, 3.0])
    assert ad.grad(total)(x).tolist() == [2.0, 4.0, 6.0]
    assert ad.vmap(total)(np.stack([x, 2 * x])).tolist() == [14.0, 56.0]
    assert ad.vmap(ad.grad(total))(np.stack([x, 2 * x])).tolist() == [[2.0, 4.0, 6.0], [4.0, 8.0, 12.0]]
    assert ad.hessian(total)(x).tolist() == (2 * np.eye(3)).tolist()
    assert float(ad.jvp(total, (x,), (x,))[1]) == 28.0
    nested = ad.vmap(lambda a: ad.vmap(lambda b: total(a * b))(np.ones((2, 3))))(np.stack([x, x, x]))
    assert nested.shape == (3, 2) and (np.asarray(nested) == 14.0).all()


def test_an_argument_of_a_differentiated_function_may_be_changed():
    def f(x):
        x *= 2
        return (x * x).sum()

    for x in (np.ones(2), ad.ones(2).requires_grad_(), ad.ones(2).requires_grad_() * 1.0):
        assert ad.grad(f)(x).tolist() == [8.0, 8.0]
        assert float(ad.jvp(f, (x,), (np.ones(2),))[1]) == 16.0


def test_a_tensor_from_outside_takes_no_batch():
    outside = ad.zeros(())

    def f(x):
        nonlocal outside
        outside += x
        return x

    with pytest.raises(errors.InPlaceError) as info:
        ad.vmap(f)(np.ones(3))
    assert str(info.value) == (
        "vmap: f wrote values that differ between the elements into an outside tensor.\n"
        "  Return the values instead, or make the tensor inside the function."
    )
    assert type(outside) is ad.Tensor and outside.item() == 0.0


def test_items_inside_vmap_point_to_at():
    def f(x):
        y = ad.zeros(2)
        y[0] = x
        return y

    def g(x):
        x[0] = 1.0
        return x

    for function, data in ((f, np.ones(3)), (g, np.ones((3, 2)))):
        with pytest.raises(errors.InPlaceError) as info:
            ad.vmap(function)(data)
        assert str(info.value) == (
            "x[key] = value: elements of a tensor cannot be assigned inside ad.vmap.\n"
            "  Use x = x.at[key].set(value), or x += value for the whole tensor."
        )


def test_a_failing_function_in_vmap_leaves_outside_tensors_alone():
    outside = ad.zeros(())

    def f(x):
        nonlocal outside
        outside += x
        raise KeyError

    with pytest.raises(KeyError):
        ad.vmap(f)(np.ones(3))
    assert type(outside) is ad.Tensor and outside.item() == 0.0


def test_tapes_see_it_and_guard_what_they_watch():
    x = ad.tensor([3.0])
    with ad.Tape() as tape:
        tape.watch(x)
        y = x * 2
        y *= x
        with pytest.raises(errors.InPlaceError):
            x += 1
    assert tape.gradients(y)[x].tolist() == [12.0]


# Views -----------------------------------------------------------------------------------------

VIEWS = {
    "x[0]": lambda x: x[0],
    "x[:, 1:]": lambda x: x[:, 1:],
    "x.T": lambda x: x.T,
    "x.reshape(-1)": lambda x: x.reshape(-1),
    "x.reshape(-1)[1:]": lambda x: x.reshape(-1)[1:],
    "x.detach()": lambda x: x.detach(),
    "x.detach()[0]": lambda x: x.detach()[0],
    "a row": lambda x: next(iter(x)),
    "unstack": lambda x: x.unstack()[1],
    "split": lambda x: x.split(2)[0],
    "squeeze": lambda x: x[:1].squeeze(),
    "expand_dims": lambda x: x.expand_dims(0),
    "broadcast_to": lambda x: x.broadcast_to((4, 2, 2)),
    "diagonal": lambda x: x.diagonal(),
    "flip": lambda x: x.flip(),
    "np.moveaxis": lambda x: np.moveaxis(x, 0, 1),
    "ravel": lambda x: x.ravel(),
}
WRITES = {
    "y[...] = v": lambda y: y.__setitem__(..., 5.0),
    "copy_": lambda y: y.copy_(5.0),
    "+=": lambda y: operator.iadd(y, 1.0),
    "*= tensor": lambda y: operator.imul(y, ad.ones(y.shape)),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("mode", ["plain", "no_grad", "block"])
def test_a_write_into_a_view_is_an_error(view, write, mode):
    x = ad.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=mode != "plain")
    if mode == "block":
        optimizer = ad.optim.SGD([x, ad.ones(3, requires_grad=True)], lr=0.0)
        x.sum().backward()
        optimizer.step()
    with ad.set_grad_enabled(mode == "plain"):
        y = VIEWS[view](x)
        with pytest.raises(errors.InPlaceError, match="is a view of another tensor"):
            WRITES[write](y)
        assert x.tolist() == [[1.0, 2.0], [3.0, 4.0]]
        x += 1.0  # the original can be written to
        assert x.tolist() == [[2.0, 3.0], [4.0, 5.0]]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_whose_original_is_gone_can_be_written_to(view, write):
    y = VIEWS[view](ad.tensor([[1.0, 2.0], [3.0, 4.0]]))
    before = y.tolist()
    WRITES[write](y)
    assert write == "*= tensor" or y.tolist() != before


def test_a_recorded_view_of_a_live_tensor_refuses():
    w = ad.ones((2, 2), requires_grad=True)
    h = w * 2
    y = h[0]
    with pytest.raises(errors.InPlaceError, match="is a view of another tensor"):
        y += 1
    z = (w * 2)[0]
    z += 1
    z.sum().backward()
    assert w.grad.tolist() == [[2.0, 2.0], [0.0, 0.0]]
    assert h.tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_augmented_items():
    x = ad.zeros((2, 3))
    array = np.zeros((2, 3))
    for a in (x, array):
        a[0] += 5
        a[0, 1] *= 2
        a[:, 0] -= 1
        a[1:] += 2
        a[..., -1] /= 4
        a[[0, 0]] += 1
        a[np.array([True, False])] += 1
    assert x.tolist() == array.tolist()
    rows = list(x)
    with pytest.raises(errors.InPlaceError, match="is a view of another tensor"):
        rows[0] += 5
    with pytest.raises(errors.InPlaceError, match="is a view of another tensor"):
        x.T[0] += 5
    assert x.tolist() == array.tolist()
    w = ad.ones(3, requires_grad=True)
    with ad.no_grad():
        w[0] += 1
    assert w.tolist() == [2.0, 1.0, 1.0]
    y = w * 2
    with pytest.raises(errors.InPlaceError, match=r"x\.at\[key\]\.set\(value\)"):
        y[0] += 1


@pytest.mark.parametrize(
    "value", [1, 1.0, True, np.float64(1), np.float32(1), np.ones(3), [1.0, 1.0, 1.0], ad.ones(3)], ids=repr
)
@pytest.mark.parametrize("mode", ["plain", "anomaly", "tape"])
def test_augmented_items_with_values_of_every_kind(value, mode):
    x = ad.zeros((2, 3))
    around = {"plain": contextlib.nullcontext, "anomaly": ad.detect_anomaly, "tape": ad.Tape}[mode]
    with around():
        x[0] += value
        x[1, :] -= value
        with pytest.raises(errors.InPlaceError, match="is a view of another tensor"):
            x.T[:] += 1
        row = x[0]
        with pytest.raises(errors.InPlaceError, match="is a view of another tensor"):
            row += value
    assert x.tolist() == [[1.0] * 3, [-1.0] * 3]


@pytest.mark.parametrize("write", [lambda t: FLOATS["+="](t, 2.0), lambda t: t.copy_(ad.zeros(4))])
def test_a_view_refuses_writes_also_after_a_write_to_its_source(write):
    """The write to the source moves it to new memory, so that nothing else holds that of the view."""
    x = ad.tensor(np.arange(4.0))
    view = x.detach()
    x += 1.0
    with pytest.raises(errors.InPlaceError, match="is a view of another tensor"):
        write(view)
    assert view.tolist() == [0.0, 1.0, 2.0, 3.0]
    del x
    write(view)


@given(
    st.lists(st.sampled_from(["+=", "-=", "*=", "set", "view", "detach", "copy", "use"]), max_size=12),
    st.data(),
)
def test_random_writes_equal_numpy_or_raise(steps, data):
    """A tensor and an array take the same writes; a tensor that is a view of another raises instead."""
    pairs: list[tuple[Any, Any, bool]] = [(ad.tensor(np.arange(4.0)), np.arange(4.0), False)]
    for step in steps:
        t, a, view = pairs[data.draw(st.integers(0, len(pairs) - 1))]
        if step == "view":
            cut = slice(data.draw(st.integers(0, 2)), None)
            pairs.append((t[cut], a[cut].copy(), True))
        elif step == "detach":
            pairs.append((t.detach(), a.copy(), True))
        elif step == "copy":
            pairs.append((t.copy(), a.copy(), False))
        elif step == "use":
            assert (t * 2).tolist() == (a * 2).tolist()
        else:
            try:
                if step == "set":
                    t[...] = 3.0
                else:
                    FLOATS[step](t, 2.0)
            except errors.InPlaceError:
                assert view
            else:
                assert not view
                if step == "set":
                    a[...] = 3.0
                else:
                    FLOATS[step](a, 2.0)
        assert all(t.tolist() == a.tolist() for t, a, _ in pairs)


# Modules and gradients ---------------------------------------------------------------------------


def test_a_parameter_is_not_replaced_by_a_plain_tensor():
    layer = nn.Linear(2, 1)
    weight = layer.weight
    with ad.no_grad():
        layer.weight *= 0.5
    assert layer.weight is weight and [n for n, _ in layer.named_parameters()] == ["weight", "bias"]
    for value, what in ((ad.zeros((1, 2)), "tensor that does not require grad"), (weight * 2, "result")):
        with pytest.raises(errors.InputError) as info:
            layer.weight = value
        assert str(info.value) == (
            f"Linear.weight is a parameter, so a {what} cannot be assigned to it.\n"
            "  Assign nn.Parameter(value), or copy the value into the parameter: "
            "`with ad.no_grad(): weight.copy_(value)`."
        )
    layer.weight = nn.Parameter([[1.0, 2.0]])
    assert layer.weight.requires_grad and layer.weight.tolist() == [[1.0, 2.0]]


def test_the_text_of_a_module_marks_frozen_parameters():
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    net[0].weight.requires_grad_(False)
    net[1].requires_grad_(False)
    assert repr(net) == (
        "Sequential()  # 26 parameters, 22 of them frozen\n"
        "  0: Linear(3, 4)  # 16 parameters, 12 of them frozen\n"
        "  1: Linear(4, 2)  # 10 parameters, frozen"
    )


def test_the_gradient_of_an_intermediate_warns_once_per_line():
    w = ad.ones(2, requires_grad=True)
    y = w * 2
    y.sum().backward()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            assert y.grad is None
    assert [str(c.message) for c in caught] == [
        ".grad of the result of 'multiply' is None: backward keeps only the gradients of leaves.\n"
        "  Call y.retain_grad() before backward, or use ad.gradients(loss, [y])."
    ]
    assert caught[0].filename == __file__
    z = (w * 2).retain_grad()
    assert z.grad is None  # no warning: it will be kept


VIEWS_IN_VMAP: dict[str, Any] = {
    "index": lambda x: x[0],
    "T": lambda x: x.T,
    "reshape": lambda x: x.reshape(-1),
    "detach": lambda x: x.detach(),
    "a row": lambda x: next(iter(x)),
    "split": lambda x: ad.split(x, 2, axis=-1)[0],
}


@pytest.mark.parametrize("name", VIEWS_IN_VMAP)
@pytest.mark.parametrize(
    "around",
    [
        ad.vmap,
        lambda f: ad.vmap(ad.vmap(f)),
        lambda f: ad.vmap(ad.grad(lambda x: f(x).sum())),
        lambda f: ad.grad(lambda x: ad.vmap(f)(x).sum()),
    ],
    ids=["vmap", "vmap(vmap)", "vmap(grad)", "grad(vmap)"],
)
def test_views_inside_vmap_refuse_writes(name, around):
    def f(x):
        x = x * 1.0
        view = VIEWS_IN_VMAP[name](x)
        view += 1
        return x

    def g(x):
        view = VIEWS_IN_VMAP[name](x * 1.0)  # of a tensor that is gone
        view += 1
        return view.sum()

    with pytest.raises(errors.InPlaceError, match="is a view of another tensor"):
        around(f)(np.ones((1, 1, 2, 2)))
    around(g)(np.ones((1, 1, 2, 2)))


def test_a_retained_gradient_is_that_of_the_present_value():
    """Hooks stay with the value that they were registered on, as in PyTorch."""
    x = ad.tensor([1.0, 2.0], requires_grad=True)
    y = x * 2.0
    y.retain_grad()
    seen = []
    y.register_hook(lambda g: seen.append(g.tolist()))
    y *= 3.0
    y += 1.0
    (y * y).sum().backward()
    assert y.grad.tolist() == (2 * y).tolist() == [14.0, 26.0]
    assert seen == [[42.0, 78.0]] and x.grad.tolist() == [84.0, 156.0]
