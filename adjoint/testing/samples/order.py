"""Cases of the ops that choose by index arrays, and of those that sort."""

from __future__ import annotations

import numpy as np

from adjoint.testing.cases import Case, array

_TWICE = np.array([[0, 2], [-1, 2]])  # index 2 of an axis of length 3 occurs three times, once as -1
_ALONG = np.array([[0, 3, 3], [1, 1, -4]])
_MIXED = np.array([[3.0, -1.0, 2.0, 0.5, 9.0], [-2.0, 4.0, 1.0, 8.0, 0.0]])
_UP = {"axis": -1, "descending": False, "stable": True}
_DOWN = {"axis": -2, "descending": True, "stable": True}

CASES = [
    Case("take", (array(3, 4), _TWICE), {"axis": -2}),
    Case("take", (array(2, 3), np.array(1)), {"axis": -1}, "number"),
    Case("take", (array(4, 3), np.array([[1, -1], [1, 0]])), {"axis": -2, "sparse_grad": True}, "sparse"),
    Case("take", (array(2, 3, 2), np.array([], int)), {"axis": -2}, "empty"),
    Case("untake", (array(2, 2, 4), _TWICE), {"axis": -2, "length": 3}),
    Case("untake", (array(2, 2, 2), _TWICE), {"axis": -1, "length": 5}, "last"),
    Case("take_along_axis", (array(2, 4), _ALONG), {"axis": -1}),
    Case("take_along_axis", (array(4, 3), _ALONG), {"axis": -2}, "first"),
    Case("untake_along_axis", (array(2, 3), _ALONG), {"axis": -1, "length": 4}),
    Case("untake_along_axis", (array(2, 3), _ALONG), {"axis": -2, "length": 4}, "first"),
    Case("put_along_axis", (array(2, 4), _ALONG, array(2, 3, seed=1)), {"axis": -1}, "repeats"),
    Case("put_along_axis", (array(4, 3), _ALONG, array(2, 3, seed=1)), {"axis": -2}),
    Case("sort", (_MIXED,), _UP),
    Case("sort", (_MIXED,), _DOWN, "down"),
    Case("argsort", (_MIXED,), _UP),
    Case("argsort", (_MIXED,), _DOWN, "down"),
    Case("argtopk", (_MIXED,), {"k": 1, "axis": -1, "largest": True}),
    Case("argtopk", (_MIXED,), {"k": 3, "axis": -1, "largest": False}, "smallest"),
    Case("searchsorted", (np.sort(array(5)), array(2, 3, seed=1)), {"side": "left"}),
]
