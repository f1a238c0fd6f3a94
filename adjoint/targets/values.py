"""Values that are on a device: tensors and optimiser states fetch them once, when they are read.

A tensor whose values are on a device has the class ``Remote`` until they are read.  Then it has an array and
is a plain ``Tensor`` again, so that no other code has to know of devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from adjoint.core.convert import DeviceName
from adjoint.core.tensor import Tensor
from adjoint.targets.device import Device, Memory, Place

__all__ = ["DeviceValue", "Remote", "State", "put", "raw_of", "remote"]

_SLOT: Any = vars(Tensor)["_data"]


class DeviceValue:
    """An array on a device."""

    __slots__ = ("device", "dtype", "memory", "shape")

    def __init__(self, device: Device, memory: Memory, shape: tuple[int, ...], dtype: Any) -> None:
        self.device, self.memory, self.shape, self.dtype = device, memory, shape, np.dtype(dtype)

    @property
    def place(self) -> Place:
        """The memory and the offset of the first element."""
        return self.memory, 0

    def fetch(self) -> Any:
        """Wait for the device; return the values as a new array."""
        return self.device.read(self.place, self.shape, self.dtype)


class Remote(Tensor):
    """A tensor whose values are on a device; reading them makes it a plain ``Tensor``."""

    __slots__ = ()

    @property
    def _data(self) -> Any:
        value = _SLOT.__get__(self)
        if type(value) is not DeviceValue:  # another thread has fetched it
            return value
        with value.device.lock:
            value = _SLOT.__get__(self)
            if type(value) is DeviceValue:
                value = value.fetch()
                _SLOT.__set__(self, value)
                _plain(self)
        return value

    @_data.setter
    def _data(self, value: Any) -> None:
        _SLOT.__set__(self, value)
        _plain(self)

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        found: tuple[int, ...] = _SLOT.__get__(self).shape
        return found

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of the elements."""
        found: np.dtype[Any] = _SLOT.__get__(self).dtype
        return found

    @property
    def itemsize(self) -> int:
        """The number of bytes of one element."""
        return self.dtype.itemsize

    @property
    def device(self) -> str:
        """The device of the elements, such as "opencl:0"."""
        value = _SLOT.__get__(self)
        return DeviceName(value.device.info.name) if type(value) is DeviceValue else "cpu"

    def __copy__(self) -> Tensor:
        _ = self._data  # this changes the class, so ``super`` cannot be used
        return Tensor.__copy__(self)


Remote.__name__ = Remote.__qualname__ = Tensor.__name__  # in messages


def _plain(t: Any) -> None:
    t.__class__ = Tensor


def remote(value: DeviceValue) -> Tensor:
    """Return a new tensor whose values are on a device."""
    t: Any = object.__new__(Remote)
    _SLOT.__set__(t, value)
    t._node = t._extra = None
    t._version = 0
    return t


def raw_of(t: Tensor) -> Any:
    """Return the ``DeviceValue`` of a tensor, or its array, without reading it."""
    return _SLOT.__get__(t)


def put(t: Tensor, value: Any, kind: type) -> None:
    """Set the value of a tensor, and its class: ``Remote`` for a ``DeviceValue``, ``Tensor`` for an array."""
    # Remote may have an array, but Tensor must have one: so an interrupt, or another thread, finds what fits
    t.__class__ = Remote
    _SLOT.__set__(t, value)
    t.__class__ = kind


class State(dict[str, Any]):
    """The state arrays of an optimiser, some of them on a device; reading an item fetches it."""

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if type(value) is DeviceValue:
            with value.device.lock:
                value = super().__getitem__(key)
                if type(value) is DeviceValue:
                    value = value.fetch()
                    super().__setitem__(key, value)
        return value

    def raw(self, key: str) -> Any:
        """Return an item without reading it."""
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[str]:  # so that dict(state) and {**state} call __getitem__
        return super().__iter__()

    def get(self, key: str, default: Any = None) -> Any:
        """Return an item, or ``default``."""
        return self[key] if key in self else default  # noqa: SIM401  it is this method

    def values(self) -> Any:
        """Return a list of all arrays."""
        return [self[k] for k in self]

    def items(self) -> Any:
        """Return a list of pairs of a name and an array."""
        return [(k, self[k]) for k in self]

    def copy(self) -> dict[str, Any]:
        """Return a plain dictionary with the arrays."""
        return dict(self.items())

    def pop(self, key: str, *default: Any) -> Any:
        """Remove an item, and return it, or ``default``."""
        if key in self:
            _ = self[key]
        return super().pop(key, *default)

    def popitem(self) -> tuple[str, Any]:
        """Remove the last item, and return its name and the array."""
        _ = self.values()
        return super().popitem()

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Return an item; if it is missing, set it to ``default``."""
        return self[key] if key in self else super().setdefault(key, default)

    def __repr__(self) -> str:
        return repr(self.copy())

    def __eq__(self, other: object) -> bool:
        return self.copy() == (other.copy() if type(other) is State else other)

    __hash__ = None

    def __reduce__(self) -> Any:
        return dict, (self.copy(),)
