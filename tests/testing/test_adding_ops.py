"""docs/adding_ops.md: its op passes the tests over the op table with no other line than its record."""

from __future__ import annotations

import doctest
import importlib.util
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from table import CASES

import adjoint as ad
from adjoint.core.namespace import dyn, raw, rec
from adjoint.core.op import OPS
from adjoint.core.tensor import Tensor
from adjoint.testing import cases
from adjoint.testing.references import source

ROOT = Path(__file__).parent.parent.parent
NAME = "gaussian"
LIKE = "softplus"  # a built-in op of the same kind: what is tested for it is tested for the new one


def definition() -> str:
    """The call of ``define`` on the page."""
    examples = doctest.DocTestParser().get_examples((ROOT / "docs" / "adding_ops.md").read_text())
    return next(e.source for e in examples if f'define("{NAME}"' in e.source)


def remove() -> None:
    """Undo the definition: also that of the page itself, which may have run before or will run after."""
    if OPS.pop(NAME, None) is not None:
        for where in (raw, rec, dyn, Tensor):
            delattr(where, NAME)


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The op of the page, for one test, and its cases."""
    remove()
    exec("import numpy as np, adjoint as ad\n" + definition(), {})
    monkeypatch.setitem(CASES, NAME, [case for case in cases() if case.op == NAME])
    yield NAME
    remove()


def test_the_definition_has_at_most_six_lines() -> None:
    assert len(definition().splitlines()) <= 6


def module_of(path: str) -> ModuleType:
    """A test module by its path, as pytest imports it."""
    name = Path(path).stem
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(f"for_{name}", ROOT / "tests" / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def checks(module: ModuleType) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The tests that run on ``LIKE``, each with its other parameters."""
    for test in vars(module).values():
        marks = [m for m in getattr(test, "pytestmark", []) if m.name == "parametrize"]
        names = {m.args[0]: m.args[1] for m in marks}
        if LIKE not in names.get("name", ()):
            continue
        others = {key: values for key, values in names.items() if key != "name"}
        for chosen in itertools.product(*others.values()):
            yield test, dict(zip(others, chosen, strict=True))


@pytest.mark.parametrize("path", ["ops/test_op_table.py", "core/test_infer.py", "core/test_define.py"])
def test_an_op_of_the_page_passes_the_tests_over_the_table(path: str, added: str) -> None:
    assert CASES[added] and source(OPS[added]) == "formula"
    found = list(checks(module_of(path)))
    assert found
    for test, others in found:
        test(name=added, **others)


def test_an_op_of_the_page_passes_the_tests_of_batches(added: str) -> None:
    batch = module_of("transforms/test_transforms_batch.py")
    for case in CASES[added]:
        batch.test_vmap_equals_a_loop(case)
        batch.test_vmap_of_grad_and_of_jvp_equal_a_loop(case)
        batch.test_an_empty_batch_has_the_shapes_and_dtypes_of_any_other(case)
        batch.test_an_empty_batch_has_empty_derivatives(case)


def test_an_op_of_the_page_is_a_method(added: str) -> None:
    assert getattr(Tensor, added) is OPS[added].eager


@pytest.mark.filterwarnings("ignore:ad.compile. the source of")  # ``exec`` defines the op
def test_an_op_of_the_page_is_native(added: str) -> None:
    pytest.importorskip("llvmlite")
    f = lambda x: ad.grad(lambda x: OPS[added].eager(x).sum())(x)
    compiled = ad.compile(f, backend="native")
    x = np.linspace(-2, 2, 7)
    np.testing.assert_allclose(compiled(x), f(x), rtol=1e-15)
    assert " 0 calls of NumPy" in str(compiled.explain(x))
