"""LSTM and GRU over whole sequences, against the same layers written step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import nn
from adjoint.core.namespace import rec
from adjoint.nn import functional as F  # noqa: N812
from adjoint.testing import gradcheck, gradgradcheck


def lstm_by_steps(x: Any, w_in: Any, w: Any, b_in: Any, b: Any, h: Any, c: Any) -> Any:
    outputs = []
    for t in range(x.shape[1]):
        gates = F.linear(x[:, t], w_in, b_in) + F.linear(h, w, b)
        h, c = F.lstm_cell(gates, c)
        outputs.append(h)
    return ad.stack(outputs, axis=1), h, c


def gru_by_steps(x: Any, w_in: Any, w: Any, b_in: Any, b: Any, h: Any) -> Any:
    n, outputs = h.shape[-1], []
    for t in range(x.shape[1]):
        now, before = F.linear(x[:, t], w_in, b_in), F.linear(h, w, b)
        r, z = (ad.sigmoid(now[:, j * n : (j + 1) * n] + before[:, j * n : (j + 1) * n]) for j in (0, 1))
        fresh = ad.tanh(now[:, 2 * n :] + r * before[:, 2 * n :])
        h = (1 - z) * fresh + z * h
        outputs.append(h)
    return ad.stack(outputs, axis=1), h


def swapped(x: Any) -> Any:
    return ad.swapaxes(x, 0, 1)


def lstm_at_once(x: Any, w_in: Any, w: Any, b_in: Any, b: Any, h: Any, c: Any) -> Any:
    hs, c, _ = rec.lstm_sequence(F.linear(swapped(x), w_in), w, b_in + b, h, c)
    return swapped(hs), hs[-1], c


def gru_at_once(x: Any, w_in: Any, w: Any, b_in: Any, b: Any, h: Any) -> Any:
    hs, _ = rec.gru_sequence(F.linear(swapped(x), w_in, b_in), w, b, h)
    return swapped(hs), hs[-1]


KINDS = {"lstm": (lstm_at_once, lstm_by_steps, 4, 2), "gru": (gru_at_once, gru_by_steps, 3, 1)}


def arguments(
    kind: str, batch: int = 2, length: int = 4, dtype: Any = float, front: tuple[int, ...] = ()
) -> Any:
    gates, states = KINDS[kind][2:]
    rng, n, width = np.random.default_rng(0), 3, 2
    shapes = [
        (batch, length, width), (gates * n, width), (gates * n, n), (gates * n,), (gates * n,),
        *[(batch, n)] * states,
    ]  # fmt: skip
    return [rng.standard_normal((*front, *s)).astype(dtype) for s in shapes]


def loss(f: Any) -> Any:
    """A number that reaches every output differently."""
    return lambda *args: sum((ad.sin(y) * (i + 1)).sum() for i, y in enumerate(f(*args)))


def close(ours: Any, theirs: Any, limit: float = 1e-12) -> None:
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(ad.asarray(a).numpy(), ad.asarray(b).numpy(), rtol=limit, atol=limit)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("batch", "length"), [(2, 4), (1, 1), (1, 5), (3, 1)])
def test_values_and_gradients_are_those_of_the_steps(kind, batch, length):
    ours, theirs, *_ = KINDS[kind]
    args = [ad.tensor(a) for a in arguments(kind, batch, length)]
    close(ours(*args), theirs(*args))
    every = tuple(range(len(args)))
    close(ad.grad(loss(ours), argnums=every)(*args), ad.grad(loss(theirs), argnums=every)(*args))


@pytest.mark.parametrize("kind", KINDS)
def test_float32_stays_float32(kind):
    ours, theirs, *_ = KINDS[kind]
    args = [ad.tensor(a) for a in arguments(kind, 5, 20, np.float32)]
    assert all(y.dtype == np.float32 for y in ours(*args))
    close(ours(*args), theirs(*args), 1e-5)
    every = tuple(range(len(args)))
    close(ad.grad(loss(ours), argnums=every)(*args), ad.grad(loss(theirs), argnums=every)(*args), 2e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_is_computed_in_float32(kind):
    ours = KINDS[kind][0]
    half = [a.astype(np.float16) for a in arguments(kind)]
    exact = ours(*(ad.tensor(a.astype(float)) for a in half))
    for y, e in zip(ours(*map(ad.tensor, half)), exact, strict=True):
        assert y.dtype == np.float16
        np.testing.assert_allclose(y.numpy(), e.numpy(), atol=5e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_finite_differences_to_second_order(kind):
    ours, args = KINDS[kind][0], arguments(kind, 2, 3)
    assert gradcheck(ours, args)
    assert gradgradcheck(ours, args, directions=2)
    assert gradgradcheck(lambda *a: ours(*a)[-1], args, directions=2)


@pytest.mark.parametrize("kind", KINDS)
def test_third_order_along_one_direction(kind):
    ours = KINDS[kind][0]
    args, lines = arguments(kind, 2, 3), arguments(kind, 2, 3)
    assert gradcheck(lambda s: loss(ours)(*(a + s * d for a, d in zip(args, lines, strict=True))), [np.array(0.1)],
                     order=3, rtol=1e-3, atol=1e-3)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_forward_mode_and_products_with_the_hessian(kind):
    ours, theirs, *_ = KINDS[kind]
    args = [ad.tensor(a) for a in arguments(kind)]
    along = [ad.tensor(np.cos(a)) for a in arguments(kind)]
    for only in (range(len(args)), (0,), (2,), (len(args) - 1,)):
        tangents = [t if i in only else ad.zeros_like(t) for i, t in enumerate(along)]
        for a, b in zip(ad.jvp(ours, args, tangents), ad.jvp(theirs, args, tangents), strict=True):
            close(a, b)
    products = [
        ad.jvp(ad.grad(loss(f), argnums=tuple(range(len(args)))), args, along)[1] for f in (ours, theirs)
    ]
    close(*products, 1e-11)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", [(), (1, 2, 3, 4), (0,), (5,), (2,)])
def test_vmap_is_a_loop(kind, shared):
    ours = KINDS[kind][0]
    args = arguments(kind, front=(3,))
    args = [a[0] if i in shared else a for i, a in enumerate(args)]
    axes = tuple(None if i in shared else 0 for i in range(len(args)))
    every = tuple(range(len(args)))

    def element(i: int) -> list[Any]:
        return [ad.tensor(a if j in shared else a[i]) for j, a in enumerate(args)]

    whole = ad.vmap(ours, in_axes=axes)
    close(whole(*args), [ad.stack(ys) for ys in zip(*(ours(*element(i)) for i in range(3)), strict=True)])
    gradient = ad.grad(loss(ours), argnums=every)
    rows = [gradient(*element(i)) for i in range(3)]
    close(ad.vmap(gradient, in_axes=axes)(*args), [ad.stack(gs) for gs in zip(*rows, strict=True)])
    # the gradient of a batched function, and of its gradient
    outside = ad.grad(lambda *a: loss(whole)(*a), argnums=every)(*map(ad.tensor, args))
    totals = [sum(gs) if i in shared else ad.stack(gs) for i, gs in enumerate(zip(*rows, strict=True))]
    close(outside, totals)
    norm = lambda *a: sum((g * g).sum() for g in gradient(*a))
    twice = [ad.grad(norm, argnums=every)(*element(i)) for i in range(3)]
    close(ad.vmap(ad.grad(norm, argnums=every), in_axes=axes)(*args),
          [ad.stack(gs) for gs in zip(*twice, strict=True)], 1e-10)  # fmt: skip


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("shape", [(4, 0, 3), (0, 5, 3), (0, 0, 3), (1, 1, 3)])
def test_layers_take_empty_batches_and_sequences(kind, shape):
    model = kind(3, 5, num_layers=2)
    x = ad.zeros(shape, dtype=np.float32).requires_grad_()
    out, state = model(x)
    last = state if kind is nn.GRU else state[1]
    assert (out.shape, out.dtype) == ((*shape[:2], 5), np.float32)
    assert (last.shape, last.dtype) == ((2, shape[0], 5), np.float32)
    (out.sum() + last.sum()).backward()
    assert x.grad.shape == shape
    assert all(p.grad is None or p.grad.shape == p.shape for p in model.parameters())


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_gradients_reach_the_states_that_were_given_even_without_steps(kind):
    model = kind(3, 5, dtype=float)
    states = [ad.ones((1, 2, 5)).requires_grad_() for _ in range(2 if kind is nn.LSTM else 1)]
    _, last = model(ad.zeros((2, 0, 3)), tuple(states) if kind is nn.LSTM else states[0])
    parts = last if kind is nn.LSTM else (last,)
    sum((p * (i + 2)).sum() for i, p in enumerate(parts)).backward()
    for i, s in enumerate(states):
        assert (s.grad.numpy() == i + 2).all()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_sequence_can_be_cut_in_two(kind):
    model = kind(3, 4, num_layers=2, dtype=float)
    x = ad.tensor(np.random.default_rng(0).standard_normal((2, 6, 3)))
    whole, state = model(x)
    first, between = model(x[:, :2])
    second, after = model(x[:, 2:], between)
    close([ad.concat([first, second], axis=1)], [whole])
    close(after if kind is nn.LSTM else [after], state if kind is nn.LSTM else [state])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_saturated_gates_give_numbers_without_warnings(kind, dtype):
    model = kind(2, 3, dtype=dtype)
    x = ad.tensor(np.array([[[1e4, -1e4], [-1e30, 1e30], [0.0, 0.0]]], dtype)).requires_grad_()
    out, _ = model(x)
    out.sum().backward()
    assert np.isfinite(out.numpy()).all()
    assert np.isfinite(x.grad.numpy()).all()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_nan_stays_in_its_row_and_comes_no_earlier_than_its_step(kind):
    model = kind(2, 3)
    x = np.zeros((2, 4, 2), np.float32)
    x[1, 2] = np.nan
    out = model(x)[0].numpy()
    assert np.isnan(out[1, 2:]).all()
    assert np.isfinite(out[0]).all()
    assert np.isfinite(out[1, :2]).all()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_strided_input_changes_nothing(kind):
    model = kind(3, 4, dtype=float)
    x = np.random.default_rng(0).standard_normal((3, 5, 2))
    results = []
    for order in ("strided", "contiguous"):
        leaf = ad.tensor(x).requires_grad_()
        turned = ad.permute_dims(leaf, (2, 1, 0))
        out, _ = model(turned if order == "strided" else ad.copy(turned))
        (out * out).sum().backward()
        results.append((out, leaf.grad))
    close(*results)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_without_bias_and_with_frozen_weights(kind):
    model = kind(3, 4, bias=False, dtype=float)
    model.weight_hh_l0.requires_grad_(False)
    x = ad.tensor(np.random.default_rng(0).standard_normal((2, 5, 3))).requires_grad_()
    model(x)[0].sum().backward()
    assert model.weight_hh_l0.grad is None
    assert model.weight_ih_l0.grad is not None
    assert x.grad is not None


@pytest.mark.parametrize("name", ["lstm_sequence", "gru_sequence"])
def test_complex_numbers_are_refused(name):
    gates = 8 if name == "lstm_sequence" else 6
    p, h = ad.ones((2, 1, gates)) * 1j, ad.ones((1, 2))
    states = (h, h) if name == "lstm_sequence" else (h,)
    with pytest.raises(ad.errors.DTypeError, match="real numbers"):
        getattr(rec, name)(p, ad.ones((gates, 2)), 0, *states)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_the_layouts_of_a_sequence_agree(kind, layers):
    rng = np.random.default_rng(0)
    first = kind(3, 4, layers, rng=0, dtype=float)
    second = kind(3, 4, layers, batch_first=False, rng=0, dtype=float)
    x = rng.standard_normal((2, 5, 3))
    parts = 2 if kind is nn.LSTM else 1
    states = [rng.standard_normal((layers, 2, 4)) for _ in range(parts)]
    of = lambda found: tuple(found) if parts == 2 else found[0]
    for given in (None, of(states)):
        out, last = first(x, given)
        swapped_out, swapped_last = second(np.swapaxes(x, 0, 1), given)
        close(out, swapped(swapped_out))
        close(last, swapped_last)
        for i in range(2):
            one = None if given is None else of([s[:, i] for s in states])
            single, single_last = first(x[i], one)
            assert single.shape == (5, 4)
            close(single, out[i])
            close(single_last, of([s[:, i] for s in (last if parts == 2 else [last])]))
    close(ad.vmap(lambda s: first(s)[0])(x), first(x)[0])
    assert first(x[0, :0])[0].shape == (0, 4)
    assert "batch_first=False" in repr(second)


def test_layouts_and_states_that_do_not_fit_are_named():
    x = np.ones((5, 2, 3))
    for mistake, text in [
        (
            lambda: nn.LSTM(3, 4)(np.ones((1, 5, 2, 3))),
            r"\(batch, length, 3\) or \(length, 3\)",
        ),
        (
            lambda: nn.GRU(3, 4, batch_first=False)(np.ones((5, 2, 2))),
            r"the input must have shape \(length, batch, 3\)",
        ),
        (lambda: nn.LSTM(3, 4)(x, ad.ones((1, 5, 4))), r"\(hidden, cell\), but is a Tensor"),
        (
            lambda: nn.GRU(3, 4)(x, (ad.ones((1, 5, 4)), ad.ones((1, 5, 4)))),
            "the state must be a tensor, not a tuple",
        ),
        (
            lambda: nn.GRU(3, 4)(x[0], ad.ones((1, 2, 4))),
            r"the state must have shape \(layers, hidden\), here \(1, 4\)",
        ),
        (lambda: nn.GRU(3, 4, batch_first=2), "batch_first must be True or False, not 2"),
    ]:
        with pytest.raises(ad.errors.AdjointError, match=text):
            mistake()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_both_directions_in_every_transform_and_layout(kind):
    rng = np.random.default_rng(0)
    model = kind(2, 3, 2, bidirectional=True, rng=0, dtype=float)
    x = rng.standard_normal((2, 4, 2))
    out, last = model(x)
    assert out.shape == (2, 4, 6)
    last = last[0] if kind is nn.LSTM else last
    assert last.shape == (4, 2, 3)
    close(last[2], out[:, -1, :3])  # forwards the state is that of the last step, backwards of the first
    close(last[3], out[:, 0, 3:])
    for i in range(2):
        close(model(x[i])[0], out[i])
    close(ad.vmap(lambda s: model(s)[0])(x), out)
    assert model(x[:, :0])[0].shape == (2, 0, 6)
    backwards = kind(2, 3, rng=0, dtype=float)
    state = {k: getattr(model, f"{k}_reverse") for k in backwards.state_dict()}
    backwards.load_state_dict(state)
    one = kind(2, 3, bidirectional=True, dtype=float)
    one.load_state_dict({**{k: v for k, v in model.state_dict().items() if "l0" in k}})
    close(one(x)[0][..., 3:], backwards(x[:, ::-1])[0][:, ::-1])
    assert ad.testing.gradgradcheck(lambda x: one(x)[0], (ad.tensor(x[:, :2], requires_grad=True),))


def test_options_of_recurrent_layers_are_checked_and_shown():
    assert repr(nn.GRU(3, 4, 2, dropout=0.1, bidirectional=True)).startswith(
        "GRU(3, 4, layers=2, dropout=0.1, bidirectional=True)"
    )
    for mistake, text in [
        (lambda: nn.LSTM(3, 4, dropout=0.5), "dropout is applied between layers, but num_layers is 1"),
        (lambda: nn.LSTM(3, 4, 2, dropout=1.5), "dropout must be a probability"),
        (lambda: nn.LSTM(3, 4, 2, dropout="much"), "LSTM: dropout"),
        (lambda: nn.LSTM(3, 4, bidirectional=1), "bidirectional must be True or False, not 1"),
        (
            lambda: nn.GRU(3, 4, bidirectional=True)(np.ones((5, 2, 3)), np.ones((1, 5, 4))),
            r"the state must have shape \(2 · layers, batch, hidden\), here \(2, 5, 4\)",
        ),
    ]:
        with pytest.raises(ad.errors.AdjointError, match=text):
            mistake()
