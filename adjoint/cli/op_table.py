"""Print the op table: each op, its kind, what it saves, and where gradients flow."""

from __future__ import annotations

from collections.abc import Sequence

from adjoint.core.op import OPS, Op

__all__ = ["op_table"]


def op_table(names: Sequence[str] = (), *, markdown: bool = False) -> str:
    """Return the table of ops, of all or of those whose names contain one of ``names``.

    >>> print(op_table(["expm1"]).splitlines()[1].split()[:4])
    ['expm1', 'elementwise', '1', 'x']
    """
    chosen = [op for op in OPS.values() if not names or any(n in op.name for n in names)]
    rows = [_row(op) for op in sorted(chosen, key=lambda op: op.name)]
    header = ("op", "kind", "arrays", "saves", "gradient", "what it computes")
    if markdown:
        lines = [f"| {' | '.join(header)} |", "|" + " --- |" * len(header)]
        lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
        return "\n".join(lines)
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header) - 1)]
    return "\n".join(
        "  ".join([*(c.ljust(w) for c, w in zip(row[:-1], widths, strict=True)), row[-1]]).rstrip()
        for row in [header, *rows]
    )


def _row(op: Op) -> tuple[str, ...]:
    arrays = "any" if op.arity is None else str(op.arity)
    saved = [n for n, s in zip(op.arg_names, op.saves_args, strict=True) if s]
    if op.saves_out:
        saved.insert(0, op.out_name)
    if not op.differentiable:
        gradient = f"none: {op.reason}" if op.reason else "none"
    else:
        rough = [n for i, n in enumerate(op.arg_names) if not op.smooth(i)]
        gradient = "every order" + (f", not to {', '.join(rough)}" if rough else "")
    doc = (op.eager.__doc__ or "").strip().splitlines()
    return op.name, op.kind, arrays, " ".join(saved) or "-", gradient, doc[0] if doc else ""
