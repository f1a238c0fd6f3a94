"""DLPack: exchange of tensors with other libraries.

Exports and imports copy, because tensors own their memory.  An export with ``copy=False`` shares memory that
is marked as read-only, which DLPack supports since version 1.0; a later write into the tensor copies first.
An import cannot share memory, because its owner may still write to it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from adjoint import words
from adjoint.core.conversion import check_conversion
from adjoint.core.convert import check_device, resolved, tensor
from adjoint.core.methods import attach
from adjoint.core.tensor import Tensor, wrap
from adjoint.errors import InputError, SharingError
from adjoint.typing import ArrayLike

__all__ = ["from_dlpack"]

_CPU = (1, 0)  # DLPack's kDLCPU, and the number of the device


def dlpack(
    self: Tensor,
    /,
    *,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[Any, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """Return the values as a DLPack capsule for another library.

    This is the method ``__dlpack__`` of tensors.  The arguments are those of the DLPack protocol.
    """
    check_conversion(self, "a DLPack capsule", "The other library does not record what it does with it.")
    if stream is not None:
        raise InputError("__dlpack__: the cpu has no streams, so stream must be None.")
    if dl_device is not None and (int(dl_device[0]), dl_device[1]) != _CPU:
        raise SharingError(
            f"__dlpack__: tensors are on the cpu, {_CPU}, and cannot be exported to {dl_device}."
        )
    versioned = max_version is not None and max_version[0] >= 1
    if copy is False:
        if not versioned:
            raise SharingError(
                "__dlpack__: memory is shared as read-only, which needs DLPack 1.0 or later.\n"
                "  Pass max_version=(1, 0), or omit copy=False."
            )
        return self.numpy().__dlpack__(max_version=max_version)
    free = self.numpy(copy=True)
    return free.__dlpack__(max_version=max_version) if versioned else free.__dlpack__()


def dlpack_device(self: Tensor, /) -> tuple[int, int]:
    """Return DLPack's identifier of the cpu, (type, number).  This is the method ``__dlpack_device__``."""
    return _CPU


def from_dlpack(x: ArrayLike, /, *, device: str | None = None, copy: bool | None = None) -> Tensor:
    """Create a tensor from an object of another library that supports DLPack.

    Parameters
    ----------
    x : object
        The object, which has ``__dlpack__``.
    device : str, optional
        Accepted for the Array API; only ``"cpu"`` exists.
    copy : bool, optional
        Whether to copy. False shares the memory of an adjoint tensor, and raises for other objects.

    Returns
    -------
    Tensor
        The tensor.

    Raises
    ------
    InputError
        If the object does not support DLPack.
    SharingError
        If the memory cannot be shared or exported.

    Examples
    --------
    >>> import numpy as np
    >>> from_dlpack(np.array([1.0, 2.0]))
    tensor([1., 2.], dtype=float64)
    """
    check_device("from_dlpack", device)
    if not hasattr(x, "__dlpack__"):
        raise InputError(f"from_dlpack: {words.a(type(x).__name__)} has no __dlpack__.  Use ad.tensor(x).")
    if isinstance(x, Tensor):
        return wrap(x.detach()._data) if copy is False else tensor(x)
    if copy is False:
        raise SharingError(
            "from_dlpack: the memory cannot be shared, because its owner could still write to it.\n"
            "  Omit copy=False."
        )
    try:
        array = np.from_dlpack(resolved(x))
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise SharingError(
            f"from_dlpack: this {type(x).__name__} cannot be exported to the cpu: {error}"
        ) from None
    return tensor(array)


attach(Tensor, __dlpack__=dlpack, __dlpack_device__=dlpack_device)
