"""``adjoint doctor``: report versions, BLAS, threads, extras, and whether the compiler works."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import sys
from typing import Any

import numpy as np

import adjoint as ad
from adjoint.compiler.emit.machine import has_llvm

__all__ = ["doctor"]


def doctor(*, as_json: bool = False) -> str:
    """Return a description of this installation for bug reports, as text or JSON."""
    facts: dict[str, Any] = {
        "adjoint": ad.__version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "numpy": np.__version__,
        "blas": _blas(),
        "processors": _processors(),
        "threads": _threads(),
        "gradients": _gradients(),
        "compiler": _compiler(),
        "devices": _devices(),
        "extras": _extras(),
    }
    if as_json:
        return json.dumps(facts)
    lines = [f"{name:11}{value}" for name, value in facts.items() if name != "extras"]
    for extra, packages in facts["extras"].items():
        missing = [p for p, version in packages.items() if version is None]
        have = ", ".join(f"{p} {v}" for p, v in packages.items() if v is not None)
        advice = f"missing {', '.join(missing)}: pip install '.[{extra}]'" if missing else ""
        lines.append(f"  {extra:13}{'; '.join(filter(None, (have, advice)))}")
    if any("missing" in line for line in lines):
        lines.append(
            "Run these commands in a clone of adjoint; once it is published, write adjoint-ad for the dot."
        )
    return "\n".join(lines)


def _blas() -> str:
    found = np.show_config(mode="dicts")["Build Dependencies"].get("blas", {})
    return f"{found.get('name', 'unknown')} {found.get('version', '')}".strip()


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _threads() -> str:
    free = getattr(sys, "_is_gil_enabled", lambda: True)()
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    given = [f"{n}={os.environ[n]}" for n in names if n in os.environ]
    return "; ".join(["with the GIL" if free else "without the GIL", *given])


def _gradients() -> str:
    """Compute a gradient; return "work" if it is correct, otherwise "WRONG"."""
    x = ad.tensor([1.0, 2.0], requires_grad=True)
    (x**3).sum().backward()
    return "work" if x.grad is not None and x.grad.tolist() == [3.0, 12.0] else "WRONG"


def _compiler() -> str:
    """Compile and call a function; return "works …", "WRONG" if the result is wrong, or "fails: …"."""
    try:
        found = ad.compile(lambda x: (x * x).sum())(np.arange(4.0))
    except Exception as error:  # any error, because this command must report broken installations
        return f"fails: {type(error).__name__}: {error}"
    if found.item() != 14.0:
        return "WRONG"
    return "works" if has_llvm() else "works by NumPy calls; native code needs llvmlite"


def _devices() -> str:
    """Return the devices of ``ad.compile``: their names, hardware and memory."""
    found = [
        f"{d.name} ({d.hardware}, {d.memory >> 20} MiB{'' if d.float64 else ', no float64'})"
        for d in ad.devices()
    ]
    return "; ".join(["cpu", *found])


def _extras() -> dict[str, dict[str, str | None]]:
    """Return, for each extra of adjoint, its packages with their installed versions, or None if missing."""
    found: dict[str, dict[str, str | None]] = {}
    for text in importlib.metadata.requires("adjoint-ad") or []:
        requirement, _, marker = text.partition(";")
        extra = re.search(r"""extra\s*==\s*['"]([\w-]+)['"]""", marker)
        name = re.match(r"[\w.-]+", requirement)
        if extra is None or name is None or name[0] == "adjoint-ad":
            continue
        try:
            version: str | None = importlib.metadata.version(name[0])
        except importlib.metadata.PackageNotFoundError:
            version = None
        found.setdefault(extra[1], {})[name[0]] = version
    return found
