"""The operators and methods of tensors are those of the records, and are declared for editors."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import numpy as np
import pytest
from table import OP_NAMES, op_of

import adjoint as ad
from adjoint.core import methods
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError

INSTALLED = {name for op in OP_NAMES for name in op_of(op).methods} | set(methods.COMPOSED)


def declarations() -> dict[str, list[str] | None]:
    """The names under TYPE_CHECKING in ``Methods``, with the parameters of functions."""
    tree = ast.parse(Path(methods.__file__).read_text())
    cls = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Methods")
    found: dict[str, list[str] | None] = {}
    for node in next(n for n in cls.body if isinstance(n, ast.If)).body:
        if isinstance(node, ast.AnnAssign):
            found[node.target.id] = None
        elif isinstance(node, ast.FunctionDef):
            given = node.args
            every = [*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs]
            found[node.name] = None if node.decorator_list else [a.arg for a in every if a is not None][1:]
    return found


def test_every_installed_method_is_declared_and_every_declaration_is_there():
    declared = declarations()
    assert declared.keys() >= INSTALLED
    assert all(hasattr(Tensor, name) for name in declared)


@pytest.mark.parametrize("name", sorted(n for n in INSTALLED if not n.startswith("__")))
def test_a_declaration_has_the_parameters_of_its_method(name):
    method = inspect.getattr_static(Tensor, name)
    if isinstance(method, property):
        assert declarations()[name] is None
        return
    parameters = list(inspect.signature(method).parameters)[1:]
    declared = declarations()[name]
    assert declared is not None
    if declared == ["other"] and len(parameters) == 1:
        return
    assert declared == parameters


@pytest.mark.parametrize("name", OP_NAMES)
def test_methods_of_an_op_are_its_function(name):
    x = ad.tensor([2.0, 3.0])
    for method in op_of(name).methods:
        if method in methods.REFLECTED:
            base = getattr(x, f"__{method[3:]}")
            reflected = getattr(x, method)
            try:
                expected = base(x)
            except ad.errors.AdjointError as error:
                with pytest.raises(type(error)):
                    reflected(x)
            else:
                np.testing.assert_array_equal(reflected(x).numpy(), expected.numpy())
        else:
            assert callable(inspect.getattr_static(Tensor, method)) or method in ("real", "imag")


def test_an_op_of_a_user_becomes_a_method():
    ad.define("thrice_method", lambda x: 3 * x, lambda xp, g, y, x: 3 * g, method=True)
    ad.define("half_method", lambda x: x / 2, lambda xp, g, y, x: g / 2, method=("halved", "half_of"))
    x = ad.tensor([2.0], requires_grad=True)
    try:
        (x.thrice_method() * x.halved() * x.half_of()).sum().backward()
        assert x.grad.tolist() == [9.0]
        assert ad.vmap(lambda t: t.thrice_method())(np.ones((2, 1))).tolist() == [[3.0], [3.0]]
    finally:
        for name in ("thrice_method", "halved", "half_of"):
            delattr(Tensor, name)


@pytest.mark.parametrize("name", ["sum", "__add__", "grad", "__or__", "reshape"])
def test_a_method_that_tensors_have_is_not_replaced(name):
    with pytest.raises(ArgumentError) as caught:
        ad.define("taken_method", lambda x: x, lambda xp, g, y, x: g, method=name)
    assert str(caught.value) == (
        f"define 'taken_method': tensors already have an attribute {name!r}.\n  Choose another name for the method."
    )


def test_a_primitive_of_native_code_needs_a_ufunc():
    with pytest.raises(ArgumentError, match="define 'primitive_lambda': lower=True requires a NumPy ufunc"):
        ad.define("primitive_lambda", lambda x: x, lambda xp, g, y, x: g, lower=True)


def test_a_costly_op_needs_a_ufunc():
    with pytest.raises(ArgumentError, match="define 'costly_lambda': costly=True requires a NumPy ufunc"):
        ad.define("costly_lambda", lambda x: x, lambda xp, g, y, x: g, costly=True)
