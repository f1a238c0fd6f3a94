"""What must hold for every graph: random programs, random places for hooks and failures."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import stored

import adjoint as ad
from adjoint import errors
from adjoint.core.define import define
from adjoint.testing.strategies import Program, arrays, broadcastable_shapes, programs

# A program whose result depends on a leaf: an op of each kind at least once.
DEEP = programs(min_size=3, max_size=14)


def leaves_of(program: Program) -> list[ad.Tensor]:
    return [ad.tensor(a, requires_grad=True) for a in program.leaves]


def bits(t: Any) -> tuple[Any, ...] | None:
    return None if t is None else (t.shape, t.dtype, t.numpy().tobytes())


def plain(g: Any, like: Any) -> Any:
    """A gradient as an array; none is zero."""
    return np.zeros(like.shape) if g is None else g.numpy()


def reached(program: Program) -> list[int]:
    """The values on which the result depends, the result among them."""
    count = len(program.leaves)
    found = {count + len(program.instructions) - 1}
    for i in range(count + len(program.instructions) - 1, count - 1, -1):
        if i in found:
            found.update(program.instructions[i - count].operands)
    return sorted(found)


# Right numbers ---------------------------------------------------------------------------------


@settings(max_examples=150)
@given(DEEP)
def test_gradients_of_random_graphs_are_exact(program):
    leaves = leaves_of(program)
    found = ad.gradients(program.loss(ad, leaves), leaves, allow_unused=True)
    for leaf, g, expected in zip(leaves, found, program.gradients(), strict=True):
        np.testing.assert_allclose(plain(g, leaf), expected, rtol=1e-10, atol=1e-10)


@settings(max_examples=60)
@given(programs(min_size=2, max_size=8))
def test_second_derivatives_of_random_graphs(program):
    leaves = leaves_of(program)
    direction = [np.cos(np.arange(a.size)).reshape(a.shape) for a in program.leaves]
    first = ad.gradients(program.loss(ad, leaves), leaves, create_graph=True, allow_unused=True)
    slope = sum((g * u).sum() for g, u in zip(first, direction, strict=True) if g is not None)
    found: Any = [None] * len(leaves)
    if slope.requires_grad:  # not so if the program is linear
        found = ad.gradients(slope, leaves, allow_unused=True)

    def gradient_at(t: float) -> list[Any]:
        moved = tuple(a + t * u for a, u in zip(program.leaves, direction, strict=True))
        return Program(moved, program.instructions).gradients()

    # the gradients are exact, so only one difference is taken
    step = 1e-4
    for leaf, g, a, b in zip(leaves, found, gradient_at(step), gradient_at(-step), strict=True):
        expected = (a - b) / (2 * step)
        scale = np.abs(expected).max(initial=1.0)
        np.testing.assert_allclose(plain(g, leaf), expected, rtol=1e-3, atol=1e-4 * scale)


@given(DEEP)
def test_create_graph_changes_no_bit(program):
    one, two = leaves_of(program), leaves_of(program)
    loss = program.loss(ad, one)
    a = ad.gradients(loss, one, allow_unused=True, retain_graph=True)
    again = ad.gradients(loss, one, allow_unused=True)
    b = ad.gradients(program.loss(ad, two), two, allow_unused=True, create_graph=True)
    assert list(map(bits, a)) == list(map(bits, b)) == list(map(bits, again))


@given(DEEP)
def test_three_ways_to_differentiate_give_the_same_bits(program):
    one, two, three, four = (leaves_of(program) for _ in range(4))
    program.loss(ad, one).backward()
    store = ad.backward(program.loss(ad, two))
    with ad.Tape() as tape:
        loss = program.loss(ad, three)
    taped = tape.gradients(loss) if loss.grad_fn else ad.backward(loss)
    direct = ad.gradients(program.loss(ad, four), four, allow_unused=True)
    assert [t.grad is None for t in two] == [True] * len(two)
    for a, b, c, g in zip(one, two, three, direct, strict=True):
        assert bits(a.grad) == bits(store.get(b)) == bits(taped.get(c)) == bits(g)


@given(DEEP)
def test_gradients_have_the_shape_and_dtype_of_their_tensors(program):
    leaves = [ad.tensor(a, dtype=np.float32, requires_grad=True) for a in program.leaves]
    values = program.run(ad, leaves)
    for v, g in zip(values, ad.gradients(values[-1].sum(), values, allow_unused=True), strict=True):
        assert g is None or (g.shape, g.dtype) == (v.shape, v.dtype) == (v.shape, np.float32)


@given(st.data())
def test_broadcasting_is_undone(data):
    shapes = data.draw(broadcastable_shapes(3))
    xs = [ad.tensor(data.draw(arrays(s)), requires_grad=True) for s in shapes]
    out = xs[0] * xs[1] + xs[2]
    g = np.ones(out.shape)
    grads = ad.gradients(out, xs, g)
    x, y = (np.broadcast_to(t.numpy(), out.shape) for t in xs[:2])
    for t, g_t, full in zip(xs, grads, (y, x, np.ones(out.shape)), strict=True):
        extra = out.ndim - t.ndim
        axes = tuple(range(extra)) + tuple(
            i + extra for i, n in enumerate(t.shape) if n == 1 and out.shape[i + extra] != 1
        )
        expected = (g * full).sum(axis=axes, keepdims=True).reshape(t.shape)
        assert np.array_equal(g_t.numpy(), expected)


# Order of sums ---------------------------------------------------------------------------------

UNEVEN = st.floats(-1e20, 1e20, allow_subnormal=False).map(float)


@given(st.lists(UNEVEN, min_size=1, max_size=8), st.integers(0, 3))
def test_later_consumers_are_summed_first(factors, extra_axes):
    shape = (2,) * extra_axes
    x = ad.tensor(np.ones(shape), requires_grad=True)
    terms = [x * f for f in factors]
    total = terms[0]
    for t in terms[1:]:
        total = total + t
    total.backward(np.ones(shape))
    expected = factors[-1]
    for f in reversed(factors[:-1]):
        expected = expected + f
    assert np.array_equal(x.grad.numpy(), np.full(shape, expected))


three = define(
    "test_three",
    lambda x, y, z, a, b, c: x + y + z,
    lambda xp, g, out, x, y, z, a, b, c: g * a,
    lambda xp, g, out, x, y, z, a, b, c: g * b,
    lambda xp, g, out, x, y, z, a, b, c: g * c,
    params=("a", "b", "c"),
)


@given(UNEVEN, UNEVEN, UNEVEN, UNEVEN, UNEVEN)
def test_then_arguments_are_summed_in_their_order(before, a, b, c, after):
    x = ad.tensor([1.0], requires_grad=True)
    total = x * before
    total = three(x, x, x, a=a, b=b, c=c) + total
    total = total + x * after
    total.backward()
    assert x.grad.item() == (((after + a) + b) + c) + before


# Hooks -----------------------------------------------------------------------------------------


@given(DEEP)
def test_hooks_fire_once_on_the_total(program):
    leaves = leaves_of(program)
    values = program.run(ad, leaves)
    seen: dict[int, list[ad.Tensor]] = {id(v): [] for v in values}
    for v in {id(v): v for v in values}.values():
        v.register_hook(seen[id(v)].append)
    loss = values[-1].sum()
    totals = ad.gradients(loss, values, allow_unused=True, retain_graph=True)
    fired = {k: [bits(g) for g in gs] for k, gs in seen.items()}
    for v, g in zip(values, totals, strict=True):
        assert fired[id(v)] == ([] if g is None else [bits(g)])
    for gs in seen.values():
        gs.clear()
    loss.backward()
    assert {k: [bits(g) for g in gs] for k, gs in seen.items()} == fired


@given(DEEP, st.data())
def test_a_hook_that_replaces_scales_what_is_behind_it(program, data):
    place = data.draw(st.sampled_from(reached(program)))
    one, two = leaves_of(program), leaves_of(program)
    values = program.run(ad, one)
    # the contribution that flows through one value is doubled: the same as if it counted twice
    values[place].register_hook(lambda g: g * 2)
    hooked = ad.gradients(values[-1].sum(), one, allow_unused=True)
    values = program.run(ad, two)
    loss = values[-1].sum()
    (through,) = ad.gradients(loss, [values[place]], retain_graph=True)
    plainly = ad.gradients(loss, two, allow_unused=True, retain_graph=True)
    again = ad.gradients(values[place], two, through, allow_unused=True)
    for leaf, h, p, a in zip(two, hooked, plainly, again, strict=True):
        expected = plain(p, leaf) + plain(a, leaf)
        np.testing.assert_allclose(plain(h, leaf), expected, rtol=1e-12, atol=1e-12)


@given(DEEP)
def test_post_accumulate_hooks_fire_once_when_the_gradient_is_there(program):
    leaves = leaves_of(program)
    seen: list[tuple[int, Any]] = []
    for leaf in leaves:
        leaf.register_post_accumulate_grad_hook(lambda t: seen.append((id(t), bits(t.grad))))
    program.loss(ad, leaves).backward()
    assert sorted(seen, key=str) == sorted(
        ((id(t), bits(t.grad)) for t in leaves if t.grad is not None), key=str
    )


# All or nothing --------------------------------------------------------------------------------


class BrokenError(Exception):
    """What hooks and rules raise here."""


def explode(*_: Any, **__: Any) -> Any:
    raise BrokenError


trap = define("test_trap", np.array, explode)
misfit = define("test_misfit", np.array, lambda xp, g, y, x: xp.sum(g, axis=(-1,), keepdims=False))
nothing = define("test_nothing", np.array, lambda xp, g, y, x: None)
infinite = define("test_infinite", np.array, lambda xp, g, y, x: g * 0 + np.inf)  # 0 · inf would be kept at 0


def _hook(result: Any) -> Any:
    def apply(t: ad.Tensor) -> ad.Tensor:
        # on a copy: the hook of a value that the program hands on unchanged would fire too early
        made = t * 1.0
        made.register_hook(result)
        return made

    return apply


def _overwritten(t: ad.Tensor) -> ad.Tensor:
    constant = ad.tensor(np.full(t.shape, 2.0))
    out = t * constant
    constant[...] = 3.0
    return out


def _released(t: ad.Tensor) -> ad.Tensor:
    made = t * t
    ad.gradients(made, [t], np.ones(t.shape))
    return made


FAILURES: dict[str, tuple[Any, type[Exception]]] = {
    "a rule raises": (trap, BrokenError),
    "a rule returns another shape": (lambda t: misfit(t + np.zeros((2, 3))), errors.RuleError),
    "a rule returns None": (nothing, errors.RuleError),
    "a gradient is infinite under detect_anomaly": (infinite, errors.AnomalyError),
    "a hook raises": (_hook(explode), BrokenError),
    "a hook returns another shape": (_hook(lambda g: ad.zeros((7,))), errors.HookError),
    "a hook returns another dtype": (_hook(lambda g: g.astype(np.float32)), errors.HookError),
    "a hook returns no tensor": (_hook(lambda g: 1.0), errors.HookError),
    "a saved value was overwritten": (_overwritten, errors.ModifiedError),
    "a saved value was released": (_released, errors.GraphReleasedError),
}


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("failure", FAILURES)
@settings(max_examples=15)
@given(program=DEEP, data=st.data())
def test_a_failure_anywhere_leaves_every_grad_as_it_was(failure, create_graph, program, data):
    breaks, expected = FAILURES[failure]
    place = data.draw(st.sampled_from(reached(program)))
    leaves = leaves_of(program)
    for leaf in leaves:
        if data.draw(st.booleans()):
            leaf.grad = ad.tensor(data.draw(arrays(leaf.shape)))
    before = [(leaf.grad, bits(leaf.grad)) for leaf in leaves]
    values = list(leaves)
    if place < len(leaves):
        values[place] = breaks(values[place])
    for i, step in enumerate(program.instructions, len(leaves)):
        value = Program((), (step,)).run(ad, values)[-1]
        values.append(breaks(value) if i == place else value)
    loss = values[-1].sum()
    mode = ad.detect_anomaly() if expected is errors.AnomalyError else contextlib.nullcontext()
    state = np.geterr()
    with mode, pytest.raises(expected):
        loss.backward(create_graph=create_graph)
    assert ad.is_grad_enabled()
    assert np.geterr() == state
    for leaf, (grad, was) in zip(leaves, before, strict=True):
        assert leaf.grad is grad
        assert bits(leaf.grad) == was


@settings(max_examples=30)
@given(program=DEEP, data=st.data())
def test_a_failing_leaf_hook_leaves_every_grad_as_it_was(program, data):
    leaves = leaves_of(program)
    values = program.run(ad, leaves)
    ends = [i for i in reached(program) if i < len(leaves)]
    leaves[data.draw(st.sampled_from(ends))].register_hook(explode)
    with pytest.raises(BrokenError):
        values[-1].sum().backward()
    assert all(leaf.grad is None for leaf in leaves)


@settings(max_examples=30)
@given(program=DEEP, data=st.data())
def test_after_a_failure_only_leaves_with_post_hooks_have_changed_and_are_named(program, data):
    leaves = leaves_of(program)
    values = program.run(ad, leaves)
    ends = [i for i in reached(program) if i < len(leaves)]
    broken = data.draw(st.sampled_from(ends))
    early: list[int] = []
    for i in ends:
        if i != broken:
            leaves[i].register_post_accumulate_grad_hook(lambda t: early.append(id(t)))
    leaves[broken].register_hook(explode)
    with pytest.raises(BrokenError) as caught:
        values[-1].sum().backward()
    assert [leaf.grad is not None for leaf in leaves] == [id(leaf) in early for leaf in leaves]
    notes = getattr(caught.value, "__notes__", [])
    assert [n.split()[0] for n in notes] == ([str(len(early))] if early else [])


@given(DEEP)
def test_a_second_backward_fails_and_changes_nothing_or_is_the_same(program):
    leaves = leaves_of(program)
    loss = program.loss(ad, leaves) * ad.exp(leaves[0]).sum()  # exp saves its output
    loss.backward()
    before = [(leaf.grad, bits(leaf.grad)) for leaf in leaves]
    with pytest.raises(errors.GraphReleasedError):
        loss.backward()
    assert [(leaf.grad, bits(leaf.grad)) for leaf in leaves] == before


@given(DEEP)
def test_retained_graphs_give_the_same_bits_again(program):
    leaves = leaves_of(program)
    loss = program.loss(ad, leaves)
    stores = [ad.backward(loss, retain_graph=True) for _ in range(2)]
    for leaf in leaves:
        assert bits(stores[0].get(leaf)) == bits(stores[1].get(leaf))


@given(DEEP, DEEP)
def test_another_loss_keeps_its_history(one, two):
    leaves = leaves_of(one)
    other = leaves_of(two)
    shared = leaves[0].sum().tanh()
    first, second = one.loss(ad, leaves) * shared, two.loss(ad, other) * leaves[0].sum()
    ad.backward(first)
    again = leaves_of(two)
    fresh = ad.backward(two.loss(ad, again) * leaves[0].detach().sum())
    late = ad.backward(second)
    for a, b in zip(other, again, strict=True):
        assert bits(late.get(a)) == bits(fresh.get(b))


# Arrays that are not the engine's, and stores --------------------------------------------------


@given(DEEP, st.data())
def test_nothing_the_user_holds_is_written(program, data):
    leaves = leaves_of(program)
    values = program.run(ad, leaves)
    seed = ad.tensor(data.draw(arrays(values[-1].shape)))
    held = [seed, *values]
    before = list(map(bits, held))
    for _ in range(2):
        values[-1].backward(seed, retain_graph=True)
        grads = [leaf.grad for leaf in leaves if leaf.grad is not None]
        held, before = held + grads, before + list(map(bits, grads))
    assert list(map(bits, held)) == before


@given(DEEP)
def test_gradients_that_share_memory_are_written_apart(program):
    leaves = leaves_of(program)
    program.loss(ad, leaves).backward()
    grads = [leaf.grad for leaf in leaves if leaf.grad is not None]
    for i, g in enumerate(grads):
        others = [bits(h) for h in grads[i + 1 :]]
        g[...] = float(i)
        assert [bits(h) for h in grads[i + 1 :]] == others
        assert (g.numpy() == i).all()


@given(DEEP, st.data())
def test_stores_merge_as_backward_accumulates(program, data):
    leaves = leaves_of(program)
    values = program.run(ad, leaves)
    losses = [values[data.draw(st.sampled_from(range(len(values))))].sum() for _ in range(2)]
    stores = [ad.backward(loss, retain_graph=True) for loss in losses]
    before = [[bits(s.get(leaf)) for leaf in leaves] for s in stores]
    merged, other_way = stores[0].merge(stores[1]), stores[1].merge(stores[0])
    for loss in losses:
        loss.backward(retain_graph=True)
    for leaf in leaves:
        assert bits(merged.get(leaf)) == bits(other_way.get(leaf)) == bits(leaf.grad)
    assert [[bits(s.get(leaf)) for leaf in leaves] for s in stores] == before
    assert len(merged) == len({id(t) for s in stores for t in s})
    scaled = merged.scale(0.5)
    assert all((scaled[t].numpy() == merged[t].numpy() / 2).all() for t in merged)
    flat = np.concatenate([g.numpy().ravel() for g in merged.values()] or [np.zeros(0)])
    np.testing.assert_allclose(merged.norm(), np.sqrt((flat**2).sum()), rtol=1e-12)


@given(DEEP, DEEP)
def test_backward_in_two_stages_is_backward_in_one(inner, outer):
    # the first stage stops at a value in the middle: what lies behind is neither run nor released
    one, two = leaves_of(inner), leaves_of(inner)
    middle = inner.run(ad, one)[-1]
    whole = ad.gradients(outer.loss(ad, [middle] * len(outer.leaves)), one, allow_unused=True)
    middle = inner.run(ad, two)[-1]
    stage = ad.gradients(outer.loss(ad, [middle] * len(outer.leaves)), [middle])
    staged = ad.gradients(middle, two, stage, allow_unused=True)
    assert list(map(bits, staged)) == list(map(bits, whole))


# Parts of a graph ------------------------------------------------------------------------------


@given(DEEP, st.data())
def test_what_is_detached_is_a_constant(program, data):
    place = data.draw(st.sampled_from(reached(program)))

    def values_with(cut: Any) -> tuple[list[ad.Tensor], list[Any]]:
        leaves = leaves_of(program)
        values: list[Any] = list(leaves)
        if place < len(leaves):
            values[place] = cut(values[place])
        for i, step in enumerate(program.instructions, len(leaves)):
            value = Program((), (step,)).run(ad, values)[-1]
            values.append(cut(value) if i == place else value)
        return leaves, values

    def under_no_grad(t: ad.Tensor) -> ad.Tensor:
        with ad.no_grad():
            return t * 1.0

    found = []
    for cut in (
        ad.Tensor.detach,
        under_no_grad,
        lambda t: ad.tensor(t.numpy()),
        lambda t: t.numpy(copy=True),
    ):
        leaves, values = values_with(cut)
        last = values[-1]
        if isinstance(last, ad.Tensor) and last.requires_grad:
            grads = ad.gradients(last.sum(), leaves, allow_unused=True)
        else:
            grads = (None,) * len(leaves)
        found.append([bits(g) for g in grads])
    assert found[0] == found[1] == found[2] == found[3]


@given(DEEP, st.data())
def test_inputs_limit_what_is_touched(program, data):
    leaves = leaves_of(program)
    values = program.run(ad, leaves)
    wanted = sorted(data.draw(st.sets(st.sampled_from(reached(program)), min_size=1)))
    loss = values[-1].sum()
    totals = ad.gradients(loss, values, allow_unused=True, retain_graph=True)
    loss.backward(inputs=[values[i] for i in wanted], retain_graph=True)
    chosen = {id(values[i]) for i in wanted}
    for v, total in zip(values, totals, strict=True):
        assert bits(stored(v)) == (bits(total) if id(v) in chosen else None)


@given(DEEP)
def test_retained_gradients_are_the_totals(program):
    leaves = leaves_of(program)
    values = program.run(ad, leaves)
    for v in values:
        v.retain_grad()
    loss = values[-1].sum()
    totals = ad.gradients(loss, values, allow_unused=True, retain_graph=True)
    loss.backward()
    assert [bits(v.grad) for v in values] == [bits(g) for g in totals]


@settings(max_examples=25)
@given(programs(min_size=2, max_size=8))
def test_complex_graphs(program):
    # one output is analytic in the leaves, the other is not
    turned = [a * np.exp(0.3j) + 0.1j for a in program.leaves]

    def f(*leaves: ad.Tensor) -> tuple[ad.Tensor, ad.Tensor]:
        last = program.run(ad, leaves)[-1]
        return last, (last * last.conj()).real

    assert ad.testing.gradcheck(f, turned, directions=1, order=2, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_float16_is_summed_in_float32(shape):
    # in float16, which has 11 bits, each of the small contributions would be lost
    x = ad.tensor(np.ones(shape), dtype=np.float16, requires_grad=True)
    total = x * 2048.0
    for _ in range(64):
        total = total + x * 0.5
    total.sum().backward()
    assert x.grad.dtype == np.float16
    assert (x.grad.numpy() == 2080.0).all()
