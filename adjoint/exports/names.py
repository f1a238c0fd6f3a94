"""Names of libraries, of their arguments and results, and of the parts of their states."""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Iterable
from typing import Any

from adjoint.errors import ArgumentError
from adjoint.exports.runtime import RUNTIME
from adjoint.transforms.inputs import name_of

__all__ = ["distinct", "identifier", "library_name", "unused"]

_LONGEST = 100  # characters of the name of a library, of which those of its files are made
# Words of C, C++ and Python, and macros of compilers and headers, that cannot be names.
_RESERVED = frozenset(keyword.kwlist) | frozenset(
    "alignas alignof and_eq asm auto bitand bitor bool case catch char char16_t char32_t char8_t "
    "co_await co_return co_yield compl complex concept const const_cast consteval constexpr constinit "
    "decltype default delete do double dynamic_cast enum errno explicit export extern float friend goto "
    "imaginary inline int long main mutable namespace new noexcept not_eq nullptr operator or_eq "
    "private protected public register reinterpret_cast requires restrict short signed sizeof static "
    "static_assert static_cast stderr stdin stdout struct switch template this thread_local throw true "
    "false typedef typeid typename typeof typeof_unqual union unsigned using virtual void volatile "
    "wchar_t xor xor_eq linux unix i386 far near interface EOF HUGE_VAL I INFINITY M_E M_PI NAN NULL "
    "intptr_t max_align_t nullptr_t ptrdiff_t size_t uintptr_t".split()
) | frozenset(f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64))  # fmt: skip
# Functions that a library contains under their own names, the memory of WebAssembly, and headers of C that a
# header of this name would replace.
_TAKEN = frozenset(RUNTIME) | frozenset(
    "assert ctype fenv inttypes iso646 limits locale math memmove memory memset setjmp signal stdalign "
    "stdarg stdatomic stdbit stdbool stdckdint stddef stdint stdio stdlib stdnoreturn string tgmath "
    "threads time uchar wchar wctype".split()
)
# Functions of the C library, whose names a library does not get unless the user passes them.
_LIBRARY = frozenset(dir(math)) | frozenset(
    "abort abs accept atoi bind clock close connect div exit fabs fmax fmin fork free getenv index labs link "
    "malloc memcpy nan open printf puts qsort raise random read remove rename rint round scanf "
    "select send signal sleep sort strlen system truncate wait write".split()
)


def library_name(f: Any, name: str | None) -> str:
    """Return the name of a library, by default that of a function; raise if it cannot be one in C."""
    if name is None:
        name = re.sub(r"\W+", "_", name_of(f).rpartition(".")[2], flags=re.ASCII).strip("_")[:_LONGEST]
        if not name or name in _LIBRARY | _TAKEN | _RESERVED:
            name = f"{name}_function".strip("_")
    known = isinstance(name, str) and re.fullmatch(rf"[A-Za-z][A-Za-z0-9_]{{0,{_LONGEST - 1}}}", name)
    if not known or name in _RESERVED:
        raise ArgumentError(
            f"export: the name of a library must be an identifier of C, but is {name!r}.\n"
            f"  Pass name= with at most {_LONGEST} letters, digits and underscores."
        )
    if name in _TAKEN:
        raise ArgumentError(
            f"export: the name of a library is {name!r}, which C or WebAssembly uses for something else.\n"
            "  Pass another name=."
        )
    return name


def identifier(path: str, start: str = "x") -> str:
    """Return a name for C and JavaScript: ``batch['x'][0]`` becomes ``batch_x_0``.

    >>> identifier("batch['x'][0]"), identifier("[0]", "result"), identifier("new"), identifier("_Bool")
    ('batch_x_0', 'result_0', 'new_', 'x_Bool')
    """
    found = "_".join(re.findall(r"[A-Za-z0-9_]+", path))
    found = f"{found}_" if found in _RESERVED else found
    if re.match(r"_[A-Z_]", found):  # of compilers and engines, such as __func__ and __proto__
        return f"{start}{found}"
    return f"{start}_{found}" if not found or found[0].isdigit() else found


def unused(name: str, used: set[str]) -> str:
    """Return a name, with a number if it is already used; add it to the names that are used.

    >>> used = set()
    >>> unused("w", used), unused("w", used), unused("w", used)
    ('w', 'w_2', 'w_3')
    """
    found, k = name, 2
    while found in used:
        found, k = f"{name}_{k}", k + 1
    used.add(found)
    return found


def distinct(items: Iterable[Any]) -> None:
    """Make the names of arguments or of results distinct."""
    used: set[str] = set()
    for each in items:
        each.name = unused(each.name, used)
