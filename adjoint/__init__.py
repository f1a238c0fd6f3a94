"""adjoint: automatic differentiation for NumPy programs.

Eager tensors, gradients of any order, hooks, tapes and gradient stores, on NumPy alone.

>>> import adjoint as ad
>>> x = ad.tensor([1.0, 2.0], requires_grad=True)
>>> (x ** 2).sum().backward()
>>> x.grad
tensor([2., 4.], dtype=float64)
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

import numpy as _np

from adjoint import config, errors, interop, tree
from adjoint import hints as _hints
from adjoint import tracebacks as _tracebacks
from adjoint.config import (
    enable_grad,
    get_default_dtype,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_default_dtype,
    set_grad_enabled,
)
from adjoint.core.convert import array, asarray, tensor
from adjoint.core.define import define
from adjoint.core.kernels import provider as _kernels
from adjoint.core.op import OPS
from adjoint.core.sparse import SparseGradient, sparse_gradient
from adjoint.core.tensor import Tensor
from adjoint.engine.anomaly import detect_anomaly
from adjoint.foreign_names import elsewhere as _elsewhere
from adjoint.grads.backward import backward, gradients
from adjoint.grads.norm import global_norm
from adjoint.grads.store import Gradients
from adjoint.grads.tape import Tape
from adjoint.interop import array_api
from adjoint.interop import protocols as _protocols
from adjoint.interop.array_api import *
from adjoint.interop.dlpack import from_dlpack
from adjoint.ops import (
    arrange,
    compare,
    complex_parts,
    conditions,
    contraction,
    create,
    diagonals,
    distances,
    distinct,
    elementwise,
    extremes,
    fft,
    fused,
    grids,
    grouped,
    index,
    join,
    linalg,
    nan_reduce,
    order,
    piecewise,
    products,
    reduce,
    selection,
    shape,
    special,
)
from adjoint.ops import scan as scans
from adjoint.ops.arrange import *
from adjoint.ops.compare import *
from adjoint.ops.complex_parts import *
from adjoint.ops.conditions import *
from adjoint.ops.contraction import *
from adjoint.ops.create import *
from adjoint.ops.diagonals import *
from adjoint.ops.distances import *
from adjoint.ops.distinct import *
from adjoint.ops.elementwise import *
from adjoint.ops.extremes import *
from adjoint.ops.fused import *
from adjoint.ops.grids import *
from adjoint.ops.grouped import *
from adjoint.ops.join import *
from adjoint.ops.nan_reduce import *
from adjoint.ops.order import *
from adjoint.ops.piecewise import *
from adjoint.ops.products import *
from adjoint.ops.reduce import *
from adjoint.ops.scan import *
from adjoint.ops.selection import *
from adjoint.ops.shape import *

if TYPE_CHECKING:
    from adjoint import (
        autograd,
        distributed,
        extend,
        inspect,
        nn,
        numpy,
        optim,
        random,
        scipy,
        sparsity,
        testing,
        train,
    )
    from adjoint import sklearn as sklearn  # not in __all__: importing it needs scikit-learn
    from adjoint.accumulate.accumulator import GradientAccumulator
    from adjoint.accumulate.sums import GradientBuffer
    from adjoint.accumulate.window import AccumulationConfig, AccumulationEvent, AccumulationStats
    from adjoint.compiler.api.compile import compile
    from adjoint.exports.api import export
    from adjoint.grads.clip import (
        clip_grad_adaptive,
        clip_grad_norm,
        clip_grad_norm_by_group,
        clip_grad_value,
    )
    from adjoint.grads.scaler import GradScaler
    from adjoint.interop.limits import finfo, iinfo
    from adjoint.storage.files import load, save
    from adjoint.targets import devices
    from adjoint.transforms.batch import vmap
    from adjoint.transforms.custom import custom_jvp, custom_vjp, stop_gradient, straight_through
    from adjoint.transforms.forward import jvp, linearize
    from adjoint.transforms.function_class import Function
    from adjoint.transforms.implicit import fixed_point, root
    from adjoint.transforms.loops import cond, fori_loop, map, scan, while_loop
    from adjoint.transforms.matrix import hessian, hvp, jacfwd, jacobian, jacrev
    from adjoint.transforms.recompute import checkpoint, checkpoint_sequential, saved_tensors_hooks
    from adjoint.transforms.reverse import elementwise_grad, grad, value_and_grad, vjp

__version__ = "0.1.0"
__array_api_version__ = "2024.12"

__all__ = [
    "OPS", "AccumulationConfig", "AccumulationEvent", "AccumulationStats", "Function", "GradScaler",
    "GradientAccumulator", "GradientBuffer", "Gradients", "SparseGradient", "Tape", "Tensor",
    "__array_api_version__", "__version__", "array", "asarray", "autograd", "backward", "checkpoint",
    "checkpoint_sequential", "clip_grad_adaptive", "clip_grad_norm", "clip_grad_norm_by_group",
    "clip_grad_value", "cond", "config", "custom_jvp", "custom_vjp", "define", "elementwise_grad",
    "detect_anomaly", "enable_grad", "errors", "extend", "fft", "from_dlpack", "finfo", "fixed_point",
    "fori_loop", "get_default_dtype", "global_norm", "grad", "gradients", "hessian", "hvp", "iinfo",
    "inference_mode", "inspect", "interop", "is_grad_enabled", "is_inference_mode_enabled", "linalg", "nn",
    "numpy", "scipy", "jacfwd", "jacobian", "jacrev", "jvp", "linearize", "load", "map", "no_grad", "random",
    "optim", "root", "save", "saved_tensors_hooks", "scan", "set_default_dtype", "set_grad_enabled",
    "sparse_gradient", "sparsity", "special", "stop_gradient", "straight_through", "tensor", "testing",
    "distributed", "train", "tree", "value_and_grad", "vjp", "compile", "devices", "export", "vmap",
    "while_loop",
    *array_api.__all__, *arrange.__all__, *compare.__all__, *complex_parts.__all__, *conditions.__all__,
    *contraction.__all__, *create.__all__, *diagonals.__all__, *distances.__all__, *distinct.__all__,
    *elementwise.__all__, *extremes.__all__, *fused.__all__, *grids.__all__, *grouped.__all__,
    *join.__all__, *nan_reduce.__all__, *order.__all__, *piecewise.__all__, *products.__all__,
    *reduce.__all__, *scans.__all__, *selection.__all__, *shape.__all__,
]  # fmt: skip
__dir__ = sorted(__all__).copy

del _protocols, array_api, arrange, compare, complex_parts, conditions, contraction, create, diagonals
del distances, distinct, elementwise, extremes, fused, grids, grouped, index, join, nan_reduce, order
del piecewise, products, reduce, scans, selection, shape

# Imported at the first use, which keeps `import adjoint` fast (docs/adr/0009).
_LATER = {
    name: f"adjoint.{name}"
    for name in (
        "autograd nn numpy scipy sklearn sparsity optim random inspect extend testing train "
        "distributed".split()
    )
}
for _module, _names in {
    "accumulate.accumulator": "GradientAccumulator",
    "accumulate.sums": "GradientBuffer",
    "accumulate.window": "AccumulationConfig AccumulationEvent AccumulationStats",
    "compiler.api.compile": "compile",
    "exports.api": "export",
    "targets": "devices",
    "grads.clip": "clip_grad_adaptive clip_grad_norm clip_grad_norm_by_group clip_grad_value",
    "grads.scaler": "GradScaler",
    "interop.limits": "finfo iinfo",
    "storage.files": "load save",
    "transforms.batch": "vmap",
    "transforms.custom": "custom_jvp custom_vjp stop_gradient straight_through",
    "transforms.forward": "jvp linearize",
    "transforms.function_class": "Function",
    "transforms.implicit": "fixed_point root",
    "transforms.loops": "cond fori_loop map scan while_loop",
    "transforms.matrix": "hessian hvp jacfwd jacobian jacrev",
    "transforms.recompute": "checkpoint checkpoint_sequential saved_tensors_hooks",
    "transforms.reverse": "elementwise_grad grad value_and_grad vjp",
}.items():
    _LATER |= dict.fromkeys(_names.split(), f"adjoint.{_module}")


if not TYPE_CHECKING:  # so that type checkers report unknown names

    def __getattr__(name: str) -> Any:
        """Import a public name at its first use and return it; raise an error if it is unknown."""
        if name not in _LATER:
            try:
                _hints.raise_absent(sys.modules[__name__], name, _instead(name), sys._getframe(1))
            except Exception as error:
                _tracebacks.hide(error, by_user=True)
                raise
        module = importlib.import_module(_LATER[name])
        _hints.add_hints(module.__name__)
        found = module if module.__name__ == f"adjoint.{name}" else getattr(module, name)
        globals()[name] = found
        return found


def _instead(name: str) -> str:
    """Return the end of an error message that says what to use instead of ``name``, or "" if unknown.

    ``name`` is a name of NumPy, PyTorch or JAX, or of a submodule of adjoint.
    """
    if name in _hints.FUNCTIONS:
        return f".  Use {_hints.FUNCTIONS[name]}."
    theirs = vars(_np).get(name)
    if callable(theirs) and not name.startswith("_") and theirs in _numpy_functions():
        return f".  Use np.{name}, which accepts tensors and is differentiable."
    instead = _elsewhere(name)
    return f".  Use {instead}." if instead else ""


def _numpy_functions() -> Any:
    return importlib.import_module("adjoint.interop.numpy").FUNCTIONS


# the compiler is imported when an op first runs a kernel
_kernels.append(lambda: importlib.import_module("adjoint.compiler.host.single").single)

_hints.add_hints(__name__, tree.__name__)
