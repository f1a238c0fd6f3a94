"""Tests that run the cells of each notebook below ``notes`` that imports autograd."""

import json
import os
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

ROOT = Path.cwd()
NOTEBOOKS = sorted(str(path) for path in Path("notes").rglob("*.ipynb") if "autograd" in path.read_text())


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_notebook(notebook: str) -> None:
    """Run all cells in a new namespace, in the folder of the notebook."""
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    os.chdir(ROOT / Path(notebook).parent)
    try:
        for cell in json.loads((ROOT / notebook).read_text())["cells"]:
            if cell["cell_type"] == "code":
                shell.run_cell("".join(cell["source"])).raise_error()
    finally:
        os.chdir(ROOT)
