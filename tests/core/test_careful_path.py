"""The careful path, which ops take while a tape or a transform is active anywhere, equals the fast one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from table import CASES, OP_NAMES, gradients_of, is_float, op_of, operands, run

import adjoint as ad
from adjoint.config import special
from adjoint.testing import Case
from adjoint.threads import spread


def variants(case: Case) -> Iterator[tuple[Case, Any]]:
    """A case, and for elementwise ops the same one with Python numbers and in half precision."""
    yield case, None
    if op_of(case.op).kind != "elementwise" or not all(is_float(a) for a in case.args):
        return
    if all(a.dtype == np.float64 for a in case.args):
        yield case, ml_dtypes.bfloat16
        for i in range(len(case.args) if len(case.args) > 1 else 0):
            for number in (0.75, 2, np.float64(0.75)):
                one = replace(case, args=(*case.args[:i], number, *case.args[i + 1 :]))
                yield one, None
                yield one, ml_dtypes.bfloat16


def computed(case: Case, dtype: Any) -> list[Any]:
    outputs = run(case, operands(case, cast=dtype))
    if not op_of(case.op).differentiable:
        return outputs
    return outputs + [g for g in gradients_of(case, operands(case, cast=dtype))[2] if g is not None]


@pytest.mark.parametrize("name", OP_NAMES)
def test_every_op_gives_the_same_bits_on_the_careful_path(name: str) -> None:
    for given in CASES[name]:
        for case, dtype in variants(given):
            try:
                fast = computed(case, dtype)
            except TypeError:
                assert dtype is not None  # LAPACK and SciPy have no half precision
                continue
            special.enter()
            try:
                slow = computed(case, dtype)
            finally:
                special.leave()
            for a, b in zip(fast, slow, strict=True):
                assert a.dtype == b.dtype, case
                assert a.numpy().tobytes() == b.numpy().tobytes(), case


def beside_array(case: Case, i: int) -> list[Any]:
    """Run a case with argument ``i`` as a tensor and the other as an array, which is overwritten afterwards."""
    args: list[Any] = [np.array(a) for a in case.args]
    x = args[i] = ad.tensor(args[i], requires_grad=True)
    y = op_of(case.op).eager(*args)
    args[1 - i][...] = np.nan
    if y.requires_grad:
        y.backward(ad.ones(y.shape, dtype=y.dtype))
    return [y, x.grad] if y.requires_grad else [y]


BINARY = [n for n in OP_NAMES if op_of(n).arity == 2 and op_of(n).outputs == 1 and not op_of(n).params]


@pytest.mark.parametrize("name", BINARY)
def test_ops_of_a_tensor_and_an_array_give_the_same_bits_on_both_paths(name: str) -> None:
    for case in CASES[name]:
        for i in (0, 1) if all(map(is_float, case.args)) else ():
            fast = beside_array(case, i)
            special.enter()
            try:
                slow = beside_array(case, i)
            finally:
                special.leave()
            for a, b in zip(fast, slow, strict=True):
                assert a.dtype == b.dtype, case
                assert a.numpy().tobytes() == b.numpy().tobytes(), case


def test_a_large_costly_function_runs_in_pieces_on_the_careful_path(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    in_threads = spread.run_parts
    monkeypatch.setattr(spread, "run_parts", lambda w, p, n: (seen.append(n), in_threads(w, p, n)))
    x = ad.tensor(np.linspace(-3.0, 3.0, 2**18))
    with ad.config.threads(2), ad.Tape():
        ad.tanh(x)
    assert seen == [2]
