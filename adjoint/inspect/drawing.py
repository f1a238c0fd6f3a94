"""``draw``: show the graph of a tensor, a function or a compiled program as text, DOT, SVG or HTML."""

from __future__ import annotations

import os
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any, overload

from adjoint import tree
from adjoint.compiler.api.compile import Compiled
from adjoint.core.node import LEAF, Node
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, InputError, NoGradientError
from adjoint.inspect.graph import Box, Graph, graph_of, graph_of_program
from adjoint.inspect.layout import Picture, laid_out
from adjoint.inspect.names import Names, of_function
from adjoint.inspect.page import graph_page
from adjoint.inspect.profiling import write_text
from adjoint.inspect.watch import Watch
from adjoint.nn.module import Module
from adjoint.words import a, count

__all__ = ["Drawing", "draw"]

FORMATS = {".txt": "text", ".dot": "dot", ".gv": "dot", ".svg": "svg", ".html": "html"}


@overload
def draw(
    target: Any, *args: Any, path: str | os.PathLike[str], format: str | None = None, **kwargs: Any
) -> Drawing: ...
@overload
def draw(target: Any, *args: Any, path: None = None, format: None = None, **kwargs: Any) -> Drawing: ...
@overload
def draw(target: Any, *args: Any, path: None = None, format: str, **kwargs: Any) -> str: ...
def draw(
    target: Any,
    *args: Any,
    path: str | os.PathLike[str] | None = None,
    format: str | None = None,
    **kwargs: Any,
) -> Drawing | str:
    """Draw the graph of a tensor, of a call of a function or module, or of a compiled program.

    A function or module is called once with the arguments, so that modules and source lines are shown.

    Parameters
    ----------
    target : Tensor, callable, Module or compiled function
        What to draw.
    *args : object
        Arguments of the call.
    path : path, optional
        The file to write.  The ending chooses the format: .txt, .dot, .svg or .html.
    format : str, optional
        "text", "dot", "svg" or "html".  With ``path`` it is needed only if the ending is not one of these;
        without ``path``, the text in this format is returned.
    **kwargs : object
        Keyword arguments of the call.

    Returns
    -------
    Drawing or str
        A drawing, which prints as a text tree.  ``text()``, ``dot()``, ``svg()`` and ``html()`` return the
        formats.  With ``format`` and without ``path``, a string.

    Raises
    ------
    InputError
        If ``target`` cannot be drawn.
    ArgumentError
        If the format is not known.
    NoGradientError
        If the tensor has no graph.

    Examples
    --------
    >>> import adjoint as ad
    >>> w = ad.tensor([1.0, 2.0], requires_grad=True)
    >>> print(ad.inspect.draw((w * 2.0).sum()))
    %1 multiply(leaf 2)  2
    %2 sum(%1)  ()
    """
    drawing = Drawing(_graph(target, args, kwargs), _title(target))
    if path is not None:
        ending = os.path.splitext(os.fspath(path))[1].lower()
        write_text(Path(path), drawing._in_format(format or FORMATS.get(ending, ending)))
    elif format is not None:
        return drawing._in_format(format)
    return drawing


class Drawing:
    """A graph that can be shown in several formats, as returned by ``draw``.

    Parameters
    ----------
    graph : Graph
        The boxes and groups.
    title : str
        The title of the page.

    Examples
    --------
    >>> import adjoint as ad
    >>> w = ad.tensor([1.0, 2.0], requires_grad=True)
    >>> ad.inspect.draw(w.exp()).dot().splitlines()[0]
    'digraph adjoint {'
    """

    def __init__(self, graph: Graph, title: str = "graph") -> None:
        self.graph = graph
        self.title = title

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Drawing of {self.title}, {count(self.graph.ops(), 'op')}>"

    def _repr_svg_(self) -> str:
        return self.svg()

    def _in_format(self, format: str) -> str:
        makers: dict[str, Callable[[], str]] = {
            "text": self.text, "dot": self.dot, "svg": self.svg, "html": self.html,
        }  # fmt: skip
        if format not in makers:
            raise ArgumentError(
                f"draw: {format!r} is not a known format.\n"
                "  Use a file name that ends in .txt, .dot, .svg or .html, or pass format='svg'."
            )
        return makers[format]()

    def text(self, limit: int = 200) -> str:
        """Return a tree of modules with one line for each op.

        Parameters
        ----------
        limit : int
            The largest number of lines; the number of further lines is printed at the end.

        Returns
        -------
        str
            The tree.
        """
        graph = self.graph
        numbers: dict[int, int] = {}
        lines: list[str] = []
        stack: list[tuple[int, int]] = [(c, 0) for c in reversed(graph.groups[0].children)]
        while stack:
            child, depth = stack.pop()
            if child < 0:
                group = graph.groups[-1 - child]
                lines.append("  " * depth + " ".join(filter(None, (group.name, group.kind))))
                stack.extend((c, depth + 1) for c in reversed(group.children))
                continue
            box = graph.boxes[child]
            numbers[child] = len(numbers) + 1
            given = ", ".join(_operand(graph, p, numbers) for p in box.parents)
            where = f"  # {box.line}" if box.line else ""
            lines.append(f"{'  ' * depth}%{numbers[child]} {box.name}({given})  {box.shape}{where}")
        if len(lines) > limit:
            lines = [*lines[:limit], f"… {len(lines) - limit:,} more lines: text(limit=…)"]
        return "\n".join(lines)

    def dot(self) -> str:
        """Return the whole graph in the language of Graphviz, with modules as clusters.

        Returns
        -------
        str
            The text of a DOT file.
        """
        lines = ["digraph adjoint {", "  node [shape=box, fontname=Helvetica];"]
        stack: list[tuple[int, int]] = [(c, 1) for c in reversed(self.graph.groups[0].children)]
        while stack:
            child, depth = stack.pop()
            pad = "  " * depth
            if child >= 0:
                box = self.graph.boxes[child]
                lines.append(f"{pad}n{child} [label={_quoted(f'{box.name} {box.shape}')}];")
            elif child > -1_000_000_000:
                group = self.graph.groups[-1 - child]
                label = _quoted(" ".join(filter(None, (group.name, group.kind))))
                lines.append(f"{pad}subgraph cluster{-1 - child} {{ label={label};")
                stack.append((-1_000_000_001, depth))
                stack.extend((c, depth + 1) for c in reversed(group.children))
            else:
                lines.append(f"{pad}}}")
        for i, box in enumerate(self.graph.boxes):
            if box.leaf:
                lines.append(f"  n{i} [label={_quoted(f'{box.name} {box.shape}')}, style=rounded];")
            lines += [f"  n{p} -> n{i};" for p in box.parents]
        return "\n".join([*lines, "}"])

    def svg(self) -> str:
        """Return a picture, in which the groups of a large graph are folded.

        Returns
        -------
        str
            The text of an SVG file.
        """
        return _svg(laid_out(self.graph), self.title)

    def html(self) -> str:
        """Return a page on which the graph can be folded, zoomed and searched.

        Returns
        -------
        str
            The text of an HTML file without external references.
        """
        return graph_page(self.graph, self.title)


def _title(target: Any) -> str:
    if isinstance(target, Tensor):
        return "graph" if target._node in (None, LEAF) else str(target._node.name)
    return str(getattr(target, "__name__", type(target).__name__))


def _graph(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Graph:
    if isinstance(target, Graph):
        return target
    if isinstance(target, Tensor):
        if type(target._node) is not Node:
            raise NoGradientError(
                "draw: this tensor has no graph: it is a leaf, or no tensor that requires grad was used to "
                "compute it."
            )
        return graph_of([target._node])
    if isinstance(target, Compiled):
        with target._lock:
            return graph_of_program(target._shown(args, kwargs).program)
    if not callable(target):
        raise InputError(
            f"draw: the first argument must be a tensor, a function or a module, not "
            f"{a(type(target).__name__)}."
        )
    variables = of_function(target, args, kwargs)
    with Watch(memory=False) as watch:
        result = target(*args, **kwargs)
    nodes = [t._node for t in tree.leaves(result) if isinstance(t, Tensor) and type(t._node) is Node]
    nodes = nodes or [n for n in watch.roots if type(n) is Node]
    if not nodes:
        raise NoGradientError(
            "draw: the function returns no tensor with a graph.\n"
            "  Compute with a tensor that requires grad.  ad.inspect.explain(function) reports where the "
            "graph is cut."
        )
    names = Names(None, variables)
    called = {id(s.module): s.module for s in watch.scopes if s.parent < 0}
    names.add_modules([*called.values(), *([target] if isinstance(target, Module) else [])], variables)
    return graph_of(nodes, {k: name for k, (name, _) in names.wanted.items()}, watch)


def _operand(graph: Graph, at: int, numbers: dict[int, int]) -> str:
    box: Box = graph.boxes[at]
    return f"{box.name} {box.shape}" if box.leaf else f"%{numbers.get(at, '?')}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'


def _svg(placed: Picture, title: str) -> str:
    """Return the text of an SVG file that shows the picture ``placed`` and has the title ``title``."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {placed.width:.0f} {placed.height:.0f}" '
        f'width="{placed.width:.0f}" height="{placed.height:.0f}" font-family="Helvetica, Arial, sans-serif" '
        f'font-size="12"><title>{escape(title)}</title>',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for points in placed.edges:
        (x0, y0), *rest = points
        path = f"M{x0:.1f},{y0:.1f}"
        for x, y in rest:
            middle = (y0 + y) / 2
            path += f" C{x0:.1f},{middle:.1f} {x:.1f},{middle:.1f} {x:.1f},{y:.1f}"
            x0, y0 = x, y
        parts.append(f'<path d="{path}" fill="none" stroke="#8a94a3"/>')
        parts.append(f'<path d="M{x0 - 3:.1f},{y0 - 6:.1f} l3,6 l3,-6 z" fill="#8a94a3"/>')
    for box in placed.boxes:
        stroke = "#1f6feb" if box.folded else "#57606a"
        parts.append(
            f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="6" '
            f'fill="#f6f8fa" stroke="{stroke}"/>'
        )
        for k, (left, right) in enumerate(box.lines):
            y = box.y + 17 + 15 * k
            if left:
                parts.append(
                    f'<text x="{box.x + 9:.1f}" y="{y:.1f}" font-weight="{600 if k == 0 else 400}" '
                    f'fill="{stroke if box.folded else "#1f2328"}">{escape(left)}</text>'
                )
            if right:
                parts.append(
                    f'<text x="{box.x + box.width - 9:.1f}" y="{y:.1f}" text-anchor="end" font-size="10.5" '
                    f'font-family="monospace" fill="#57606a">{escape(right)}</text>'
                )
    return "\n".join([*parts, "</svg>"])
