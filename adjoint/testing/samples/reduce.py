"""Cases of the reductions and scans."""

from __future__ import annotations

import numpy as np

from adjoint.testing.cases import Case, array

_ZEROS = np.array([[2.0, 0.0, -1.5], [0.0, 0.0, 3.0]])

_GROUPS = np.array([[0, 2, 0, -3], [1, 1, 1, 2]])

CASES = [
    *(
        Case(op, (array(*shape),), {"axis": axis, "keepdims": keep})
        for op in ("sum", "mean", "max", "min", "logsumexp")
        for shape, axis, keep in (((), (), False), ((4,), (-1,), True), ((2, 3), (-2, -1), False))
    ),
    *(Case("shares", (array(2, 3),), {"axis": axis}) for axis in ((-1,), (-2, -1))),
    *(
        Case(op, (array(2, 3),), {"axis": axis, "correction": correction, "keepdims": False})
        for op in ("var", "std")
        for axis, correction in (((-1,), 0), ((-2, -1), 1))
    ),
    Case("prod", (array(2, 5),), {"axis": (-1,), "keepdims": False}),
    Case("prod", (_ZEROS,), {"axis": (-1,), "keepdims": True}, "zeros"),
    Case("cumsum", (array(2, 3),), {"axis": -1}),
    Case("cumprod", (array(2, 5),), {"axis": -1}),
    Case("cumprod", (_ZEROS,), {"axis": -1}, "zeros"),
    Case("logcumsumexp", (array(2, 5),), {"axis": -1}),
    Case("logcumsumexp", (array(1, 3),), {"axis": -2}, "one"),
    *(
        Case(
            "argcummax",
            (np.array([[3.0, 1.0, 3.0, 4.0], [1.0, 0.0, 0.0, 2.0]]),),
            {"axis": axis, "largest": up},
        )
        for axis in (-1, -2)
        for up in (True, False)
    ),
    *(
        Case("scatter_extreme", (array(2, 3), _GROUPS, array(2, 4, seed=1)), {"axis": -1, "largest": up})
        for up in (True, False)
    ),
    Case(
        "scatter_extreme",
        (array(3, 2), _GROUPS.T, array(4, 2, seed=1)),
        {"axis": -2, "largest": True},
        "first",
    ),
    *(Case(op, (array(2, 3) > 0,), {"axis": (-1,), "keepdims": False}) for op in ("any", "all")),
    *(Case(op, (array(2, 3),), {"axis": -1, "keepdims": False}) for op in ("argmax", "argmin")),
]
