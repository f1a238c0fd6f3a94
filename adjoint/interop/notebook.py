"""HTML for notebooks: tensors with statistics and a heat map, modules as folding trees, optimisers, curves.

Text from the user's program is escaped.  The colours can be read on light and dark backgrounds.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from adjoint import words
from adjoint.core.node import LEAF
from adjoint.core.tensor import Tensor

__all__ = [
    "display", "escape", "history_html", "in_notebook", "module_html", "optimizer_html", "page_html", "table",
    "tensor_html", "text_html",
]  # fmt: skip

_CELLS = 32  # the largest number of rows and of columns of a heat map
_MONO = 'style="font-family:monospace"'
_COLORS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860")


def in_notebook() -> bool:
    """Return whether this program runs in a Jupyter notebook, also one of Colab, whose output is HTML."""
    shell = sys.modules.get("IPython")
    found = shell.get_ipython() if shell is not None else None
    return any(cls.__name__ == "ZMQInteractiveShell" for cls in type(found).__mro__)


def display(html: str, text: str, shown: Any = None) -> Any:
    """Show HTML in the output of a notebook's cell, or ``text`` where HTML cannot be shown.

    ``shown``, the result of an earlier call, is replaced.
    """
    content = {"text/html": html, "text/plain": text}
    if shown is not None:
        shown.update(content, raw=True)
        return shown
    return import_module("IPython.display").display(content, raw=True, display_id=True)


def text_html(text: str, name: str = "") -> str:
    """Return text as HTML in a monospaced font; ``name`` is the class of the element."""
    own = f' class="{name}"' if name else ""
    return f'<pre{own} style="font-family:monospace;white-space:pre-wrap;margin:0">{escape(text)}</pre>'


def page_html(page: str, height: int = 900) -> str:
    """Return a whole HTML page as HTML inside a notebook."""
    frame = f'<iframe srcdoc="{escape(page)}" style="width:100%;height:{height}px;border:0"></iframe>'
    return f"<div>{frame}</div>"


def escape(text: Any) -> str:
    """Return the text of an object with HTML's special characters escaped.

    >>> escape("<b> & 'c'")
    '&lt;b&gt; &amp; &#x27;c&#x27;'
    """
    found = str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return found.replace('"', "&quot;").replace("'", "&#x27;")


def table(rows: Iterable[Sequence[Any]], head: Sequence[str] = ()) -> str:
    """Return an HTML table of ``rows`` of cells, which are escaped; ``head`` has the names of the columns.

    The cells are in a monospaced font.
    """
    cells = "".join(f"<tr>{''.join(f'<td>{escape(c)}</td>' for c in row)}</tr>" for row in rows)
    top = f"<tr>{''.join(f'<th>{escape(h)}</th>' for h in head)}</tr>" if head else ""
    return f"<table {_MONO}>{top}{cells}</table>"


# Tensors -----------------------------------------------------------------------------------------


def tensor_html(t: Tensor) -> str:
    """Return the statistics of a tensor, a heat map, and its repr, as HTML."""
    data = t._data
    if type(data) is not np.ndarray:
        return f"<pre>{escape(repr(t))}</pre>"
    facts = [f"shape {t.shape}", str(t.dtype), f"{data.nbytes:,} bytes"]
    if t._node is LEAF:
        facts.append("requires grad")
    elif t._node is not None:
        facts.append(f"made by {t._node.op.name}")
    numbers = _statistics(data)
    parts = [f"<div><b>tensor</b> {escape(', '.join(facts))}</div>"]
    if numbers:
        parts.append(f"<div {_MONO}>{escape(', '.join(f'{k} {v}' for k, v in numbers.items()))}</div>")
    if (data.size > 1 and data.dtype.kind in "fiub") or data.dtype.name == "bfloat16":
        parts.append(_heat_map(data))
    text = repr(t)
    shown = f"<pre>{escape(text)}</pre>"
    parts.append(shown if len(text) < 300 else f"<details><summary>values</summary>{shown}</details>")
    return "".join(parts)


def _statistics(data: Any) -> dict[str, str]:
    """Return statistics as text: "min", "mean" and "max" of the finite values, counts of "NaN" and "inf"."""
    if data.size == 0 or (data.dtype.kind not in "fiub" and data.dtype.name != "bfloat16"):
        return {}
    wide = data.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    found = {}
    if finite.size:
        scale = max(float(np.abs(finite).max()), np.finfo(np.float64).tiny)
        mean = float((finite / scale).mean()) * scale  # the sum cannot overflow
        found = {"min": f"{finite.min():.4g}", "mean": f"{mean:.4g}", "max": f"{finite.max():.4g}"}
    if nan := int(np.isnan(wide).sum()):
        found["NaN"] = str(nan)
    if inf := int(np.isinf(wide).sum()):
        found["inf"] = str(inf)
    return found


def _heat_map(data: Any) -> str:
    """Return an SVG heat map of an array as a matrix; blue is negative, red is positive.

    All axes but the last are rows.  A large matrix is sampled.
    """
    matrix = data.reshape((-1, data.shape[-1])) if data.ndim > 1 else data.reshape((1, -1))
    rows, columns = [np.unique(np.linspace(0, n - 1, min(n, _CELLS)).astype(int)) for n in matrix.shape]
    picked = matrix[np.ix_(rows, columns)].astype(np.float64)
    finite = np.abs(picked[np.isfinite(picked)])
    scale = float(finite.max()) if finite.size and finite.max() > 0 else 1.0
    size = 6 if picked.shape[1] > 16 else 10
    height = size if picked.shape[0] > 1 else 12
    cells = []
    for i, row in enumerate(picked):
        for j, value in enumerate(row):
            color = _color(value / scale)
            place = f'x="{j * size}" y="{i * height}" width="{size}" height="{height}"'
            cells.append(f'<rect {place} fill="{color}"/>')
    width, tall = picked.shape[1] * size, picked.shape[0] * height
    return f'<svg width="{width}" height="{tall}" role="img" aria-label="heat map">{"".join(cells)}</svg>'


def _color(v: float) -> str:
    """Return an HTML colour for a number from -1 (blue) to 1 (red); NaN is green, infinity is black."""
    if math.isnan(v):
        return "#2ca02c"
    if math.isinf(v):
        return "#000000"
    strength = round(255 * (1 - min(1.0, abs(v))))
    return f"#ff{strength:02x}{strength:02x}" if v >= 0 else f"#{strength:02x}{strength:02x}ff"


# Modules, optimisers, histories --------------------------------------------------------------------


def module_html(module: Any) -> str:
    """Return a module as HTML: a tree whose branches can be folded."""
    return _module(module, "", 0)


def _module(module: Any, name: str, depth: int) -> str:
    label = escape(f"{name}: {module._headline()}" if name else module._headline())
    inside = [_module(m, n, depth + 1) for n, m in module.named_children()]
    own = [
        (n, p.shape, p.dtype, "" if p.requires_grad else "frozen")
        for n, p in module.named_parameters()
        if "." not in n and isinstance(p, Tensor)
    ]
    if own:
        inside.insert(0, table(own, ("parameter", "shape", "dtype", "")))
    if not inside:
        return f'<div style="margin-left:1.2em"><code>{label}</code></div>'
    state = " open" if depth < 1 else ""
    return (
        f'<details{state} style="margin-left:{1.2 if depth else 0}em"><summary><code>{label}</code></summary>'
        f"{''.join(inside)}</details>"
    )


def optimizer_html(optimizer: Any) -> str:
    """Return the groups of an optimiser and their hyper-parameters, as HTML."""
    names = list(dict.fromkeys(k for g in optimizer.groups for k in g.hyper))
    rows = [
        [len(g.params), f"{sum(p.size for p in g.params):,}", *(g.hyper.get(k, "") for k in names)]
        for g in optimizer.groups
    ]
    title = f"<b>{escape(type(optimizer).__name__)}</b> after {words.count(optimizer.step_count, 'step')}"
    return f"<div>{title}</div>{table(rows, ('tensors', 'numbers', *names))}"


def history_html(history: Sequence[Mapping[str, float]]) -> str:
    """Return the curves of a training run, and the metrics of the last epoch, as HTML."""
    if not history:
        return "<div>no epochs yet</div>"
    groups: dict[str, list[str]] = {}  # a metric and the same metric of the validation share a chart
    for name in dict.fromkeys(k for h in history for k in h):
        groups.setdefault(name.removeprefix("val_"), []).append(name)
    charts = [
        _chart(title, {n: [h.get(n, math.nan) for h in history] for n in names})
        for title, names in groups.items()
    ]
    last = table([(k, f"{v:.6g}") for k, v in history[-1].items()], (f"epoch {len(history)}", ""))
    return f'<div style="display:flex;flex-wrap:wrap;gap:1em">{"".join(charts)}</div>{last}'


def _chart(title: str, curves: Mapping[str, Sequence[float]]) -> str:
    """Return a chart as HTML with SVG; ``curves`` has the values of each curve over the epochs by name."""
    width, height = 220, 90
    finite = [v for c in curves.values() for v in c if math.isfinite(v)]
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    span = (high - low) or 1.0
    lines = []
    for k, curve in enumerate(curves.values()):
        step = width / max(1, len(curve) - 1)
        points = [
            f"{i * step:.1f},{height - (v - low) / span * height:.1f}"
            for i, v in enumerate(curve)
            if math.isfinite(v)
        ]
        color = _COLORS[k % len(_COLORS)]
        lines.append(
            f'<polyline points="{" ".join(points)}" fill="none" stroke="{color}" stroke-width="1.5"/>'
        )
    legend = " ".join(
        f'<span style="color:{_COLORS[k % len(_COLORS)]}">{escape(n)}</span>' for k, n in enumerate(curves)
    )
    limits = f"<small {_MONO}>{low:.3g} … {high:.3g}</small>"
    return (
        f"<figure style='margin:0'><figcaption>{legend} {limits}</figcaption>"
        f'<svg width="{width}" height="{height}" viewBox="-2 -2 {width + 4} {height + 4}" role="img" '
        f'aria-label="{escape(title)}">{"".join(lines)}</svg></figure>'
    )
