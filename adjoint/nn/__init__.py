"""Modules, layers, losses; ``functional`` has the functions they are made of."""

from adjoint.hints import explain as _explain
from adjoint.nn import functional, init, utils
from adjoint.nn.activations import *
from adjoint.nn.activations import __all__ as _activations
from adjoint.nn.attention import MultiHeadAttention
from adjoint.nn.cells import *
from adjoint.nn.cells import __all__ as _cells
from adjoint.nn.containers import *
from adjoint.nn.containers import __all__ as _containers
from adjoint.nn.convolution import *
from adjoint.nn.convolution import __all__ as _convolution
from adjoint.nn.criteria import *
from adjoint.nn.criteria import __all__ as _criteria
from adjoint.nn.dropout import *
from adjoint.nn.dropout import __all__ as _dropout
from adjoint.nn.embeddings import *
from adjoint.nn.embeddings import __all__ as _embeddings
from adjoint.nn.linear import *
from adjoint.nn.linear import __all__ as _linear
from adjoint.nn.module import Module, Parameter, functional_call
from adjoint.nn.norms import *
from adjoint.nn.norms import __all__ as _norms
from adjoint.nn.pooling import *
from adjoint.nn.pooling import __all__ as _pooling
from adjoint.nn.recurrent import *
from adjoint.nn.recurrent import __all__ as _recurrent
from adjoint.nn.resampling import *
from adjoint.nn.resampling import __all__ as _resampling
from adjoint.nn.transformer import *
from adjoint.nn.transformer import __all__ as _transformer

__all__ = [
    "Module",
    "MultiHeadAttention",
    "Parameter",
    "functional",
    "functional_call",
    "init",
    "utils",
    *_activations,
    *_cells,
    *_containers,
    *_convolution,
    *_criteria,
    *_dropout,
    *_embeddings,
    *_linear,
    *_norms,
    *_pooling,
    *_recurrent,
    *_resampling,
    *_transformer,
]


def __dir__() -> list[str]:
    return sorted(__all__)


_explain(
    __name__, *(f"{__name__}.{part}" for part in ("functional", "init", "utils", "utils.parametrizations"))
)
