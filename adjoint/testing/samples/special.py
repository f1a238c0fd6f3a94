"""Cases of the special functions that have parameters."""

from __future__ import annotations

import numpy as np

from adjoint.testing.cases import Case, array

CASES = [
    *(Case("polygamma", (array(3, low=0.5, high=3),), {"n": n}, f"n{n}") for n in (0, 1, 2)),
    Case("polygamma", (np.array([-0.4, -1.7]),), {"n": 1}, "negative"),
    Case("polygamma", (np.array([-0.4, -1.7]),), {"n": 2}, "negative, second"),
    *(
        Case(
            "polygamma_gap", (array(3, low=0.1, high=3), array(3, low=0.1, high=3, seed=1)), {"n": n}, f"n{n}"
        )
        for n in (0, 1, 2)
    ),
    Case("polygamma_gap", (np.array([-0.4, 1.7]), np.array([0.2, -1.9])), {"n": 0}, "negative"),
    *(
        Case(
            "ive_derivative",
            (np.array([-2.0, 0.3, 20.0, 40.0]),),
            {"n": n, "order": order},
            f"n{n}, order{order}",
        )
        for n in (0, 1, 3)
        for order in (1, 2)
    ),
    *(
        Case("erfcx_derivative", (np.array([-1.0, 0.0, 1.9, 2.1, 7.0, 40.0]),), {"order": n}, f"order{n}")
        for n in (1, 2, 3)
    ),
    *(Case(op, (array(2, 3),), {"n": n}, f"n{n}") for op in ("iv", "ive", "jv") for n in (0, 1, 3)),
]
