"""Cases of the elementwise ops that have parameters."""

from __future__ import annotations

import numpy as np

from adjoint.testing.cases import Case, array

CASES = [
    Case("astype", (array(2, 3),), {"dtype": np.dtype(np.float64)}),
    Case("astype", (array(2, 3),), {"dtype": np.dtype(np.complex128)}, "complex"),
]
