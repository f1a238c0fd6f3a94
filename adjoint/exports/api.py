"""``export``: write a function or a training step as a library without Python."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from adjoint.compiler.emit.machine import has_llvm
from adjoint.config import special
from adjoint.core.lifted import refuse_tracing
from adjoint.core.user_code import warn
from adjoint.errors import (
    ArgumentError,
    ExportError,
    FileError,
    InputError,
    MissingExtraError,
    install_command,
)
from adjoint.exports.c_files import header_text
from adjoint.exports.collect import collect
from adjoint.exports.library import Library
from adjoint.exports.names import library_name
from adjoint.exports.python_files import package_text
from adjoint.exports.rates import Rates
from adjoint.exports.targets import Target, host, link_shared, link_static, link_wasm, target_of
from adjoint.exports.wasm_files import module_text, types_text
from adjoint.exports.webgpu import WebGpuLibrary
from adjoint.exports.webgpu_files import webgpu_module, webgpu_types
from adjoint.storage.atomic import refuse_other_than_files, replace_file
from adjoint.transforms.inputs import as_function

__all__ = ["Export", "export"]

_TARGETS = ("c", "python", "wasm", "webgpu")


def export(
    f: Callable[..., Any],
    *examples: Any,
    path: str | os.PathLike[str],
    target: str = "c",
    name: str | None = None,
    level: str = "portable",
    triple: str | None = None,
    keywords: Mapping[str, Any] | None = None,
    schedules: Mapping[Any, Callable[[int], float]] | None = None,
    steps: int = 1000,
) -> Export:
    """Write a function, a gradient or a whole training step as a library that needs no Python.

    The function is traced as by ``ad.compile``.  Parameters, buffers, gradients, arrays and hyper-parameters
    of optimisers, and random generators become one block of memory, the state, which the caller provides.
    The library allocates nothing and calls nothing, not even the C library.  At the same level its bits are
    those of ``ad.compile``.

    Parameters
    ----------
    f : callable
        The function, or a compiled function.
    *examples : object
        Arguments of a call: arrays, tensors, numbers and trees of them.  The library takes arrays with their
        shapes and dtypes.  Integers and strings are constants of the library.
    path : str or os.PathLike
        The folder to write into.  It is made if it does not exist; files in it are replaced.
    target : {"c", "python", "wasm", "webgpu"}
        What to write.  "c": an object file, a header, and a static and a shared library.  "python": a package
        that needs only NumPy.  "wasm": a WebAssembly file and an ES module with TypeScript types.
        "webgpu": such a module for the GPU in a browser, in float32, whose functions return promises.
    name : str, optional
        The name of the calling function and of the files; by default that of ``f``, with "_function" after
        the name of a function of the C library.
    level : str
        The vector instructions to use: "portable" gives the same bits on all processors; "avx512", "avx2" and
        "sse2" are for x86_64, "neon" for aarch64.
    triple : str, optional
        The processor and system of the target "c", such as "aarch64-linux"; by default this system.
    keywords : mapping, optional
        Keyword arguments of the example call.
    schedules : mapping, optional
        A schedule of the learning rate for each optimiser: a function of the number of finished steps.
    steps : int
        For how many steps the rates of ``schedules`` are stored; then the last one stays.

    Returns
    -------
    Export
        What was written; its ``save`` and ``load`` exchange states with the library.

    Raises
    ------
    ExportError
        If a part of the function runs in Python: the message lists all ops and lines.  Nothing is written.
    ArgumentError
        If an option is not valid.
    MissingExtraError
        If llvmlite is not installed.

    Examples
    --------
    >>> import adjoint as ad, numpy as np, tempfile
    >>> w = ad.tensor([1.0, 2.0])
    >>> library = ad.export(lambda x: (w * x).sum(), np.ones(2), path=tempfile.mkdtemp(), name="score")
    >>> library.header.name, library.arguments
    ('score.h', {'x': ('float64', (2,))})
    """
    as_function("export", f)
    if special.count:
        refuse_tracing("ad.export", "Call it outside of the compiled function.")
    if target not in _TARGETS:
        raise ArgumentError(f"export: target must be one of {', '.join(_TARGETS)}, but got {target!r}.")
    if triple is not None and target != "c":
        raise ArgumentError(f'export: triple= is for target="c", but target is {target!r}.')
    name = library_name(f, name)
    machine = target_of("wasm32" if target in ("wasm", "webgpu") else triple, level)
    folder = _checked_folder(path)
    if not has_llvm():
        raise MissingExtraError("ad.export", "llvmlite", "export")
    rates = Rates(schedules, steps)
    with rates.nonzero():
        collected = collect(f, examples, dict(keywords or {}), level)
    rates.enter(collected)
    library: Any = (WebGpuLibrary if target == "webgpu" else Library)(name, collected, level)
    made = Export(library, machine, folder, target)
    made._write()
    return made


def _checked_folder(path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"export: path must be a str or a pathlib.Path, but got {type(path).__name__}.")
    folder = Path(path)
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not there.is_dir():
        raise FileError(f"export: {there} is a file, but path= must be a folder to write into.")
    return folder


class Export:
    """A written library: its files, what its function takes and returns, and the parts of its state.

    Attributes
    ----------
    name : str
        The name of the calling function.
    files : dict of str to Path
        The files by kind: "object", "header", "static", "shared", "module", "types", "wasm", "package".
    arguments, results, parts : dict
        The dtype and the shape by name.
    state_size : int
        The bytes of a state.
    """

    def __init__(self, library: Library, machine: Target, folder: Path, target: str) -> None:
        self._library, self._machine, self._folder, self._target = library, machine, folder, target
        made = library.collected
        self.name = library.name
        self.files: dict[str, Path] = {}
        self.arguments = {i.name: (i.dtype.name, i.shape) for i in made.arguments}
        self.results = {i.name: (i.dtype.name, i.shape) for i in made.results}
        self.parts = {p.name: (p.value.dtype.name, p.value.shape) for p in library.calling.order}
        self.state_size = library.calling.layout.size

    @property
    def header(self) -> Path:
        """The C header."""
        return self.files["header"]

    def __repr__(self) -> str:
        sizes = [f"{p.name} ({p.stat().st_size:,} bytes)" for p in self.files.values() if p.exists()]
        machine = "webgpu" if self._target == "webgpu" else self._machine.name
        return f"<export of {self.name} for {machine}: {', '.join(sizes)}>"

    # Files -------------------------------------------------------------------------------------------

    def _write(self) -> None:
        code = self._library.object_code(self._machine)
        with tempfile.TemporaryDirectory() as scratch:
            made = getattr(self, f"_{self._target}_files")(code, Path(scratch))
            for file, _ in made.values():
                refuse_other_than_files(self._folder / file, "cannot write to a directory")
            self._folder.mkdir(parents=True, exist_ok=True)
            for kind, (file, data) in made.items():
                self._put(kind, file, data)
        for each in self._folder.glob(f"library_{'[0-9a-f]' * 16}{self._machine.shared}"):
            if self._target == "python" and each != self.files["shared"]:
                with suppress(OSError):  # Windows does not remove a library that a process has loaded
                    each.unlink()

    def _put(self, kind: str, file: str, data: bytes) -> None:
        self.files[kind] = self._folder / file
        self.files[kind].parent.mkdir(parents=True, exist_ok=True)
        _put(self.files[kind], data)

    def _c_files(self, code: bytes, scratch: Path) -> dict[str, tuple[str, bytes]]:
        name, machine = self.name, self._machine
        made = {
            "object": (f"{name}{machine.object}", code),
            "header": (f"{name}.h", header_text(self._library).encode()),
        }
        given = scratch / f"{name}{machine.object}"
        given.write_bytes(code)
        missing = []
        prefix = "" if "windows" in machine.name else "lib"
        for kind, link, suffix in (
            ("static", link_static, machine.static),
            ("shared", link_shared, machine.shared),
        ):
            file = f"{prefix}{name}{suffix}"
            if link(machine, given, scratch / file):
                made[kind] = file, (scratch / file).read_bytes()
            else:
                missing.append(f"{kind} library")
        if missing:
            warn(
                f"export: no linker for {machine.name} was found, so only the object file and the header of "
                f"{name} were written, and no {' and no '.join(missing)}.\n"
                f"  Install it with: {install_command('export')}"
            )
        return made

    def _python_files(self, code: bytes, scratch: Path) -> dict[str, tuple[str, bytes]]:
        # each has a name of its own, because a process that has loaded a library gets it again by its name
        mark = hashlib.sha256(code).hexdigest()[:16]
        given, to = scratch / "code.o", scratch / f"library_{mark}{self._machine.shared}"
        given.write_bytes(code)
        if not link_shared(self._machine, given, to):
            raise _no_linker("a Python package", "a shared library")
        return {
            "shared": (to.name, to.read_bytes()),
            "package": ("__init__.py", package_text(self._library, to.name).encode()),
        }

    def _wasm_files(self, code: bytes, scratch: Path) -> dict[str, tuple[str, bytes]]:
        given, to = scratch / "code.o", scratch / f"{self.name}.wasm"
        given.write_bytes(code)
        if not link_wasm([given], self._library.exported, to):
            raise _no_linker("a WebAssembly module", "it")
        return {
            "wasm": (to.name, to.read_bytes()),
            "module": (f"{self.name}.mjs", module_text(self._library).encode()),
            "types": (f"{self.name}.d.mts", types_text(self._library).encode()),
        }

    def _webgpu_files(self, code: bytes, scratch: Path) -> dict[str, tuple[str, bytes]]:
        library: Any = self._library
        return {
            "module": (f"{self.name}.mjs", webgpu_module(library).encode()),
            "types": (f"{self.name}.d.mts", webgpu_types(library).encode()),
        }

    # States ------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the present state of the Python objects to a file that the library can load.

        The file is one of safetensors, with the parts of the state.

        Parameters
        ----------
        path : str or os.PathLike
            The file to write.  An existing file is replaced.
        """
        form, parts = self._library.saved, self._library.calling.order
        values = [np.asarray(p.read(), p.value.dtype).reshape(p.value.shape) for p in parts]
        data = b"".join([v.tobytes() for v in values])
        found = bytearray(form.header + data)
        found[form.digits : form.digits + 16] = form.checksum(data).encode()
        _put(Path(path), bytes(found))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Set the Python objects to a state that the library has saved, so that training goes on here.

        Parameters
        ----------
        path : str or os.PathLike
            The file to read.

        Raises
        ------
        FileError
            If the file is damaged, or is no state of this library.  Nothing is changed then.
        """
        form, parts = self._library.saved, self._library.calling.order
        found = Path(path).read_bytes()
        start, digits = len(form.header), slice(form.digits, form.digits + 16)
        head = bytearray(found[:start])
        head[digits] = form.header[digits]
        if len(found) != form.size or bytes(head) != form.header:
            raise FileError(f"{os.fspath(path)} is not a saved state of {self.name}, or not all of it.")
        data = found[start:]
        if found[digits].decode("ascii", "replace") != form.checksum(data):
            raise FileError(f"{os.fspath(path)} is damaged: its data does not match its checksum.")
        given = [np.frombuffer(data[at : at + count], np.uint8) for at, _, count in form.places]
        before = [np.array(p.read(), p.value.dtype) for p in parts]
        try:
            for part, value in zip(parts, given, strict=True):
                part.write(value.view(part.value.dtype).reshape(part.value.shape).copy())
        except Exception as error:  # of an optimiser or a generator: a value that it does not have
            for part, old in zip(parts, before, strict=True):
                part.write(old)
            raise FileError(f"{os.fspath(path)} has a value that cannot be set: {error}") from error


def _put(path: Path, data: bytes) -> None:
    def write(to: str) -> None:
        Path(to).write_bytes(data)

    replace_file(path, write)


def _no_linker(what: str, made: str) -> ExportError:
    return ExportError(
        f"export: {what} needs a linker that makes {made} for {host()}, and none was found.\n"
        f"  Install it with: {install_command('export')}"
    )
