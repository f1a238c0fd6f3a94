"""The attributes and values of tensors: shape and dtype, conversion to NumPy and Python numbers, printing."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy import ndarray

from adjoint.config import special, transform
from adjoint.context import observer, reading
from adjoint.core.conversion import asked_by_numpy, check_conversion, in_assertion, in_product
from adjoint.core.lifted import Unknown, enclosing, refusal, tracing
from adjoint.core.methods import Methods
from adjoint.core.node import LEAF
from adjoint.core.user_code import same_in_adjoint, user_line
from adjoint.errors import AbsentNameError, ArgumentError, InputError, LostHistoryError, ShapeError

__all__ = ["Readable", "concrete", "note_reading", "read_only"]


class Readable(Methods):
    """The part of a tensor that reads its values: the base class of ``Tensor``."""

    __slots__ = ()

    _data: Any  # an ndarray; in the class Traced a value of a transform
    _node: Any  # None: constant; LEAF: a leaf that requires grad; a Node: made by that op

    # Attributes ----------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        return self._data.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._data.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._data.size

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of the elements."""
        return self._data.dtype

    @property
    def itemsize(self) -> int:
        """The number of bytes of one element."""
        return self._data.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The number of bytes of all elements."""
        return self.size * self.itemsize

    @property
    def flags(self) -> Any:
        """The flags of the memory, as NumPy's; it is read-only to NumPy."""
        return self.numpy().flags

    @property
    def strides(self) -> tuple[int, ...]:
        """The bytes from one element to the next, along each axis."""
        return self.numpy().strides

    @property
    def base(self) -> None:
        """None, as of arrays that own their memory: a write into one tensor never changes another."""
        return None

    @property
    def ctypes(self) -> Any:
        """The address and form of the memory for ctypes, as NumPy's; the memory must not be written to."""
        return self._memory("ctypes").ctypes

    @property
    def data(self) -> memoryview:
        """The memory as a read-only buffer."""
        return self._memory("data").data

    def _memory(self, name: str) -> ndarray[Any, Any]:
        try:
            check_conversion(self, f"x.{name}", "")
        except LostHistoryError:
            raise AbsentNameError(
                f"a tensor that requires grad has no {name!r}.  Use x.numpy() to read; x.copy_(v), x[i] = v "
                "or x -= v under ad.no_grad() to write."
            ) from None
        return self.numpy()

    @property
    def device(self) -> str:
        """The device of the elements: always "cpu"."""
        return "cpu"

    # Values --------------------------------------------------------------------------------

    def numpy(self, *, copy: bool = False) -> ndarray[Any, Any]:
        """Return the values as a NumPy array.

        Parameters
        ----------
        copy : bool
            Whether to return a writable copy instead of a read-only view.

        Returns
        -------
        ndarray
            The values.
        """
        data = concrete(self, "numpy()")
        if copy:
            return data.copy()
        return read_only(data)

    @property
    def _value(self) -> Any:
        """The array or the number, which is writable; programs of autograd print and store it."""
        return self.numpy(copy=True)[()]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> ndarray[Any, Any]:
        caller = sys._getframe(1)
        if in_product(caller):  # SciPy then returns NotImplemented, and Python calls ``__rmatmul__``
            held = np.empty((), object)
            held[()] = self
            return held
        if not in_assertion(caller):
            check_conversion(
                self,
                "a NumPy array",
                "Use functions that take tensors: ad.array or ad.stack for lists, np.f(x), ad.linalg, "
                "ad.special, adjoint.scipy, and ad.random for random numbers.",
            )
        data = read_only(
            concrete(
                self,
                "conversion to a NumPy array",
                "To index an array X by a tensor, write ad.tensor(X)[rows].  To join tensors, use ad.stack "
                "instead of np.array.  To draw random numbers, use ad.random.",
            )
        )
        if dtype is not None and np.dtype(dtype) != data.dtype:
            if copy is False:
                raise ArgumentError(
                    f"a {data.dtype} tensor cannot be converted to {np.dtype(dtype)} without a copy.  "
                    "Omit copy=False."
                )
            return data.astype(dtype)
        # a copy, because pandas, numba and Cython write into what np.asarray returns
        return data if copy is False else data.copy()

    def item(self) -> Any:
        """Return the only element as a Python number."""
        if self.size != 1:
            raise ShapeError(
                f"item() needs one element, but this tensor has shape {self.shape}.\n"
                "  Choose one, x[0].item(), or use x.tolist() for all."
            )
        return concrete(self, "item()").item()

    def tolist(self) -> Any:
        """Return the values as nested lists of Python numbers."""
        return concrete(self, "tolist()").tolist()

    def __float__(self) -> float:
        return float(self._one("float"))

    def __int__(self) -> int:
        return int(self._one("int"))

    def __complex__(self) -> complex:
        return complex(self._one("complex"))

    def __index__(self) -> int:
        if self.dtype.kind not in "iu" or self.ndim:
            raise InputError(
                f"an index must be a 0-d integer tensor, but this one is {self.dtype} of shape {self.shape}."
            )
        return int(
            concrete(
                self,
                "an index",
                "Index a tensor, ad.tensor(values)[i] or ad.stack(tensors)[i].  For range(n), use "
                "ad.fori_loop.",
            )
        )

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ShapeError(
                f"the truth value of a tensor of shape {self.shape} is ambiguous.\n"
                "  Use x.any() or x.all(); for a choice per element, ad.where(condition, a, b)."
            )
        return bool(concrete(self, "a Python condition").item())

    def _one(self, kind: str) -> Any:
        if self.size != 1:
            raise ShapeError(
                f"{kind}() needs one element, but this tensor has shape {self.shape}.\n"
                f"  Choose one, {kind}(x[0]), or use x.astype({kind}) for all."
            )
        inside = transform.get() is not None or enclosing.get() is not None
        if inside or asked_by_numpy(sys._getframe(2)):
            check_conversion(
                self,
                f"a Python {kind}",
                "Use functions that take tensors: ad.exp(x), not math.exp(x); y = ad.array([...]), "
                "not y[i] = x.",
            )
        return concrete(self, f"{kind}()").item()

    def __repr__(self) -> str:
        if type(self._data) is not ndarray:
            return f"tensor({self._data!r})"
        body = np.array2string(self._data, separator=", ", prefix="tensor(", threshold=1000)
        tail = f", dtype={self.dtype}"
        if self._data.size == 0:
            tail = f", shape={self.shape}{tail}"
        if self._node is LEAF:
            tail += ", requires_grad=True"
        elif self._node is not None:
            tail += f", grad_fn={self._node!r}"
        return f"tensor({body}{tail})"

    def __format__(self, spec: str) -> str:
        if spec and self.size != 1:
            raise ShapeError(
                f"the format {spec!r} is for one number, but this tensor has shape {self.shape}.\n"
                "  Format the elements one by one, or use np.array2string(x.numpy(), precision=3)."
            )
        return format(self.item(), spec) if spec else str(self)


def read_only(data: ndarray[Any, Any]) -> ndarray[Any, Any]:
    """Return a view that NumPy cannot make writable again, because its base is a read-only buffer."""
    if data.dtype.name == "bfloat16":  # the buffer protocol does not support it
        return read_only(data.view(np.uint16)).view(data.dtype)
    return np.asarray(data.data.toreadonly())


_CURE = (
    "Compute with ad functions there, or make an op with ad.define; ad.where replaces a condition on values."
)
_CURE_IN_TRACE = (
    "Return the tensor and read it outside; to choose between two values use ad.where(condition, a, b)."
)


def concrete(t: Readable, what: str, cure: str = _CURE) -> ndarray[Any, Any]:
    """Return the array of ``t``, or raise an error if a transform makes its values unavailable.

    ``what`` names the operation that needs the values, and ``cure`` says what to write instead.
    """
    if special.count:
        note_reading(t)
        if (watcher := observer.get()) is not None:
            watcher.left(t, None, what)
    data = t._data
    if type(data) is not ndarray:
        known = data.numbers()
        if known is not None:
            return known
        data.check_running()
        traced = isinstance(data, Unknown)
        text = (
            _reading_in_trace(t, what)
            if traced
            else f"{what} needs the values of a tensor, which are not available inside {data.transform}."
        )
        hint = same_in_adjoint() or (_CURE_IN_TRACE if traced and cure is _CURE else cure)
        raise refusal(InputError(f"{text}\n  {hint}"), traced)
    return data


def _reading_in_trace(t: Readable, what: str) -> str:
    """Return the first line of the error for reading ``t`` inside ``ad.compile``; see ``concrete``."""
    values = "value" if t.size == 1 else "values"
    if what.endswith("()"):
        reads = f"reads the {values} of a tensor with {what}"
    else:
        reads = f"needs the {values} of a tensor" + (f" for {what}" if what != "this" else "")
    return f"{user_line()} {reads}.  Inside ad.compile tensors have no values."


def note_reading(*tensors: Any) -> None:
    """Report that these tensors are read: to the running trace, and to the detector of changed tensors.

    Call this only while ``special.count`` is not 0.
    """
    trace = tracing.get()
    if trace is not None:
        trace.touch(tensors)
    note = reading.get()
    if note is not None:
        for t in tensors:
            if isinstance(t, Readable):
                note(t)
