"""``adjoint.numpy`` and ``adjoint.scipy`` return for arrays what NumPy and SciPy return, to the last bit and flag."""

from __future__ import annotations

import contextlib
import copy
import importlib
import warnings
from typing import Any

import numpy
import public_functions

import adjoint as ad
from adjoint.core.tensor import Tensor

FLAGS = ("C_CONTIGUOUS", "F_CONTIGUOUS", "OWNDATA", "WRITEABLE", "ALIGNED", "WRITEBACKIFCOPY")
# The first calls functions of the user, the second returns an object whose methods take tensors: both remain
# adjoint's.  The last is random.
OWN = {"quad", "make_interp_spline", "fisher_exact"}
# Arguments of functions of integers, shapes and dtypes, beside those of the walk over functions of floats.
_I, _V = numpy.array([2, 0, 1, 3]), numpy.array([0.31, 0.52, 0.74, 0.87])
MORE: list[tuple[Any, ...]] = [
    (4,), (4, 3), (_I, _I), (_I, 2), (_I, (4, 2)), ((2, 3), (3,)), (_V, (3, 4)), (_V, "f4"), ("f4", "f8"),
    (numpy.float64, numpy.floating), (numpy.dtype("f4"), "real floating"), (numpy.ones((2, 2, 2)), 2),
    (3, numpy.triu), ((_I[:2], _I[:2]), (3, 4)), (_I > 1,), (_I.astype("u1"),), (_V.copy(), _I, _V[::-1], 0), (5, 2.5),
    (_V, _I, 0),
]  # fmt: skip
REAL = {"numpy.linalg.eig", "numpy.linalg.eigvals"}  # NumPy's are real if the values are


def same(a: Any, b: Any, where: str) -> None:
    """Compare results: types, dtypes, shapes, flags and bits."""
    assert type(a) is type(b), f"{where}: {type(a)} is not {type(b)}"
    if isinstance(b, numpy.ndarray):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), where
        assert [a.flags[f] for f in FLAGS] == [b.flags[f] for f in FLAGS], where
        assert a.dtype == object or a.tobytes() == b.tobytes(), where
    elif isinstance(b, (tuple, list)):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            same(x, y, f"{where}[{i}]")
    elif isinstance(b, dict):
        assert a.keys() == b.keys(), where
        for key in b:
            same(a[key], b[key], f"{where}[{key!r}]")
    elif isinstance(b, numpy.generic):
        assert a.dtype == b.dtype and a.tobytes() == b.tobytes(), where


def of_adjoint(name: str) -> Any:
    """Return the function of adjoint's namespaces for one of NumPy's or SciPy's, or None."""
    module, _, function = name.rpartition(".")
    library, _, part = module.partition(".")
    if part not in ("", "linalg", "fft") and library == "numpy":
        return None
    if library == "scipy" and part not in (*ad.scipy.__all__, "spatial.distance"):
        return None
    return getattr(importlib.import_module(f"adjoint.{module}"), function)


def accepted() -> dict[str, tuple[Any, Any, Any]]:
    found: dict[str, tuple[Any, Any, Any]] = {}
    done: set[str] = set()
    for name, theirs, template in public_functions.accepted(done):
        done.add(name)
        ours = of_adjoint(name)
        if ours is not None and theirs.__name__ not in OWN:
            found[name] = ours, theirs, template
    for name, theirs in public_functions.functions():
        ours = None if name in found or theirs.__name__ in OWN else of_adjoint(name)
        for template in MORE if ours is not None and name.startswith("numpy.") else ():
            with contextlib.suppress(Exception):
                called(theirs, template)
                found[name] = ours, theirs, template
                break
    return found


def called(f: Any, args: Any) -> Any:
    numpy.random.seed(1)
    with warnings.catch_warnings(), numpy.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return f(*copy.deepcopy(args))


def test_every_function_of_arrays_is_that_of_numpy_or_scipy():
    found = accepted()
    assert len(found) > 950
    numpys = {
        name for name, _ in public_functions.functions() if of_adjoint(name) and name.startswith("numpy.")
    }
    assert numpys <= found.keys(), numpys - found.keys()
    for name, (ours, theirs, template) in found.items():
        same(called(ours, template), called(theirs, template), name)


def test_with_one_tensor_the_result_is_a_tensor_of_the_same_numbers():
    """A function without a derivative may refuse a history, but takes tensors without one."""
    checked = 0
    for name, (ours, theirs, template) in accepted().items():
        if not name.startswith("numpy.") or name in REAL:
            continue
        expected = called(theirs, template)
        for i, a in enumerate(template):
            if not isinstance(a, numpy.ndarray) or a.dtype.kind != "f":
                continue
            given = (*template[:i], ad.tensor(a), *template[i + 1 :])
            compare(called(ours, given), expected, f"{name}#{i}")
            checked += 1
    assert checked > 300


# A gradient of eigh and cho_factor is symmetric, but they read one triangle.  zeta has no derivative below 1.  An image of
# integers has integer values in SciPy, and for tensors those before rounding.
OTHERS = {
    "scipy.linalg.eigh",
    "scipy.linalg.cho_factor",
    "scipy.special.zeta",
    "scipy.ndimage.map_coordinates",
}


def test_recorded_tensors_have_gradients_or_raise():
    """Nothing is silent: a gradient agrees with differences, the result is constant, or adjoint raises."""
    with warnings.catch_warnings(), numpy.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for name, (ours, _, template) in accepted().items():
            for place in public_functions._places(template):
                found = public_functions.outcome(ours, template, place)
                assert found in ("right", "refused", "constant", None) or name in OTHERS, (name, place, found)


def compare(got: Any, expected: Any, where: str) -> None:
    if isinstance(expected, (tuple, list)):
        for g, e in zip(got, expected, strict=True):
            compare(g, e, where)
    elif isinstance(expected, numpy.ndarray) and expected.dtype.kind in "biufc":
        assert isinstance(got, Tensor), where
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype), where
        numpy.testing.assert_allclose(got.numpy(), expected, rtol=1e-9, atol=1e-12, err_msg=where)
    elif isinstance(expected, numpy.inexact):
        numpy.testing.assert_allclose(numpy.asarray(got), expected, rtol=1e-9, atol=1e-12, err_msg=where)
