"""Tests that run the cells of each notebook below ``notes`` that imports autograd.

Names that newer versions of matplotlib removed are given back.  Only the first picture of a film is drawn,
because films need ffmpeg.  A cell may fail if the output that the notebook stores is an error.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from matplotlib.animation import Animation
from matplotlib.axis import Tick
from matplotlib.figure import Figure
from mpl_toolkits.mplot3d import Axes3D

ROOT = Path.cwd()
NOTEBOOKS = sorted(str(path) for path in Path("notes").rglob("*.ipynb") if "autograd" in path.read_text())
GCA = Figure.gca


def gca(figure: Figure, **options: Any) -> Any:
    """Return the current axes; make them if there are options, as older versions did."""
    return figure.add_subplot(**options) if options else GCA(figure)


def save(film: Any, path: str, *_args: Any, **_options: Any) -> None:
    """Draw the first picture of a film and make an empty file, which notebooks read back."""
    film._init_draw()
    Path(path).touch()


Figure.gca = gca  # type: ignore[method-assign]
Animation.save = save  # type: ignore[method-assign]
Tick.label = property(lambda tick: tick.label1)
for letter in "xyz":
    setattr(Axes3D, f"w_{letter}axis", property(lambda axes, name=f"{letter}axis": getattr(axes, name)))


class Shell(InteractiveShell):
    """A shell without windows, in which ``%matplotlib inline`` draws."""

    def enable_gui(self, gui: str | None = None) -> None:
        """Do nothing: no window is opened."""


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_notebook(notebook: str) -> None:
    """Run all cells in a new namespace, in the folder of the notebook."""
    Shell.clear_instance()
    shell = Shell.instance()
    os.chdir(ROOT / Path(notebook).parent)
    try:
        for cell in json.loads((ROOT / notebook).read_text())["cells"]:
            if cell["cell_type"] == "code":
                ran = shell.run_cell("".join(cell["source"]))
                if all(output["output_type"] != "error" for output in cell["outputs"]):
                    ran.raise_error()
    finally:
        os.chdir(ROOT)
