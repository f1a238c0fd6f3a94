"""Checkpoints of training runs: directories that are written atomically and read without executing code."""

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
_NAME = re.compile(r"step-(\d{9,})(?:\.(\d+))?")  # .1, .2, … if a step is written again
_FILES = ("model.safetensors", "state.safetensors")


class Checkpoints:
    """Write and read the checkpoints of one training run, in one directory.

    The newest checkpoints and the best one are kept.  Each checkpoint is a directory ``step-000000123`` with
    ``model.safetensors`` (with plain names, so that PyTorch can read it), ``state.safetensors`` (optimiser,
    generators, position in the data) and ``meta.json``.  ``meta.json`` contains the digests of the other
    files, so a damaged or changed file is an error.  A checkpoint is written under a temporary name and then
    renamed, so a killed process leaves only complete checkpoints.  If a step is written again, the new
    checkpoint gets the name ``step-000000123.1``, and then the old one is removed.

    Parameters
    ----------
    directory : path
        The directory.
    keep : int
        The number of newest checkpoints to keep.  The best one is kept too.
    mode : {"min", "max"}
        Whether the best checkpoint has the lowest or the highest score.
    monitor : str, optional
        The name of the metric that is compared to find the best checkpoint.  The default is the metric of the
        newest checkpoint.

    Raises
    ------
    FileError
        If ``directory`` is a file.

    Examples
    --------
    >>> from adjoint import train
    >>> train.Checkpoints("runs/none").latest() is None
    True
    """

    def __init__(
        self, directory: str | os.PathLike[str], keep: int = 3, mode: str = "min", monitor: str | None = None
    ) -> None:
        if whole_number("Checkpoints", "keep", keep) < 1:
            raise ArgumentError(f"Checkpoints: keep must be at least 1, but is {keep!r}.")
        need_safetensors("writing checkpoints")  # fail now, not after the first epoch
        self.directory = Path(directory)
        if self.directory.exists() and not self.directory.is_dir():
            raise FileError(f"{self.directory} is a file, but checkpoints need a directory.")
        self.keep = keep
        self.sign, self.monitor = sign_of(mode), monitor
        self.same_run = False  # whether checkpoints of later steps belong to this run and may be removed

    def __repr__(self) -> str:
        return f"Checkpoints({str(self.directory)!r}, keep={self.keep})"

    def write(
        self,
        step: int,
        model: Mapping[str, Any],
        state: Any,
        score: float | None = None,
        monitor: str | None = None,
    ) -> Path:
        """Write a checkpoint, and remove old ones beyond ``keep`` except the best.

        Parameters
        ----------
        step : int
            The number of the step.
        model : mapping of str to array
            The values of the model.
        state : object
            The rest of the state, as plain data and arrays.
        score : float, optional
            The value of the metric by which the best checkpoint is chosen.
        monitor : str, optional
            The name of that metric.

        Returns
        -------
        Path
            The path of the checkpoint.

        Raises
        ------
        FileError
            If the directory has checkpoints of later steps, which belong to a different run.
        """
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
        for later, _, gone in self._found():  # later ones belong to this run, or refuse_later had raised
            if later > step:
                self._remove(gone)
        self._tidy()
        return path

    def refuse_later(self, step: int) -> None:
        """Raise if there are checkpoints of steps after ``step``, which belong to a different run.

        Parameters
        ----------
        step : int
            The number of the step.
        """
        latest = max((s for s, *_ in self._found()), default=step)
        if latest > step and not self.same_run:
            raise FileError(
                f"{self.directory} has checkpoints of a different run, up to step {latest}, but this run is "
                f"at step {step}.\n"
                "  Use fit(resume=True) to continue that run, use a different directory, or remove the "
                "checkpoints."
            )

    def _found(self) -> list[tuple[int, int, Path]]:
        """Return a list of (step, n, path) of all checkpoints, oldest first.

        n is the number at the end of the name of a second checkpoint of the same step, otherwise 0.
        """
        found = []
        for path in self.directory.glob("step-*") if self.directory.is_dir() else ():
            match = _NAME.fullmatch(path.name)
            if match:  # damaged checkpoints are included: they must not be skipped silently
                found.append((int(match[1]), int(match[2] or 0), path))
        return sorted(found)

    def all(self) -> list[tuple[int, Path]]:
        """Return a list of (step, path) of the checkpoints, oldest first.

        If there are several for a step, only the last one is in the list.
        """
        return sorted({step: path for step, _, path in self._found()}.items())

    def latest(self) -> Path | None:
        """Return the path of the newest checkpoint, or None if there is none."""
        found = self.all()
        return found[-1][1] if found else None

    def best(self) -> Path | None:
        """Return the path of the checkpoint with the best score, or None if none has a score."""
        scored = [(*found, path) for _, path in self.all() if (found := _score(path)) is not None]
        monitor = self.monitor if self.monitor is not None or not scored else scored[-1][1]
        alike = [(self.sign * score, path) for score, name, path in scored if name == monitor]
        return min(alike)[1] if alike else None

    def read(self, path: Path) -> tuple[dict[str, Any], Any, dict[str, Any]]:
        """Read a checkpoint.

        Parameters
        ----------
        path : Path
            The path of the checkpoint.

        Returns
        -------
        tuple
            The values of the model, the rest of the state, and the content of ``meta.json``.

        Raises
        ------
        FileError
            If a file is missing, damaged or changed.
        """
        meta = _meta(path)
        for name in _FILES:
            if _digest(path / name) != meta["files"][name]:
                raise _refused(f"{path / name} is damaged or was changed.")
        return load(path / "model.safetensors"), load(path / "state.safetensors"), meta

    def _remove(self, path: Path) -> None:
        gone = self.directory / f".writing-gone-{path.name}"
        os.rename(path, gone)  # first, so that a half-removed checkpoint is never read
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
    """Return 1 for the mode "min" and -1 for "max", so that the best score has the lowest sign·score."""
    if mode not in ("min", "max"):
        raise ArgumentError(f"mode must be 'min' or 'max', not {mode!r}.")
    return 1 if mode == "min" else -1


def _score(path: Path) -> tuple[float, str | None] | None:
    """Return the score of a checkpoint and the name of the monitored metric, or None if it has no score."""
    try:
        meta = _meta(path)
    except FileError:  # a damaged checkpoint has no score
        return None
    return None if meta["score"] is None else (meta["score"], meta.get("monitor"))


def _meta(path: Path) -> dict[str, Any]:
    try:
        found = json.loads((path / "meta.json").read_text())
    except FileNotFoundError:
        raise _refused(f"{path} is incomplete: it has no meta.json.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise _refused(f"{path} is not a checkpoint: {error}") from None
    if not isinstance(found, dict):
        raise _refused(f"{path} is not a checkpoint: meta.json is not an object.")
    if found.get("version") != VERSION:
        version = found.get("version")
        raise FileError(f"{path} has format version {version}, but this adjoint reads {VERSION}.")
    if found.pop("digest", None) != _meta_digest(found):
        raise _refused(f"{path / 'meta.json'} is damaged or was changed.")
    score, files = found.get("score"), found.get("files")
    if (
        type(found.get("step")) is not int
        or not (score is None or (type(score) in (int, float) and math.isfinite(score)))
        or not (isinstance(files, dict) and set(files) == set(_FILES))
    ):
        raise _refused(f"{path} is not a checkpoint: meta.json has missing or invalid entries.")
    match = _NAME.fullmatch(path.name)
    if match and int(match[1]) != found["step"]:
        raise FileError(
            f"{path} is the checkpoint of step {found['step']}, but was renamed.  Nothing was loaded.\n"
            f"  Rename it to step-{found['step']:09d}, or remove it to continue from the previous checkpoint."
        )
    return found


def _refused(what: str) -> FileError:
    return FileError(
        f"{what}\n  Nothing was loaded.  Remove this checkpoint to continue from the previous one."
    )


def _meta_digest(meta: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def _digest(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _refused(f"{path.parent} is incomplete: {error}") from None
