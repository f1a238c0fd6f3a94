"""NumPy's floating-point warnings name the line of the user's program."""

from __future__ import annotations

import inspect
import operator
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import adjoint as ad

BIG = np.array([0.0, 1e4])
LOG10 = ad.compile(ad.log10, backend="replay")


@pytest.fixture
def seen() -> Iterator[list[warnings.WarningMessage]]:
    """The warnings that Python would show without any filters."""
    globals().pop("__warningregistry__", None)
    with warnings.catch_warnings(record=True) as found:
        warnings.resetwarnings()
        yield found


def net(x: Any) -> Any:
    return ad.nn.functional.mse_loss(ad.exp(x), x)


CALLS = {
    "divide by zero encountered in log": lambda: ad.log(ad.tensor(BIG, requires_grad=True)),
    "overflow encountered in exp": lambda: np.exp(ad.tensor(BIG)),
    "overflow encountered in multiply": lambda: 1e306 * ad.tensor(BIG),
    "divide by zero encountered in divide": lambda: ad.tensor(2.0) / 0,
    "invalid value encountered in sqrt": lambda: (-ad.tensor(BIG)).sqrt(),
    "overflow encountered in square": lambda: ad.vmap(ad.square)(BIG * 1e200),
    "overflow encountered in reduce": lambda: ad.tensor([1e308, 1e308]).sum(),
    "overflow encountered in cast": lambda: ad.tensor(1e300).astype("f4"),
    "overflow encountered in add": lambda: operator.iadd(ad.tensor([1e308]), 1e308),
    "divide by zero encountered in log10": lambda: LOG10(np.zeros(2)),
    "overflow encountered in sinh": lambda: ad.sinh(ad.tensor(np.full(100_000, 1e4))),
    "overflow encountered in exp2": lambda: ad.numpy.exp2(BIG),
}


@pytest.mark.parametrize("text", CALLS)
def test_the_line_of_the_user_is_named(seen, text):
    CALLS[text]()
    code = CALLS[text].__code__
    assert [(str(w.message), w.filename, w.lineno, w.category) for w in seen] == [
        (text, __file__, code.co_firstlineno, RuntimeWarning)
    ]


def test_the_line_inside_a_differentiated_function_is_named(seen):
    ad.grad(net)(BIG)
    line = inspect.getsourcelines(net)[1] + 1
    assert {(w.filename, w.lineno) for w in seen} == {(__file__, line)}


def test_a_line_warns_once_and_two_lines_twice(seen):
    x = ad.tensor(BIG)
    for _ in range(3):
        ad.exp(x)
    ad.exp(x)
    assert len({w.lineno for w in seen}) == len(seen) == 2


def test_modes_of_the_user_are_kept(seen):
    x, calls = ad.tensor(BIG), []
    with np.errstate(divide="ignore", under="warn"):
        (ad.log(x), ad.nn.functional.mse_loss(x * 1e200, x), ad.exp(-x))
    assert [str(w.message).split()[0] for w in seen] == ["overflow", "underflow"]
    assert {w.filename for w in seen} == {__file__}
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        ad.exp(x)
    with np.errstate(all="call", call=lambda *args: calls.append(args)):
        (ad.exp(x), ad.tensor([1e308, 1e308]).sum())
    assert len(seen) == 2 and len(calls) == 2
    before = np.geterr()
    with ad.detect_anomaly():
        ad.exp(ad.tensor(1.0))
    assert np.geterr() == before


def test_filters_of_the_user_come_first(seen):
    x = ad.tensor(BIG)
    warnings.filterwarnings("ignore", category=RuntimeWarning, module=__name__)
    ad.exp(x)
    assert not seen
    warnings.simplefilter("error", RuntimeWarning)
    with pytest.raises(RuntimeWarning, match="overflow"):
        ad.exp(x)


def test_other_warnings_stay_where_they_are(seen):
    np.exp(BIG)
    warnings.warn("overflow encountered in a cup", stacklevel=1)
    module = {"__name__": "adjoint.example", "warnings": warnings}
    exec("warnings.warn('another text', RuntimeWarning)", module)
    assert [(str(w.message), w.filename) for w in seen] == [
        ("overflow encountered in exp", __file__),
        ("overflow encountered in a cup", __file__),
        ("another text", "<string>"),
    ]


def test_a_program_without_filters(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import adjoint as ad\nad.exp(ad.tensor(1e4))\n")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stderr.split("\n")[0] == f"{script}:2: RuntimeWarning: overflow encountered in exp"
