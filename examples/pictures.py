"""What the examples share: where their pictures go."""

from __future__ import annotations

from typing import Any

try:
    from matplotlib.figure import Figure
except ImportError:
    raise SystemExit("The examples need matplotlib, some scikit-learn too: pip install '.[demo]'") from None


def picture(path: str, xlabel: str, ylabel: str, lines: dict[str, tuple[Any, Any]], log: bool = False) -> str:
    """Draw lines, each with its name, and return the path of the picture."""
    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    for name, (x, y) in lines.items():
        axes.plot(x, y, label=name)
    axes.set(xlabel=xlabel, ylabel=ylabel, yscale="log" if log else "linear")
    axes.legend()
    figure.savefig(path, dpi=110)
    return path
