"""Cases of the shape and index ops."""

from __future__ import annotations

import numpy as np

from adjoint.testing.cases import Case, array

_ALL = slice(None)

CASES = [
    Case("reshape", (array(2, 3),), {"shape": (3, 2)}),
    Case("permute_dims", (array(2, 3, 4),), {"axes": (-1, -3, -2)}),
    Case("moveaxis", (array(2, 3, 4),), {"source": -3, "destination": -1}),
    Case("matrix_transpose", (array(2, 3),)),
    Case("broadcast_to", (array(3, 1),), {"shape": (2, 3, 4)}),
    Case("concat", (array(2, 3), array(1, 3, seed=1)), {"axis": -2}),
    Case("stack", (array(2, 3), array(2, 3, seed=1)), {"axis": -2}),
    Case("unstack", (array(3, 2),), {"axis": -1}),
    Case("split", (array(2, 5),), {"cuts": ((0, 2), (2, 5)), "axis": -1}),
    Case("flip", (array(2, 3),), {"axis": (-1,)}),
    Case("roll", (array(2, 3),), {"shift": (1, -1), "axis": (-1, -2)}),
    Case("pad", (array(2, 3),), {"widths": ((1, 0), (2, 1)), "value": 1.5}),
    Case("diagonal", (array(2, 3, 4),), {"offset": 1}),
    Case("diagonal", (array(3, 2),), {"offset": -3}, "empty"),
    Case("undiagonal", (array(2, 3),), {"offset": -1, "shape": (4, 3)}),
    *(Case(op, (array(2, 3, 4),), {"k": k}) for op in ("tril", "triu") for k in (0, -1)),
    Case("windows", (array(5, 2),), {"size": 2, "axis": -2}),
    Case("windows", (array(2, 5),), {"size": 4, "axis": -1}, "long"),
    Case("overlap_add", (array(4, 3, 2),), {"axis": -2, "length": 5}),
    Case("overlap_add", (array(2, 2, 4),), {"axis": -1, "length": 5}, "long"),
    Case("index", (array(3, 4),), {"key": (1, Ellipsis)}),
    Case("index", (array(3, 4),), {"key": (_ALL, slice(None, None, -2), None)}, "slices"),
    Case("index", (array(3, 4),), {"key": (np.array([0, 0, 2]), Ellipsis)}, "repeats"),
    Case("unindex", (array(3),), {"key": (np.array([1, 1, 0]),), "shape": (4,)}, "repeats"),
    Case("unindex", (array(2),), {"key": (slice(1, 3),), "shape": (4,)}),
    Case("index_set", (array(3, 4), array(4, seed=1)), {"key": (1, Ellipsis)}),
    Case("matmul", (array(2, 3), array(3, 4, seed=1))),
    Case("matmul", (array(3), array(3, seed=1)), note="vectors"),
    Case("matmul", (array(3), array(3, 2, seed=1)), note="row"),
    Case("matmul", (array(2, 3), array(3, seed=1)), note="column"),
    Case("matmul", (array(5, 2, 3), array(3, 4, seed=1)), note="batch"),
    Case("matmul", (array(3), array(5, 3, 2, seed=1)), note="row-batch"),
    Case("matmul", (array(2, 1, 2, 3), array(5, 3, 4, seed=1)), note="broadcast"),
]
