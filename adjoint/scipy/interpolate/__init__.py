"""``scipy.interpolate`` on tensors: piecewise polynomials and linear interpolation on grids.

Gradients flow to the data points, to their values, and to the points of evaluation.  Names that are not in
``__all__`` are SciPy's own functions, which raise ``LostHistoryError`` for a tensor that requires grad.
"""

from typing import Any

from adjoint.hints import add_hints
from adjoint.scipy.fallback import drop_ins, scipy_only
from adjoint.scipy.interpolate.grids import RegularGridInterpolator, interp1d, interpn
from adjoint.scipy.interpolate.polynomials import (
    CubicHermiteSpline,
    CubicSpline,
    PchipInterpolator,
    PPoly,
    make_interp_spline,
)

__all__ = [
    "CubicHermiteSpline", "CubicSpline", "PPoly", "PchipInterpolator", "RegularGridInterpolator", "interp1d",
    "interpn", "make_interp_spline",
]  # fmt: skip
__dir__ = sorted(__all__).copy


globals().update(drop_ins("interpolate", {"interpn": interpn}))
add_hints(__name__)


def __getattr__(name: str) -> Any:
    """Return SciPy's own function, which raises an error for a tensor that requires grad."""
    return scipy_only("interpolate", name)
