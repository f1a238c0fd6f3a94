"""A plugin of pytest that gives modules the names back that newer versions removed, for both runs alike."""

import importlib
import sys
import types
from typing import Any

import numpy as np

# Names of NumPy 1, and what replaces them.
NUMPY = {
    "product": "prod", "cumproduct": "cumprod", "alltrue": "all", "sometrue": "any", "in1d": "isin",
    "row_stack": "vstack", "trapz": "trapezoid", "round_": "round", "asfarray": "asarray",
    "float_": "float64", "Inf": "inf", "infty": "inf", "NaN": "nan", "PINF": "inf", "complex_": "complex128",
    "unicode_": "str_", "string_": "bytes_",
}  # fmt: skip


def rename(module: Any) -> None:
    """Give a namespace with NumPy's functions the older names."""
    for old, new in NUMPY.items():
        if old not in vars(module):
            setattr(module, old, getattr(module, new))


def nottest(f: Any) -> Any:
    """Mark a function as no test, as nose did."""
    f.__test__ = False
    return f


rename(np)
rename(importlib.import_module("autograd.numpy"))
# Modules that are imported and cannot be installed any more; tests that use PyStan fail, in both runs.
for name in ("nose", "nose.tools", "pystan"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["nose.tools"].nottest = nottest  # type: ignore[attr-defined]
