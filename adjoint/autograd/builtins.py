"""``autograd.builtins``: containers and ``isinstance``."""

from adjoint.autograd.containers import *
from adjoint.autograd.containers import __all__ as __all__

__dir__ = sorted(__all__).copy
