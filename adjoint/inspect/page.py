"""Build HTML pages: data, styles, scripts and libraries in one file without external references."""

from __future__ import annotations

import base64
import functools
import gzip
import json
import math
import sys
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from adjoint.inspect.graph import Graph
from adjoint.words import count

__all__ = ["columns", "graph_page", "page", "short_number"]

HERE = Path(__file__).parent
STYLES = ("vendor/uPlot.min.css", "web/page.css")
SCRIPTS = (
    "vendor/uPlot.iife.min.js", "vendor/dagre.min.js",
    "web/base.js", "web/scales.js", "web/charts.js", "web/graph.js", "web/time.js", "web/main.js",
)  # fmt: skip
LICENCES = ("vendor/uPlot.LICENSE", "vendor/dagre.LICENSE", "vendor/graphlib.LICENSE")


@functools.cache
def _parts() -> dict[str, str]:
    """Read and return the parts of every page: ``"styles"``, ``"scripts"`` and the template, ``"page"``."""
    texts = {name: (HERE / name).read_text(encoding="utf-8") for name in (*STYLES, *SCRIPTS, *LICENCES)}
    licences = "\n".join(f"/*! {texts[name].strip()} */" for name in LICENCES)
    scripts = ";\n".join([licences, *(texts[name] for name in SCRIPTS)])
    return {
        "styles": "\n".join(texts[name] for name in STYLES),
        "scripts": scripts.replace("</script", "<\\/script"),  # "</script" would end the script element
        "page": (HERE / "web/page.html").read_text(encoding="utf-8"),
    }


def page(data: Mapping[str, Any]) -> str:
    """Return the text of an HTML page that shows ``data``.

    Text from the user is only in the data, and the scripts insert it as text, not as HTML.
    """
    plain = json.dumps(data, separators=(",", ":"), allow_nan=False, default=str)
    packed = base64.b64encode(gzip.compress(plain.encode(), 9, mtime=0)).decode()
    parts = _parts()
    fields = {
        "title": escape(str(data["title"])),
        "version": escape(sys.modules["adjoint"].__version__),
        "styles": parts["styles"],
        "scripts": parts["scripts"],
        "data": packed,
    }
    pieces = parts["page"].split("{{")
    out = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        out += [fields[name], rest]
    return "".join(out)


def short_number(value: float | None, digits: int = 4) -> float | None:
    """Return a number rounded to ``digits`` significant digits, or None if it is None or not finite."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def columns(graph: Graph, note: str) -> dict[str, Any]:
    """Return a graph as plain data for the scripts of a page: one list per property of the boxes.

    Names, shapes, dtypes and lines are indices into the list ``"texts"``.  ``note`` is shown below the graph.
    """
    known: dict[str, int] = {}

    def text(value: str) -> int:
        return known.setdefault(value, len(known))

    boxes = graph.boxes
    found = {
        "name": [text(b.name) for b in boxes],
        "shape": [text(b.shape) for b in boxes],
        "dtype": [text(b.dtype) for b in boxes],
        "line": [text(b.line) for b in boxes],
        "leaf": [int(b.leaf) for b in boxes],
        "saved": [b.saved for b in boxes],
        "norm": [short_number(b.norm, 3) for b in boxes],
        "group": [b.group for b in boxes],
        "count": [len(b.parents) for b in boxes],
        "parents": [p for b in boxes for p in b.parents],
        "groups": [
            [g.name, g.kind, g.parent, g.times, short_number(g.norm), [short_number(s) for s in g.strip]]
            for g in graph.groups
        ],
        "note": note,
    }
    return {"texts": list(known), **found}


def graph_page(graph: Graph, title: str) -> str:
    """Return a page that shows only the graph."""
    data = {
        "title": title,
        "facts": count(graph.ops(), "op"),
        "says": [],
        "graph": columns(graph, "click a blue box to open it, a heading to fold it"),
    }
    return page(data)
