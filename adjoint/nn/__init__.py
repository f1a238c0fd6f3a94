"""Modules, layers, losses; ``functional`` has the functions they are made of."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from adjoint.core.other_names import absent as _absent
from adjoint.core.other_names import explain_options as _explain_options
from adjoint.nn import functional, init
from adjoint.nn.activations import *
from adjoint.nn.activations import __all__ as _activations
from adjoint.nn.attention import MultiHeadAttention, TransformerEncoderLayer
from adjoint.nn.criteria import *
from adjoint.nn.criteria import __all__ as _criteria
from adjoint.nn.layers import *
from adjoint.nn.layers import __all__ as _layers
from adjoint.nn.module import Module, ModuleList, Parameter, Sequential, functional_call
from adjoint.nn.recurrent import GRU, LSTM

__all__ = [
    "GRU",
    "LSTM",
    "Module",
    "ModuleList",
    "MultiHeadAttention",
    "Parameter",
    "Sequential",
    "TransformerEncoderLayer",
    "functional",
    "functional_call",
    "init",
    *_activations,
    *_layers,
    *_criteria,
]

_explain_options(globals()[name] for name in __all__)

if not _TYPE_CHECKING:  # for type checkers what is not there is not there
    __getattr__ = _absent(__name__)
