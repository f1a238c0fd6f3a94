"""Losses as modules: each is a function of ``nn.functional`` with its options."""

from __future__ import annotations

from typing import Any

from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError
from adjoint.nn import functional as F  # noqa: N812  the name that people's hands know
from adjoint.nn.functions import FunctionModule, as_module

__all__ = [
    "BCELoss",
    "BCEWithLogitsLoss",
    "CrossEntropyLoss",
    "HingeLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "MSELoss",
    "NLLLoss",
    "SmoothL1Loss",
]


class _Loss(FunctionModule):
    """A loss of predictions and targets, with options such as ``reduction``."""

    inputs = 2

    def __init__(self, *values: Any, **options: Any) -> None:
        super().__init__(*values, **options)
        known = ("mean", "sum", "none", *(("batchmean",) if self.name == "kl_div" else ()))
        reduction = self.options.get("reduction", "mean")
        if not isinstance(reduction, str) or reduction not in known:
            raise ArgumentError(
                f"{type(self).__name__}: reduction is {', '.join(map(repr, known[:-1]))} or {known[-1]!r}, "
                f"not {reduction!r}."
            )

    def forward(self, prediction: Any, target: Any) -> Tensor:
        """Compare predictions with targets."""
        return getattr(F, self.name)(prediction, target, **self.options)


def _loss(name: str, function: str) -> type[_Loss]:
    return as_module(_Loss, name, function, "own, after the target")


MSELoss = _loss("MSELoss", "mse_loss")
L1Loss = _loss("L1Loss", "l1_loss")
HuberLoss = _loss("HuberLoss", "huber_loss")
SmoothL1Loss = _loss("SmoothL1Loss", "smooth_l1_loss")
CrossEntropyLoss = _loss("CrossEntropyLoss", "cross_entropy")
NLLLoss = _loss("NLLLoss", "nll_loss")
BCELoss = _loss("BCELoss", "binary_cross_entropy")
BCEWithLogitsLoss = _loss("BCEWithLogitsLoss", "binary_cross_entropy_with_logits")
KLDivLoss = _loss("KLDivLoss", "kl_div")
HingeLoss = _loss("HingeLoss", "hinge_loss")
