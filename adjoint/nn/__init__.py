"""Modules, layers and losses.  ``functional`` has the functions behind them."""

from adjoint.hints import add_hints as _add_hints
from adjoint.nn import functional, init, utils
from adjoint.nn.activations import *
from adjoint.nn.activations import __all__ as _activations
from adjoint.nn.attention import MultiHeadAttention
from adjoint.nn.batch_norms import *
from adjoint.nn.batch_norms import __all__ as _batch_norms
from adjoint.nn.cells import *
from adjoint.nn.cells import __all__ as _cells
from adjoint.nn.classification_losses import *
from adjoint.nn.classification_losses import __all__ as _classification_losses
from adjoint.nn.containers import *
from adjoint.nn.containers import __all__ as _containers
from adjoint.nn.convolution import *
from adjoint.nn.convolution import __all__ as _convolution
from adjoint.nn.dropout import *
from adjoint.nn.dropout import __all__ as _dropout
from adjoint.nn.embeddings import *
from adjoint.nn.embeddings import __all__ as _embeddings
from adjoint.nn.likelihood_losses import *
from adjoint.nn.likelihood_losses import __all__ as _likelihood_losses
from adjoint.nn.linear import *
from adjoint.nn.linear import __all__ as _linear
from adjoint.nn.margin_losses import *
from adjoint.nn.margin_losses import __all__ as _margin_losses
from adjoint.nn.module import Module, Parameter
from adjoint.nn.module_tree import functional_call
from adjoint.nn.multi_margin_losses import *
from adjoint.nn.multi_margin_losses import __all__ as _multi_margin_losses
from adjoint.nn.norms import *
from adjoint.nn.norms import __all__ as _norms
from adjoint.nn.pooling import *
from adjoint.nn.pooling import __all__ as _pooling
from adjoint.nn.recurrent import *
from adjoint.nn.recurrent import __all__ as _recurrent
from adjoint.nn.regression_losses import *
from adjoint.nn.regression_losses import __all__ as _regression_losses
from adjoint.nn.resampling import *
from adjoint.nn.resampling import __all__ as _resampling
from adjoint.nn.transformer import *
from adjoint.nn.transformer import __all__ as _transformer

__all__ = [
    "Module", "MultiHeadAttention", "Parameter", "functional", "functional_call", "init", "utils",
    *_activations, *_batch_norms, *_cells, *_classification_losses, *_containers, *_convolution, *_dropout,
    *_embeddings, *_likelihood_losses, *_linear, *_margin_losses, *_multi_margin_losses, *_norms, *_pooling,
    *_recurrent, *_regression_losses, *_resampling, *_transformer,
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)


_add_hints(
    __name__, *(f"{__name__}.{part}" for part in ("functional", "init", "utils", "utils.parametrizations"))
)
