"""Inferred shapes and dtypes are those of a run, for every op of the table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from table import CASES, OP_NAMES, is_float, op_of

from adjoint.core.infer import infer
from adjoint.core.node import Spec
from adjoint.core.op import OPS
from adjoint.core.tensor import wrap
from adjoint.errors import AdjointError, LinAlgError
from adjoint.testing import Case

ml_dtypes = pytest.importorskip("ml_dtypes")
FLOATS = (np.float64, np.float32, np.complex128, np.complex64, np.float16, ml_dtypes.bfloat16)
INTEGERS = (np.int64, np.int8, np.uint8, np.bool_)
# What an op does with a dtype that its functions do not let through may depend on the values.
UNREACHABLE = {"cosine": "b", "inv_or_nan": "biuV", "cofactor": "V", "max_spread": "biu"}


def cast(case: Case, dtype: Any) -> Case:
    """A case with its float arrays in another dtype."""
    sized = abs if np.dtype(dtype).kind in "iu" else np.asarray  # no negative integer exponents
    args = tuple(sized(a).astype(dtype) if is_float(a) and a.dtype.kind == "f" else a for a in case.args)
    return replace(case, args=args, note=np.dtype(dtype).name)


def shortened(case: Case, axis: int) -> Case | None:
    """A case with no elements along one axis of all its arrays; None if one of them does not have it."""
    if any(isinstance(a, np.ndarray) and not -a.ndim <= axis < a.ndim for a in case.args):
        return None
    cut = lambda a: a.take([], axis=axis) if isinstance(a, np.ndarray) else a
    return replace(case, args=tuple(map(cut, case.args)), note=f"empty {axis}")


def resized(case: Case, shape: tuple[int, ...]) -> Case:
    args = tuple(np.resize(a, shape) if isinstance(a, np.ndarray) else a for a in case.args)
    return replace(case, args=args, note=str(shape))


def variants(name: str) -> list[Case]:
    """The cases of an op in every dtype, without elements, and, if it is elementwise, without axes."""
    found = []
    for case in CASES[name]:
        cut = [shortened(case, axis) for axis in (0, -1, -2)]
        found += [case, *(c for c in cut if c is not None)]
    if op_of(name).kind == "elementwise":
        found += [resized(CASES[name][0], shape) for shape in ((), (0,), (1, 1))]
    several = [cast(case, dtype) for case in found for dtype in FLOATS]
    several += [cast(case, dtype) for case in CASES[name] for dtype in INTEGERS]
    never = UNREACHABLE.get(name, "")
    return [case for case in several if all(np.asarray(a).dtype.kind not in never for a in case.args)]


def specs(case: Case) -> tuple[Any, ...]:
    return tuple(Spec(case.op, a.shape, a.dtype) if isinstance(a, np.ndarray) else a for a in case.args)


def ran(case: Case) -> Any:
    """Shape and dtype of each output of a run, or the class of its error."""
    args = [wrap(a) if isinstance(a, np.ndarray) else a for a in case.args]
    try:
        with np.errstate(all="ignore"):
            out = OPS[case.op].eager(*args, **case.params)
    except (AdjointError, TypeError) as error:  # TypeError: in the forward of a user's op
        return type(error)
    return tuple((y.shape, y.dtype) for y in (out if isinstance(out, tuple) else (out,)))


def inferred(case: Case) -> Any:
    try:
        return infer(OPS[case.op], specs(case), case.params)
    except (AdjointError, TypeError) as error:  # TypeError: in the forward of a user's op
        return type(error)


@pytest.mark.parametrize("name", OP_NAMES)
def test_inferred_shape_and_dtype_are_those_of_a_run(name):
    for case in variants(name):
        expected = ran(case)
        if expected is LinAlgError:  # the error of a value, not of a shape
            continue
        assert inferred(case) == expected, case
        assert inferred(case) == expected, f"{case}, remembered"


RULED = tuple(name for name in OP_NAMES if op_of(name).shape is not None)


@pytest.mark.parametrize("name", RULED)
def test_a_shape_rule_covers_every_case_of_its_op(name):
    for case in CASES[name]:
        assert op_of(name).shape(*specs(case), **case.params) is not None, case


@pytest.mark.parametrize("name", RULED)
def test_shapes_that_do_not_fit_raise_as_in_a_run(name):
    """Lengthen one axis of one argument at a time."""
    for case in CASES[name]:
        for i, a in enumerate(case.args):
            for axis in range(np.ndim(a)):
                longer = np.repeat(a, 2, axis=axis)
                changed = replace(
                    case, args=(*case.args[:i], longer, *case.args[i + 1 :]), note=f"{i}, {axis}"
                )
                expected = ran(changed)
                if expected is not LinAlgError:
                    assert inferred(changed) == expected, changed


def test_expensive_ops_need_neither_memory_nor_time():
    big = Spec("x", (10**6, 10**6), np.dtype(np.float32))
    assert infer(OPS["matmul"], (big, big), {}) == ((big.shape, big.dtype),)
    assert infer(OPS["sum"], (big,), {"axis": (-1,), "keepdims": False}) == (((10**6,), big.dtype),)
    assert infer(OPS["exp"], (big,), {}) == ((big.shape, big.dtype),)
    assert infer(OPS["inv"], (big,), {}) == ((big.shape, big.dtype),)


def test_python_numbers_are_weak():
    x = Spec("x", (3,), np.dtype(np.float32))
    assert infer(OPS["multiply"], (x, 2.0), {}) == (((3,), x.dtype),)
    assert infer(OPS["multiply"], (2, x), {}) == (((3,), x.dtype),)
    assert infer(OPS["multiply"], (x, 2j), {}) == (((3,), np.dtype(np.complex64)),)
    small = Spec("x", (3,), np.dtype(np.uint8))
    assert infer(OPS["add"], (small, 1), {}) == (((3,), small.dtype),)
    with pytest.raises(AdjointError, match="is out of range for"):
        infer(OPS["add"], (small, 300), {})


def test_parameters_of_different_types_are_told_apart():
    x = Spec("x", (2, 3), np.dtype(np.float32))
    assert infer(OPS["index"], (x,), {"key": (0,)}) == (((3,), x.dtype),)
    assert infer(OPS["index"], (x,), {"key": (False,)}) == (((0, 2, 3), x.dtype),)
    assert infer(OPS["index"], (x,), {"key": (np.array([0, 1, 1]),)}) == (((3, 3), x.dtype),)
    assert infer(OPS["index"], (x,), {"key": (slice(0, 1),)}) == (((1, 3), x.dtype),)


def test_cached_results_have_the_usual_dtype_objects():
    """Compiled programs compare dtypes by identity, and a dtype of swapped bytes makes another object."""
    usual = np.dtype(np.float32)
    other = usual.newbyteorder("S").newbyteorder("S")
    assert other is not usual and other == usual
    for name, params in (("conj", {}), ("reshape", {"shape": (3, 1)})):
        for dtype in (other, usual):
            ((_, found),) = infer(OPS[name], (Spec("x", (3,), dtype),), params)
            assert found is usual
