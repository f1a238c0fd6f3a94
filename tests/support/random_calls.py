"""Random programs of nested calls and transforms, for comparing a call with plain Python.

A program is drawn as data and then run twice: once with every call made plainly, ``f(*args)``, and once
with the calls that were drawn (checkpoints, custom rules).  Programs nest ``vmap``, ``grad`` and
``jvp``; their functions capture values of every level around, and return arguments and captured
values as well as results; they solve equations too.  All values are numbers: tensors without axes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import adjoint as ad

Plan = list[tuple[Any, ...]]
Values = list[Any]


def _slope(x: Any) -> Any:
    """A gradient that is a constant, except inside of a transform."""
    z = x * 1.0
    return ad.gradients([ad.sin(z) * z], [z])[0] if z.requires_grad else ad.cos(x) * x + ad.sin(x)


UNARY = {
    "slope": _slope,
    "sin": ad.sin,
    "tanh": ad.tanh,
    "square": lambda x: x * x,
    "half": lambda x: x / 2,
    "exp": lambda x: ad.exp(-x * x),
    "max": lambda x: ad.max(ad.sin(x)),  # ops for arrays, of a number
    "prod": lambda x: ad.prod(x * 0.9),
    "logsumexp": lambda x: ad.logsumexp(x / 2),
}
BINARY = {"mul": lambda x, y: x * y, "add": lambda x, y: x + y, "atan": lambda x, y: ad.sin(x) * y}
CALLS = ["checkpoint"] * 4 + ["nested", "custom_vjp", "custom_jvp", "plain"]


def draw(rng: np.random.Generator, count: int, depth: int) -> Plan:
    """Draw the steps of a function that begins with ``count`` values."""
    plan: Plan = []
    for _ in range(int(rng.integers(2, 5))):
        kinds = ["unary", "binary", "binary"] + ["call", "call", "vmap", "grad", "jvp", "solve"] * (depth > 0)
        kind = kinds[int(rng.integers(len(kinds)))]
        if kind == "unary":
            plan.append((kind, list(UNARY)[int(rng.integers(len(UNARY)))], _pick(rng, count)))
        elif kind == "binary":
            plan.append(
                (kind, list(BINARY)[int(rng.integers(len(BINARY)))], _pick(rng, count), _pick(rng, count))
            )
        elif kind == "call":
            args = [_pick(rng, count) for _ in range(int(rng.integers(1, 3)))]
            body = draw(rng, count + len(args), depth - 1)
            size = count + len(args) + made(body)
            returned = [int(rng.integers(size)) for _ in range(int(rng.integers(1, 4)))]
            how = CALLS[int(rng.integers(len(CALLS)))]
            # a rule runs inside of a transform, where the slopes of the function are not constants
            how = "nested" if "custom" in how and "slope" in str(body) else how
            plan.append((kind, how, args, body, returned))
        else:
            body = draw(rng, count + 1, 0 if kind == "solve" else depth - 1)
            plan.append((kind, _pick(rng, count), body, int(rng.integers(count + 1, count + 1 + made(body)))))
        count += made(plan[-1:])
    return plan


def _pick(rng: np.random.Generator, count: int) -> int:
    return int(rng.integers(count))


def made(plan: Plan) -> int:
    """How many values the steps of a plan make."""
    return sum(len(step[4]) if step[0] == "call" else 1 for step in plan)


def run(plan: Plan, values: Values, called: bool) -> Values:
    """Run the steps on values; with ``called`` the calls are those that were drawn, otherwise plain ones."""
    values = list(values)
    for step in plan:
        values = [*values, *_STEPS[step[0]](step, values, called)]  # a new list: functions hold the old one
    return values


def _call(step: Any, values: Values, called: bool) -> Values:
    _, how, args, body, returned = step
    captures = how in ("checkpoint", "nested", "plain") or not called

    def f(*given: Any) -> Any:
        around = values if captures else list(given[: len(values)])
        found = run(body, [*around, *given[-len(args) :]], called)
        return tuple(found[i] for i in returned)

    given = [values[i] for i in args]
    if not called or how == "plain":
        return list(f(*given))
    if how == "checkpoint":
        return list(ad.checkpoint(f, *given))
    if how == "nested":
        return list(ad.checkpoint(lambda *g: ad.checkpoint(f, *g), *given))
    return list((_custom_vjp if how == "custom_vjp" else _custom_jvp)(f)(*values, *given))


def _custom_vjp(f: Callable[..., Any]) -> Any:
    custom = ad.custom_vjp(f)
    custom.defvjp(lambda *a: (f(*a), a), lambda residuals, g: ad.vjp(f, *residuals)[1](g))
    return custom


def _custom_jvp(f: Callable[..., Any]) -> Any:
    custom = ad.custom_jvp(f)
    custom.defjvp(lambda primals, tangents: ad.jvp(f, primals, tangents))
    return custom


def _body(step: Any, values: Values, called: bool) -> tuple[Any, Callable[[Any], Any]]:
    _, i, body, result = step
    return values[i], lambda x: run(body, [*values, x], called)[result]


def _vmap(step: Any, values: Values, called: bool) -> Values:
    x, f = _body(step, values, called)
    return [ad.vmap(f)(ad.stack([x, x * 0.5, ad.tensor(0.3)])).mean()]


def _grad(step: Any, values: Values, called: bool) -> Values:
    x, f = _body(step, values, called)
    return [ad.grad(lambda x: f(x) + 0.0 * x)(x)]


def _jvp(step: Any, values: Values, called: bool) -> Values:
    x, f = _body(step, values, called)
    return [ad.jvp(lambda x: f(x) + 0.0 * x, (x,), (ad.tensor(0.7),))[1]]


def _solve(step: Any, values: Values, called: bool) -> Values:
    x, f = _body(step, values, called)
    return [ad.root(lambda u: u - x - 0.05 * ad.sin(f(u)), 0.0)]


_STEPS: dict[str, Any] = {
    "unary": lambda step, values, _: [UNARY[step[1]](values[step[2]])],
    "binary": lambda step, values, _: [BINARY[step[1]](values[step[2]], values[step[3]])],
    "call": _call, "vmap": _vmap, "grad": _grad, "jvp": _jvp, "solve": _solve,
}  # fmt: skip


class Program:
    """A random function of two numbers, which captures a parameter and a constant."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.plan = draw(rng, 4, 2)
        self.w = ad.tensor(0.8, requires_grad=True)
        self.c = ad.tensor(1.1)

    def __call__(self, x: Any, y: Any, called: bool) -> Any:
        values = run(self.plan, [x, y, self.w, self.c], called)
        return sum(ad.sin(v) for v in values[4:])


def first_order(program: Program, called: bool) -> list[Any]:
    x, y = (ad.tensor(v, requires_grad=True) for v in (0.4, -0.6))
    return list(ad.gradients(program(x, y, called) + 0.0 * (x + y + program.w), [x, y, program.w]))


def second_order(program: Program, called: bool) -> list[Any]:
    x, y = (ad.tensor(v, requires_grad=True) for v in (0.4, -0.6))
    inputs = [x, y, program.w]
    grads = ad.gradients(program(x, y, called) + (x * y * program.w) ** 2, inputs, create_graph=True)
    return list(ad.gradients(sum(g * g for g in grads), inputs))


def forward_mode(program: Program, called: bool) -> list[Any]:
    f = lambda x, y: program(x, y, called)
    return list(ad.jvp(f, (ad.tensor(0.4), ad.tensor(-0.6)), (ad.tensor(1.0), ad.tensor(0.5))))


def batched(program: Program, called: bool) -> list[Any]:
    f = lambda x, y: program(x, y, called) + 0.0 * (x + y)
    return list(ad.vmap(ad.grad(f, (0, 1)), (0, None))(ad.tensor([0.4, 0.1]), ad.tensor(-0.6)))


def hessian(program: Program, called: bool) -> list[Any]:
    f = lambda z: program(z[0], z[1], called) + 0.0 * z.sum()
    return [ad.hessian(f)(ad.tensor([0.4, -0.6]))]


def linearized(program: Program, called: bool) -> list[Any]:
    f = lambda x, y: program(x, y, called)
    return [ad.linearize(f, ad.tensor(0.4), ad.tensor(-0.6))[1](ad.tensor(1.0), ad.tensor(0.5))]


def two_pulls(program: Program, called: bool) -> list[Any]:
    """The derivative along a direction, by the derivative of a pull with respect to its seed, which is 0."""
    if not called:
        return linearized(program, False)
    _, pull = ad.vjp(lambda x, y: program(x, y, True), ad.tensor(0.4), ad.tensor(-0.6))
    return list(ad.vjp(pull, ad.tensor(0.0))[1]((ad.tensor(1.0), ad.tensor(0.5))))


def pull_of_seed(program: Program, called: bool) -> list[Any]:
    """Second derivatives through a seed that is 0: of the gradients and of the parameter."""
    x, y, u = (ad.tensor(v, requires_grad=True) for v in (0.4, -0.6, 0.0))
    inputs = [x, y, program.w]
    result = program(x, y, called) + (x * y * program.w) ** 2
    grads = ad.gradients([result], inputs, [u], create_graph=True)
    (along,) = ad.gradients(grads, [u], [ad.tensor(1.0), ad.tensor(0.5), ad.tensor(-0.3)], create_graph=True)
    return [along, *ad.gradients(along, inputs)]


def hooked(program: Program, called: bool) -> list[Any]:
    """Second derivatives in both modes, with hooks that copy what is saved."""
    if not called:
        return [*second_order(program, False), *hessian(program, False)]
    f = lambda z: program(z[0], z[1], True) + 0.0 * z.sum()
    with ad.saved_tensors_hooks(lambda t: t.numpy(copy=True), ad.tensor):
        return [*second_order(program, True), ad.jacfwd(ad.jacfwd(f))(ad.tensor([0.4, -0.6]))]


_MODES = (
    first_order, second_order, forward_mode, batched, hessian, linearized, two_pulls, pull_of_seed, hooked,
)  # fmt: skip
MODES = {f.__name__: f for f in _MODES}


def compare(seed: int, mode: str) -> None:
    """Raise unless a program gives the same with its calls as without."""
    try:
        expected = [t.numpy() for t in MODES[mode](Program(seed), False)]
    except ad.errors.ConvergenceError:
        return
    found = [t.numpy() for t in MODES[mode](Program(seed), True)]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10, err_msg=f"seed {seed}, {mode}")


def _write(t: ad.Tensor, seed: int) -> None:
    """Give a constant another value, in one of the ways to write."""
    if seed % 3 == 0:
        t.copy_(50.0)
    elif seed % 3 == 1:
        t += 50.0
    else:
        t[...] = 50.0


def compare_written(seed: int) -> None:
    """Raise unless a write to the constant between forward and backward is an error, or changes no gradient."""
    try:
        expected = [t.numpy() for t in first_order(Program(seed), False)]
    except ad.errors.ConvergenceError:
        return
    program = Program(seed)
    x, y = (ad.tensor(v, requires_grad=True) for v in (0.4, -0.6))
    result = program(x, y, True) + 0.0 * (x + y + program.w)
    _write(program.c, seed)
    try:
        found = [t.numpy() for t in ad.gradients(result, [x, y, program.w])]
    except ad.errors.ModifiedError:
        return
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10, err_msg=f"seed {seed}")
