"""Cases of the special functions that have parameters."""

from __future__ import annotations

import numpy as np

from adjoint.testing.cases import Case, array

CASES = [
    *(Case("polygamma", (array(3, low=0.5, high=3),), {"n": n}, f"n{n}") for n in (0, 1, 2)),
    Case("polygamma", (np.array([-0.4, -1.7]),), {"n": 1}, "negative"),
    *(
        Case("erfcx_derivative", (np.array([-1.0, 0.0, 1.9, 2.1, 7.0, 40.0]),), {"order": n}, f"order{n}")
        for n in (1, 2, 3)
    ),
    *(Case(op, (array(2, 3),), {"n": n}, f"n{n}") for op in ("iv", "ive", "jv") for n in (0, 1, 3)),
]
