"""Compile LLVM IR to object code, in several threads, and load object code into the process."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from adjoint.compiler.emit.machine import Machine, binding, machine
from adjoint.config import held_across_fork, locked

__all__ = ["Job", "compile_all", "compile_apart", "compile_text", "link"]

_THREADS = 4  # largest number of threads that compile

_lock = held_across_fork(threading.RLock())
_LINKED = 32  # object codes per JIT of LLVM: a code that is unloaded leaves 9 KiB until its JIT is deleted
_names = 0
_jit: Any = None


class Job(NamedTuple):
    """Texts of LLVM IR, by name, that are compiled together to one piece of object code.

    The function ``@kernel`` of each text gets the name of the text.  ``effort`` is LLVM's level of
    optimisation, from 0 to 3.
    """

    texts: dict[str, str]
    effort: int = 2

    @property
    def size(self) -> int:
        """The number of characters of all texts."""
        return sum(map(len, self.texts.values()))


def compile_text(text: str, here: Machine, effort: int = 2) -> bytes:
    """Return the object code of an LLVM text; unlike in a ``Job``, its functions keep their names."""
    return compile_all([Job({"kernel": text}, effort)], here)[0]


def compile_all(jobs: Sequence[Job], here: Machine) -> list[bytes]:
    """Return the object code of each job for the processor ``here``."""
    order = sorted(range(len(jobs)), key=lambda k: jobs[k].size)
    found: dict[int, bytes | Exception] = {}

    def work(worker: int) -> None:
        with suppress(IndexError):  # no job is left
            while True:
                k = order.pop()
                try:
                    found[k] = _compiled(jobs[k], _target_of(here, jobs[k].effort, worker))
                except Exception as error:
                    found[k] = error

    def share() -> None:
        started = []
        try:
            for k in range(1, min(here.cores, _THREADS, len(jobs))):
                t = threading.Thread(target=work, args=(k,), name="adjoint-llvm")
                with suppress(RuntimeError):  # no thread can be started: the present one does the work
                    t.start()
                    started.append(t)
            work(0)
        finally:
            order.clear()
            for t in started:
                t.join()

    locked(_lock, share)
    outs = []
    for k in range(len(jobs)):
        code = found[k]
        if isinstance(code, Exception):
            raise code
        outs.append(code)
    return outs


def compile_apart(job: Job, here: Machine) -> bytes:
    """Return the object code of a job, without taking the lock that ``compile_all`` takes."""
    return _compiled(job, _target(here, job.effort))


def _compiled(job: Job, target: Any) -> bytes:
    """Return the object code of a job; SROA is the only pass: the texts already use vectors."""
    llvm = binding()
    context = llvm.create_context()
    texts = [text.replace("@kernel(", f"@{name}(") for name, text in job.texts.items()]
    module, *others = [llvm.parse_assembly(text, context) for text in texts]
    for other in others:
        module.link_in(other)  # renames internal functions
    module.triple = llvm.get_process_triple()
    module.data_layout = str(target.target_data)
    # each module needs a new pass builder: llvmlite adds callbacks to it at each run, and deletes their data
    # at the end of the run
    passes = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(speed_level=0))
    manager = llvm.create_new_module_pass_manager()
    manager.add_sroa_pass()
    manager.run(module, passes)
    return _emitted(target, module)


def _emitted(target: Any, module: Any) -> bytes:
    """Return the object code of a module.

    ``target.emit_object`` does the same, but holds the lock of llvmlite, so that threads would wait for each
    other.  LLVM needs no lock for modules of different contexts.
    """
    ffi = binding().ffi
    with ffi.OutputString() as error:
        buffer = _emit_function()(target, module, 1, error)
        if not buffer:
            raise RuntimeError(str(error))
    try:
        start, size = ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer)
        return ctypes.string_at(start, size)
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


@functools.cache
def _emit_function() -> Any:
    """Return LLVM's C function that emits object code, without the lock that llvmlite puts around it."""
    locked = binding().ffi.lib.LLVMPY_TargetMachineEmitToMemory
    free = ctypes.CDLL(binding().ffi.lib._name).LLVMPY_TargetMachineEmitToMemory
    free.argtypes, free.restype = locked.argtypes, locked.restype
    return free


@functools.cache
def _target_of(here: Machine, effort: int, worker: int) -> Any:
    """Return an LLVM target machine for the processor ``here``, separate for each ``worker`` thread."""
    return _target(here, effort)


def _target(here: Machine, effort: int = 2) -> Any:
    target = binding().Target.from_triple(binding().get_process_triple())
    return target.create_target_machine(
        cpu=here.cpu, features=here.features, opt=effort, reloc="pic", codemodel="default", jit=True
    )


def link(code: bytes, exports: Sequence[str] = ("kernel",), imports: dict[str, int] | None = None) -> Any:
    """Load object code into the process; return a tracker, which maps the names ``exports`` to addresses.

    ``imports`` has the addresses of the functions that the code calls, by name.  The code is unloaded when
    the tracker is deleted.
    """
    return locked(_lock, _link, code, exports, imports or {})


def _link(code: bytes, exports: Sequence[str], imports: dict[str, int]) -> Any:
    global _jit, _names
    if _names % _LINKED == 0:
        _jit = binding().create_lljit_compiler(_target(machine()))  # trackers keep the old one alive
    _names += 1
    builder = binding().JITLibraryBuilder().add_object_img(code).add_current_process()
    for name, address in imports.items():
        builder.import_symbol(name, address)
    for name in exports:
        builder.export_symbol(name)
    return builder.link(_jit, f"unit{_names}")
