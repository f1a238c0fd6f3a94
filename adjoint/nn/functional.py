"""Functions for networks: activations, norms, attention, convolution, pooling and losses."""

from __future__ import annotations

from adjoint.ops.conv import *
from adjoint.ops.conv import __all__ as _conv
from adjoint.ops.pool import *
from adjoint.ops.pool import __all__ as _pool

__all__ = [*_conv, *_pool]
