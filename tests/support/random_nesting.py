"""Random nestings of tapes, transforms, checkpoints, compiled functions, custom rules and scopes.

A program is a function ``f(x, w)`` of a vector and a number.  It starts as a formula, and each step makes
another function of it: a derivative along V, a sum over scaled copies of x, the same function behind a
checkpoint, a custom rule or ``ad.compile``, a product in which a factor is a constant.  Every step is written
twice: with adjoint, and for the numbers of ``Dual`` (``random_formulas.py``).
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
from random_formulas import F2, FORMULAS, derivative, number

import adjoint as ad
from adjoint.context import transform

V = np.array([0.7, -0.3, 0.5])
SCALES = np.array([0.5, 1.0, -0.8])
ORDER = 4  # derivatives of the formula that a program takes at most

# Steps -----------------------------------------------------------------------------------------------


class Around(NamedTuple):
    """What the steps further out do to a program."""

    taped: bool  # a tape is recording when it runs


Step = Callable[[F2, Around], F2]


def _point(x: Any) -> Any:
    """A tensor to differentiate with respect to, joined to the history of ``x``."""
    return (x * 1.0).requires_grad_()


def _create() -> bool | None:
    """``create_graph`` for gradients that are differentiated: the default inside a transform."""
    return True if transform.get() is None else None


def _by_tape(watch: bool, persistent: bool) -> Step:
    def step(f: F2, around: Around) -> F2:
        def g(x: Any, w: Any) -> Any:
            with ad.Tape(persistent=persistent) as tape:
                z = x * 1.0 if watch else _point(x)
                if watch:
                    tape.watch(z)
                y = ad.asarray(f(z, w))  # an array if nothing requires grad
                if persistent and y.requires_grad:
                    tape.gradients(y, create_graph=True)
            if not y.requires_grad:
                return z @ V * 0.0
            try:
                return tape.gradients(y, [z], create_graph=None if around.taped else _create())[z] @ V
            except ad.errors.NoGradientError:  # y does not depend on z
                return z @ V * 0.0

        return g

    return step


def _by_gradients(f: F2, around: Around) -> F2:
    def g(x: Any, w: Any) -> Any:
        with ad.enable_grad():
            z = _point(x)
            y = ad.asarray(f(z, w))
            found = None
            if y.requires_grad:
                (found,) = ad.gradients(y, [z], create_graph=_create(), allow_unused=True)
        return (z * 0.0 if found is None else found) @ V

    return g


def _by_backward(f: F2, around: Around) -> F2:
    def g(x: Any, w: Any) -> Any:
        with ad.enable_grad():
            z = _point(x)
            y = ad.asarray(f(z, w))
            grads = ad.backward(y, 1.0, create_graph=_create(), inputs=[z]) if y.requires_grad else {}
            return (grads[z] if z in grads else z * 0.0) @ V

    return g


def _by_seed(f: F2, around: Around) -> F2:
    def g(x: Any, w: Any) -> Any:
        with ad.enable_grad():
            z, u = _point(x), ad.tensor(np.zeros(2)).requires_grad_()
            y = _pair(f, w)(z)
            found = None
            if y.requires_grad:
                (found,) = ad.gradients([y], [z], [u], create_graph=True, allow_unused=True)
            if found is None or not found.requires_grad:
                return z @ V * 0.0
            (along,) = ad.gradients([found], [u], [V], create_graph=True, allow_unused=True)
            return z @ V * 0.0 if along is None else along[0]

    return g


def _simple(make: Callable[[F2], F2]) -> Step:
    return lambda f, around: make(f)


def _pair(f: F2, w: Any) -> Any:
    return lambda x: ad.stack([f(x, w), 2.0 * f(x, w)])


def _pull(f: F2, x: Any, w: Any) -> Any:
    """The pull of ``_pair``, as a function of the seed alone."""
    pull = ad.vjp(_pair(f, w), x)[1]
    return lambda u: pull(u)[0]


NO_SEED, SEED = np.zeros(2), np.array([0.0, 1.0])  # zero, and zero in places

# Derivatives with respect to a seed, in which a pull or a push is linear.
SEEDED: dict[str, Step] = {
    "vjp_of_pull": _simple(lambda f: lambda x, w: ad.vjp(_pull(f, x, w), NO_SEED)[1](V)[0][0]),
    "grad_of_pull": _simple(lambda f: lambda x, w: ad.grad(lambda u: _pull(f, x, w)(u) @ V)(SEED)[0]),
    "jacobian_of_pull": _simple(lambda f: lambda x, w: (ad.jacobian(_pull(f, x, w))(SEED).T @ V)[0]),
    "jvp_of_pull": _simple(lambda f: lambda x, w: ad.jvp(_pull(f, x, w), (SEED,), (1 - SEED,))[1] @ V),
    "vmap_of_pull": _simple(lambda f: lambda x, w: (ad.vmap(_pull(f, x, w))(np.eye(2)) @ V)[0]),
    "pull_of_zero_with_history": _simple(
        lambda f: (
            lambda x, w: ad.grad(lambda u: ad.vjp(lambda y: f(y, w), x)[1](u - ad.stop_gradient(u))[0] @ V)(w)
        )
    ),
    "vjp_of_linearize": _simple(
        lambda f: lambda x, w: ad.vjp(ad.linearize(lambda y: f(y, w), x)[1], np.zeros(3))[1](1.0)[0] @ V
    ),
    "grad_of_tangent": _simple(
        lambda f: lambda x, w: ad.grad(lambda t: ad.jvp(lambda y: f(y, w), (x,), (t,))[1])(np.zeros(3)) @ V
    ),
    "gradients_of_seed": _by_seed,
}
DERIVATIVES: dict[str, Step] = {
    **SEEDED,
    "grad": _simple(lambda f: lambda x, w: ad.grad(f)(x, w) @ V),
    "value_and_grad": _simple(lambda f: lambda x, w: ad.value_and_grad(lambda y: f(y, w))(x)[1] @ V),
    "grad_with_aux": _simple(
        lambda f: lambda x, w: ad.grad(lambda y: (f(y, w), y * w), has_aux=True)(x)[0] @ V
    ),
    "jvp": _simple(lambda f: lambda x, w: ad.jvp(lambda y: f(y, w), (x,), (V,))[1]),
    "jvp_of_two": _simple(lambda f: lambda x, w: ad.jvp(f, (x, w), (V, w * 0.0))[1]),
    "vjp": _simple(lambda f: lambda x, w: ad.vjp(lambda y: f(y, w), x)[1](1.0)[0] @ V),
    "vjp_seeded": _simple(lambda f: lambda x, w: ad.vjp(f, x, w)[1](w)[0] @ V / w),
    "linearize": _simple(lambda f: lambda x, w: ad.linearize(lambda y: f(y, w), x)[1](V)),
    "jacrev": _simple(lambda f: lambda x, w: (ad.jacrev(_pair(f, w))(x) @ V)[0]),
    "jacfwd": _simple(lambda f: lambda x, w: (ad.jacfwd(_pair(f, w))(x) @ V)[1] * 0.5),
    "jacobian": _simple(lambda f: lambda x, w: ad.jacobian(lambda y: f(y, w), chunk_size=2)(x) @ V),
    "captured": _simple(lambda f: lambda x, w: ad.grad(lambda t: f(x + t * V, w))(0.0)),
    "vmapped_jvp": _simple(
        lambda f: (
            lambda x, w: (ad.vmap(lambda v: ad.jvp(lambda y: f(y, w), (x,), (v,))[1])(np.eye(3)) * V).sum()
        )
    ),
    "tape": _by_tape(watch=True, persistent=False),
    "persistent_tape": _by_tape(watch=True, persistent=True),
    "tape_of_leaf": _by_tape(watch=False, persistent=False),
    "gradients": _by_gradients,
    "backward": _by_backward,
}
BATCHED_DERIVATIVES: dict[str, Step] = {
    "vmapped_grad": _simple(lambda f: lambda x, w: ad.vmap(ad.grad(f), (0, None))(x.reshape(1, 3), w)[0] @ V),
}
SECOND: dict[str, Step] = {
    "hessian": _simple(lambda f: lambda x, w: V @ (ad.hessian(lambda y: f(y, w))(x) @ V)),
    "hvp": _simple(lambda f: lambda x, w: ad.hvp(lambda y: f(y, w), x, V) @ V),
    "jacrev_of_grad": _simple(lambda f: lambda x, w: V @ (ad.jacrev(ad.grad(f))(x, w) @ V)),
}
SUMS: dict[str, Step] = {
    "vmap": _simple(lambda f: lambda x, w: ad.vmap(lambda s: f(x * s, w))(SCALES).sum()),
    "vmap_of_columns": _simple(
        lambda f: lambda x, w: ad.vmap(f, in_axes=(1, None))(x.reshape(3, 1) * SCALES, w).sum()
    ),
    "vmap_of_checkpoint": _simple(
        lambda f: lambda x, w: ad.vmap(lambda s: ad.checkpoint(lambda y: f(y * s, w), x))(SCALES).sum()
    ),
    "vmap_of_nothing": _simple(  # and the sum itself
        lambda f: (
            lambda x, w: (
                ad.vmap(lambda s: f(x * s, w))(SCALES).sum()
                + ad.vmap(lambda s: f(x * s, w))(SCALES[:0]).sum()
            )
        )
    ),
    "vmap_in_chunks": _simple(
        lambda f: lambda x, w: ad.vmap(lambda s: f(x * s, w), chunk_size=2)(SCALES).sum()
    ),
}


def _by_custom_vjp(f: F2, around: Around) -> F2:
    custom: Any = ad.custom_vjp(f)
    custom.defvjp(
        lambda x, w: (f(x, w), (x, w)),
        lambda kept, g: tuple(g * d for d in ad.grad(f, (0, 1))(*kept)),
    )
    return custom


def _by_constant(f: F2, around: Around) -> F2:
    """The derivatives of f, and the value 0, which is the same for all elements of a batch."""
    custom: Any = ad.custom_vjp(lambda x, w: ad.tensor(0.0))
    custom.defvjp(
        lambda x, w: (ad.tensor(0.0), (x, w)),
        lambda kept, g: tuple(g * d for d in ad.grad(f, (0, 1))(*kept)),
    )
    return custom


def _by_custom_jvp(f: F2, around: Around) -> F2:
    custom: Any = ad.custom_jvp(f)
    custom.defjvp(lambda primals, tangents: ad.jvp(f, primals, tangents))
    return custom


def _by_function(f: F2, around: Around) -> F2:
    class Custom(ad.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, w: Any) -> Any:
            ctx.save_for_backward(x, w)
            return f(x, w)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return tuple(g * d for d in ad.grad(f, (0, 1))(*ctx.saved_tensors))

    return Custom.apply


def _inside(*scopes: Callable[[], Any]) -> Step:
    def step(f: F2, around: Around) -> F2:
        def g(x: Any, w: Any) -> Any:
            with ExitStack() as stack:
                for scope in scopes:
                    stack.enter_context(scope())
                return f(x, w)

        return g

    return step


def _hooks(pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> Step:
    return _inside(lambda: ad.saved_tensors_hooks(pack, unpack))


HOOKS: dict[str, Step] = {
    "hooks_that_keep": _hooks(lambda t: [t], lambda kept: kept[0]),
    "hooks_that_copy": _hooks(lambda t: t.numpy(copy=True), ad.tensor),
    "hooks_of_tensors": _hooks(ad.tensor, lambda t: t),
    "hooks_to_bytes": _hooks(lambda t: pickle.dumps(t.numpy()), lambda data: ad.tensor(pickle.loads(data))),
}


def _returning_arguments(f: F2, around: Around) -> F2:
    def g(x: Any, w: Any) -> Any:
        y, u, v = ad.checkpoint(lambda a, b: (f(a, b), b, a), x, w)
        return y + u * v[0] - w * x[0]

    return g


def _compiled(f: F2, around: Around) -> F2:
    compiled = ad.compile(f, backend="replay", limit=100)
    return lambda x, w: 0.5 * (compiled(x, w) + compiled(x, w))  # traced, and run without a trace


SAME: dict[str, Step] = {
    "compile": _compiled,
    "checkpoint": _simple(lambda f: lambda x, w: ad.checkpoint(f, x, w)),
    "checkpoint_capturing_w": _simple(lambda f: lambda x, w: ad.checkpoint(lambda y: f(y, w), x)),
    "checkpoint_capturing_x": _simple(lambda f: lambda x, w: ad.checkpoint(lambda u: f(x, u), w)),
    "checkpoint_returning_arguments": _returning_arguments,
    "checkpoint_capturing_all": _simple(lambda f: lambda x, w: ad.checkpoint(lambda: f(x, w))),
    "custom_vjp": _by_custom_vjp,
    "constant": _by_constant,
    "custom_jvp": _by_custom_jvp,
    "function": _by_function,
    "enable_grad": _inside(ad.no_grad, ad.enable_grad),
    "anomaly": _inside(ad.detect_anomaly),
    **HOOKS,
    "root": _simple(lambda f: lambda x, w: ad.root(lambda y: y - f(x, w), 0.0)),
    "fixed_point": _simple(lambda f: lambda x, w: ad.fixed_point(lambda y, a, b: f(a, b), 0.0, x, w)),
    "value_of_vjp": _simple(lambda f: lambda x, w: ad.vjp(f, x, w)[0]),
    "value_of_jvp": _simple(lambda f: lambda x, w: ad.jvp(f, (x, w), (x, w))[0]),
    "value_of_linearize": _simple(lambda f: lambda x, w: ad.linearize(lambda y: f(y, w), x)[0]),
    "value_of_grad": _simple(lambda f: lambda x, w: ad.value_and_grad(f)(x, w)[0]),
    "aux_of_grad": _simple(lambda f: lambda x, w: ad.grad(lambda y: (y.sum(), f(y, w)), has_aux=True)(x)[1]),
}
BATCHED_SAME: dict[str, Step] = {
    "vmap_of_one": _simple(lambda f: lambda x, w: ad.vmap(f, (0, None))(x.reshape(1, 3), w)[0]),
    "vmap_of_number": _simple(lambda f: lambda x, w: ad.vmap(lambda u: f(x + 0.0 * u, u))(w.reshape(1))[0]),
}


def _cut(scope: Callable[[], Any]) -> Step:
    def step(f: F2, around: Around) -> F2:
        def g(x: Any, w: Any) -> Any:
            with scope():
                c = f(x, w)
            return c * _factor(x, w)

        return g

    return step


def _factor(x: Any, w: Any) -> Any:
    return x[0] * w + x[1] ** 2


CUTS: dict[str, Step] = {
    "no_grad": _cut(ad.no_grad),
    "inference_mode": _cut(ad.inference_mode),
    "stop_gradient": _simple(lambda f: lambda x, w: ad.stop_gradient(f(x, w)) * _factor(x, w)),
    "detach": _simple(lambda f: lambda x, w: ad.asarray(f(x, w)).detach() * _factor(x, w)),
}


def _gauss_newton(f: F2, x: Any, w: Any) -> Any:
    """V·JᵀHJ V for the Jacobian J of ``_pair`` and a quadratic form of 18 along (1, 2), with J V by two pulls."""
    pull = _pull(f, x, w)
    (along,) = ad.vjp(pull, NO_SEED)[1](V)
    _, curved = ad.vjp(ad.grad(lambda r: (r**2).sum() + 2.0 * r[0] * r[1]), _pair(f, w)(x))
    return pull(curved(along)[0]) @ V


# Times a factor of which a transform in between captures the argument; a derivative and a product.
PRODUCTS: dict[str, Step] = {
    "gauss_newton": _simple(lambda f: lambda x, w: _gauss_newton(f, x, w)),
    "product": _simple(lambda f: lambda x, w: f(x, w) * _factor(x, w)),
    "product_inside_grad": _simple(lambda f: lambda x, w: ad.grad(lambda y: f(y, w) * _factor(x, w))(x) @ V),
    "product_inside_jvp": _simple(
        lambda f: lambda x, w: ad.jvp(lambda y: f(y, w) * _factor(x, w), (x,), (V,))[1]
    ),
}

STEPS = DERIVATIVES | BATCHED_DERIVATIVES | SECOND | SUMS | SAME | BATCHED_SAME | CUTS | PRODUCTS
TAPES = ("tape", "persistent_tape", "tape_of_leaf")
CUSTOM = ("custom_vjp", "constant", "custom_jvp", "function")
# These record whatever the scope around says, and give a result with a history.
EXPLICIT = (*TAPES, "gradients", "gradients_of_seed", "backward", "enable_grad")
# These read values, or which transform runs, so they cannot be compiled.
READING = (*EXPLICIT, "pull_of_zero_with_history", "hooks_that_copy", "hooks_to_bytes")
# These hand on x itself, and what they get with its history.
PASSING = (
    *SUMS,
    *BATCHED_SAME,
    "product",
    *(s for s in SAME if "checkpoint" in s),
    "anomaly",
    *HOOKS,
    "fixed_point",
    "root",
)


def order_of(step: str) -> int:
    """How many derivatives a step takes."""
    if step in SECOND:
        return 2
    inside = step == "gauss_newton" or step.startswith("product_inside")
    return int(step in DERIVATIVES or step in BATCHED_DERIVATIVES or inside)


def reference(step: str, f: F2) -> F2:
    """The same step for the numbers of the reference."""
    if step in DERIVATIVES or step in BATCHED_DERIVATIVES:
        return lambda x, w: derivative(f, x, w, V)
    if step in SECOND:
        return lambda x, w: derivative(lambda y, u: derivative(f, y, u, V), x, w, V)
    if step in SUMS:
        return lambda x, w: sum(f([a * float(s) for a in x], w) for s in SCALES)
    if step in CUTS:
        return lambda x, w: number(f(x, w)) * _factor(x, w)
    if step == "product":
        return lambda x, w: f(x, w) * _factor(x, w)
    if step == "constant":
        return lambda x, w: f(x, w) - number(f(x, w))
    if step == "gauss_newton":
        return lambda x, w: derivative(f, x, w, V) ** 2 * 18.0
    if step in PRODUCTS:
        return lambda x, w: derivative(f, x, w, V) * _factor(x, w)
    return f


# Programs --------------------------------------------------------------------------------------------


def _allowed(step: str, inner: list[str]) -> bool:
    """Tell whether a step can be put around others, the innermost first."""
    if step == "compile":
        return not any(s in READING for s in inner)
    if step == "inference_mode":  # nothing records inside
        return not any(s in EXPLICIT for s in inner)
    if step in ("no_grad", *CUSTOM):
        # what is recorded explicitly keeps its history, with which a custom rule is an error
        passing = [s for s in inner if s in PASSING or s in EXPLICIT]
        return not any(s in EXPLICIT for s in itertools.takewhile(passing.__contains__, reversed(inner)))
    return True


class Program:
    """A random nesting, and the same for the reference."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        name = str(rng.choice(list(FORMULAS)))
        self.steps: list[str] = []  # the innermost first
        order = sums = 0
        for _ in range(rng.integers(1, 6)):
            step = str(rng.choice(list(STEPS)))
            if order + order_of(step) < ORDER and sums + (step in SUMS) <= 2 and _allowed(step, self.steps):
                self.steps.append(step)
                order += order_of(step)
                sums += step in SUMS
        self.name = " of ".join([*self.steps[::-1], name])
        self.actual, self.expected = FORMULAS[name]
        for i, step in enumerate(self.steps):
            # a custom rule runs its function again when no tape may be recording
            outside = itertools.takewhile(lambda s: s not in CUSTOM, self.steps[i + 1 :])
            around = Around(any(s in TAPES for s in outside))
            self.actual = STEPS[step](self.actual, around)
            self.expected = reference(step, self.expected)
        self.way = str(rng.choice(list(WAYS)))
        self.x = rng.uniform(0.3, 0.9, 3) * rng.choice([-1.0, 1.0], 3)
        self.w = float(rng.uniform(0.6, 1.2))

    def check(self) -> None:
        """Compare the value and the derivatives with respect to x, along V, and w."""
        x, w = list(map(float, self.x)), self.w
        value = number(self.expected(x, w))
        along = number(derivative(self.expected, x, w, V))
        by_w = number(derivative(self.expected, x, w, V * 0.0, 1.0))
        found = WAYS[self.way](self.actual, self.x, self.w)
        np.testing.assert_allclose(
            found, (value, along, by_w), rtol=1e-7, atol=1e-7, err_msg=f"{self.name}, by {self.way}"
        )


# How a program is differentiated at last: its value, and its derivatives along V and by w.


def _found(y: Any, gx: Any, gw: Any) -> Any:
    zero = lambda g: 0.0 if g is None else g
    return float(y), float(V @ np.zeros(3) if gx is None else V @ np.asarray(gx)), float(zero(gw))


def _leaves(x: Any, w: Any) -> Any:
    return ad.tensor(x, requires_grad=True), ad.tensor(w, requires_grad=True)


def _by_backward(f: F2, x: Any, w: Any) -> Any:
    x, w = _leaves(x, w)
    y = ad.asarray(f(x, w))
    if y.requires_grad:
        y.backward()
    return _found(y, x.grad, w.grad)


def _by_gradients(f: F2, x: Any, w: Any) -> Any:
    x, w = _leaves(x, w)
    y = ad.asarray(f(x, w))
    gx, gw = ad.gradients(y, [x, w], allow_unused=True) if y.requires_grad else (None, None)
    return _found(y, gx, gw)


def _by_tape(f: F2, x: Any, w: Any) -> Any:
    x, w = ad.tensor(x), ad.tensor(w)
    with ad.Tape() as tape:
        tape.watch(x, w)
        y = ad.asarray(f(x, w))
    grads = dict(tape.gradients(y).items()) if y.requires_grad else {}
    return _found(y, grads.get(x), grads.get(w))


def _by_grad(f: F2, x: Any, w: Any) -> Any:
    y, (gx, gw) = ad.value_and_grad(f, (0, 1))(x, w)
    return _found(y, gx, gw)


def _by_jvp(f: F2, x: Any, w: Any) -> Any:
    y, along = ad.jvp(f, (x, w), (V, 0.0))
    return float(y), float(along), float(ad.jvp(f, (x, w), (V * 0.0, 1.0))[1])


def _by_vmap(f: F2, x: Any, w: Any) -> Any:
    xs, ws = np.stack([0.5 * x, x]), np.array([w, w])
    y, (gx, gw) = ad.vmap(ad.value_and_grad(f, (0, 1)))(xs, ws)
    return _found(y[1], gx[1], gw[1])


def _by_leaf_and_vmap(f: F2, x: Any, w: Any) -> Any:
    x, w = _leaves(x, w)
    y = ad.asarray(ad.vmap(lambda s: f(x * s, w))(np.array([1.0, 0.5]))[0])
    if y.requires_grad:
        y.backward()
    return _found(y, x.grad, w.grad)


WAYS: dict[str, Callable[[F2, Any, Any], Any]] = {
    "backward": _by_backward,
    "two workers": lambda f, x, w: ad.config.workers(2)(_by_backward)(f, x, w),
    "gradients": _by_gradients,
    "tape": _by_tape,
    "grad": _by_grad,
    "jvp": _by_jvp,
    "vmap": _by_vmap,
    "leaf_and_vmap": _by_leaf_and_vmap,
}
