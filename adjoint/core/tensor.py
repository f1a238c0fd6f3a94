"""``Tensor``: an array that may be part of a graph.

Operators and methods are installed from the op table (``core/methods.py``); ``core/convert.py`` makes tensors
from data.  Tensors never share writes: arrays passed in are copied, returned views are read-only, and memory
that other objects refer to is copied before a write.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy import ndarray

from adjoint.config import grad_mode, held_across_fork, is_watched, special, transform
from adjoint.context import observer
from adjoint.context import reading as reading
from adjoint.context import writes as writes
from adjoint.core.conversion import asked_by_numpy, check_conversion
from adjoint.core.lifted import Lifted, Unknown, enclosing, refusal, tracing
from adjoint.core.methods import Methods
from adjoint.core.namespace import rec
from adjoint.core.node import LEAF, Handle, HookList, Node, attaching
from adjoint.core.user_code import same_in_adjoint, warn
from adjoint.errors import (
    ArgumentError,
    DTypeError,
    InputError,
    NoGradientError,
    ShapeError,
)

__all__ = [
    "Tensor",
    "Traced",
    "castable",
    "clock",
    "committing",
    "concrete",
    "differentiable",
    "held",
    "note_reading",
    "note_view",
    "read_only",
    "reading",
    "wrap",
    "writes",
]

# The lock for reading and replacing .grad.  It is reentrant, because a finaliser or a signal handler may run
# while it is held.
committing = held_across_fork(threading.RLock())


class _Clock:
    """A counter of the writes to tensors that do not require grad.

    The version of such a tensor is the value of the counter after its last write.
    """

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0


clock = _Clock()


class _Extra:
    """Data that few tensors have: the gradient and the hooks."""

    __slots__ = ("grad", "hooks", "post_hooks")

    def __init__(self) -> None:
        self.grad: Tensor | None = None
        self.hooks: HookList | None = None
        self.post_hooks: HookList | None = None


class Tensor(Methods):
    """An n-dimensional array that records operations for differentiation.

    ``ad.tensor`` makes tensors.  Operators, methods and NumPy functions are recorded if one of their
    arguments requires grad.

    Parameters
    ----------
    *_, **__ : object
        Not accepted: use ``ad.tensor`` or ``ad.asarray``.

    Examples
    --------
    >>> import adjoint as ad
    >>> x = ad.tensor([1.0, 2.0], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> x.grad
    tensor([2., 4.], dtype=float64)
    """

    __slots__ = ("__weakref__", "_data", "_extra", "_node", "_source", "_version")

    _data: Any  # an ndarray; in the subclass Traced a value of a transform
    _node: Any  # None: constant; LEAF: a leaf that requires grad; a Node: made by that op
    _version: int  # incremented by each write
    _extra: _Extra | None
    # Set only on views that are not part of a graph: a weak reference to the viewed tensor, and that tensor's
    # own _source.
    _source: tuple[weakref.ref[Tensor], Any]

    def __new__(cls, *_: object, **__: object) -> Tensor:
        """Raise: tensors are made by functions that check their arguments."""
        raise InputError("make tensors with ad.tensor(data) or ad.asarray(data), not Tensor(data).")

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
    def device(self) -> str:
        """The device of the elements: always "cpu"."""
        return "cpu"

    # Graph ---------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """Whether operations on this tensor are recorded for differentiation."""
        if special.count and (trace := tracing.get()) is not None:
            trace.touch((self,))  # the compiled program is valid only while requires_grad does not change
        return self._node is not None

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Set whether a leaf requires grad.

        Parameters
        ----------
        requires_grad : bool
            The new value.

        Returns
        -------
        Tensor
            The tensor itself.

        Raises
        ------
        NoGradientError
            If the tensor is the result of an operation.
        DTypeError
            If the tensor is not float or complex.
        """
        if special.count and (trace := tracing.get()) is not None:
            trace.refuse_freezing(self, requires_grad)
        if isinstance(self._node, Node):
            if requires_grad:
                return self
            raise NoGradientError(
                "requires_grad can be set on leaves only, but this tensor is the result of "
                f"{self._node.name!r}.\n"
                "  Use x.detach() for a tensor that is not part of a graph."
            )
        if requires_grad:
            if not differentiable(self.dtype):
                raise DTypeError(
                    f"only float and complex tensors can require grad, but this one is {self.dtype}.\n"
                    "  Make it a float first: x.astype(float).requires_grad_()."
                )
            top = enclosing.get()
            if top is not None and self._node is None:
                top.adopt(self)
            self._node = LEAF
        else:
            self._node = None
        return self

    @property
    def is_leaf(self) -> bool:
        """Whether this tensor was made by the user and not by a recorded operation."""
        node = self._node
        if special.count and (trace := tracing.get()) is not None:
            node = trace.node_before(self)
        return node is None or node is LEAF

    @property
    def grad_fn(self) -> Node | None:
        """The node of the operation that made this tensor; None for leaves."""
        return None if self.is_leaf else self._node

    @property
    def grad(self) -> Tensor | None:
        """The gradient that ``backward`` accumulated; None before the first backward.

        Intermediate results have no gradient unless ``retain_grad()`` was called before the backward. Reading
        a gradient that was not kept issues a warning.
        """
        if special.count and (trace := tracing.get()) is not None:
            return trace.grad_of(self)
        extra = self._extra
        if extra is not None:
            return extra.grad
        if type(self._node) is Node:
            _warn_not_retained(self._node)
        return None

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            if not isinstance(value, Tensor):
                raise InputError(
                    f"grad must be a tensor or None, not {type(value).__name__}.\n"
                    "  Wrap it: x.grad = ad.tensor(value)."
                )
            if value.shape != self.shape:
                raise ShapeError(f"grad must have the shape of its tensor, {self.shape}, not {value.shape}.")
            if value.dtype != self.dtype:
                raise DTypeError(f"grad must have the dtype of its tensor, {self.dtype}, not {value.dtype}.")
        elif self._extra is None and not special.count:
            return
        if special.count and (trace := tracing.get()) is not None:
            trace.grad_set(self)
        extra = self._need_extra()
        with committing:  # a backward in another thread may be adding to it
            extra.grad = value

    def _need_extra(self) -> _Extra:
        if self._extra is None:
            with attaching:
                if self._extra is None:
                    self._extra = _Extra()
        return self._extra

    def detach(self) -> Tensor:
        """Return a tensor with the same values that is not part of a graph.

        It is a view: writing into it is an error while the original exists.  ``x.detach().copy()`` is
        independent.

        Returns
        -------
        Tensor
            The view.
        """
        if special.count:
            note_reading(self)
        if type(self) is Traced:
            view = wrap(self._data.detached())
        else:
            view = wrap(self._data)
        note_view(view, self)
        if special.count and (watcher := observer.get()) is not None:
            watcher.left(self, view, "detach()")
        return view

    def clone(self) -> Tensor:
        """Return a copy with its own memory; gradients flow through it."""
        return rec.copy(self)

    def copy(self) -> Tensor:
        """Return a copy with its own memory; NumPy's name of ``clone``."""
        return rec.copy(self)

    def retain_grad(self) -> Tensor:
        """Make backward keep the gradient of this intermediate result in ``.grad``.

        Returns
        -------
        Tensor
            The tensor itself.

        Raises
        ------
        NoGradientError
            If the tensor does not require grad.
        """
        if isinstance(self._node, Node):
            self._node.need_extra().retain = weakref.ref(self)
        elif self._node is None:
            raise NoGradientError(
                "retain_grad: this tensor does not require grad.\n"
                "  Set requires_grad=True on the inputs before computing it."
            )
        return self

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> Handle:
        """Register a function that each backward calls once, with the total gradient of this tensor.

        Parameters
        ----------
        hook : callable
            A function of the gradient.  A result other than None replaces it; shape and dtype must be the
            same.

        Returns
        -------
        Handle
            Its ``remove()`` removes the hook.

        Raises
        ------
        NoGradientError
            If the tensor does not require grad.
        """
        if self._node is None:
            raise NoGradientError(
                "register_hook: this tensor does not require grad.\n"
                "  Set requires_grad=True on it, or on the inputs before computing it."
            )
        _check_callable("register_hook", hook)
        owner = self._need_extra() if self._node is LEAF else self._node.need_extra()
        with attaching:
            if owner.hooks is None:
                owner.hooks = HookList()
        handle: Handle = owner.hooks.add(hook)
        return handle

    def register_post_accumulate_grad_hook(self, hook: Callable[[Tensor], None]) -> Handle:
        """Register a function that each backward calls once, when the ``.grad`` of this leaf is complete.

        ``.grad`` is set at that moment, before the rest of the backward has run.

        Parameters
        ----------
        hook : callable
            A function of the leaf.

        Returns
        -------
        Handle
            Its ``remove()`` removes the hook.

        Raises
        ------
        NoGradientError
            If the tensor is not a leaf that requires grad.
        """
        if self._node is not LEAF:
            raise NoGradientError(
                "register_post_accumulate_grad_hook: this tensor is not a leaf that requires grad, so no "
                "gradient is accumulated.\n  Use register_hook for the result of an operation."
            )
        _check_callable("register_post_accumulate_grad_hook", hook)
        extra = self._need_extra()
        with attaching:
            if extra.post_hooks is None:
                extra.post_hooks = HookList()
        return extra.post_hooks.add(hook)

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

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> ndarray[Any, Any]:
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
        return data.copy() if copy else data

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

    def __len__(self) -> int:
        if not self.ndim:
            raise InputError("a 0-d tensor has no len().")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if not self.ndim:
            raise InputError("a 0-d tensor cannot be iterated over.  Use x.item() for its value.")
        if self._node is not None:
            return iter(self.unstack())  # one node for all elements, so that backward takes linear time
        return (self[i] for i in range(self.shape[0]))

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any())

    __hash__ = object.__hash__  # the C function, for speed: leaves are keys in the engine's dictionaries

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

    # Writing -------------------------------------------------------------------------------

    def copy_(self, source: Any) -> Tensor:
        """Overwrite the values of this tensor in place.

        Parameters
        ----------
        source : array_like
            The new values, which are broadcast.

        Returns
        -------
        Tensor
            The tensor itself.

        Raises
        ------
        InPlaceError
            If the tensor is part of a graph, or a leaf that requires grad outside ``no_grad``.
        """
        self[...] = source
        return self

    def __copy__(self) -> Tensor:
        if grad_mode.get() and (type(self._node) is Node or (self._node is None and is_watched(self))):
            return self.copy()
        if special.count:
            note_reading(self)
        known = self._data if type(self) is Tensor else self._data.numbers()
        fresh = self.detach() if known is None else wrap(np.array(known, order="C"))
        return fresh.requires_grad_(self.requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.__copy__()

    def __reduce__(self) -> Any:
        # a copy: protocol 5 hands the memory of arrays to its buffer_callback
        return _unpickle, (concrete(self, "pickle").copy(), self.requires_grad)


class Traced(Tensor):
    """A tensor whose data is a value of a transform: batched, dual or symbolic.

    It is a separate class, so that the hot path can recognise plain tensors by their exact type.
    """

    __slots__ = ()


def _unpickle(data: ndarray[Any, Any], requires_grad: bool) -> Tensor:
    # a copy: the memory may be that of a buffer given to pickle.loads
    return wrap(np.array(data, order="C")).requires_grad_(requires_grad)


def read_only(data: ndarray[Any, Any]) -> ndarray[Any, Any]:
    """Return a view that NumPy cannot make writable again, because its base is a read-only buffer."""
    if data.dtype.name == "bfloat16":  # the buffer protocol does not support it
        return read_only(data.view(np.uint16)).view(data.dtype)
    return np.asarray(data.data.toreadonly())


def _warn_not_retained(node: Node) -> None:
    if node.extra is None or node.extra.retain is None:
        warn(
            f".grad of the result of {node.name!r} is None: backward keeps only the gradients of leaves.\n"
            "  Call y.retain_grad() before backward, or use ad.gradients(loss, [y]).",
        )


def _check_callable(what: str, hook: Any) -> None:
    if not callable(hook):
        raise InputError(f"{what}: a hook must be callable, not {type(hook).__name__}.")


_CURE = (
    "Compute with ad functions there, or make an op with ad.define; ad.where replaces a condition on values."
)


def concrete(t: Tensor, what: str, cure: str = _CURE) -> ndarray[Any, Any]:
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
        raise refusal(
            InputError(
                f"{what} needs the values of a tensor, which are not available inside {data.transform}.\n"
                f"  {same_in_adjoint() or cure}"
            ),
            isinstance(data, Unknown),
        )
    return data


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
            if isinstance(t, Tensor):
                note(t)


def wrap(data: Any) -> Tensor:
    """Return a tensor that uses ``data`` without a copy; no other object may write to ``data``."""
    if type(data) is ndarray:
        t = object.__new__(Tensor)
    elif isinstance(data, Lifted):
        t = object.__new__(Traced)
    else:  # a NumPy scalar, or a subclass of ndarray
        t, data = object.__new__(Tensor), np.asarray(data)
    t._data = data
    t._node = None
    t._version = 0
    t._extra = None
    return t


def differentiable(dtype: np.dtype[Any]) -> bool:
    """Return whether tensors of this dtype can require grad."""
    kind = dtype.kind
    return kind in "fc" or (kind == "V" and dtype.name == "bfloat16")  # dtype.name is slow


def castable(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Return whether values of the dtype ``source`` may be written into memory of the dtype ``target``."""
    if source.kind == "c" and target.kind != "c":  # NumPy would allow bfloat16, which has the kind V
        return False
    return np.can_cast(source, target, "same_kind") or (differentiable(source) and differentiable(target))


def note_view(view: Tensor, source: Tensor) -> None:
    """Record in ``view`` that it shares the memory of ``source``; not needed if it is part of a graph."""
    mine, data = view._data, source._data
    if type(mine) is not ndarray or type(data) is not ndarray:
        traced = isinstance(mine, Unknown) and mine.views(data)
        mine, data = (mine, mine) if traced else (held(view), held(source))
        if mine is None or data is None:
            return
    elif (
        mine is data
    ):  # give the view its own array object, whose base identifies it as a view even after a write to source
        mine = view._data = data.view()
    base = getattr(mine, "base", None)
    if mine is data or (base is not None and (base is data or base is data.base)):
        view._source = (weakref.ref(source), getattr(source, "_source", None))


def held(value: Any) -> Any:
    """Return the array that is inside a tensor or a value of a transform; None if there is none."""
    while isinstance(value, (Tensor, Lifted)):
        value = value._data if isinstance(value, Tensor) else getattr(value, "value", None)
    return value
