"""Checkpoints: a directory per moment, written whole or not at all, and read without executing anything."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from adjoint.errors import ArgumentError
from adjoint.interop.files import load, save

__all__ = ["Checkpoints"]

VERSION = 1
_NAME = re.compile(r"step-(\d{9})")


class Checkpoints:
    """The checkpoints of one training run, in one directory: the last few, and the best.

    Each is a directory ``step-000000123`` with ``model.safetensors`` (plain names, which PyTorch reads
    too), ``state.safetensors`` (optimiser, generators, position) and ``meta.json``.  It is written under
    another name and renamed, so a kill at any moment leaves whole checkpoints alone.
    """

    def __init__(self, directory: str | os.PathLike[str], keep: int = 3) -> None:
        if keep < 1:
            raise ArgumentError(f"keep must be at least 1, but is {keep!r}.")
        self.directory = Path(directory)
        self.keep = keep

    def write(self, step: int, model: Mapping[str, Any], state: Any, score: float | None = None) -> Path:
        """Write a checkpoint; older ones beyond ``keep``, except the best, are removed."""
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"step-{step:09d}"
        fresh = self.directory / f".writing-{os.getpid()}-{step}"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        save(fresh / "model.safetensors", {k: np.asarray(v) for k, v in model.items()})
        save(fresh / "state.safetensors", state)
        meta = {"version": VERSION, "step": step, "score": score}
        with open(fresh / "meta.json", "w") as f:
            json.dump(meta, f)
            f.flush()
            os.fsync(f.fileno())
        _sync(fresh)
        if path.exists():
            shutil.rmtree(path)
        os.rename(fresh, path)
        _sync(self.directory)
        self._tidy()
        return path

    def all(self) -> list[tuple[int, Path]]:
        """Return the whole checkpoints, oldest first."""
        found = []
        for path in self.directory.glob("step-*") if self.directory.is_dir() else ():
            match = _NAME.fullmatch(path.name)
            if match and (path / "meta.json").is_file():
                found.append((int(match[1]), path))
        return sorted(found)

    def latest(self) -> Path | None:
        """Return the newest checkpoint; None if there is none."""
        found = self.all()
        return found[-1][1] if found else None

    def best(self) -> Path | None:
        """Return the checkpoint with the lowest score; None if none has one."""
        scored = [(s, p) for _, p in self.all() if (s := self._score(p)) is not None]
        return min(scored)[1] if scored else None

    def _score(self, path: Path) -> float | None:
        return _meta(path)["score"]

    def read(self, path: Path) -> tuple[dict[str, Any], Any, dict[str, Any]]:
        """Return the model's values, the rest of the state, and the facts of a checkpoint."""
        meta = _meta(path)
        if meta.get("version") != VERSION:
            raise ArgumentError(f"{path} has version {meta.get('version')}; this program reads {VERSION}.")
        return load(path / "model.safetensors"), load(path / "state.safetensors"), meta

    def _tidy(self) -> None:
        found = self.all()
        best = self.best()
        for _, path in found[: -self.keep]:
            if path != best:
                shutil.rmtree(path, ignore_errors=True)
        for left in self.directory.glob(".writing-*"):
            shutil.rmtree(left, ignore_errors=True)


def _meta(path: Path) -> dict[str, Any]:
    try:
        found = json.loads((path / "meta.json").read_text())
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{path} is no checkpoint: {error}") from None
    if not isinstance(found, dict):
        raise ArgumentError(f"{path} is no checkpoint: meta.json is not an object.")
    return found


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
