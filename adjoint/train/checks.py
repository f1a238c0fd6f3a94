"""What a trainer is given, looked at before any time is spent on it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from adjoint.core.tensor import Tensor
from adjoint.errors import InputError

__all__ = ["check_batches", "input_array", "output_array", "refuse_class"]


def refuse_class(name: str, value: Any, base: type, arguments: str = "…") -> None:
    """Raise where a class was given and one of its instances is meant."""
    if isinstance(value, type) and issubclass(value, base):
        raise InputError(
            f"Trainer: {name} is the class {value.__name__}: make one of it, {value.__name__}({arguments})."
        )


def check_batches(where: str, loader: Any, pairs: bool) -> None:
    """Refuse what gives no batches, and arrays where pairs of them are wanted."""
    if not isinstance(loader, Iterable):
        raise InputError(f"{where}: a loader gives batches, but this is a {type(loader).__name__}.")
    parts = loader if isinstance(loader, (tuple, list)) else [loader]
    if pairs and any(isinstance(part, (np.ndarray, Tensor)) for part in parts):
        raise InputError(
            f"{where}: a batch is (inputs, targets), but there is an array in the place of one.\n"
            "  DataLoader((X, Y), batch_size) makes them, [(X, Y)] is a single one.  For batches of another "
            "kind give compute(model, batch)."
        )


def input_array(inputs: Any) -> np.ndarray[Any, Any]:
    """Return the inputs of a prediction as an array with a row for each."""
    try:
        array = np.asarray(inputs)
    except ValueError:  # rows of different lengths
        array = np.asarray(None)
    if not array.ndim or array.dtype.kind in "OUS":
        raise InputError(
            f"predict: it takes one array with a row per input, which this {type(inputs).__name__} is not.\n"
            "  For inputs of another kind call the model itself, after model.eval(), under ad.no_grad()."
        )
    return array


def output_array(found: Any) -> np.ndarray[Any, Any]:
    """Return the outputs of a model for some inputs as an array."""
    if not isinstance(found, Tensor) or not found.ndim:
        kind = "one number" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise InputError(
            f"predict: a model returns a tensor with a row per input, but this one returns {kind}.\n"
            "  Call the model itself, after model.eval(), under ad.no_grad()."
        )
    return found.numpy()
