"""Cases of the elementwise ops that have parameters."""

from __future__ import annotations

import numpy as np

from adjoint.testing.cases import Case, array

_EXACT = {"rtol": 1e-5, "atol": 1e-8, "equal_nan": False}

CASES = [
    Case("astype", (array(2, 3),), {"dtype": np.dtype(np.float64)}),
    Case("astype", (array(2, 3),), {"dtype": np.dtype(np.complex128)}, "complex"),
    Case("round", (array(2, 3, low=0.011, high=0.014),), {"decimals": 2}),
    Case("nan_to_num", (array(2, 3),), {"nan": 0.0, "posinf": None, "neginf": None}),
    Case("isclose", (array(3), array(3) + 1e-9), _EXACT),
    *(
        Case("sinc_derivative", (array(7, low=-1.5, high=1.5),), {"order": order}, f"order{order}")
        for order in (1, 2, 3)
    ),
    Case("gap_product", (array(2, 3),), {"low": -1.0, "high": 2.0}),
    Case("sinc_derivative", (np.zeros(()),), {"order": 1}, "zero"),
]
