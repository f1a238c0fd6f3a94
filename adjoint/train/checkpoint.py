"""Checkpoints: a directory per moment, written whole or not at all, and read without executing anything."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from adjoint.core.shapes import whole_number
from adjoint.errors import ArgumentError, FileError
from adjoint.storage.atomic import sync_directory
from adjoint.storage.files import load, need_safetensors, save

__all__ = ["Checkpoints"]

VERSION = 2
_NAME = re.compile(r"step-(\d{9,})(?:\.(\d+))?")  # written again at the same step: .1, .2, …
_FILES = ("model.safetensors", "state.safetensors")


class Checkpoints:
    """The checkpoints of one training run, in one directory: the last few, and the best.

    Each is a directory ``step-000000123`` with ``model.safetensors`` (plain names, which PyTorch reads
    too), ``state.safetensors`` (optimiser, generators, position) and ``meta.json``, which has the digests
    of the other two: a file that was cut or changed is refused.  It is written under another name and
    renamed, so a kill at any moment leaves whole checkpoints alone; one that is written again at the same
    step gets a new name (``step-000000123.1``) before the old one goes.  ``mode`` says whether the best has
    the lowest score ("min") or the highest ("max").  Only scores of one number are compared: of that which is
    called ``monitor``, or without it, of the one that the newest score is of.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        keep: int = 3,
        mode: str = "min",
        monitor: str | None = None,
    ) -> None:
        if whole_number("Checkpoints", "keep", keep) < 1:
            raise ArgumentError(f"keep must be at least 1, but is {keep!r}.")
        need_safetensors("writing checkpoints")  # now, not after the first epoch
        self.directory = Path(directory)
        if self.directory.exists() and not self.directory.is_dir():
            raise FileError(f"{self.directory} is a file: checkpoints are written into a directory.")
        self.keep = keep
        self.sign, self.monitor = sign_of(mode), monitor
        self.same_run = False  # later ones are this run's, from before it went back: it replaces them

    def write(
        self,
        step: int,
        model: Mapping[str, Any],
        state: Any,
        score: float | None = None,
        monitor: str | None = None,
    ) -> Path:
        """Write a checkpoint with its score in ``monitor``; older ones beyond ``keep`` go, save the best."""
        self.refuse_later(step)
        self.directory.mkdir(parents=True, exist_ok=True)
        fresh = self.directory / f".writing-{os.getpid()}-{step}"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        save(fresh / "model.safetensors", {k: np.asarray(v) for k, v in model.items()})
        save(fresh / "state.safetensors", state)
        files = {name: _digest(fresh / name) for name in _FILES}
        meta = {"version": VERSION, "step": step, "score": score, "monitor": monitor, "files": files}
        with open(fresh / "meta.json", "w") as f:
            json.dump({**meta, "digest": _meta_digest(meta)}, f)
            f.flush()
            os.fsync(f.fileno())
        sync_directory(fresh)
        before = [again for found, again, _ in self._found() if found == step]
        path = self.directory / (f"step-{step:09d}" + (f".{max(before) + 1}" if before else ""))
        os.rename(fresh, path)
        sync_directory(self.directory)
        for later, _, gone in self._found():  # only if they are this run's: see refuse_later
            if later > step:
                self._remove(gone)
        self._tidy()
        return path

    def refuse_later(self, step: int) -> None:
        """Raise if there are checkpoints beyond ``step``: whoever resumed would get those of another run."""
        latest = max((s for s, *_ in self._found()), default=step)
        if latest > step and not self.same_run:
            raise FileError(
                f"{self.directory} has the checkpoints of another run, up to step {latest}, "
                f"and this one is at {step}.\n"
                "  fit(resume=True) goes on with it; or give another directory, or remove them."
            )

    def _found(self) -> list[tuple[int, int, Path]]:
        """Return step, number of the writing, and path of all checkpoints, oldest first."""
        found = []
        for path in self.directory.glob("step-*") if self.directory.is_dir() else ():
            match = _NAME.fullmatch(path.name)
            if match:  # whole or not: it was when it got its name, and is not passed over in silence
                found.append((int(match[1]), int(match[2] or 0), path))
        return sorted(found)

    def all(self) -> list[tuple[int, Path]]:
        """Return the checkpoints, oldest first; of those of one step the last that was written."""
        return sorted({step: path for step, _, path in self._found()}.items())

    def latest(self) -> Path | None:
        """Return the newest checkpoint; None if there is none."""
        found = self.all()
        return found[-1][1] if found else None

    def best(self) -> Path | None:
        """Return the checkpoint with the best score; None if none has one."""
        scored = [(*found, path) for _, path in self.all() if (found := _score(path)) is not None]
        monitor = self.monitor if self.monitor is not None or not scored else scored[-1][1]
        alike = [(self.sign * score, path) for score, name, path in scored if name == monitor]
        return min(alike)[1] if alike else None

    def read(self, path: Path) -> tuple[dict[str, Any], Any, dict[str, Any]]:
        """Return the model's values, the rest of the state, and the facts of a checkpoint."""
        meta = _meta(path)
        for name in _FILES:
            if _digest(path / name) != meta["files"][name]:
                raise _refused(f"{path / name} is not what was written: it is damaged or was changed.")
        return load(path / "model.safetensors"), load(path / "state.safetensors"), meta

    def _remove(self, path: Path) -> None:
        gone = self.directory / f".writing-gone-{path.name}"
        os.rename(path, gone)  # first, so that a half-removed one is never taken for a whole one
        if gone.is_dir() and not gone.is_symlink():
            shutil.rmtree(gone, ignore_errors=True)
        else:
            gone.unlink()

    def _tidy(self) -> None:
        current = [path for _, path in self.all()]
        kept = {*current[-self.keep :], self.best()}
        for *_, path in self._found():
            if path not in kept:
                self._remove(path)
        for left in self.directory.glob(".writing-*"):
            shutil.rmtree(left, ignore_errors=True)


def sign_of(mode: str) -> int:
    """Return the factor with which the best of scores is the lowest: 1 for "min", -1 for "max"."""
    if mode not in ("min", "max"):
        raise ArgumentError(f"mode is 'min' or 'max', not {mode!r}.")
    return 1 if mode == "min" else -1


def _score(path: Path) -> tuple[float, str | None] | None:
    """Return the score of a checkpoint, and of which number it is one."""
    try:
        meta = _meta(path)
    except FileError:  # one that is damaged is not the best, and does not stand in the way of new ones
        return None
    return None if meta["score"] is None else (meta["score"], meta.get("monitor"))


def _meta(path: Path) -> dict[str, Any]:
    try:
        found = json.loads((path / "meta.json").read_text())
    except FileNotFoundError:
        raise _refused(f"{path} is not whole: it has no meta.json.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise _refused(f"{path} is no checkpoint: {error}") from None
    if not isinstance(found, dict):
        raise _refused(f"{path} is no checkpoint: meta.json is not an object.")
    if found.get("version") != VERSION:
        raise FileError(f"{path} has version {found.get('version')}; this program reads {VERSION}.")
    if found.pop("digest", None) != _meta_digest(found):
        raise _refused(f"{path / 'meta.json'} is not what was written: it is damaged or was changed.")
    score, files = found.get("score"), found.get("files")
    if (
        type(found.get("step")) is not int
        or not (score is None or (type(score) in (int, float) and math.isfinite(score)))
        or not (isinstance(files, dict) and set(files) == set(_FILES))
    ):
        raise _refused(f"{path} is no checkpoint: meta.json does not say what a checkpoint's does.")
    match = _NAME.fullmatch(path.name)
    if match and int(match[1]) != found["step"]:
        raise FileError(
            f"{path} is the checkpoint of step {found['step']} under another name.  Nothing was loaded.\n"
            f"  Call it step-{found['step']:09d}, or remove it to go on from the one before."
        )
    return found


def _refused(what: str) -> FileError:
    return FileError(f"{what}\n  Nothing was loaded.  Remove this checkpoint to go on from the one before.")


def _meta_digest(meta: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def _digest(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _refused(f"{path.parent} is not whole: {error}") from None
