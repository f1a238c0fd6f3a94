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
    *(
        Case(op, (array(2, 3, low=0.5, high=4),), {"n": n}, f"n{n}")
        for op in ("iv", "ive", "jv", "yv", "kv", "kve")
        for n in (2, 0.5, 2.5)
    ),
    *(
        Case(
            "kve_derivative",
            (np.array([0.3, 2.0, 24.0, 40.0]),),
            {"n": n, "order": order},
            f"n{n}, order{order}",
        )
        for n in (0, 1, 2.5)
        for order in (1, 2)
    ),
    *(
        Case(f"spherical_{kind}n", (array(3, low=0.5, high=4),), {"n": n}, f"n{n}")
        for kind in "jyik"
        for n in (0, 1, 3)
    ),
    *(Case("expn", (array(3, low=0.3, high=3),), {"n": n}, f"n{n}") for n in (0, 1, 3)),
    *(
        Case("dawsn_derivative", (np.array([-9.0, -1.0, 0.0, 2.0, 6.5]),), {"order": n}, f"order{n}")
        for n in (1, 2, 3)
    ),
    Case("hyp2f1", (array(3, low=-2, high=0.7),), {"a": 0.5, "b": 1.5, "c": 2.0}),
    Case("hyp1f1", (array(3),), {"a": 0.5, "b": 1.5}),
    Case("lambertw", (array(3, low=-0.2, high=3),), {"k": 0}),
    Case("lambertw", (array(3, low=-0.3, high=-0.1),), {"k": -1}, "lower"),
    Case("lambertw", (array(3) + 1j * array(3, seed=1),), {"k": 1}, "complex"),
    *(
        Case(
            "zeta_derivative",
            (array(3, low=5, high=8), array(3, low=0.5, high=3, seed=1)),
            {"order": n},
            f"order{n}",
        )
        for n in (1, 2)
    ),
    *(
        Case(
            "gammainc_derivative",
            (np.array([0.6, 1.7, 3.0, 2.0]), np.array([0.5, 2.5, 2.0, 15.0])),
            {"order": n},
            f"order{n}",
        )
        for n in (1, 2)
    ),
    *(
        Case(
            "betainc_derivative",
            (np.array([0.6, 1.7, 2.0]), np.array([2.5, 0.8, 1.3]), np.array([0.2, 0.9, 0.4])),
            {"m": m, "n": n},
            f"m{m}, n{n}",
        )
        for m, n in ((1, 0), (0, 1), (1, 1), (2, 0))
    ),
]
