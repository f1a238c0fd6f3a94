"""Write the op table: the kind of each op, the values it saves, its gradients, and the tests of it."""

from __future__ import annotations

from collections.abc import Sequence

from adjoint.core.op import OPS, Op
from adjoint.testing.references import UNCHECKED, source, unchecked

__all__ = ["op_table"]

_HEADER = (
    "op", "kind", "arrays", "saves", "gradient", "values", "first order", "second order", "result",
)  # fmt: skip

_INTRODUCTION = """\
# The op table

`adjoint ops --markdown` writes this page, and a test compares it with the table.  Each op is one record: its
derivative is written once and is used for every order, forward mode and batching.

- **values**: every sample of the op (`adjoint/testing/samples`) is compared with NumPy, with SciPy, or with
  a plain formula that shares no code with it (`adjoint/testing/references.py`).
- **first order**, **second order**: gradients of every sample, and gradients of gradients, are compared with
  finite differences in float64 along random directions, also for complex samples if the op takes complex
  numbers.  An op without a gradient is tested to record nothing, and the table has the reason.
"""


def op_table(names: Sequence[str] = (), *, markdown: bool = False) -> str:
    """Return a table of the ops whose names contain one of ``names``, or of all ops, as text or Markdown.

    >>> print(op_table(["expm1"]).splitlines()[1].split()[:4])
    ['expm1', 'elementwise', '1', 'x']
    """
    chosen = [op for op in OPS.values() if not names or any(n in op.name for n in names)]
    rows = [_row(op) for op in sorted(chosen, key=lambda op: op.name)]
    if markdown:
        lines = [f"| {' | '.join(_HEADER)} |", "|" + " --- |" * len(_HEADER)]
        lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
        return "\n".join(lines) if names else "\n".join([_INTRODUCTION, *lines, "", *_holes()])
    widths = [max(len(row[i]) for row in [_HEADER, *rows]) for i in range(len(_HEADER) - 1)]
    return "\n".join(
        "  ".join([*(c.ljust(w) for c, w in zip(row[:-1], widths, strict=True)), row[-1]]).rstrip()
        for row in [_HEADER, *rows]
    )


def _row(op: Op) -> tuple[str, ...]:
    arrays = "any" if op.arity is None else str(op.arity)
    saved = [n for n, s in zip(op.arg_names, op.saves_args, strict=True) if s]
    if op.saves_out:
        saved.insert(0, op.out_name)
    if not op.differentiable:
        gradient = f"none: {op.reason}" if op.reason else "none"
        orders = ["-", "-"]
    else:
        rough = [n for i, n in enumerate(op.arg_names) if not op.smooth(i)]
        gradient = "every order" + (f", not to {', '.join(rough)}" if rough else "")
        orders = [_checked(op.name, check) for check in ("first", "second")]
    values = unchecked(op.name, "values") or source(op) or "not compared"
    doc = (op.eager.__doc__ or "").strip().splitlines()
    return op.name, op.kind, arrays, " ".join(saved) or "-", gradient, values, *orders, doc[0] if doc else ""


def _checked(op: str, check: str) -> str:
    reason = unchecked(op, check)
    return f"no: {reason}" if reason else "yes"


def _holes() -> list[str]:
    """Return lines of text that list the ops that one of the tests of all ops skips, with the reasons."""
    found = [f"- {check}: `{op}`: {why}." for check, ops in UNCHECKED.items() for op, why in ops.items()]
    return ["Left out of a check:", "", *found] if found else ["No op is left out of a check."]
