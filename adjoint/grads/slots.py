"""The tensors' own ``.grad`` slots: gradients are committed to them together, at the end."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from adjoint.core.tensor import Tensor, wrap
from adjoint.engine.hooks import as_tensor

__all__ = ["commit"]

# Two backwards in two threads may reach the same leaf: reading and replacing .grad is one step.
_lock = threading.Lock()


def commit(leaf: Tensor, g: Any) -> None:
    """Add a gradient to ``leaf.grad``; the tensor that was there is replaced, not written to."""
    new = as_tensor(g)
    extra = leaf._need_extra()
    with _lock:
        before = extra.grad
        if before is None:
            extra.grad = new
        elif before._node is None and new._node is None and type(before) is type(new) is Tensor:
            extra.grad = wrap(np.asarray(before._data + new._data))
        else:
            extra.grad = before + new
