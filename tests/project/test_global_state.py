"""What other code of the process sees of adjoint: importing and using it changes no global state."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[1] / "support"


def run(*arguments: str) -> str:
    """Run Python in a process of its own; return what it prints, also to stderr."""
    path = os.pathsep.join([str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    return (done.stdout + done.stderr).strip()


@pytest.mark.parametrize(
    "packages",
    [
        ("sklearn.model_selection", "matplotlib.figure"),
        pytest.param(
            ("sklearn.model_selection", "matplotlib.figure", "pandas", "torch"), marks=pytest.mark.oracle
        ),
    ],
    ids=["installed", "all"],
)
def test_import_and_use_change_no_global_state(packages):
    for package in packages:
        pytest.importorskip(package)
    beside = [
        p
        for p in ("llvmlite.binding", "threadpoolctl", "scipy.optimize")
        if importlib.util.find_spec(p.split(".")[0])
    ]
    assert run(str(SUPPORT / "global_state.py"), *beside, *packages) == ""


CHANGES = {
    "warnings.filters": "import warnings; warnings.simplefilter('ignore')",
    "warnings.showwarning": "import warnings; warnings.showwarning = print",
    "sys.excepthook": "import sys; sys.excepthook = print",
    "threading.excepthook": "import threading; threading.excepthook = print",
    "signal 10": "import signal; signal.signal(signal.SIGUSR1, print)",
    "os.environ['X_OF_TEST']": "import os; os.environ['X_OF_TEST'] = '1'",
    "locale, zone": "import locale; locale.setlocale(locale.LC_ALL, 'C')",
    "garbage collector": "import gc; gc.disable()",
    "exit handlers": "import atexit; atexit.register(print)",
    "NumPy's errors": "import numpy as np; np.seterr(all='ignore')",
    "NumPy's printing": "import numpy as np; np.set_printoptions(precision=2)",
    "NumPy's random": "import numpy as np; np.random.rand()",
    "numpy.sin": "import numpy as np; np.sin = np.cos",
    "numpy.added": "import numpy as np; np.added = 1",
    "numpy.poly1d.__call__": "import numpy as np; np.poly1d.__call__ = print",
    "scipy.special.erf": "import scipy.special; scipy.special.erf = None",
    "scipy.special.erfc is gone": "import scipy.special; del scipy.special.erfc",
}


def test_changes_are_found():
    code = "import scipy.special, global_state as g; state = g.snapshot()\n"
    for change in CHANGES.values():
        code += f"{change}\n"
    found = run("-c", code + "print(*g.changes(state, g.snapshot()), sep='\\n')")
    assert not [name for name in CHANGES if not any(line.startswith(name) for line in found.splitlines())], (
        found
    )


def test_scikit_learn_after_adjoint():
    pytest.importorskip("sklearn")
    code = "import adjoint, sklearn.model_selection, global_state; global_state.use_others()"
    assert run("-c", code) == ""
