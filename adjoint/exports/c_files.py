"""The C header of a library."""

from __future__ import annotations

from typing import Any

from adjoint.exports.library import Library
from adjoint.exports.templates import filled

__all__ = ["c_type", "header_text"]

_C = {
    "bool": "uint8_t",
    "float32": "float",
    "float64": "double",
    "float16": "uint16_t",
    "bfloat16": "uint16_t",
}


def c_type(dtype: Any) -> str:
    """Return the C type of a dtype: float, double, or one of stdint.h."""
    return _C.get(dtype.name, f"{dtype.name}_t")


def _struct(name: str, items: list[Any], const: str) -> str:
    lines = [f"    {const}{c_type(i.dtype)} *{i.name}; /* {_shape(i.shape)} */" for i in items]
    lines = lines or ["    void *unused;"]
    return "\n".join(["typedef struct {", *lines, f"}} {name};"])


def _shape(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]" if shape else "one number"


def header_text(library: Library) -> str:
    """Return the header."""
    name, made = library.name, library.collected
    parts = [
        f'     "{p.name}": {c_type(p.value.dtype)} {_shape(p.value.shape)}' for p in library.calling.order
    ] or ["     none"]
    codes = [f"     {k}: {text}" for k, text in library.errors.items()]
    return filled(
        "library.h", NAME=name, GUARD=f"{name.upper()}_H", LEVEL=library.level,
        PARTS="\n".join(parts), CODES="\n".join(codes).replace("*/", "* /"),
        INPUTS=_struct(f"{name}_inputs", made.arguments, "const "),
        OUTPUTS=_struct(f"{name}_outputs", made.results, ""),
    )  # fmt: skip
