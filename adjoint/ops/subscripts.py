"""The subscripts of an Einstein summation: parsed, checked against the operands' shapes, explained if wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from adjoint import words
from adjoint.core.shapes import Shape
from adjoint.errors import ArgumentError, InputError, ShapeError
from adjoint.typing import Array

__all__ = ["LETTERS", "label_lengths", "parsed", "separated"]


def separated(operands: tuple[Any, ...]) -> tuple[Any, Sequence[Any]]:
    """Return the subscripts as a string, and the operands, from the positional arguments of ``einsum``.

    In NumPy's other form, each operand is followed by a list of axis numbers, which are converted to letters.
    """
    if not operands:
        raise InputError('einsum: expected subscripts and operands, as in einsum("ij,jk->ik", x, y).')
    first = operands[0]
    if isinstance(first, str):
        return first, operands[1:]
    if isinstance(first, bytes) or len(operands) < 2:
        raise InputError('einsum: subscripts must be a string, as in einsum("ij,jk->ik", x, y).')
    values, lists = operands[0 : len(operands) // 2 * 2 : 2], operands[1::2]
    inputs = ",".join(map(_from_numbers, lists))
    if len(operands) % 2:
        return inputs + "->" + _from_numbers(operands[-1]), values
    return inputs, values


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def _from_numbers(sublist: Array) -> str:
    """Return a list of axis numbers such as [0, Ellipsis, 1] as a string of letters, such as "A...B"."""
    if not isinstance(sublist, (list, tuple)):
        raise InputError(
            f"einsum: each operand must be followed by a list that numbers its axes, as in "
            f"einsum(x, [0, 1], y, [1, 2], [0, 2]), but got {words.a(type(sublist).__name__)} instead of a "
            f"list."
        )
    found = ""
    for item in sublist:
        if item is Ellipsis:
            found += "..."
        elif isinstance(item, (int, np.integer)) and 0 <= item < len(LETTERS):
            found += LETTERS[item]
        else:
            raise ArgumentError(
                f"einsum: an axis label must be a number from 0 to {len(LETTERS) - 1} or Ellipsis, not "
                f"{item!r}."
            )
    return found


def parsed(subscripts: str, shapes: tuple[Shape, ...]) -> tuple[list[str], str]:
    """Return the labels of each operand, and those of the output, of an einsum: one character per axis.

    An ellipsis in the subscripts becomes as many labels as the operand of this shape has further axes.
    """
    text = subscripts.replace(" ", "")
    front, arrow, back = text.partition("->")
    terms = front.split(",")
    for term in (*terms, *([back] if arrow else [])):
        plain = term.replace("...", "", 1)
        bad = [c for c in plain if c not in LETTERS]
        if bad:
            what = (
                "an ellipsis must be three dots, and an operand can have only one"
                if bad[0] == "."
                else f"{bad[0]!r} is not a label"
            )
            raise ArgumentError(
                f"einsum {subscripts!r}: {what}.\n"
                '  Label the axes with letters, separate the operands by commas, and write the output after "->".'
            )
    if len(terms) != len(shapes):
        raise ArgumentError(
            f"einsum {subscripts!r}: the subscripts describe {words.count(len(terms), 'operand')}, but "
            f"{len(shapes)} were "
            f"passed (shapes {', '.join(map(str, shapes))})."
        )
    widths = [
        _ellipsis_width(subscripts, term, i, shape)
        for i, (term, shape) in enumerate(zip(terms, shapes, strict=True))
    ]
    most = max((w for w in widths if w is not None), default=0)
    spare = "".join(chr(0x2460 + i) for i in range(most))  # ① ② … are the labels of axes under an ellipsis
    inputs = [t.replace("...", spare[most - (w or 0) :]) for t, w in zip(terms, widths, strict=True)]
    joined = "".join(inputs)
    if not arrow:
        return inputs, spare + "".join(c for c in sorted(set(joined) - set(spare)) if joined.count(c) == 1)
    output = back.replace("...", spare)
    for label in output:
        if output.count(label) > 1:
            raise ArgumentError(f"einsum {subscripts!r}: the output has the label {label!r} twice.")
        if label not in joined:
            raise ArgumentError(
                f"einsum {subscripts!r}: the output has the label {label!r}, but no operand has it.\n"
                f"  Labels of the operands: {', '.join(sorted(set(front) - set(',.'))) or 'none'}."
            )
    return inputs, output


def _ellipsis_width(subscripts: str, term: str, i: int, shape: Shape) -> int | None:
    """Return how many axes the ellipsis in ``term`` replaces, or None if there is no ellipsis.

    ``term`` is the part of the subscripts for operand ``i``, whose shape is ``shape``.  Raise if the number
    of letters does not match the shape.
    """
    named = len(term.replace("...", ""))
    if "..." in term:
        if named <= len(shape):
            return len(shape) - named
    elif named == len(shape):
        return None
    at_least = " or more" if "..." in term else ""
    raise ShapeError(
        f"einsum {subscripts!r}: the subscripts {term!r} are for {named} axes{at_least}, but operand {i} has "
        f"shape {shape}.\n"
        "  Use one letter per axis, or ... for axes without a letter."
    )


def label_lengths(subscripts: str, inputs: list[str], shapes: tuple[Shape, ...]) -> dict[str, int]:
    """Return the length of each label as a dictionary; raise if a label has two different lengths.

    ``inputs`` has the labels of each operand, and ``subscripts`` is the user's text, for errors.
    """
    sizes: dict[str, int] = {}
    seen: dict[str, int] = {}
    for i, (labels, shape) in enumerate(zip(inputs, shapes, strict=True)):
        own: dict[str, int] = {}
        for label, n in zip(labels, shape, strict=True):
            if (sizes.get(label, 1) not in (1, n) and n != 1) or own.get(label, n) != n:
                other = own.get(label, sizes.get(label))
                name = "an axis of the ellipsis" if ord(label) > 127 else f"label {label!r}"
                raise ShapeError(
                    f"einsum {subscripts!r}: {name} has length {other} in operand {seen[label]} and {n} in "
                    f"operand {i} (shapes {', '.join(map(str, shapes))}).\n"
                    "  Axes with the same label must have the same length."
                )
            own[label] = n
            if n != 1 or label not in sizes:
                sizes[label], seen[label] = n, i
    return sizes
