"""Exported functions and training steps give the bits of ``ad.compile`` in C, in Node, in Python and on ARM and RISC-V."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llvmlite")
pytest.importorskip("ziglang")

import export_cases
from exported import Case, Runs, run_c, run_module, run_package

import adjoint as ad

Made = list[tuple[Case, Runs]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Case, Runs, Any]]:
    """Each case with its library, what ``ad.compile`` computes, and its exports as a module and as a package."""
    found = []
    for make in export_cases.CASES:
        case = make().prepare()
        exports = {
            target: ad.export(
                case.f, *case.calls[0], path=tmp_path_factory.mktemp(case.name) / f"{case.name}_{target}", name=case.name,
                target=target, schedules=case.schedules,
            )
            for target in ("wasm", "python")
        }  # fmt: skip
        found.append((case, case.wanted(), exports))
    return found


@pytest.mark.parametrize("sanitize", [False, True], ids=["plain", "sanitized"])
def test_c(made: Any, tmp_path: Path, sanitize: bool) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    for found, (case, wanted, _) in zip(
        run_c([c for c, *_ in made], tmp_path, sanitize=sanitize), made, strict=True
    ):
        case.assert_same(found, wanted)


@pytest.mark.parametrize("target", ["aarch64-linux", "riscv64-linux"])
def test_other_processors(made: Any, tmp_path: Path, target: str) -> None:
    if shutil.which(f"qemu-{target.partition('-')[0]}") is None:
        pytest.skip("needs qemu-user")
    pytest.importorskip("ziglang")
    for found, (case, wanted, _) in zip(run_c([c for c, *_ in made], tmp_path, target), made, strict=True):
        case.assert_same(found, wanted)


def test_modules_in_node(made: Any) -> None:
    if shutil.which("node") is None:
        pytest.skip("needs node")
    for case, wanted, exports in made:
        case.assert_same(run_module(exports["wasm"], case), wanted)


def test_packages_without_adjoint(made: Any) -> None:
    for case, wanted, exports in made:
        case.assert_same(run_package(exports["python"], case), wanted)
