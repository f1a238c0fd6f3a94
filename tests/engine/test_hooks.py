"""Hooks, retained gradients, and which tensors a backward reaches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import errors


def leaf(*values: float) -> ad.Tensor:
    return ad.tensor(list(values), requires_grad=True)


def test_a_hook_fires_once_on_the_total_in_registration_order() -> None:
    x = leaf(1.0, 2.0)
    y = x * 1.0
    seen: list[tuple[str, list[float]]] = []
    for t, name in ((x, "x"), (y, "y")):
        t.register_hook(lambda g, name=name: seen.append((f"{name}1", g.tolist())))
        t.register_hook(lambda g, name=name: seen.append((f"{name}2", g.tolist())))
    (y + y * 2.0 + y * 3.0).sum().backward()
    assert seen == [("y1", [6.0, 6.0]), ("y2", [6.0, 6.0]), ("x1", [6.0, 6.0]), ("x2", [6.0, 6.0])]


def test_hooks_replace_the_gradient_one_after_the_other() -> None:
    x = leaf(1.0)
    x.register_hook(lambda g: g * 10.0)
    x.register_hook(lambda g: g + 1.0)
    (x + x).backward()
    assert x.grad is not None and x.grad.tolist() == [21.0]


def test_hooks_may_add_and_remove_hooks_while_they_run() -> None:
    x = leaf(1.0)
    calls: list[str] = []

    def first(g: ad.Tensor) -> None:
        calls.append("first")
        handle.remove()
        handle.remove()
        x.register_hook(lambda g: calls.append("added"))

    handle = x.register_hook(first)
    x.register_hook(lambda g: calls.append("second"))
    (x * 2.0).backward()
    assert calls == ["first", "second"]
    (x * 2.0).backward()
    assert calls == ["first", "second", "second", "added"]


def test_a_handle_is_a_context_manager() -> None:
    x = leaf(1.0)
    calls: list[int] = []
    with x.register_hook(lambda g: calls.append(1)):
        (x * 2.0).backward()
    (x * 2.0).backward()
    assert calls == [1]


def test_post_accumulate_hooks_run_when_the_leaf_is_complete_before_the_rest() -> None:
    late, early = leaf(1.0), leaf(2.0)
    order: list[str] = []
    middle = early * 3.0
    middle.register_hook(lambda g: order.append("middle"))
    early.register_post_accumulate_grad_hook(lambda t: order.append(f"early {t.grad.tolist()}"))
    late.register_post_accumulate_grad_hook(lambda t: order.append(f"late {t.grad.tolist()}"))
    (middle * late).backward()
    assert order == ["late [6.0]", "middle", "early [3.0]"]


def test_a_post_accumulate_hook_may_free_the_gradient() -> None:
    x = leaf(1.0)

    def step(t: ad.Tensor) -> None:
        with ad.no_grad():
            t.copy_(t - 0.5 * t.grad)
        t.grad = None

    x.register_post_accumulate_grad_hook(step)
    (x * 4.0).backward()
    assert x.grad is None and x.tolist() == [-1.0]


def test_an_error_after_a_committed_leaf_says_which() -> None:
    late, early = leaf(1.0), leaf(2.0)
    late.register_post_accumulate_grad_hook(lambda t: None)

    def fail(g: ad.Tensor) -> None:
        raise ValueError("no")

    middle = early * 3.0
    middle.register_hook(fail)
    with pytest.raises(ValueError, match="no") as info:
        (middle * late).backward()
    assert early.grad is None and late.grad is not None
    assert info.value.__notes__ == [
        "1 leaves with a post-accumulate hook already have their new .grad (shapes (1,)); "
        "no other .grad has changed."
    ]


def test_hooks_need_something_that_requires_grad() -> None:
    with pytest.raises(errors.NoGradientError, match="does not require grad"):
        ad.tensor(1.0).register_hook(lambda g: None)
    with pytest.raises(errors.NoGradientError, match="is not a leaf that requires grad"):
        (leaf(1.0) * 2.0).register_post_accumulate_grad_hook(lambda t: None)


def test_hooks_under_create_graph_see_differentiable_gradients() -> None:
    x = leaf(3.0)
    y = x * x
    handle = y.register_hook(lambda g: g * x)
    (gx,) = ad.gradients((y * y).sum(), [x], create_graph=True)
    assert gx is not None
    # hooked: d(y²)/dy = 2y, times x, times dy/dx = 2x: 4x⁴
    assert gx.tolist() == [4 * 3.0**4]
    handle.remove()  # it would fire again: y is part of the graph of gx
    (gg,) = ad.gradients(gx.sum(), [x])
    assert gg is not None and gg.tolist() == [16 * 3.0**3]


def test_hooks_run_at_the_level_of_their_gradient() -> None:
    x = leaf(3.0)
    y = x * 2.0
    handle = y.register_hook(lambda g: g * ad.grad(lambda u: u * u)(ad.tensor(1.0)))
    z = (y * y + x * y).sum()
    times = lambda k: k * ad.gradients(z, [x], retain_graph=True)[0]
    assert ad.vmap(times)(np.array([1.0, 2.0])).tolist() == [[66.0], [132.0]]  # 2 · (2y + x) · 2 + y
    handle.remove()

    def captures(k: Any) -> Any:
        with y.register_hook(lambda g: g * k):
            return times(k)

    with pytest.raises(
        errors.HookError, match=r"returned a value from inside ad\.vmap, but the gradient that it replaces"
    ):
        ad.vmap(captures)(np.array([1.0, 2.0]))


def test_retain_grad_keeps_the_gradient_of_an_intermediate() -> None:
    x = leaf(1.0, 2.0)
    y = (x * 2.0).retain_grad()
    (y * y).sum().backward()
    assert y.grad is not None and y.grad.tolist() == [4.0, 8.0]
    with pytest.raises(errors.NoGradientError):
        ad.tensor(1.0).retain_grad()


def test_only_what_is_reachable_runs_and_is_consumed() -> None:
    x = leaf(2.0)
    shared = x * 1.0
    one, other = shared * x, ad.exp(shared)
    one.backward(retain_graph=True)
    assert x.grad is not None and x.grad.tolist() == [4.0]
    other.backward()
    assert x.grad.tolist() == [pytest.approx(4.0 + np.exp(2.0))]
    with pytest.raises(errors.GraphReleasedError, match="'exp'"):
        other.backward()


def test_inputs_limit_what_is_differentiated() -> None:
    a, b = leaf(2.0), leaf(3.0)
    middle = a * b
    loss = (middle * b).sum()
    loss.backward(inputs=[b], retain_graph=True)
    assert a.grad is None and b.grad is not None and b.grad.tolist() == [12.0]
    loss.backward(inputs=[middle], retain_graph=True)
    assert a.grad is None and middle.grad is not None and middle.grad.tolist() == [3.0]
    store = ad.backward(loss, inputs=[a, middle])
    assert store[a].tolist() == [9.0] and store[middle].tolist() == [3.0] and b not in store


def test_gradients_of_intermediates_and_of_unused_inputs() -> None:
    x, unused = leaf(2.0), leaf(1.0)
    y = x * x
    z = y * y
    gy, gx, none = ad.gradients(z, [y, x, unused], allow_unused=True)
    assert gy is not None and gx is not None and none is None
    assert gy.tolist() == [8.0] and gx.tolist() == [32.0]
    (gz,) = ad.gradients(x * 1.0, x, grad_outputs=ad.tensor([5.0]))
    assert gz is not None and gz.tolist() == [5.0]
    both = ad.gradients([x * 2.0, x * 3.0], [x], [None, np.array([10.0])])
    assert both[0] is not None and both[0].tolist() == [32.0]


def test_gradients_have_the_dtype_of_their_tensor() -> None:
    x = ad.tensor(np.ones(2, np.float32), requires_grad=True)
    w = ad.tensor(np.ones(2), requires_grad=True)
    (x * w).sum().backward()
    assert x.grad is not None and x.grad.dtype == np.float32
    assert w.grad is not None and w.grad.dtype == np.float64
    h = ad.tensor(np.full(3, 0.1, np.float16), requires_grad=True)
    total: Any = sum((h * 1.0 for _ in range(64)), start=h * 0.0)
    total.sum().backward()
    assert h.grad is not None and h.grad.dtype == np.float16 and h.grad.tolist() == [64.0] * 3


def test_half_precision_gradients_are_summed_in_float32() -> None:
    h = ad.tensor(np.zeros(1, np.float16), requires_grad=True)
    parts = [h * 1.0] + [h * 2.0**-12 for _ in range(4096)]
    ad.sum(ad.concat(parts)).backward()
    assert h.grad is not None and h.grad.tolist() == [2.0]  # in float16, 1 + 2⁻¹² stays 1


# The short way of ``loss.backward()`` and the general one ------------------------------------------


def plain_case():
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    return (w * w).sum(), [w]


def half_precision_case():
    w = ad.tensor(np.linspace(0.1, 1, 7), dtype=np.float16, requires_grad=True)
    return (w * w + w * w * w + w).astype(np.float32).sum(), [w]


def complex_case():
    z = ad.tensor([1 + 2j, 3 - 1j], requires_grad=True)
    return (z * z * ad.conj(z)).real.sum(), [z]


def retained_case():
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    h = w * 3
    h.retain_grad()
    return (h * h).sum(), [w, h]


def frozen_leaf_case():
    w, v = (ad.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    loss = (w * v).sum()
    w.requires_grad_(False)
    return loss, [w, v]


def hook_case():
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    w.register_hook(lambda g: g * 10)
    h = w * 3
    h.register_hook(lambda g: g * 2)
    return (h * h).sum(), [w]


def hook_that_adds_a_hook_case():
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    h = w * 3
    h.register_hook(lambda g: (w.register_hook(lambda gw: gw * 10), None)[1])
    return (h * h).sum(), [w]


def post_hook_case():
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    w.register_post_accumulate_grad_hook(lambda t: setattr(t, "grad", t.grad * 5))
    return (w * w).sum(), [w]


def grad_that_is_there_case():
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    w.grad = ad.tensor([100.0, 100.0])
    return (w * w).sum(), [w]


def one_leaf_case():
    w = ad.tensor(3.0, requires_grad=True)
    return w, [w]


def sparse_case():
    table = ad.tensor(np.ones((5, 2)), requires_grad=True)
    return ad.nn.functional.embedding(np.array([0, 1, 1]), table, sparse=True).sum(), [table]


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize(
    "case",
    [plain_case, half_precision_case, complex_case, retained_case, frozen_leaf_case, hook_case,
     hook_that_adds_a_hook_case, post_hook_case, grad_that_is_there_case, one_leaf_case, sparse_case],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_backward_without_options_is_the_general_one(case, retain):
    found = []
    for options in ({}, {"gradient": ad.tensor(1.0)}, {"workers": 2}):
        loss, tensors = case()
        if "gradient" in options:
            options = {"gradient": ad.ones_like(loss)}
        loss.backward(retain_graph=retain, **options)
        found.append(
            [None if t.grad is None else (t.grad.dtype, np.asarray(t.grad).tobytes()) for t in tensors]
        )
    assert found[0] == found[1] == found[2]
    assert any(g is not None for g in found[0])
