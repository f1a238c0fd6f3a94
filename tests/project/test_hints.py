"""Hints for names and keywords of other libraries: messages, signatures, coverage."""

from __future__ import annotations

import importlib
import inspect
from types import FunctionType
from typing import Any

import pytest

import adjoint as ad
from adjoint import hints

PUBLIC = ("", ".nn", ".nn.functional", ".nn.init", ".nn.utils.parametrizations", ".optim", ".optim.schedules")
PUBLIC = (*PUBLIC, ".linalg", ".fft", ".special", ".train", ".random")


def public_functions() -> dict[str, Any]:
    """Every public function, constructor and method, by its path."""
    found: dict[str, Any] = {}
    for part in PUBLIC:
        module: Any = ad
        for name in part.split(".")[1:]:
            module = getattr(module, name)
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, FunctionType):
                found[f"ad{part}.{name}"] = value
            elif isinstance(value, type) and value.__module__.startswith("adjoint."):
                methods = {n: m for n, m in vars(value).items() if isinstance(m, FunctionType)}
                found |= {
                    f"ad{part}.{name}.{n}": m for n, m in methods.items() if n == "__init__" or n[0] != "_"
                }
    return found


FUNCTIONS = public_functions()


@pytest.mark.parametrize("path", FUNCTIONS)
def test_keywords_of_other_libraries_are_explained(path):
    """For every parameter with another name elsewhere, that name gets a hint."""
    function = FUNCTIONS[path]
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return  # forwards its keywords
    usual = [p for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    first = [None] * sum(p.kind is p.POSITIONAL_ONLY for p in parameters.values())
    if usual and usual[0].name == "self":
        first = [object.__new__(object)]
    for theirs, ours in hints.KEYWORDS.items():
        if ours in [p.name for p in usual] and theirs not in parameters:
            with pytest.raises(ad.errors.InputError, match=f"{theirs}= is called {ours}= here") as caught:
                function(*first, **{theirs: 1})
            assert str(caught.value).startswith((f"{function.__name__}: ", "object: "))  # of a class its name


def test_signatures_are_clean():
    """No signature takes keywords only to explain them, and functions without renamed ones are not wrapped."""
    for path, function in FUNCTIONS.items():
        for p in inspect.signature(function).parameters.values():
            assert p.annotation != "Never", path
    assert not hasattr(ad.exp, "__wrapped__") and not hasattr(ad.reshape, "__wrapped__")
    assert str(inspect.signature(ad.Tensor.ptp)).startswith("(x: ")
    assert FUNCTIONS["ad.sum"] is importlib.import_module("adjoint.ops.reduce").sum  # pickle finds it


def test_errors_of_the_function_itself_are_not_changed():
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'x'"):
        ad.softmax(axis=0)
    with pytest.raises(ad.errors.InputError, match="softmax: there is no dims2=; it takes x, axis"):
        ad.softmax(ad.ones(2), dims2=0)
