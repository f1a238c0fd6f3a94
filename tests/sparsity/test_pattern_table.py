"""The pattern of every op contains each nonzero element of its dense Jacobian; of exact rules, nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from table import CASES, SMOOTH, checked, function

import adjoint as ad
from adjoint.core.op import OPS
from adjoint.sparsity.rules import RULES
from adjoint.testing import Case
from adjoint.testing.strategies import Program, programs

WANTED = [
    pytest.param(case, id=str(case))
    for name in SMOOTH
    for case in CASES[name]
    if checked(case) and not any(np.iscomplexobj(case.args[i]) for i in checked(case))
]
# Of these rules the pattern is exactly the nonzero elements of the dense Jacobian, wherever indices are known.
EXACT = {"move", "scatter", "contract", "running"}


@pytest.mark.filterwarnings("ignore:jacobian. the sparse Jacobian")  # of ops whose Jacobian is dense
@pytest.mark.parametrize("case", WANTED)
def test_every_op(case: Case) -> None:
    wanted = checked(case)
    f, xs = function(case, wanted), [np.asarray(case.args[i]) for i in wanted]
    argnums = tuple(range(len(xs)))
    dense = ad.jacfwd(f, argnums=argnums)(*xs)
    patterns = ad.sparsity.jacobian(f, *xs, argnums=argnums)
    found = ad.jacobian(f, argnums=argnums, sparse=True)(*xs)
    for d, p, s in zip(dense, patterns, found, strict=True):
        for block, pattern, matrix in zip(d, p, s, strict=True):
            block = np.reshape(block, pattern.shape)
            inside = pattern.toarray()
            assert pattern.dtype == bool and pattern.has_canonical_format
            assert not (block[~inside] != 0).any()
            np.testing.assert_allclose(matrix.toarray(), block, rtol=1e-9, atol=1e-12)
            assert matrix.dtype == block.dtype
            if OPS[case.op].sparsity in EXACT:
                assert (block[inside] != 0).all()


def _agree(dense: Any, sparse: Any, tolerance: float) -> bool:
    """Return whether the blocks of a sparse Jacobian are those of a dense one."""
    pairs = [(d, s) for row, line in zip(dense, sparse, strict=True) for d, s in zip(row, line, strict=True)]
    scale = max([1.0, *(float(np.abs(d).max(initial=0)) for d, _ in pairs)])
    return all(
        s.dtype == d.dtype
        and np.allclose(s.toarray(), np.reshape(d, s.shape), rtol=tolerance, atol=scale * tolerance)
        for d, s in pairs
    )


@pytest.mark.filterwarnings("ignore:jacobian. the sparse Jacobian")
def test_float32() -> None:
    for name in SMOOTH[::6]:
        for case in [c for c in CASES[name] if checked(c)][:1]:
            wanted = checked(case)
            f, xs = function(case, wanted), [np.asarray(case.args[i], np.float32) for i in wanted]
            argnums = tuple(range(len(xs)))
            dense = ad.jacfwd(f, argnums=argnums)(*xs)
            assert _agree(dense, ad.jacobian(f, argnums=argnums, sparse=True)(*xs), 1e-3), name


@pytest.mark.filterwarnings("ignore:jacobian. the sparse Jacobian")
def test_complex_arguments() -> None:
    """Ops that are holomorphic: forward and reverse mode give the same dense Jacobian."""
    count = 0
    for name in SMOOTH[::4]:
        for case in [c for c in CASES[name] if checked(c)][:1]:
            wanted = checked(case)
            f, xs = function(case, wanted), [np.asarray(case.args[i]) * (1 + 0.3j) for i in wanted]
            try:
                results = f(*xs)
            except ad.errors.DTypeError:  # the op has no complex form
                continue
            if any(y.dtype.kind != "c" for y in results):
                continue
            options: Any = {"argnums": tuple(range(len(xs))), "holomorphic": True}
            dense, other = ad.jacfwd(f, **options)(*xs), ad.jacrev(f, **options)(*xs)
            if all(
                np.allclose(a, b)
                for r, q in zip(dense, other, strict=True)
                for a, b in zip(r, q, strict=True)
            ):
                for mode in ("columns", "rows"):
                    assert _agree(dense, ad.jacobian(f, sparse=mode, **options)(*xs), 1e-9), (name, mode)
                count += 1
    assert count >= 20


def test_every_named_rule_exists() -> None:
    named = {op.sparsity for op in OPS.values() if isinstance(op.sparsity, str) and op.sparsity}
    assert named <= set(RULES)
    assert set(RULES) == named | {"elementwise", "dense"}


def _results(program: Program, xs: tuple[Any, ...]) -> Any:
    return program.run(ad, xs)[-1]


@given(programs(max_size=8))
def test_random_programs(program: Program) -> None:
    argnums = tuple(range(len(program.leaves)))
    f = lambda *xs: ad.asarray(_results(program, xs))
    dense = ad.jacobian(f, argnums)(*program.leaves)
    found = ad.jacobian(f, argnums, sparse=True)(*program.leaves)
    for d, s in zip(dense, found, strict=True):
        np.testing.assert_allclose(s.toarray(), np.reshape(d, s.shape), rtol=1e-11, atol=1e-13)


@given(programs(max_size=6))
def test_hessians_of_random_programs(program: Program) -> None:
    argnums = tuple(range(len(program.leaves)))
    f = lambda *xs: program.loss(ad, xs)
    dense = ad.hessian(f, argnums)(*program.leaves)
    found = ad.hessian(f, argnums, sparse=True)(*program.leaves)
    for row, line in zip(dense, found, strict=True):
        for d, s in zip(row, line, strict=True):
            np.testing.assert_allclose(s.toarray(), np.reshape(d, s.shape), rtol=1e-10, atol=1e-12)
