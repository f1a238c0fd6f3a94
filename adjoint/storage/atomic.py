"""Put a file in its place whole or not at all, and remove what killed processes left beside it.

A file is written in a directory of its own, ``.<name>.….tmp``, beside its place: the library that writes
may make temporary files of its own there.  A file ``lock`` in it is held open and locked as long as the
writer lives; the kernel lets go of it however the process ends.  So whoever saves next knows what was
left behind from what somebody else is just writing.
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
except ImportError:  # Windows, where a file that is open cannot be removed: that is the lock
    fcntl = None  # type: ignore[assignment]  # mypy knows a module by its import alone

__all__ = ["refuse_other_than_files", "replace_file", "sync_directory"]

LOCK = "lock"
FILE = "file"


def replace_file(path: Path, write: Callable[[str], None]) -> None:
    """Write a file beside ``path`` and rename it to there: atomic, and on the disk when this returns."""
    path = Path(os.path.realpath(path))  # a link stays, and what it leads to is replaced
    refuse_other_than_files(path, "this is a directory, not a file to write")
    if not path.parent.is_dir():
        raise FileNotFoundError(
            errno.ENOENT, "there is no such directory to write in", os.fspath(path.parent)
        )
    _remove_left_over(path)
    with _directory_beside(path) as beside:
        fresh = beside / FILE
        mode = (path if path.exists() else beside / LOCK).stat().st_mode  # the lock's is as the umask has it
        write(os.fspath(fresh))
        os.chmod(fresh, mode & 0o777)
        _sync(fresh, os.O_RDWR)
        os.replace(fresh, path)
    sync_directory(path.parent)


def refuse_other_than_files(path: str | os.PathLike[str], directory: str) -> None:
    """Raise if there is something at ``path`` that is not a regular file: a directory, a device, a pipe."""
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, directory, os.fspath(path))
    if os.path.exists(path) and not os.path.isfile(path):
        raise FileError(
            f"{os.fspath(path)} is a device, a pipe or a socket.\n"
            "  ad.save and ad.load take only regular files."
        )


@contextmanager
def _directory_beside(path: Path) -> Iterator[Path]:
    """Make a locked directory beside ``path``, and remove it in the end."""
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
    while True:
        beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        os.mkdir(beside, 0o700)
        # until it is locked, another save may take it for one that was left behind: then make another
        with suppress(FileNotFoundError):
            lock = os.open(beside / LOCK, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
            if fcntl is None:
                return beside, lock
            with suppress(OSError):  # a file system without locks, where nothing is ever removed
                fcntl.flock(lock, fcntl.LOCK_EX)
            if os.fstat(lock).st_nlink:
                return beside, lock
            os.close(lock)


def _remove_left_over(path: Path) -> None:
    """Remove what killed saves of this file left behind; those that still run keep theirs."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.tmp")
    with suppress(OSError):  # the save itself will say what is wrong with the directory
        for name in os.listdir(path.parent):
            if pattern.fullmatch(name):
                _remove_if_abandoned(path.with_name(name))


def _remove_if_abandoned(beside: Path) -> None:
    with suppress(OSError):  # in use, gone meanwhile, or of another user
        if fcntl is None:
            (beside / LOCK).unlink(missing_ok=True)
            _remove(beside)
            return
        try:
            lock = os.open(beside / LOCK, os.O_RDWR)
        except FileNotFoundError:  # killed before it was made, or after it was removed
            os.rmdir(beside)
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(beside)
        finally:
            os.close(lock)


def _remove(beside: Path) -> None:
    """Remove the directory of a save; the lock last, so that one who is killed here leaves it to the next."""
    with suppress(OSError):
        for name in sorted(os.listdir(beside), key=LOCK.__eq__):
            os.unlink(beside / name)
        os.rmdir(beside)


def sync_directory(path: Path) -> None:
    """Make the renames in a directory last; Windows has no such call and needs none."""
    if os.name != "nt":
        _sync(path, os.O_RDONLY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
