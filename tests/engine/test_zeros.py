"""Zeros of gradients: those that an op selected are kept, those of the arithmetic are numbers like others."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint.engine import zeros
from adjoint.nn import functional

Function = Callable[[Any], Any]
POINTS = np.array([-1.0, 0.0, 4.0])


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with np.errstate(all="ignore"):
        yield


def by_backward(workers: int) -> Callable[[Function, Any], Any]:
    def gradient(f: Function, a: Any) -> Any:
        x = ad.tensor(a, requires_grad=True)
        f(x).sum().backward(workers=workers)
        return x.grad.numpy()

    return gradient


def by_recording(f: Function, a: Any) -> Any:
    x = ad.tensor(a, requires_grad=True)
    return ad.gradients(f(x).sum(), [x], create_graph=True)[0].detach().numpy()


def with_hooks(f: Function, a: Any) -> Any:
    x = ad.tensor(a, requires_grad=True)
    y = x * 1.0
    y.register_hook(lambda g: None)
    y.retain_grad()
    f(y).sum().backward()
    np.testing.assert_array_equal(y.grad.numpy(), x.grad.numpy())
    return x.grad.numpy()


def with_events(f: Function, a: Any) -> Any:
    x = ad.tensor(a, requires_grad=True)
    found = []
    f(x).sum().backward(on_leaf_ready=lambda leaf, g: found.append(g.numpy(copy=True)))
    return found[0]


def by_tape(f: Function, a: Any) -> Any:
    x = ad.tensor(a, requires_grad=True)
    with ad.Tape() as tape:
        y = f(x).sum()
    return tape.gradients(y)[x].numpy()


def by_seed(f: Function, a: Any) -> Any:
    """The derivatives of a recorded backward with respect to its seed, which is zero."""
    x = ad.tensor(a, requires_grad=True)
    y = f(x)
    u = ad.tensor(np.zeros(y.shape), requires_grad=True)
    (g,) = ad.gradients([y], [x], [u], create_graph=True)
    pulled = [ad.gradients([g[k]], [u], retain_graph=True, allow_unused=True)[0] for k in range(len(a))]
    return np.array([0.0 if p is None else p.sum().item() for p in pulled])


MODES: dict[str, Callable[[Function, Any], Any]] = {
    "serial": by_backward(1),
    "parallel": by_backward(2),
    "create_graph": by_recording,
    "hooks": with_hooks,
    "events": with_events,
    "tape": by_tape,
    "seed": by_seed,
    "grad": lambda f, a: ad.grad(lambda x: f(x).sum())(ad.tensor(a)).numpy(),
    "vmap(grad)": lambda f, a: ad.vmap(ad.grad(lambda x: f(x).sum()))(ad.tensor(a)[None])[0].numpy(),
    "grad(vmap)": lambda f, a: ad.grad(lambda x: ad.vmap(f)(x[None]).sum())(ad.tensor(a)).numpy(),
    "checkpoint": lambda f, a: by_backward(1)(lambda x: ad.checkpoint(f, x), a),
    "vjp": lambda f, a: ad.vjp(lambda x: f(x).sum(), ad.tensor(a))[1](1.0)[0].numpy(),
}


SELECT: dict[str, tuple[Function, list[float]]] = {
    "where": (lambda x: ad.where(x > 0, ad.sqrt(x), 0.0), [0, 0, 0.25]),
    "where of a deep branch": (lambda x: ad.where(x > 0, ad.exp(ad.log(ad.sqrt(x)) * 2), 0.0), [0, 0, 1]),
    "where of an outer argument": (lambda x: ad.where(x > 0, x * (x / (x + 1)), 0.0), [0, 0, 0.96]),
    "two of them": (
        lambda x: (lambda y: ad.where(x > 0, y, 0.0) + ad.where(x > 1, 2 * y, 1.0))(ad.sqrt(x)),
        [0, 0, 0.75],
    ),
    "one inside another": (lambda x: ad.where(x > 0, ad.where(x > -2, ad.sqrt(x), 1.0), 0.0), [0, 0, 0.25]),
    "an index": (lambda x: ad.sqrt(x)[2], [0, 0, 0.25]),
    "a slice": (lambda x: ad.sqrt(x)[2:], [0, 0, 0.25]),
    "two indices": (lambda x: (lambda y: y[2] * y[2] + y[1:][1])(ad.sqrt(x)), [0, 0, 1.25]),
    "an index array": (lambda x: ad.sqrt(x)[np.array([2, 2])], [0, 0, 0.5]),
    "take": (lambda x: ad.take(ad.sqrt(x), np.array([2])), [0, 0, 0.25]),
    "at": (lambda x: ad.sqrt(x).at[:2].set(0.0), [0, 0, 0.25]),
    "a part of a split": (lambda x: ad.split(ad.sqrt(x), 3)[2], [0, 0, 0.25]),
    "one of unstack": (lambda x: ad.unstack(ad.sqrt(x))[2], [0, 0, 0.25]),
    "a reshape behind": (lambda x: ad.sqrt(x).reshape(3, 1).T[0, 2:], [0, 0, 0.25]),
    "a sum behind": (
        lambda x: ad.where((x > 0)[:, None], ad.sqrt(x)[:, None] * ad.ones((3, 2)), 0.0),
        [0, 0, 0.5],
    ),
    "maximum": (lambda x: ad.maximum(ad.log(ad.abs(x)), 1.0), [0, 0, 0.25]),
    "clip": (lambda x: ad.clip(ad.log(ad.abs(x)), 0.5, 9.0), [0, 0, 0.25]),
    "relu": (lambda x: functional.relu(ad.log(ad.abs(x)) - 0.5), [0, 0, 0.25]),
    "fmax": (lambda x: ad.fmax(ad.log(x), -9.0), [0, 0, 0.25]),
    "max": (lambda x: ad.max(ad.sqrt(ad.abs(x))), [0, 0, 0.25]),
    "sort": (lambda x: ad.sort(ad.sqrt(ad.abs(x)))[2:], [0, 0, 0.25]),
    "floor": (lambda x: ad.floor(ad.sqrt(x)), [0, 0, 0]),
    "a checkpoint that selects": (
        lambda x: ad.checkpoint(lambda v: ad.where(np.array([False, False, True]), v, 0.0), ad.sqrt(x)),
        [0, 0, 0.25],
    ),
    "a checkpoint with two results": (
        lambda x: ad.concat(ad.checkpoint(lambda v: [v[2:], 2 * v[2:]], ad.sqrt(x))),
        [0, 0, 0.75],
    ),
    "checkpoints in a row": (
        lambda x: ad.checkpoint(lambda v: v[2:], ad.checkpoint(lambda v: 2 * v, ad.checkpoint(ad.sqrt, x))),
        [0, 0, 0.5],
    ),
    "gelu": (lambda x: ad.where(x > 0, functional.gelu(ad.log(ad.sqrt(x)), "tanh"), 0.0)[:2], [0, 0, 0]),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SELECT)
def test_a_zero_that_was_selected_stays(name: str, mode: str) -> None:
    f, expected = SELECT[name]
    found = MODES[mode](f, POINTS)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_number_that_was_not_selected() -> None:
    """Through an op that is neither elementwise nor linear: all of the gradient is zero, or none."""
    for gradient in (by_backward(1), by_backward(2), by_recording):
        found = gradient(lambda x: ad.where(False, ad.logsumexp(ad.log(x)), x.sum()), POINTS)
        np.testing.assert_array_equal(found, 1)


NUMBERS: dict[str, Function] = {
    "sqrt and square": lambda x: ad.sqrt(x) ** 2,
    "log and exp": lambda x: ad.exp(ad.log(x)),
    "reciprocals": lambda x: 1 / (1 / x),
    "behind an index": lambda x: (ad.sqrt(x) ** 2)[1],
    "behind a where": lambda x: ad.where(x < 9, ad.sqrt(x) ** 2, 0.0),
    "beside a where": lambda x: ad.where(x > 9, 0.0, ad.exp(ad.log(x))),
    "a product with zero": lambda x: 0 * ad.sqrt(x),
    "gamma": lambda x: ad.exp(-ad.special.gammaln(x)),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NUMBERS)
def test_a_zero_of_the_arithmetic_is_a_number(name: str, mode: str) -> None:
    """The truth is 1 in nearly all: a NaN, and never a wrong number."""
    assert np.isnan(MODES[mode](NUMBERS[name], np.array([4.0, 0.0]))[1])


def test_jacobians_keep_the_zeros_of_their_rows() -> None:
    x = np.array([0.0, 4.0])
    for f in (
        ad.sqrt,
        lambda x: ad.checkpoint(ad.sqrt, x),
        lambda x: ad.stack([ad.sqrt(x)[0], ad.sqrt(x)[1]]),
    ):
        for jacobian in (ad.jacobian, ad.jacfwd):
            np.testing.assert_array_equal(jacobian(f)(x), [[np.inf, 0], [0, 0.25]])


def test_zeros_in_a_seed_select() -> None:
    x = ad.tensor([0.0, 4.0], requires_grad=True)
    ad.sqrt(x).backward(np.array([0.0, 1.0]))
    assert x.grad.tolist() == [0, 0.25]
    assert ad.jvp(ad.sqrt, (x.detach(),), (np.array([0.0, 1.0]),))[1].tolist() == [0, 0.25]


def test_forward_mode_gives_what_the_arithmetic_gives() -> None:
    for f in (lambda x: ad.sqrt(x**2), lambda x: ad.checkpoint(ad.sqrt, x**2)):
        assert np.isnan(ad.jvp(f, (0.0,), (1.0,))[1].item())


@pytest.mark.parametrize("count", range(5))
def test_a_selected_zero_among_other_contributions(count: int) -> None:
    """The masked term is the first, the last, or between the others."""
    for at in range(count + 1):
        for mode, gradient in MODES.items():

            def f(x: Any, at: int = at) -> Any:
                terms = [2.0 * x for _ in range(count)]
                terms.insert(at, ad.where(x > 0, ad.sqrt(x), 0.0))
                return sum(terms)

            expected = 2.0 * count + np.array([0, 0, 0.25])
            np.testing.assert_allclose(gradient(f, POINTS), expected, rtol=1e-12, err_msg=mode)


def test_second_derivatives_behind_where() -> None:
    """x**1.5 is smooth once at 0: the zero of the first derivative is one that was selected, too."""
    for f in (lambda x: ad.where(x > 0, x**1.5, 0.0).sum(), lambda x: ad.where(x > 0, ad.sqrt(x), 0.0).sum()):
        good = ad.hessian(f)(np.array([4.0])).item()
        found = ad.hessian(f)(POINTS)
        np.testing.assert_allclose(found, np.diag([0, 0, good]))


def test_anomaly_mode_finds_nothing_in_what_was_not_selected() -> None:
    x = ad.tensor([0.0, 4.0], requires_grad=True)
    with ad.detect_anomaly():
        ad.where(x > 0, ad.sqrt(x), 0.0).sum().backward()
        assert x.grad.tolist() == [0, 0.25]
        with pytest.raises(ad.errors.AnomalyError, match="'sqrt' produced NaN"):
            (ad.sqrt(x) ** 2).sum().backward()


def test_a_long_chain_of_views_behind_an_index() -> None:
    x = ad.tensor([0.0, 4.0], requires_grad=True)
    y = ad.sqrt(x)
    for _ in range(20_000):
        y = y.reshape(1, 2)[0]
    y[1].backward()
    assert x.grad.tolist() == [0, 0.25]


# Random programs -------------------------------------------------------------------------------------

INVERSES: list[tuple[Function, Function]] = [
    (ad.sqrt, ad.square),
    (ad.log, ad.exp),
    (ad.reciprocal, lambda x: 1 / x),
    (lambda x: x**0.25, lambda x: x**4),
    (ad.cbrt, lambda x: x * x * x),
    (lambda x: x * 2.0, lambda x: x / 2.0),
    (lambda x: x + 0.0, lambda x: x.reshape(1, -1)[0]),
]


@pytest.mark.parametrize("seed", range(60))
def test_a_random_identity_has_gradient_one_or_nan(seed: int) -> None:
    """f⁻¹(f(x)), nested at random, has slope 1 everywhere; where it is masked, 0, in every mode alike."""
    rng = np.random.default_rng(seed)
    chain = [INVERSES[k] for k in rng.integers(len(INVERSES), size=rng.integers(1, 5))]
    mask = rng.random(4) < 0.5
    x = rng.choice([0.0, 0.5, 4.0], 4)

    def identity(x: Any) -> Any:
        for f, _ in chain:
            x = f(x)
        for _, inverse in reversed(chain):
            x = inverse(x)
        return x

    def masked(x: Any) -> Any:
        return ad.where(mask, identity(x), 0.0)

    terms = [masked, lambda x: ad.where(~mask, 0.0, identity(x)), *[lambda x: 2.0 * x] * rng.integers(4)]
    rng.shuffle(terms)

    def several(x: Any) -> Any:
        """Add masked and plain terms, so that x has up to five contributions in random order."""
        return sum(f(x) for f in terms)

    for mode, gradient in MODES.items():
        alone, chosen = gradient(identity, x), gradient(masked, x)
        np.testing.assert_allclose(alone[~np.isnan(alone)], 1, rtol=1e-9, err_msg=mode)
        np.testing.assert_array_equal(chosen, np.where(mask, alone, 0), err_msg=mode)
        expected = np.where(mask, 2 * alone, 0) + 2 * (len(terms) - 2)
        np.testing.assert_allclose(gradient(several, x), expected, rtol=1e-9, err_msg=mode)


@pytest.mark.parametrize("n", [1, 2, 9, 70])
def test_slices_of_every_kind_select_their_positions(n: int) -> None:
    ends = [None, *range(-n - 1, n + 2, max(1, n // 6))]
    for start, stop, step in itertools.product(ends, ends, [None, -n, -3, -1, 1, 2, 5, n + 1]):
        key = slice(start, stop, step)
        if key == slice(None):
            continue  # no axis is indexed
        node = types.SimpleNamespace(params={"key": (key, Ellipsis)})
        live = np.zeros(n, bool)
        live[key] = True
        found = zeros.picked(node, (n, 2)).live()
        np.testing.assert_array_equal(found, np.repeat(live[:, None], 2, 1))


SINGULAR: dict[str, Function] = {
    "log of relu": lambda x: ad.log(ad.relu(x)),
    "sqrt of where": lambda x: ad.sqrt(ad.where(x > 0, x, 0.0)),
    "1 / clip": lambda x: 1 / ad.clip(x, 0, None),
    "log2 of maximum": lambda x: ad.log2(ad.maximum(x, 0.0)),
    "log of a slice": lambda x: ad.log(ad.concatenate([ad.zeros(2), ad.relu(x[2:])])),
    "sum": lambda x: ad.sqrt(ad.relu(x)).sum(),
    "cumsum": lambda x: ad.cumsum(ad.sqrt(ad.relu(x))),
    "product": lambda x: ad.sqrt(ad.relu(x)) * ad.relu(x),
    "checkpoint": lambda x: ad.checkpoint(lambda v: ad.log(ad.relu(v)), x),
    "around a checkpoint": lambda x: ad.checkpoint(ad.log, ad.relu(x)),
    "matmul": lambda x: ad.sqrt(ad.relu(x)) @ np.arange(9.0).reshape(3, 3),
}


@pytest.mark.parametrize("tangent", [[0.2, 0.3, 0.5], [0.2, 0.0, 0.5], [0.0, 0.3, 0.0]])
@pytest.mark.parametrize("name", SINGULAR)
def test_forward_mode_keeps_what_was_not_selected(name: str, tangent: list[float]) -> None:
    f, x, t = SINGULAR[name], np.array([-1.0, -0.5, 4.0]), np.array(tangent)
    wanted = np.asarray(ad.jacrev(f)(x)) @ t

    def pushed(x: Any, t: Any) -> Any:
        return ad.jvp(f, (x,), (t,))[1]

    assert np.isfinite(wanted).all()
    np.testing.assert_allclose(pushed(x, t), wanted, rtol=1e-14)
    np.testing.assert_allclose(np.asarray(ad.jacfwd(f)(x)) @ t, wanted, rtol=1e-14)
    np.testing.assert_allclose(ad.vmap(lambda u: pushed(x, u))(np.stack([t, 2 * t])), [wanted, 2 * wanted])
    np.testing.assert_allclose(ad.compile(pushed, backend="replay")(x, t), wanted, rtol=1e-14)


def test_a_tangent_without_elements_is_zero() -> None:
    def pushed(x: Any) -> Any:
        return ad.jvp(lambda v: ad.sqrt(v.sum()), (x,), (x,))[1]

    x = np.zeros((0, 2))
    assert pushed(x) == ad.compile(pushed, backend="replay")(x) == 0
