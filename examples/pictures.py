"""What the examples share: how their pictures are made and saved."""

from __future__ import annotations

from typing import Any

try:
    from matplotlib.figure import Figure
except ImportError:
    raise SystemExit("The examples need matplotlib, some scikit-learn too: pip install '.[demo]'") from None


def panels(columns: int = 1, width: float = 7.0, height: float = 3.2, rows: int = 1) -> tuple[Figure, Any]:
    """Return a figure and its axes, without the upper and the right line of the frame."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns)
    for one in figure.axes:
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save(figure: Figure, path: str) -> str:
    """Write a figure and return its path."""
    figure.savefig(path, dpi=100)
    return path


def picture(path: str, xlabel: str, ylabel: str, lines: dict[str, tuple[Any, Any]], log: bool = False) -> str:
    """Draw lines, each with its name, and return the path of the picture."""
    figure, axes = panels()
    for name, (x, y) in lines.items():
        axes.plot(x, y, label=name)
    axes.set(xlabel=xlabel, ylabel=ylabel, yscale="log" if log else "linear")
    axes.legend(frameon=False)
    return save(figure, path)
