# Written by tools/stubs/generate.py with NumPy 2.4
"""The types of ``adjoint.scipy.interpolate``."""

from typing import Any, overload

from adjoint.core.tensor import Tensor
from adjoint.typing import Mixed, Plain

# mypy: disable-error-code="overload-overlap, explicit-override"

__all__ = ["CubicHermiteSpline", "CubicSpline", "PPoly", "PchipInterpolator", "RegularGridInterpolator", "interp1d", "interpn", "make_interp_spline"]
from adjoint.scipy.interpolate.grids import RegularGridInterpolator as RegularGridInterpolator
from adjoint.scipy.interpolate.grids import interp1d as interp1d
from adjoint.scipy.interpolate.polynomials import CubicHermiteSpline as CubicHermiteSpline
from adjoint.scipy.interpolate.polynomials import CubicSpline as CubicSpline
from adjoint.scipy.interpolate.polynomials import PchipInterpolator as PchipInterpolator
from adjoint.scipy.interpolate.polynomials import PPoly as PPoly

@overload
def interpn(points: Plain, values: Plain, xi: Any, method: Any = ..., bounds_error: Any = ..., fill_value: Plain | None = ...) -> Any: ...
@overload
def interpn(points: Mixed, values: Mixed, xi: Any, method: Any = ..., bounds_error: Any = ..., fill_value: Mixed | None = ...) -> Tensor: ...
@overload
def interpn(points: Any, values: Any, xi: Any, method: Any = ..., bounds_error: Any = ..., fill_value: Any = ...) -> Any: ...
@overload
def make_interp_spline(x: Plain, y: Plain, k: Any = ..., t: Any = ..., bc_type: Any = ..., axis: Any = ..., check_finite: bool = ...) -> Any: ...
@overload
def make_interp_spline(x: Mixed, y: Mixed, k: Any = ..., t: Any = ..., bc_type: Any = ..., axis: Any = ...) -> Any: ...
@overload
def make_interp_spline(x: Any, y: Any, k: Any = ..., t: Any = ..., bc_type: Any = ..., axis: Any = ..., check_finite: Any = ...) -> Any: ...
def __getattr__(name: str) -> Any: ...
