"""A fixture for tests that compare bits: ``ad.compile`` runs programs by replay, as without llvmlite."""

from __future__ import annotations

import importlib

import pytest


@pytest.fixture(autouse=True)
def by_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("adjoint.compiler.api.variant")
    monkeypatch.setattr(module, "has_llvm", lambda: False)
