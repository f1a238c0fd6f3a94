"""Random worlds of pairs: ranks, solvers of SciPy, sparse matrices, gammas and checkpoints with compiled code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from by_replay import by_replay as by_replay
from steps import bits, state_of

import adjoint as ad
from adjoint import distributed, nn, optim

optimize = pytest.importorskip("adjoint.scipy.optimize")
sparse = pytest.importorskip("adjoint.scipy.sparse")


@pytest.mark.parametrize("seed", range(6))
def test_compiled_pieces_on_ranks(seed: int) -> None:
    """Micro-batches of every rank, compiled and eager: the same parameters after each window."""
    r = np.random.default_rng(seed)
    ranks, steps, windows = int(r.integers(1, 4)), int(r.integers(1, 4)), 3
    kind = [optim.SGD, optim.Adam, optim.Lion][int(r.integers(3))]
    sizes = r.integers(1, 5, (ranks, windows * steps))
    dropped = float(r.choice([0.0, 0.3]))

    def program(group: Any, compiled: bool) -> Any:
        model = nn.Sequential(
            nn.Linear(3, 4, rng=seed),
            nn.Dropout(dropped, rng=ad.random.default_rng(group.rank)),
            nn.Tanh(),
            nn.Linear(4, 1, rng=1),
        )
        optimizer = kind(model.parameters(), lr=0.05)
        acc = ad.GradientAccumulator(model, accumulation_steps=steps, group=group)

        def piece(x: Any) -> Any:
            loss = (model(x) ** 2).mean()
            loss.backward()
            return loss.detach()

        run = ad.compile(piece) if compiled else piece
        data, found = np.random.default_rng([seed, group.rank]), []
        for k in range(windows * steps):
            n = int(sizes[group.rank, k])
            with acc.micro_batch(weight=n):
                found.append(bits(run(ad.tensor(data.normal(size=(n, 3)).astype("f")))))
            if acc.should_update():
                acc.apply(optimizer)
                optimizer.lr *= 0.5
                found.append(state_of(model, optimizer))
        return found

    eager = distributed.simulate(ranks, lambda group: program(group, False))
    assert distributed.simulate(ranks, lambda group: program(group, True)) == eager


@pytest.mark.parametrize("seed", range(8))
def test_solvers_of_compiled_functions(seed: int) -> None:
    """A compiled objective has the bits of the eager one, so solvers take the same steps, also backwards."""
    r = np.random.default_rng(seed)
    n = int(r.integers(1, 5))
    m = r.normal(size=(n, n)) * 0.2
    start, theta = r.normal(size=n), r.uniform(0.5, 1.5, n)
    method = ["BFGS", "L-BFGS-B", "CG", "Nelder-Mead"][int(r.integers(4))]

    def objective(x: Any, t: Any) -> Any:
        return ((x - t) ** 2 * t).sum() + ad.log(ad.cosh(m @ x)).sum()

    def residual(x: Any, t: Any) -> Any:
        return x - ad.tanh(m @ x) * t

    def results(first: Any, second: Any) -> Any:
        t = ad.tensor(theta, requires_grad=True)
        low = optimize.minimize(first, start, args=(t,), method=method)
        zero = optimize.root(second, start, args=(t,))
        (low.x.sum() + (zero.x * 2).sum()).backward()
        return bits([low.x, zero.x, t.grad])

    wanted = results(objective, residual)
    compiled = ad.compile(objective), ad.compile(residual)
    for _ in range(2):
        assert results(*compiled) == wanted


@pytest.mark.parametrize("seed", range(8))
def test_sparse_matrices_of_compiled_functions(seed: int) -> None:
    """A sparse matrix whose elements are computed by compiled code, and solved or multiplied outside."""
    r = np.random.default_rng(seed)
    n = int(r.integers(2, 6))
    rows, columns = np.nonzero((r.random((n, n)) < 0.4) | np.eye(n, dtype=bool))
    values, b = r.uniform(1, 2, len(rows)) + 3 * (rows == columns), r.normal(size=n)
    function = [ad.tanh, ad.exp, lambda v: v * v, ad.sqrt][int(r.integers(4))]

    def elements(v: Any) -> Any:
        return function(v) + v

    def results(f: Any) -> Any:
        v = ad.tensor(values, requires_grad=True)
        a = sparse.coo_array((f(v), (rows, columns)), shape=(n, n))
        y = a @ ad.tensor(b)
        y.sum().backward()
        return bits([y, v.grad])

    wanted, compiled = results(elements), ad.compile(elements)
    for _ in range(2):
        assert results(compiled) == wanted


@pytest.mark.parametrize("seed", range(8))
def test_gammas_in_checkpoints_in_compiled_steps(seed: int) -> None:
    """Draws with derivatives in a checkpoint: the same numbers, gradients and stream, compiled or not."""
    r = np.random.default_rng(seed)
    shape = tuple(int(k) for k in r.integers(1, 4, int(r.integers(0, 3))))
    names = r.choice(["gamma", "beta", "dirichlet", "normal"], 2)
    start = r.uniform(0.5, 2.5, shape)

    def make() -> Any:
        w, rng = ad.tensor(start, requires_grad=True), ad.random.default_rng(seed)

        def drawn(a: Any) -> Any:
            total = a * 0
            for name in names:
                if name == "gamma":
                    total = total + rng.gamma(a)
                elif name == "beta":
                    total = total + rng.beta(a, a + 1)
                elif name == "dirichlet" and a.ndim:
                    total = total + rng.dirichlet(a)
                else:
                    total = total + rng.normal(a)
            return total

        def step(x: Any) -> Any:
            w.grad = None
            y = ad.checkpoint(drawn, ad.exp(w * x))
            loss = (y * y).sum()
            loss.backward()
            return loss, y.detach()

        return step, w, rng

    (eager, w, a), (other, v, b) = make(), make()
    compiled = ad.compile(other)
    for k in range(4):
        x = r.uniform(0.1, 0.5, shape)
        assert bits(compiled(ad.tensor(x))) == bits(eager(ad.tensor(x))), k
        assert bits(v.grad) == bits(w.grad)
        assert a.state == b.state
    assert compiled.stats()["traces"] == 1
