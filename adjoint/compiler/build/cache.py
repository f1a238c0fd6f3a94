"""The disk cache of compiled kernels and of their texts.

A unit is one text of LLVM IR; its key is a digest of the text.  A file has the object code of one or more
units, or the texts of the kernels of a program (see ``build.texts``), and a digest of its contents.  The
file has one name (a hard link) per key, so that it is found by the key of any of its units.  The cache is
used only if its directory belongs to the user and has mode 0700.  A file that is damaged, or owned by
another user, is ignored and replaced.  The environment variable ``ADJOINT_KERNEL_CACHE`` sets the
directory; ``0`` or ``off`` disables the cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

__all__ = ["MAGIC", "Image", "cache_directory", "read", "write"]

MAGIC = b"adjoint kernels 2\n"
SUFFIX = ".kernel"
LIMIT = 8192  # files; the oldest half is removed when there are more
LARGEST = 1 << 26  # bytes: a larger file is damaged

_pruned = False


class Image(NamedTuple):
    """The object code of one or more units, and the keys of these units.

    ``units`` maps the name of each unit in the code to its key.  ``uses`` maps the names of units in other
    images, which the code calls, to their keys.
    """

    units: dict[str, str]
    uses: dict[str, str]
    code: bytes


def cache_directory() -> Path | None:
    """Return the directory of the cache; None if it is off, not private, or the system has no user ids."""
    setting = os.environ.get("ADJOINT_KERNEL_CACHE", "")
    if setting.lower() in ("0", "off") or not hasattr(os, "geteuid"):
        return None
    try:
        directory = Path(setting) if setting else _default_directory()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = os.lstat(directory)
    except (OSError, RuntimeError):  # RuntimeError: no home directory
        return None
    trusted = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
    return directory if trusted else None


def _default_directory() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "adjoint" / "kernels"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "adjoint" / "kernels"


def read(directory: Path, key: str) -> list[Image]:
    """Return the images in the file that contains the unit with this key.

    An image comes after the images that it calls.  The list is empty if the file is missing, damaged, not
    owned by the user, or does not contain the unit.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW  # do not wait for the writer of a pipe
    with suppress(OSError, ValueError, TypeError, AttributeError):
        descriptor = os.open(directory / (key + SUFFIX), flags)
        try:
            found = os.fstat(descriptor)
            trusted = found.st_uid == os.geteuid() and not found.st_mode & 0o022
            if not stat.S_ISREG(found.st_mode) or not trusted or found.st_size > LARGEST:
                return []
            with open(descriptor, "rb", closefd=False) as file:
                head, digest, body = file.read(len(MAGIC)), file.read(32), file.read()
        finally:
            os.close(descriptor)
        if head == MAGIC and digest == hashlib.sha256(body).digest():
            images = _unpacked(body)
            if any(key in image.units.values() for image in images):
                return images
    return []


def write(directory: Path, images: Sequence[Image], keys: Iterable[str]) -> None:
    """Write images to one file, atomically, with one file name per key; ignore disk errors.

    Unlike ``storage.atomic`` this does not wait for the disk: a file that was cut off by a crash fails the
    digest check.
    """
    with suppress(OSError):
        _prune(directory)
        descriptor, temporary = tempfile.mkstemp(dir=directory, prefix=".new-")  # mode 0600
        try:
            body = _packed(images)
            with open(descriptor, "wb") as file:
                file.write(MAGIC + hashlib.sha256(body).digest() + body)
            first, *others = keys
            for key in others:
                with suppress(OSError):  # no hard links, or a directory has this name: other names remain
                    os.link(temporary, f"{temporary}-link")
                    os.replace(f"{temporary}-link", directory / (key + SUFFIX))
                _remove(f"{temporary}-link")
            os.replace(temporary, directory / (first + SUFFIX))
        finally:
            _remove(temporary)


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


def _packed(images: Sequence[Image]) -> bytes:
    """Return images as bytes: the length of a JSON header, the header, and the object codes."""
    names = json.dumps([(image.units, image.uses, len(image.code)) for image in images]).encode()
    return b"".join([len(names).to_bytes(8, "little"), names, *(image.code for image in images)])


def _unpacked(body: bytes) -> list[Image]:
    at = 8 + int.from_bytes(body[:8], "little")
    images = []
    for units, uses, size in json.loads(body[8:at]):
        images.append(Image(units, uses, body[at : at + size]))
        at += size
    return images


def _prune(directory: Path) -> None:
    """Delete the oldest half of the files if there are more than ``LIMIT``; do this once per process."""
    global _pruned
    if _pruned:
        return
    _pruned = True
    with os.scandir(directory) as entries:
        files = [(entry.stat(follow_symlinks=False).st_mtime, entry.path) for entry in entries]
    if len(files) > LIMIT:
        for _, path in sorted(files)[: len(files) // 2]:
            _remove(path)
