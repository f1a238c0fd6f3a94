"""Constants in the text of a library."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from adjoint.compiler.emit.code import Code
from adjoint.compiler.emit.values import Value

__all__ = ["EXPORTED", "constant", "quoted"]

EXPORTED = "export."  # before the names of exported functions, until all others have got other names


def quoted(data: bytes) -> str:
    """Return a constant of LLVM with these bytes."""
    text = data.hex(" ").upper().replace(" ", "\\")
    return f'[{len(data)} x i8] c"{chr(92) if data else ""}{text}"'


def constant(w: Code, array: Any) -> Value:
    """Return the address of a constant array."""
    data = np.ascontiguousarray(array).tobytes()
    name = f"constant_{hashlib.sha256(data).hexdigest()[:16]}"
    w.unit.definitions[name] = f"@{name} = internal constant {quoted(data)}, align 64"
    return Value(f"@{name}", "ptr")
