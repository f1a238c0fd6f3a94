"""Loops and choices: the meaning of JAX's, with every transform, checkpoints and clear errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint.errors import (
    ArgumentError,
    ConvergenceError,
    DTypeError,
    InputError,
    NoGradientError,
    ShapeError,
    TransformError,
)

R = np.random.default_rng(0)
XS = R.normal(size=(9, 3))  # as many rows as make one instruction inside ad.compile
W = R.normal(size=3)


def cell(w: Any, xp: Any = ad) -> Any:
    """A body with a carry of two leaves and a result per step."""

    def body(carry: Any, x: Any) -> Any:
        h, n = carry
        h = xp.tanh(h * w + x["a"])
        return (h, n + h.sum()), {"y": h * xp.sin(x["a"]), "n": n}

    return body


def loss(w: Any, scan: Any = ad.scan, xp: Any = ad, **options: Any) -> Any:
    (h, n), ys = scan(cell(w, xp), (xp.zeros(3), xp.zeros(())), {"a": xp.asarray(XS)}, **options)
    return (h * h).sum() + n * (ys["y"] ** 3).sum() + (ys["n"] * ys["n"]).sum()


def by_hand(w: Any, reverse: bool = False) -> Any:
    """The same loop, written out."""
    carry, ys = (ad.zeros(3), ad.zeros(())), []
    for x in XS[::-1] if reverse else XS:
        carry, y = cell(w)(carry, {"a": ad.tensor(x)})
        ys.append(y)
    ys = ys[::-1] if reverse else ys
    (h, n), stacked = carry, {k: ad.stack([y[k] for y in ys]) for k in ("y", "n")}
    return (h * h).sum() + n * (stacked["y"] ** 3).sum() + (stacked["n"] * stacked["n"]).sum()


DERIVATIVES = {
    "value": lambda f: f(ad.tensor(W)),
    "grad": lambda f: ad.grad(f)(ad.tensor(W)),
    "hessian": lambda f: ad.hessian(f)(ad.tensor(W)),
    "jvp": lambda f: ad.jvp(f, (ad.tensor(W),), (ad.tensor(W * 0.5),))[1],
    "vmap": lambda f: ad.vmap(f)(ad.tensor(np.stack([W, W * 2]))),
    "vmap of grad": lambda f: ad.vmap(ad.grad(f))(ad.tensor(np.stack([W, W * 2]))),
    "grad of vmap": lambda f: ad.grad(lambda w: ad.vmap(f)(w).sum())(ad.tensor(np.stack([W, W * 2]))),
    "jvp of grad": lambda f: ad.jvp(ad.grad(f), (ad.tensor(W),), (ad.tensor(W),))[1],
    "compiled": lambda f: ad.compile(f)(ad.tensor(W)),
    "compiled grad": lambda f: ad.compile(ad.grad(f))(ad.tensor(W)),
    "compiled hessian": lambda f: ad.compile(ad.hessian(f))(ad.tensor(W)),
    "grad of compiled": lambda f: ad.grad(ad.compile(f))(ad.tensor(W)),
    "compiled vmap of grad": lambda f: ad.compile(ad.vmap(ad.grad(f)))(ad.tensor(np.stack([W, W * 2]))),
}


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(np.asarray(a.numpy()), np.asarray(b.numpy()), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", DERIVATIVES)
def test_scan_is_the_loop_written_out(name: str, reverse: bool) -> None:
    d = DERIVATIVES[name]
    close(d(lambda w: loss(w, reverse=reverse)), d(lambda w: by_hand(w, reverse)))


@pytest.mark.parametrize("checkpoint", [True, 1, 3, 100])
@pytest.mark.parametrize("name", ["grad", "hessian", "jvp", "vmap of grad", "compiled grad"])
def test_checkpointed_scans(name: str, checkpoint: Any) -> None:
    d = DERIVATIVES[name]
    close(d(lambda w: loss(w, checkpoint=checkpoint)), d(by_hand))
    close(d(lambda w: loss(w, checkpoint=checkpoint, reverse=True)), d(lambda w: by_hand(w, True)))


@pytest.mark.parametrize("name", ["value", "grad", "hessian", "jvp", "vmap of grad"])
def test_against_jax(name: str) -> None:
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    f = lambda w: loss(w, jax.lax.scan, jax.numpy)
    wanted = {
        "value": lambda: f(W),
        "grad": lambda: jax.grad(f)(W),
        "hessian": lambda: jax.hessian(f)(W),
        "jvp": lambda: jax.jvp(f, (W,), (W * 0.5,))[1],
        "vmap of grad": lambda: jax.vmap(jax.grad(f))(np.stack([W, W * 2])),
    }[name]()
    np.testing.assert_allclose(DERIVATIVES[name](loss).numpy(), np.asarray(wanted), rtol=1e-10)


def test_while_and_cond_against_jax() -> None:
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)

    def doubling(x: Any, loop: Any, **options: Any) -> Any:
        return loop(lambda v: (v * v).sum() < 50, lambda v: v * 1.5 + x, x, **options)

    x = np.array([0.3, 0.7])
    ours = ad.jvp(lambda x: doubling(x, ad.while_loop), (x,), (x,))[1]
    np.testing.assert_allclose(ours, jax.jvp(lambda x: doubling(x, jax.lax.while_loop), (x,), (x,))[1])
    several = np.stack([x, x * 3, x * 40])
    ours = ad.vmap(lambda x: doubling(x, ad.while_loop))(several)
    np.testing.assert_allclose(ours, jax.vmap(lambda x: doubling(x, jax.lax.while_loop))(several))
    g = ad.grad(lambda x: (doubling(x, ad.while_loop, limit=30) ** 2).sum())(x)
    tangents = [
        jax.jvp(lambda x: (doubling(x, jax.lax.while_loop) ** 2).sum(), (x,), (e,))[1] for e in np.eye(2)
    ]
    np.testing.assert_allclose(g, tangents)

    def chosen(x: Any, cond: Any, xp: Any) -> Any:
        return cond(x > 0, lambda x: xp.sin(x) * x, lambda x: -(x**3), x)

    for v in (-0.5, 0.5):
        for order in (1, 2):
            a, b = (lambda x: chosen(x, ad.cond, ad)), (lambda x: chosen(x, jax.lax.cond, jax.numpy))
            for _ in range(order):
                a, b = ad.grad(a), jax.grad(b)
            np.testing.assert_allclose(a(v), b(v))
    points = np.array([-0.5, 0.5])
    np.testing.assert_allclose(
        ad.vmap(ad.grad(lambda x: chosen(x, ad.cond, ad)))(points),
        jax.vmap(jax.grad(lambda x: chosen(x, jax.lax.cond, jax.numpy)))(points),
    )


def test_fori_loop_and_map() -> None:
    f = lambda x: ad.fori_loop(2, 6, lambda i, v: ad.sin(v) * i + x, x).sum()

    def g(x: Any) -> Any:
        v = x
        for i in range(2, 6):
            v = ad.sin(v) * i + x
        return v.sum()

    for d in DERIVATIVES.values():
        close(d(f), d(g))
    close(ad.fori_loop(3, 0, lambda i, v: v * 2, ad.tensor(1.0)), ad.tensor(1.0))
    close(ad.map(lambda x: x.sum() * x, ad.tensor(XS)), ad.vmap(lambda x: x.sum() * x)(ad.tensor(XS)))
    pair = ad.map(lambda p: (p["a"] + p["b"], p["a"][0]), {"a": XS, "b": XS * 2})
    close(pair[0], ad.tensor(XS * 3))


@pytest.mark.parametrize("compiled", [False, True])
def test_while_loop_with_a_limit(compiled: bool) -> None:
    def f(x: Any) -> Any:
        return ad.while_loop(lambda v: v[1] < 4, lambda v: (v[0] * x, v[1] + 1), (x, 0), limit=6)[0].sum()

    run = (lambda g: ad.compile(g)) if compiled else (lambda g: g)
    x = ad.tensor([1.1, 0.7])
    close(run(f)(x), (x**5).sum())
    close(run(ad.grad(f))(x), 5 * x**4)
    close(run(ad.hessian(f))(x), ad.diag(20 * x**3))
    short = run(lambda x: ad.while_loop(lambda v: (v < 100).all(), lambda v: v * 2, x, limit=3))
    with pytest.raises(ConvergenceError, match="is still true after limit=3 steps"):
        short(x)
    close(short(x * 20), x * 160)


def test_while_loop_without_a_limit() -> None:
    f = lambda x: ad.while_loop(lambda v: v < 100, lambda v: v * 2, x)
    assert f(1.5).item() == 192.0
    assert ad.jvp(f, (1.5,), (1.0,))[1] == 128.0
    with pytest.raises(NoGradientError) as caught:
        ad.grad(f)(ad.tensor(1.5))
    assert str(caught.value).startswith(
        "while_loop: reverse mode needs a bound on the number of steps.\n  Pass limit=, the largest number of steps;"
    )
    w = ad.tensor(1.5, requires_grad=True)
    with pytest.raises(NoGradientError):
        f(w).backward()
    with pytest.raises(TransformError, match="the loop needs a limit"):
        ad.compile(f)(ad.tensor(1.5))


def test_cond() -> None:
    f = lambda x, y: ad.cond(x.sum() > 0, lambda a, b: a * b, lambda a, b: a - b, x, y)
    x, y = ad.tensor([1.0, 2.0]), ad.tensor([3.0, 4.0])
    compiled = ad.compile(f)
    for sign in (1.0, -1.0):
        close(f(x * sign, y), x * sign * y if sign > 0 else x * sign - y)
        close(compiled(x * sign, y), f(x * sign, y))
        for g in (ad.grad(lambda x, y: f(x, y).sum()), ad.compile(ad.grad(lambda x, y: f(x, y).sum()))):
            close(g(x * sign, y), y if sign > 0 else ad.ones(2))
    assert compiled.stats()["traces"] == 1
    batch = ad.tensor([[1.0, 2.0], [-5.0, 1.0]])
    close(ad.vmap(f, in_axes=(0, None))(batch, y), ad.stack([f(b, y) for b in batch]))
    assert ad.cond(True, lambda: "a", lambda: "b") == "a"
    # the branch that is not taken may be infinite
    safe = lambda x: ad.cond(x > 0, lambda x: ad.log(x), lambda x: x * 0, x)
    with np.errstate(divide="ignore"):
        assert ad.vmap(ad.grad(safe))(np.array([2.0, 0.0])).tolist() == [0.5, 0.0]


def test_draws_in_branches_are_errors_inside_compile() -> None:
    rng = ad.random.default_rng(0)
    f = ad.compile(lambda x: ad.cond(x > 0, lambda x: x + rng.normal(), lambda x: x, x))
    with pytest.raises(TransformError, match="a branch draws random numbers"):
        f(ad.tensor(1.0))


def test_parameters_tapes_and_modules() -> None:
    model = ad.nn.Linear(3, 3, rng=0).astype(np.float64)
    total = lambda: ad.scan(lambda c, x: (ad.tanh(model(c) + x), c.sum()), ad.zeros(3), XS)[1].sum()
    total().backward()
    wanted = model.weight.grad
    model.zero_grad()
    ad.scan(lambda c, x: (ad.tanh(model(c) + x), c.sum()), ad.zeros(3), XS, checkpoint=True)[
        1
    ].sum().backward()
    close(model.weight.grad, wanted)
    with ad.Tape() as tape:
        y = total()
    close(tape.gradients(y)[model.weight], wanted)
    model.zero_grad()
    ad.compile(lambda: total().backward())()
    close(model.weight.grad, wanted)


def test_draws_and_writes_in_bodies() -> None:
    def make() -> Any:
        rng, count = ad.random.default_rng(3), ad.zeros(())

        def f(x: Any) -> Any:
            def body(c: Any, x: Any) -> Any:
                count.copy_(count + 1)
                return c + rng.normal() * x, rng.uniform()

            return ad.scan(body, 0.0, x), count

        return f

    eager, compiled = make(), ad.compile(make())
    for _ in range(3):
        for a, b in zip(
            ad.tree.leaves(eager(ad.tensor(W))), ad.tree.leaves(compiled(ad.tensor(W))), strict=True
        ):
            assert a.tolist() == b.tolist()


def instructions(f: Any, *args: Any) -> int:
    """The number of instructions of a compiled function that gives what the function does."""
    compiled = ad.compile(f)
    wanted = f(*args)
    for _ in range(2):
        for a, b in zip(ad.tree.leaves(compiled(*args)), ad.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-9, atol=1e-12)
    assert compiled.stats()["traces"] == 1
    return int(compiled.stats()["programs"][0]["instructions"])


def test_the_body_of_a_long_loop_is_one_instruction() -> None:
    xs, w = ad.tensor(R.normal(size=(100, 3))), ad.tensor(W)
    scale = R.normal(size=3)

    def run(w: Any, xs: Any, reverse: bool = False) -> Any:
        (h, _), ys = ad.scan(
            lambda c, x: ((ad.tanh(c[0] * w + x * scale), c[1] + 1), {"y": c[0] * x, "n": c[1]}),
            (ad.zeros(3), 0), xs, reverse=reverse,
        )  # fmt: skip
        return (h * ys["y"]).sum() + (ys["n"] * ys["y"][:, 0]).sum()

    for reverse in (False, True):
        assert instructions(lambda w, xs, r=reverse: run(w, xs, r), w, xs) < 10
        assert instructions(ad.grad(lambda w, xs, r=reverse: run(w, xs, r), argnums=(0, 1)), w, xs) < 30
    close(ad.grad(ad.compile(run))(w, xs), ad.grad(run)(w, xs))
    assert instructions(lambda w: ad.fori_loop(0, 50, lambda i, v: v * w + xs[i] * i, w), w) < 5
    grad_of_loop = ad.grad(
        lambda w: ad.fori_loop(3, 50, lambda i, v: ad.sin(v * w + xs[i] * i) * 0.5, w).sum()
    )
    assert instructions(grad_of_loop, w) < 10
    assert instructions(lambda x: ad.map(lambda x: ad.exp(x).sum(), x), xs) < 5
    assert instructions(lambda x: ad.scan(lambda c, x: (c, x), 0.0, x), xs) < 5


def test_native_bodies() -> None:
    pytest.importorskip("llvmlite")
    xs, w = ad.tensor(R.normal(size=(40, 3))), ad.tensor(W)

    def f(w: Any, xs: Any) -> Any:
        h, ys = ad.scan(lambda c, x: (ad.tanh(c * w + x), ad.sin(c) * x), ad.zeros(3), xs)
        return (h * h).sum() + (ys * ys).sum()

    both = ad.value_and_grad(f, argnums=(0, 1))
    compiled = ad.compile(both, backend="native")
    for k in (1.0, 2.0):
        for a, b in zip(ad.tree.leaves(compiled(w * k, xs)), ad.tree.leaves(both(w * k, xs)), strict=True):
            close(a, b)
    assert compiled.stats()["traces"] == 1


def test_loops_in_loops_are_one_instruction() -> None:
    xs, w = ad.tensor(R.normal(size=(10, 12, 3))), ad.tensor(W)

    def f(w: Any, xs: Any) -> Any:
        def row(c: Any, x: Any) -> Any:
            inner, ys = ad.scan(lambda d, y: (ad.tanh(d * w + y + c), d.sum()), c * 0.5, x)
            return inner * w, ys.sum()

        last, sums = ad.scan(row, ad.ones(3), xs)
        return last.sum() + (sums * sums).sum()

    assert instructions(f, w, xs) < 10
    assert instructions(ad.grad(f, argnums=(0, 1)), w, xs) < 30
    close(ad.grad(ad.compile(f))(w, xs), ad.grad(f)(w, xs))


def test_compiled_training_steps_with_loops() -> None:
    def make() -> Any:
        model = ad.nn.Linear(3, 3, rng=0).astype(np.float64)
        optimizer = ad.optim.Adam(model.parameters(), lr=0.01)

        def step(x: Any, rate: float) -> Any:
            optimizer.zero_grad()
            h, ys = ad.scan(lambda h, row: (ad.tanh(model(h) + row), h.sum()), ad.zeros(3), x)
            loss = (h * h).sum() + ys.mean() * rate
            loss.backward()
            optimizer.step()
            return loss

        return step, model

    (eager, a), (step, b) = make(), make()
    compiled = ad.compile(step)
    for k in range(5):
        close(compiled(ad.tensor(XS * k), 0.1 * k), eager(ad.tensor(XS * k), 0.1 * k))
        for p, q in zip(a.parameters(), b.parameters(), strict=True):
            close(p, q)
    assert compiled.stats()["traces"] == 1
    assert compiled.stats()["programs"][0]["instructions"] < 80


def test_loops_that_need_numbers_are_unrolled() -> None:
    x = ad.tensor(W)
    rng = [ad.random.default_rng(3) for _ in range(2)]
    skipping = lambda x: ad.fori_loop(0, 20, lambda i, v: v * 1.1 if i % 3 else v + x, x)
    assert instructions(skipping, x) >= 20
    assert (
        instructions(lambda x: ad.fori_loop(0, 9, lambda i, v: v * i, x.astype("f")), x) >= 9
    )  # weak numbers
    noisy = [lambda x, r=r: ad.scan(lambda c, _: (c + r.normal(), ()), x, length=12)[0] for r in rng]
    compiled = ad.compile(noisy[1])
    for _ in range(3):
        assert noisy[0](x).tolist() == compiled(x).tolist()
    scaled = ad.compile(lambda x, r: ad.scan(lambda c, y, r=r: (c * r + y.sum(), ()), x, XS)[0])
    for r in (0.5, 0.25):
        close(scaled(x, r), ad.scan(lambda c, y, r=r: (c * r + y.sum(), ()), x, XS)[0])
    assert scaled.stats()["traces"] == 1


def test_a_fault_in_a_body_leaves_all_tensors() -> None:
    w = ad.tensor(W, requires_grad=True)

    def body(c: Any, x: Any) -> Any:
        y = c * w + x
        raise KeyError("stop")
        return y, ()

    with pytest.raises(KeyError, match="stop"):
        ad.compile(lambda x: ad.scan(body, x * w, XS))(ad.tensor(W))
    assert type(w) is ad.Tensor
    assert w.tolist() == W.tolist()
    with pytest.raises(ShapeError, match=r"carry had shape \(3,\) before the step, and has \(1, 3\)"):
        ad.compile(lambda x: ad.scan(lambda c, x: (c[None] * w, ()), x, XS))(ad.tensor(W))
    assert type(w) is ad.Tensor


def test_numbers_in_the_carry_take_the_dtype_of_the_body() -> None:
    xs = XS.astype("f")
    total, sums = ad.scan(lambda c, x: (c + x.sum(), c), 0.0, xs)
    assert total.dtype == sums.dtype == np.float32
    assert ad.scan(lambda c, x: (c + 1, c), 0, xs)[0].dtype.kind == "i"
    assert ad.scan(lambda c, x: (c + 1j, c), 0.0, xs)[0].dtype.kind == "c"
    flag, _ = ad.scan(lambda c, x: (c | (x.sum() > 0), None), False, xs)
    assert flag.dtype == bool


def test_loops_of_no_steps() -> None:
    carry, ys = ad.scan(lambda c, x: (c + x.sum(), {"a": x * 2.0, "b": c}), 1.5, np.zeros((0, 4), "f"))
    assert carry.item() == 1.5
    assert (ys["a"].shape, ys["a"].dtype, ys["b"].shape) == ((0, 4), np.float32, (0,))
    assert ad.scan(lambda c, x: (c + 1.0, None), 0.0, length=3)[0].item() == 3.0
    assert ad.scan(lambda c, x: (c + 1.0, None), 0.0, length=3)[1] is None


def test_memory_of_a_checkpointed_scan_grows_as_the_square_root() -> None:
    """Counts what is saved at once: the arrays alive in the middle of a backward."""
    alive: list[int] = []

    def run(count: int) -> int:
        kept: list[int] = [0]
        with ad.saved_tensors_hooks(lambda t: (kept.__setitem__(0, kept[0] + t.size), t)[1], lambda t: t):
            w = ad.tensor(0.5, requires_grad=True)
            x = ad.tensor(np.zeros(8))
            ad.scan(lambda c, _: (ad.tanh(c * w), ()), x, length=count, checkpoint=True)[0].sum()
        alive.append(kept[0])
        return kept[0]

    small, large = run(100), run(400)
    assert large <= 2.5 * small
    plain = ad.tensor(0.5, requires_grad=True)
    ad.scan(lambda c, _: (ad.tanh(c * plain), ()), ad.ones(8), length=50, checkpoint=True)[0].sum().backward()
    other = ad.tensor(0.5, requires_grad=True)
    ad.scan(lambda c, _: (ad.tanh(c * other), ()), ad.ones(8), length=50)[0].sum().backward()
    close(plain.grad, other.grad)


def test_the_gradient_of_a_checkpointed_scan_of_100_000_steps() -> None:
    xs = np.sin(np.arange(100_000) * 0.01)
    f = lambda w: ad.scan(lambda c, x: (c * w + x, ()), 0.0, ad.tensor(xs), checkpoint=True)[0]
    c = slope = 0.0
    for x in xs.tolist():
        c, slope = c * 0.75 + x, c + slope * 0.75
    np.testing.assert_allclose(ad.grad(f)(0.75), slope, rtol=1e-10)


MISTAKES = [
    (ShapeError, lambda: ad.scan(lambda c, x: ({"a": c["a"][:2]}, None), {"a": ad.zeros(3)}, XS),
     r"scan: carry\['a'\] had shape \(3,\) before the step, and has \(2,\) after it.\n"
     r"  <lambda> \(.*test_loops.py:\d+\) must return the shapes that it gets."),
    (DTypeError, lambda: ad.scan(lambda c, x: (c.astype("f4"), None), ad.zeros(3), XS),
     r"scan: carry was float64 before the step, and is float32 after it.\n.*test_loops.py:\d+\).*astype\('float64'\)"),
    (InputError, lambda: ad.scan(lambda c, x: ((c, c), None), ad.zeros(3), XS),
     r"the step received a carry with the structure \*, but returned one with the structure \(\*, \*\)"),
    (InputError, lambda: ad.scan(lambda c, x: c, ad.zeros(3), XS), r"a pair \(carry, y\), but returned a tensor"),
    (ArgumentError, lambda: ad.scan(lambda c, x: (c, x), 0.0), "pass xs or length"),
    (ShapeError, lambda: ad.scan(lambda c, x: (c, x), 0.0, [XS, XS[:2]]), "have lengths 9, 2: they must be equal"),
    (ShapeError, lambda: ad.scan(lambda c, x: (c, x), 0.0, XS, length=3), "and length is 3"),
    (ShapeError, lambda: ad.scan(lambda c, x: (c, x), 0.0, 3.0), "is a single number"),
    (ArgumentError, lambda: ad.scan(lambda c, x: (c, x), 0.0, XS, checkpoint=0), "checkpoint must be True"),
    (ShapeError, lambda: ad.while_loop(lambda x: x < XS, lambda x: x, 0.0), "must be one boolean"),
    (ShapeError, lambda: ad.while_loop(lambda x: True, lambda x: x + XS, 0.0), r"while_loop: carry had shape \(\)"),
    (ArgumentError, lambda: ad.while_loop(lambda x: True, lambda x: x, 0.0, limit=-1), "limit must be a non-negative integer"),
    (ArgumentError, lambda: ad.fori_loop(0, 2.5, lambda i, x: x, 0.0), "upper of a loop must be an integer"),
    (ShapeError, lambda: ad.fori_loop(0, 2, lambda i, x: XS, 0.0), r"fori_loop: carry had shape \(\)"),
    (InputError, lambda: ad.scan(None, 0.0, XS), "scan: expected a function"),
    (InputError, lambda: ad.cond(True, 1, 2), "cond: expected a function"),
    (ShapeError, lambda: ad.vmap(lambda x: ad.cond(x > 0, lambda: XS, lambda: XS[0]))(W), "has shape"),
    (InputError, lambda: ad.vmap(lambda x: ad.cond(x > 0, lambda: XS, lambda: (XS,)))(W), "returns the structure"),
]  # fmt: skip


@pytest.mark.parametrize(("error", "mistake", "message"), MISTAKES, ids=[m[2][:40] for m in MISTAKES])
def test_mistakes(error: Any, mistake: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        mistake()
