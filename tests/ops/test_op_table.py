"""What must hold for every op, written once, over the table and its cases.

An op that cannot be checked in some way is listed in ``adjoint/testing/references.py``, with the reason.
"""

from __future__ import annotations

import dis
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from table import (
    CASES,
    CONSTANT,
    OP_NAMES,
    SMOOTH,
    checked,
    function,
    gradients_of,
    is_float,
    op_of,
    operands,
    run,
    seeds_for,
)  # fmt: skip

import adjoint as ad
from adjoint.core.node import Node, Spec
from adjoint.core.op import names_read
from adjoint.core.tensor import Tensor, wrap
from adjoint.errors import NotSavedError
from adjoint.testing import Case, gradcheck, gradgradcheck
from adjoint.testing.references import TABLES, UNCHECKED, reference, source


def except_for(check: str, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if name not in UNCHECKED[check]]


def test_every_op_has_a_case():
    assert set(OP_NAMES) == set(CASES)


def test_every_exception_is_an_op_and_has_a_reason():
    listed = {name: reason for table in UNCHECKED.values() for name, reason in table.items()}
    assert set(listed) <= set(OP_NAMES)
    assert all(listed.values())


def test_every_formula_is_the_reference_of_an_op():
    for word, table in TABLES.items():
        assert set(table) == {name for name in OP_NAMES if op_of(name).reference == word}


def test_every_smooth_op_has_a_case_for_each_smooth_argument():
    for name in SMOOTH:
        op = op_of(name)
        reached = {i for case in CASES[name] for i in checked(case)}
        wanted = {0} if op.arity is None else {i for i in range(op.arity) if op.smooth(i)}
        assert wanted <= reached, f"{name}: no case has a float array for argument {wanted - reached}"


# Values, shapes and dtypes ---------------------------------------------------------------------


def same(a: Any, b: Any) -> bool:
    """The same shape, dtype and bits."""
    a, b = np.asarray(a), np.asarray(b)
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("name", OP_NAMES)
def test_forward_on_tensors_is_forward_on_arrays(name):
    for case in CASES[name]:
        expected = op_of(name).forward(*case.args, **case.params)
        for y, e in zip(run(case, operands(case)), _list(expected), strict=True):
            assert type(y) is Tensor, case
            assert type(y._data) is np.ndarray, case
            assert same(y.numpy(), e), case


@pytest.mark.parametrize("name", OP_NAMES)
def test_no_output_shares_memory_that_the_caller_can_write_to(name):
    for case in CASES[name]:
        args = [np.array(a) if isinstance(a, np.ndarray) else a for a in case.args]
        for y in run(case, args):
            for a in args:
                if isinstance(a, np.ndarray):
                    assert not np.shares_memory(y._data, a), case


@pytest.mark.parametrize("name", ["real", "imag", "conj", "copy", "positive"])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128, np.int64])
def test_parts_of_an_array_are_not_views_of_it(name, dtype):
    a = np.ones(3, dtype)
    y = getattr(ad, name)(a)
    before = y.tolist()
    a[:] = 100
    assert y.tolist() == before


def _list(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


@pytest.mark.parametrize("name", except_for("values", OP_NAMES))
def test_values_are_those_of_the_reference(name):
    assert source(op_of(name)), "nothing to compare it with: give it a reference="
    expected = reference(op_of(name))
    if expected is None:
        pytest.skip("its library is not installed")
    for case in CASES[name]:
        with np.errstate(all="ignore"):
            answers = _list(expected(*case.args, **case.params))
            results = _list(op_of(name).forward(*case.args, **case.params))
        assert len(results) == len(answers), case
        for y, e in zip(results, answers, strict=True):
            assert np.shape(y) == np.shape(e), case
            np.testing.assert_allclose(y, e, rtol=1e-9, atol=1e-11, err_msg=str(case))


ELEMENTWISE = tuple(n for n in OP_NAMES if op_of(n).kind == "elementwise" and not op_of(n).params)
EDGE_SHAPES = ((), (1,), (0,), (2, 0), (1, 1))
MIXED_SHAPES = (((0,), ()), ((1,), (0,)), ((2, 0), (2, 1)), ((), (1, 1)))  # for two arguments


def edge_cases(name: str, dtype: Any) -> list[Case]:
    """An elementwise op on arrays without axes, without elements and with one element."""
    case = CASES[name][0]
    found = []
    count = len(case.args)
    for shapes in [(shape,) * count for shape in EDGE_SHAPES] + list(MIXED_SHAPES if count == 2 else ()):
        args = tuple(
            np.resize(a, shape).astype(dtype if is_float(a) else a.dtype)
            for a, shape in zip(case.args, shapes, strict=True)
        )
        found.append(replace(case, args=args, note=dtype.__name__))
    return found


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", except_for("numpy", tuple(n for n in ELEMENTWISE if hasattr(np, n))))
def test_values_shape_and_dtype_are_those_of_numpy(name, dtype):
    for case in (*CASES[name], *edge_cases(name, dtype)):
        (y,) = run(case, operands(case))
        expected = np.asarray(getattr(np, name)(*case.args))
        assert (y.shape, y.dtype) == (expected.shape, expected.dtype), case
        np.testing.assert_array_equal(y.numpy(), expected, err_msg=str(case))


@pytest.mark.parametrize("name", except_for("variants", tuple(n for n in ELEMENTWISE if n in SMOOTH)))
def test_gradient_has_shape_and_dtype_of_its_tensor_at_the_edges(name):
    for case in (c for dtype in (np.float64, np.float32, np.float16) for c in edge_cases(name, dtype)):
        _, leaves, grads = gradients_of(case, operands(case))
        assert leaves, case
        for x, g in zip(leaves, grads, strict=True):
            assert (g.shape, g.dtype) == (x.shape, x.dtype), case


@pytest.mark.parametrize("name", except_for("variants", SMOOTH))
def test_float32_gives_float32_and_nearly_the_same(name):
    for case in CASES[name]:
        outputs, leaves, grads = gradients_of(case, operands(case, cast=np.float32))
        narrow = tuple(
            a.astype(np.float32) if is_float(a) and a.dtype == np.float64 else a for a in case.args
        )
        expected = _list(op_of(name).forward(*narrow, **case.params))
        assert {y.dtype for y in outputs} <= {np.asarray(e).dtype for e in expected}, case
        reference = gradients_of(case, operands(case))[2]
        for x, g, r in zip(leaves, grads, reference, strict=True):
            assert (g.shape, g.dtype) == (x.shape, x.dtype), case
            scale = np.abs(r.numpy()).max(initial=1.0)
            np.testing.assert_allclose(g.numpy(), r.numpy(), rtol=1e-3, atol=1e-4 * scale, err_msg=str(case))


def strided(a: Any) -> Any:
    """The same values, neither contiguous nor in the order of memory."""
    if not isinstance(a, np.ndarray) or a.ndim == 0:
        return a
    wide = np.zeros((*a.shape[:-1], 2 * a.shape[-1]), a.dtype, order="F")
    view = wide[..., ::-2]
    view[...] = a
    return view


@pytest.mark.parametrize("name", except_for("variants", SMOOTH))
def test_strided_memory_changes_nothing(name):
    for case in CASES[name]:
        moved = replace(case, args=tuple(map(strided, case.args)))
        plain, odd = gradients_of(case, operands(case)), gradients_of(moved, operands(moved))
        for a, b in zip(plain[0] + plain[2], odd[0] + odd[2], strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype), case
            scale = np.abs(a.numpy()).max(initial=1.0)
            # NumPy's loops over strided memory may round the last digit otherwise
            np.testing.assert_allclose(
                a.numpy(), b.numpy(), rtol=1e-12, atol=1e-14 * scale, err_msg=str(case)
            )


SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, 1e308, -1e308, 5e-324, 1e-200])


def special_case(name: str, nan: bool = False) -> Case | None:
    """Every pair of special values; None for ops that take no floats there."""
    op = op_of(name)
    if not all(map(is_float, CASES[name][0].args)):
        return None
    values = {1: SPECIAL, 2: SPECIAL[:7]}.get(op.arity or 1, SPECIAL[[0, 3, 4]])  # pairs and triples are many
    if nan:
        values = np.append(values, np.nan)
    return Case(name, tuple(a.ravel() for a in np.meshgrid(*[values] * (op.arity or 1))), note="special")


@pytest.mark.parametrize("name", except_for("numpy", tuple(n for n in ELEMENTWISE if hasattr(np, n))))
def test_special_values_are_those_of_numpy(name):
    case = special_case(name, nan=True)
    if case is not None:
        with np.errstate(all="ignore"):
            (y,) = run(case, operands(case))
            np.testing.assert_array_equal(y.numpy(), getattr(np, name)(*case.args))


@pytest.mark.parametrize("name", [n for n in ELEMENTWISE if n in SMOOTH])
def test_special_values_have_the_same_gradient_with_and_without_create_graph(name):
    case = special_case(name, nan=True)
    if case is None:
        return
    args = operands(case)
    with np.errstate(all="ignore"):
        y = run(case, args)[0]
        for seed in (np.zeros(y.shape), np.ones(y.shape)):
            plain = ad.gradients(y, args, seed, retain_graph=True)
            recorded = ad.gradients(y, args, seed, retain_graph=True, create_graph=True)
            for i, (a, b) in enumerate(zip(plain, recorded, strict=True)):
                np.testing.assert_array_equal(a.numpy(), b.numpy(), err_msg=f"{name}, argument {i}")


@pytest.mark.parametrize("name", except_for("zero", tuple(n for n in ELEMENTWISE if n in SMOOTH)))
def test_a_zero_gradient_stays_zero_at_special_values(name):
    whole = special_case(name)
    if whole is None:
        return
    # one element at a time: a NaN that the hardware saw elsewhere would help
    for k in range(whole.args[0].size):
        case = replace(whole, args=tuple(a[k : k + 1] for a in whole.args))
        for create_graph in (False, True):
            args = operands(case)
            with np.errstate(all="ignore"):
                y = run(case, args)[0]
                # a zero from where, or from an index, although the value may be NaN
                chosen = ad.where(np.array([False]), y, 1.0) if create_graph else y[1:]
                found = ad.gradients(chosen, args, np.zeros(chosen.shape), create_graph=create_graph)
            for i, g in enumerate(found):
                assert g.numpy() == 0, f"{name}{tuple(map(float, case.args))}, argument {i}"


# Derivatives -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", except_for("first", SMOOTH))
def test_first_derivative_against_finite_differences(name):
    for case in CASES[name]:
        wanted = checked(case)
        if wanted:
            gradcheck(function(case, wanted), [case.args[i] for i in wanted], directions=1)


@pytest.mark.parametrize("name", except_for("second", SMOOTH))
def test_second_derivative_against_finite_differences(name):
    for case in CASES[name]:
        wanted = checked(case)
        if wanted:
            gradgradcheck(function(case, wanted), [case.args[i] for i in wanted], directions=1)


@pytest.mark.parametrize("name", ["exp", "sqrt", "tanh", "sigmoid"])
def test_third_derivative_against_finite_differences(name):
    for case in CASES[name]:
        gradcheck(function(case, [0]), [case.args[0]], order=3)


@pytest.mark.parametrize("name", except_for("complex", SMOOTH))
def test_complex_derivatives_against_finite_differences(name):
    for case in CASES[name]:
        wanted = checked(case)
        args = [case.args[i] if case.args[i].dtype.kind == "c" else case.args[i] * (1 + 0.3j) for i in wanted]
        try:
            function(case, wanted)(*map(wrap, args))
        except (ad.errors.DTypeError, ad.errors.ArgumentError):
            return  # not defined for complex numbers
        gradcheck(function(case, wanted), args, directions=1, order=2)


@pytest.mark.parametrize("name", CONSTANT)
def test_op_without_gradient_records_nothing_and_says_why(name):
    assert op_of(name).reason
    for case in CASES[name]:
        args = operands(case, [i for i, a in enumerate(case.args) if is_float(a)])
        assert not any(y.requires_grad for y in run(case, args)), case


@pytest.mark.parametrize("name", SMOOTH)
def test_same_bits_with_and_without_create_graph(name):
    for case in CASES[name]:
        plain = gradients_of(case, operands(case))
        recorded = gradients_of(case, operands(case), create_graph=True)
        for a, b in zip(plain[2], recorded[2], strict=True):
            assert same(a.numpy(), b.numpy()), case
            assert not a.requires_grad, case


def locked(a: Any) -> Any:
    """A copy that cannot be written to."""
    if isinstance(a, np.ndarray):
        a = a.copy()
        a.flags.writeable = False
    return a


@pytest.mark.parametrize("name", SMOOTH)
def test_neither_forward_nor_backward_writes_into_what_it_gets(name):
    for case in CASES[name]:
        fixed = replace(case, args=tuple(map(locked, case.args)))
        args = operands(fixed)
        outputs = [y for y in run(fixed, args) if y.requires_grad]
        seeds = [wrap(locked(g.numpy())) for g in seeds_for(outputs)]
        leaves = [args[i] for i in checked(fixed)]
        for create_graph in (False, True):
            ad.gradients(outputs, leaves, seeds, retain_graph=True, create_graph=create_graph)


# The facts of the record -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_ops_work_on_each_element_alone(name):
    case = CASES[name][-1]
    op = op_of(name)
    whole = np.asarray(op.forward(*case.args))  # several outputs side by side
    spread = np.broadcast_arrays(*case.args)
    assert whole.shape[op.outputs > 1 :] == spread[0].shape
    for index in np.ndindex(spread[0].shape):
        single = op.forward(*(np.asarray(a[index]) for a in spread))
        np.testing.assert_allclose(single, whole[..., *index], rtol=1e-13, err_msg=f"{case} at {index}")


LINEAR = tuple(n for n in SMOOTH if op_of(n).kind == "linear")
BILINEAR = tuple(n for n in SMOOTH if op_of(n).kind == "bilinear")


def other(a: Any) -> Any:
    """Other numbers of the same shape and kind."""
    return np.cos(np.arange(a.size)).reshape(a.shape).astype(a.dtype) if is_float(a) else a


def combine(a: Any, b: Any) -> Any:
    return 2.0 * a - 3.0 * b if is_float(a) else a


def assert_combined(case: Case, fixed: tuple[int, ...] = ()) -> None:
    """f(2a - 3b) = 2 f(a) - 3 f(b), where the arguments in ``fixed`` stay as they are."""
    forward = op_of(case.op).forward
    moved = tuple(a if i in fixed else other(a) for i, a in enumerate(case.args))
    mixed = tuple(
        a if i in fixed else combine(a, b) for i, (a, b) in enumerate(zip(case.args, moved, strict=True))
    )
    results = (_list(forward(*args, **case.params)) for args in (case.args, moved, mixed))
    for x, y, z in zip(*results, strict=True):
        np.testing.assert_allclose(
            z, combine(np.asarray(x), np.asarray(y)), rtol=1e-12, atol=1e-12, err_msg=str(case)
        )


@pytest.mark.parametrize("name", LINEAR)
def test_linear_ops_are_linear(name):
    for case in CASES[name]:
        assert_combined(case, fixed=tuple(set(range(len(case.args))) - set(checked(case))))


@pytest.mark.parametrize("name", BILINEAR)
def test_bilinear_ops_are_linear_in_each_argument(name):
    for case in CASES[name]:
        assert_combined(case, fixed=(0,))
        assert_combined(case, fixed=(1,))


BINARY = tuple(
    n for n in ELEMENTWISE if n in SMOOTH and op_of(n).arity == 2 and all(map(is_float, CASES[n][0].args))
)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", BINARY)
def test_a_python_number_is_as_good_as_a_tensor_of_the_same_dtype(name, dtype):
    op = op_of(name)
    case = CASES[name][1]
    for side in (0, 1):
        x = case.args[side].astype(dtype)
        for number in (float(np.float32(case.args[1 - side][0])), 2, 1):
            results = []
            for fixed in (number, wrap(np.asarray(number, dtype))):
                leaf = wrap(x).requires_grad_()
                with np.errstate(all="ignore"):  # some numbers lie outside the domain
                    y = op.eager(*((leaf, fixed) if side == 0 else (fixed, leaf)))
                assert y.dtype == dtype
                if not y.requires_grad:
                    assert not op.smooth(side)
                    continue
                results.append((y.numpy(), ad.gradients(y, [leaf], np.ones(3, dtype))[0].numpy()))
            if results:
                (y, g), (y2, g2) = results
                assert g.dtype == g2.dtype == dtype
                limit = 1e-13 if dtype is np.float64 else 1e-5
                np.testing.assert_allclose(y, y2, rtol=limit, err_msg=f"{case} with {number}")
                np.testing.assert_allclose(g, g2, rtol=limit, atol=limit, err_msg=f"{case} with {number}")


SEVERAL = tuple(n for n in SMOOTH if op_of(n).outputs > 1)


@pytest.mark.parametrize("name", SEVERAL)
def test_each_output_alone_has_its_derivatives(name):
    # the others are not used: the rule gets None for their gradients
    for case in CASES[name]:
        wanted = checked(case)
        f = function(case, wanted)
        for i in range(op_of(name).outputs):
            alone = lambda *values, f=f, i=i: f(*values)[i]
            gradcheck(alone, [case.args[j] for j in wanted], directions=1, order=2)


# What is saved ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMOOTH)
def test_saves_are_sufficient_for_each_argument_alone(name):
    # when only one gradient is wanted, less is kept; the rule must find all it reads
    for case in CASES[name]:
        everything = checked(case)
        together = gradients_of(case, operands(case))[2] if everything else []
        for i, expected in zip(everything, together, strict=True):
            (alone,) = gradients_of(case, operands(case, [i]))[2]
            assert same(alone.numpy(), expected.numpy()), f"{case}, argument {i}"


def node_of(case: Case, wanted: list[int]) -> tuple[Node, list[Tensor], list[Any]]:
    args = operands(case, wanted)
    outputs = [y for y in run(case, args) if y.requires_grad]
    node = outputs[0].grad_fn
    assert node is not None
    if op_of(case.op).outputs > 1:
        node = node.parents[0]
    return node, outputs, args


def needed(case: Case, wanted: list[int], slot: int) -> bool:
    """Tell whether backward fails if saved value ``slot`` (-1: the output) is not there."""
    node, outputs, args = node_of(case, wanted)
    assert node.args is not None
    if slot == -1:
        if node.out is None:
            return True
        hidden = Spec(case.op, node.shape, node.dtype)
        node.out = (hidden,) * len(outputs) if op_of(case.op).outputs > 1 else hidden
    else:
        a = case.args[slot]
        if not isinstance(a, np.ndarray):
            return True
        node.args = tuple(
            Spec(case.op, a.shape, a.dtype) if j == slot else v for j, v in enumerate(node.args)
        )
    try:
        ad.gradients(outputs, [args[i] for i in wanted], seeds_for(outputs))
    except (NotSavedError, TypeError):
        return True
    return False


@pytest.mark.parametrize("name", except_for("minimal", SMOOTH))
def test_saves_are_minimal(name):
    op = op_of(name)
    if op.joint is None:
        kept = op.keeps(tuple(map(op.smooth, range(op.arity or 1))))
        assert kept == (*op.saves_args, op.saves_out), f"{name}: saves= names what no rule mentions"
    read: dict[tuple[Any, int], bool] = {}
    for case in CASES[name]:
        everything = checked(case)
        # one rule at a time, except where there is one for all
        for wanted in [everything] if op.joint is not None else [[i] for i in everything]:
            *keeps, keeps_out = op.keeps(tuple(i in wanted for i in range(len(case.args))))
            for slot in [j for j, kept in enumerate(keeps) if kept] + [-1] * keeps_out:
                key = (
                    None if op.joint is not None else wanted[0],
                    slot if op.arity is not None else min(slot, 0),
                )
                read[key] = read.get(key, False) or needed(case, wanted, slot)
    unread = [key for key, value in read.items() if not value]
    assert not unread, (
        f"{name} saves what no rule reads: (gradient of, argument or -1 for the output) {unread}"
    )


@pytest.mark.parametrize("name", SMOOTH)
def test_memory_of_what_is_not_saved_is_freed(name):
    case = next(c for c in CASES[name] if checked(c))
    # copies are intermediate: only the graph can hold their memory
    args = [a.clone() if isinstance(a, Tensor) else a for a in operands(case)]
    outputs = run(case, args)
    node = next(y.grad_fn for y in outputs if y.requires_grad)
    *keeps, keeps_out = op_of(name).keeps(tuple(getattr(a, "requires_grad", False) for a in args))
    kept = [a._data for a, keep in zip(args, keeps, strict=True) if keep and isinstance(a, Tensor)]
    kept += [y._data for i, y in enumerate(outputs) if keeps_out and i not in op_of(name).unread]
    arrays = {f"argument {i}": a._data for i, a in enumerate(args) if isinstance(a, Tensor)}
    arrays |= {f"output {i}": y._data for i, y in enumerate(outputs)}
    watched = {
        what: weakref.ref(array)
        for what, array in arrays.items()
        if not any(np.may_share_memory(array, k) for k in kept)
    }
    del args, outputs, kept, arrays
    assert node is not None
    alive = [what for what, ref in watched.items() if ref() is not None]
    assert not alive, f"{case}: nobody saves {alive}, but the graph holds it"


def stores_and_cells(xp, g, out, x, y):
    """Inner functions, and instructions that do two things: each Python has its own."""
    one, two = x, 2
    z = one
    return [(lambda: (one, two, y))() for _ in z]


@pytest.mark.parametrize("name", OP_NAMES)
def test_what_a_rule_reads_is_found_in_the_bytecode_of_this_python(name):
    for rule in (stores_and_cells, *op_of(name).rules):
        if not hasattr(rule, "__code__"):
            continue
        names = set(rule.__code__.co_varnames[: rule.__code__.co_argcount])
        seen: set[str] = set(rule.__code__.co_cellvars)
        for step in dis.get_instructions(rule):
            if "LOAD" in step.opname and ("FAST" in step.opname or "DEREF" in step.opname):
                seen.update(step.argval if isinstance(step.argval, tuple) else (step.argval,))
        assert names_read(rule, names) == names & seen
