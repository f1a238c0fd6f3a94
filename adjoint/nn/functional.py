"""Functions for networks: activations, norms, attention, convolution, pooling and losses.

The functions keep no state: parameters, running statistics and random generators are arguments.
"""

from __future__ import annotations

from adjoint.nn.activations import (
    elu,
    gelu,
    glu,
    hardtanh,
    leaky_relu,
    mish,
    prelu,
    relu6,
    selu,
    silu,
    softplus,
)
from adjoint.nn.attention import scaled_dot_product_attention
from adjoint.nn.batch_norms import batch_norm, batch_norm_with_statistics, instance_norm
from adjoint.nn.cells import lstm_cell
from adjoint.nn.classification_losses import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cross_entropy,
    hinge_loss,
    kl_div,
    nll_loss,
)
from adjoint.nn.dropout import dropout, dropout1d, dropout2d, dropout3d
from adjoint.nn.embeddings import embedding, embedding_bag, one_hot
from adjoint.nn.grid_sampling import affine_grid, grid_sample
from adjoint.nn.likelihood_losses import ctc_loss, gaussian_nll_loss, poisson_nll_loss
from adjoint.nn.linear import bilinear, linear
from adjoint.nn.margin_losses import (
    cosine_embedding_loss,
    hinge_embedding_loss,
    margin_ranking_loss,
    soft_margin_loss,
    triplet_margin_loss,
    triplet_margin_with_distance_loss,
)
from adjoint.nn.multi_margin_losses import (
    multi_margin_loss,
    multilabel_margin_loss,
    multilabel_soft_margin_loss,
)
from adjoint.nn.norms import group_norm, layer_norm, rms_norm
from adjoint.nn.regression_losses import huber_loss, l1_loss, mse_loss, smooth_l1_loss
from adjoint.nn.resampling import interpolate, pixel_shuffle, pixel_unshuffle
from adjoint.nn.similarity import cosine_similarity, normalize, pairwise_distance
from adjoint.ops.columns import fold, unfold
from adjoint.ops.convolutions import *
from adjoint.ops.convolutions import __all__ as _conv
from adjoint.ops.elementwise import sigmoid, tanh
from adjoint.ops.fused import log_softmax, softmax
from adjoint.ops.max_places import *
from adjoint.ops.max_places import __all__ as _max_places
from adjoint.ops.piecewise import relu
from adjoint.ops.pool import *
from adjoint.ops.pool import __all__ as _pool
from adjoint.ops.reduce import logsumexp

__all__ = [
    "affine_grid", "batch_norm", "batch_norm_with_statistics", "bilinear", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "cosine_embedding_loss", "cosine_similarity", "cross_entropy",
    "ctc_loss", "dropout", "dropout1d", "dropout2d", "dropout3d", "elu", "embedding", "embedding_bag", "fold",
    "gaussian_nll_loss", "gelu", "glu", "grid_sample", "group_norm", "hardtanh", "hinge_embedding_loss",
    "hinge_loss", "huber_loss", "instance_norm", "interpolate", "kl_div", "l1_loss", "layer_norm",
    "leaky_relu", "linear", "log_softmax", "logsumexp", "lstm_cell", "margin_ranking_loss", "mish",
    "mse_loss", "multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss", "nll_loss",
    "normalize", "one_hot", "pairwise_distance", "pixel_shuffle", "pixel_unshuffle", "poisson_nll_loss",
    "prelu", "relu", "relu6", "rms_norm", "scaled_dot_product_attention", "selu", "sigmoid", "silu",
    "smooth_l1_loss", "soft_margin_loss", "softmax", "softplus", "tanh", "triplet_margin_loss",
    "triplet_margin_with_distance_loss", "unfold", *_conv, *_max_places, *_pool,
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
