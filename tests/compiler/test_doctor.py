"""``explain`` and hints name the line that makes a compiled function slow, and say what to write instead."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint.compiler.host import direct

HERE = __file__


def sums(x: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        return carry + ad.special.dawsn(row), None

    return (ad.scan(step, ad.zeros(x.shape[1]), x)[0] ** 2).sum()


def mixed(x: Any) -> Any:
    y = ad.fft.fft(x * 2).real
    return (y * y).sum()


def line_of(text: str) -> int:
    with open(HERE) as file:
        return next(n for n, line in enumerate(file, 1) if text in line)


def test_explain_names_the_calls_of_numpy() -> None:
    f = ad.compile(mixed)
    shown = f.explain(np.ones(8))
    at = f"{HERE}:{line_of('y = ad.fft.fft(x')}"
    _, *lines = shown[shown.index("What to change:") :].splitlines()
    assert lines == [
        f"  'fftn' at {at} calls NumPy: complex128 has no native form.  Write it with the real and the imaginary "
        "part as two real arrays.",
        f"  'real' at {at} calls NumPy: complex128 has no native form.  Write it with the real and the imaginary "
        "part as two real arrays.",
    ]
    assert "What to change" not in ad.compile(lambda x: (x * x).sum()).explain(np.ones(8))


def test_a_long_loop_that_calls_numpy_causes_one_hint() -> None:
    f = ad.compile(sums)
    x = np.random.default_rng(0).standard_normal((100, 4))
    with pytest.warns(UserWarning, match="sums runs a loop") as found:
        values = [f(x) for _ in range(3)]
    assert len(found) == 1
    at = f"{HERE}:{line_of('return carry + ad.special.dawsn(row)')}"
    assert str(found[0].message) == (
        f"ad.compile: sums runs a loop of 100 iterations by Python, because 'dawsn' at {at} calls NumPy: dawsn has "
        "no native form.\n"
        "  Compute it before or after the loop, for all iterations at once, or write it with ops that have a "
        "native form.  ad.config.hints(False) turns hints off."
    )
    np.testing.assert_allclose(values, [values[0]] * 3)
    assert f"'dawsn' at {at} calls NumPy in each of 100 iterations: dawsn has no native form." in f.explain()


def test_a_program_that_leaves_its_native_entry_causes_one_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "WATCHED", 10)
    f, x = ad.compile(mixed), np.ones(1 << 17)  # large results of NumPy are not copied to the arena
    with pytest.warns(UserWarning, match="mixed calls NumPy 2 times in each call, so Python runs") as found:
        [f(x) for _ in range(25)]
    assert len(found) == 1


def test_hints_can_be_turned_off() -> None:
    f = ad.compile(lambda x, k: x * k, limit=1)
    with warnings.catch_warnings(), ad.config.hints(False):
        warnings.simplefilter("error")
        for k in range(4):
            f(np.ones(3), str(k) == "1")
        ad.compile(sums)(np.ones((100, 4)))
    with pytest.raises(ad.errors.ArgumentError, match="hints: expected True or False, but got None"):
        ad.config.hints(None)  # type: ignore[arg-type]


def test_explain_says_why_a_function_is_traced_often() -> None:
    f = ad.compile(lambda x, mode: x * len(mode))
    for mode in ("a", "ab", "abc"):
        f(np.ones(3), mode)
    assert "traced 3 times, the last time because " in f.explain()
