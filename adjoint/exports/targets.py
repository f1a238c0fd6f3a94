"""Targets of exports, object code for them, and the linkers that make libraries of it."""

from __future__ import annotations

import importlib.util
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from adjoint.compiler.build.units import USED
from adjoint.compiler.emit.machine import LEVELS, binding
from adjoint.compiler.emit.writer import SHARED
from adjoint.errors import ArgumentError, ExportError
from adjoint.exports.runtime import RUNTIME
from adjoint.exports.texts import EXPORTED

__all__ = ["TARGETS", "Target", "host", "link_shared", "link_static", "link_wasm", "object_code", "target_of"]


class Target(NamedTuple):
    """A processor and a system: LLVM's triple, zig's name of it, its features, and the names of its files."""

    name: str
    triple: str
    zig: str
    architecture: str  # as in ``LEVELS``
    features: str = ""
    object: str = ".o"
    shared: str = ".so"
    static: str = ".a"


_WINDOWS = ".obj", ".dll", ".lib"
TARGETS = {
    t.name: t
    for t in (
        Target("x86_64-linux", "x86_64-unknown-linux-gnu", "x86_64-linux-gnu", "x86"),
        Target("aarch64-linux", "aarch64-unknown-linux-gnu", "aarch64-linux-gnu", "arm"),
        Target("riscv64-linux", "riscv64-unknown-linux-gnu", "riscv64-linux-gnu", "riscv", "+m,+a,+f,+d,+c"),
        Target("x86_64-windows", "x86_64-pc-windows-gnu", "x86_64-windows-gnu", "x86", "", *_WINDOWS),
        Target("aarch64-windows", "aarch64-pc-windows-gnu", "aarch64-windows-gnu", "arm", "", *_WINDOWS),
        Target("x86_64-macos", "x86_64-apple-macosx11.0.0", "x86_64-macos", "x86", "", ".o", ".dylib"),
        Target("aarch64-macos", "arm64-apple-macosx11.0.0", "aarch64-macos", "arm", "", ".o", ".dylib"),
        Target("wasm32", "wasm32-unknown-unknown", "wasm32-freestanding", "wasm",
               "+simd128,+nontrapping-fptoint,+bulk-memory,+sign-ext"),
    )
}  # fmt: skip
_CPUS = {"avx2": "x86-64-v3", "avx512": "x86-64-v4"}
_LINK_SECONDS = 300


def host() -> str:
    """Return the name of the target that is this system."""
    machine = {"AMD64": "x86_64", "arm64": "aarch64", "ARM64": "aarch64"}.get(
        platform.machine(), platform.machine()
    )
    system = {"win32": "windows", "darwin": "macos"}.get(sys.platform, sys.platform)
    return f"{machine}-{system}"


def target_of(name: str | None, level: str) -> Target:
    """Return the target ``name``, by default this system; raise if it has no such level."""
    name = name or host()
    if name not in TARGETS:
        known = ", ".join(n for n in TARGETS if n != "wasm32")
        raise ArgumentError(f"export: triple must be one of {known}, but got {name!r}.")
    found = TARGETS[name]
    if level not in LEVELS or LEVELS[level].architecture not in ("any", found.architecture):
        known = ", ".join(n for n, v in LEVELS.items() if v.architecture in ("any", found.architecture))
        raise ArgumentError(f"export: {name} has the levels {known}, but level is {level!r}.")
    return found


def object_code(target: Target, level: str, main: str, kernels: dict[str, str]) -> bytes:
    """Return object code of a main text and of the texts of kernels, by the names of their functions.

    Functions whose names start with ``EXPORTED`` can be called from outside, without this start.
    """
    llvm = binding()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    texts = {name: text.replace("@kernel(", f"@{name}(") for name, text in kernels.items()}
    used = {name for text in texts.values() for name in USED.findall(text)}
    texts |= {name: SHARED[name].replace("@kernel(", f"@{name}(") for name in sorted(used)}
    wasm = target.name == "wasm32"
    options = {"cpu": _CPUS.get(level, ""), "features": target.features, "opt": 2, "codemodel": "default"}
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        reloc="static" if wasm else "pic", **options
    )
    context = llvm.create_context()
    # pointers in tables have the target's own size
    main = re.sub(r"((?:load ptr|store ptr [^,]+), ptr [^,\n]+), align 8", r"\1", main)
    if target.architecture == "riscv":
        main += '\n!llvm.module.flags = !{!0}\n!0 = !{i32 1, !"target-abi", !"lp64d"}\n'
    module, *others = [
        llvm.parse_assembly(_marked(text, target), context) for text in (main, *texts.values())
    ]
    for other in others:
        module.link_in(other)
    _name_functions(module)
    module.triple = target.triple
    module.data_layout = str(machine.target_data)
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=0))
    manager = llvm.create_new_module_pass_manager()
    manager.add_sroa_pass()
    manager.run(module, passes)
    found: bytes = machine.emit_object(module)
    return found


def _name_functions(module: Any) -> None:
    """Make all functions internal but the exported ones, which get names that no other symbol has."""
    exported = [f for f in module.functions if f.name.startswith(EXPORTED)]
    for f in [*module.functions, *module.global_variables]:
        if f.is_declaration and not f.name.startswith("llvm."):
            raise ExportError(
                f"export: the kernels call the C function {f.name}, which libraries do not have."
            )
        if not (f.is_declaration or f.name.startswith(EXPORTED)):
            f.linkage = "internal"
            f.name = f.name if f.name in RUNTIME else f".{f.name}"
    for f in exported:
        f.name = f.name.removeprefix(EXPORTED)


def _marked(text: str, target: Target) -> str:
    """Return a text whose functions do not call the system's check of large stack frames, on Windows."""
    if "windows" not in target.name:
        return text
    return re.sub(r"^(define .*\)[^{\n]*) \{$", r'\1 "no-stack-arg-probe" {', text, flags=re.MULTILINE)


# Linkers -----------------------------------------------------------------------------------------------


def _zig() -> list[str]:
    """Return the command of zig from PyPI; [] if it is not installed."""
    return [sys.executable, "-m", "ziglang"] if importlib.util.find_spec("ziglang") else []


def _cc(target: Target) -> list[str]:
    """Return the command of a C compiler that links for a target; [] if there is none."""
    system = shutil.which("cc") if target.name == host() else None
    if system is not None:
        return [system]
    return [*_zig(), "cc", "-target", target.zig] if _zig() else []


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LINK_SECONDS, check=False)
    if done.returncode:
        raise ExportError(
            f"export: the linker failed: {' '.join(command)}\n  {(done.stderr or done.stdout)[:2000]}"
        )


def link_shared(target: Target, code: Path, to: Path) -> bool:
    """Make a shared library of an object file; return False if there is no linker."""
    command = _cc(target)
    if not command:
        return False
    options = ["-shared", "-nostdlib", "-o", str(to), str(code)]
    if target.shared == ".dll":
        options += ["-Wl,--no-entry"]
    elif target.shared == ".so":
        options += ["-Wl,--build-id=none", f"-Wl,-soname,{to.name}", "-Wl,-z,noexecstack", "-Wl,-z,defs"]
    _run([*command, *options])
    return True


def link_static(target: Target, code: Path, to: Path) -> bool:
    """Make a static library of an object file; return False if there is no archiver."""
    archiver = [shutil.which("ar") or ""] if target.name == host() and shutil.which("ar") else [*_zig(), "ar"]
    if archiver == ["ar"]:
        return False
    _run([*archiver, "rcs", str(to), str(code)])
    return True


def link_wasm(objects: Sequence[Path], exported: Sequence[str], to: Path) -> bool:
    """Make a module of WebAssembly of object files; return False if there is no linker."""
    found = shutil.which("wasm-ld")
    names = [f"--export={name}" for name in (*exported, "__heap_base")]
    options = ["--no-entry", "--stack-first", "-z", "stack-size=1048576", "--strip-all", "--gc-sections"]
    if found is not None:
        _run([found, *map(str, objects), "-o", str(to), *options, *names])
    elif _zig():
        _run([*_zig(), "wasm-ld", *map(str, objects), "-o", str(to), *options, *names])
    else:
        return False
    return True
