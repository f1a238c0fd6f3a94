"""Replace files atomically, and remove the temporary directories of killed processes.

A file is written to a temporary directory ``.<name>.….tmp`` beside its final path, then renamed.  The
directory contains a file ``lock``, which the writer keeps locked.  The kernel releases the lock when the
process ends, so an unlocked directory is left over and can be removed.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from adjoint.errors import FileError

try:
    import fcntl
except ImportError:  # Windows has no fcntl: there the open file is the lock, because it cannot be removed
    fcntl = None  # type: ignore[assignment]  # mypy expects a module

__all__ = ["refuse_other_than_files", "replace_file", "sync_directory"]

LOCK = "lock"
FILE = "file"


def replace_file(path: Path, write: Callable[[str], None]) -> None:
    """Call ``write(temporary_path)``, flush the written file to disk and rename it to ``path``."""
    path = Path(os.path.realpath(path))  # replace the target of a link, not the link
    refuse_other_than_files(path, "cannot write to a directory")
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "directory does not exist", os.fspath(path.parent))
    _remove_left_over(path)
    with _directory_beside(path) as beside:
        fresh = beside / FILE
        mode = (path if path.exists() else beside / LOCK).stat().st_mode  # the lock has the umask's mode
        write(os.fspath(fresh))
        os.chmod(fresh, mode & 0o777)
        _sync(fresh, os.O_RDWR)
        os.replace(fresh, path)
    sync_directory(path.parent)


def refuse_other_than_files(path: str | os.PathLike[str], directory: str) -> None:
    """Raise if ``path`` is a directory, a device, a pipe or a socket.

    ``directory`` is the text of the error message if ``path`` is a directory.
    """
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, directory, os.fspath(path))
    if os.path.exists(path) and not os.path.isfile(path):
        raise FileError(
            f"{os.fspath(path)} is a device, a pipe or a socket.\n"
            "  Pass the path of a regular file to ad.save and ad.load."
        )


@contextmanager
def _directory_beside(path: Path) -> Iterator[Path]:
    """Context manager that creates a locked temporary directory next to ``path`` and later removes it."""
    beside, lock = _locked_directory(path)
    try:
        yield beside
    finally:
        if fcntl is None:
            os.close(lock)
        _remove(beside)
        if fcntl is not None:
            os.close(lock)


def _locked_directory(path: Path) -> tuple[Path, int]:
    """Create a temporary directory next to ``path``; return it and the descriptor of its locked file."""
    while True:
        beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        os.mkdir(beside, 0o700)
        # another process may remove the directory before it is locked, as abandoned: then try again
        with suppress(FileNotFoundError):
            lock = os.open(beside / LOCK, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
            if fcntl is None:
                return beside, lock
            with suppress(OSError):  # on a file system without locks, abandoned directories are not removed
                fcntl.flock(lock, fcntl.LOCK_EX)
            if os.fstat(lock).st_nlink:
                return beside, lock
            os.close(lock)


def _remove_left_over(path: Path) -> None:
    """Remove the temporary directories that killed processes left behind when they saved ``path``."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.tmp")
    with suppress(OSError):  # if the directory cannot be read, the save that follows raises
        for name in os.listdir(path.parent):
            if pattern.fullmatch(name):
                _remove_if_abandoned(path.with_name(name))


def _remove_if_abandoned(beside: Path) -> None:
    """Remove the temporary directory ``beside`` unless a running process has locked it."""
    with suppress(OSError):  # in use, already removed, or owned by another user
        if fcntl is None:
            (beside / LOCK).unlink(missing_ok=True)
            _remove(beside)
            return
        try:
            lock = os.open(beside / LOCK, os.O_RDWR)
        except FileNotFoundError:  # the process was killed before it made the lock, or after it removed it
            os.rmdir(beside)
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(beside)
        finally:
            os.close(lock)


def _remove(beside: Path) -> None:
    """Remove a temporary directory and its files, the lock file last.

    If the process is killed here, the next save then still recognises the rest as abandoned.
    """
    with suppress(OSError):
        for name in sorted(os.listdir(beside), key=LOCK.__eq__):
            os.unlink(beside / name)
        os.rmdir(beside)


def sync_directory(path: Path) -> None:
    """Flush the renames in a directory to disk; do nothing on Windows, where this is not needed."""
    if os.name != "nt":
        _sync(path, os.O_RDONLY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
