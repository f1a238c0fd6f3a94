"""``Tensor``: an array that may be part of a graph.

Operators and methods are installed from the op table (``core/methods.py``); ``core/convert.py`` makes tensors
from data.  Tensors never share writes: arrays passed in are copied, returned views are read-only, and memory
that other objects refer to is copied before a write.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy import ndarray

from adjoint.config import grad_mode, held_across_fork, is_watched, special
from adjoint.context import observer
from adjoint.context import reading as reading
from adjoint.context import writes as writes
from adjoint.core.lifted import Lifted, Unknown, enclosing, tracing
from adjoint.core.namespace import rec
from adjoint.core.node import LEAF, Handle, HookList, Node, attaching
from adjoint.core.readable import Readable, concrete, note_reading, read_only
from adjoint.core.user_code import warn
from adjoint.errors import ArgumentError, DTypeError, InputError, NoGradientError, ShapeError
from adjoint.hints import Hinted
from adjoint.tracebacks import door

__all__ = [
    "Tensor", "Traced", "castable", "check_running", "clock", "committing", "concrete", "differentiable",
    "held", "note_reading", "note_view", "read_only", "reading", "wrap", "writes",
]  # fmt: skip

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


class Tensor(Readable, metaclass=Hinted):
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

    _version: int  # incremented by each write
    _extra: _Extra | None
    # Set only on views that are not part of a graph: a weak reference to the viewed tensor, and that tensor's
    # own _source.
    _source: tuple[weakref.ref[Tensor], Any]

    def __new__(cls, *_: object, **__: object) -> Tensor:
        """Raise: tensors are made by functions that check their arguments."""
        raise InputError("make tensors with ad.tensor(data) or ad.asarray(data), not Tensor(data).")

    # Graph ---------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """Whether operations on this tensor are recorded for differentiation."""
        if special.count and (trace := tracing.get()) is not None:
            trace.touch((self,))  # the compiled program is valid only while requires_grad does not change
        return self._node is not None

    @requires_grad.setter
    @door
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
        if special.count:
            check_running((self,))
            if (trace := tracing.get()) is not None:
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
        if special.count:
            check_running((self,))
            if (trace := tracing.get()) is not None:
                trace.grad_set(self, value)
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

    def copy(self, order: str = "C") -> Tensor:
        """Return a copy with its own memory; NumPy's name of ``clone``.

        Parameters
        ----------
        order : {"C", "F", "A", "K"}
            Accepted for NumPy's programs; the memory of tensors is in C order.

        Returns
        -------
        Tensor
            The copy.
        """
        if order not in ("C", "F", "A", "K"):
            raise ArgumentError(f"copy: order must be 'C', 'F', 'A' or 'K', not {order!r}.")
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
        if special.count:
            note_reading(self)  # so that a trace knows the hooks from before
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
        if special.count:
            note_reading(self)
        extra = self._need_extra()
        with attaching:
            if extra.post_hooks is None:
                extra.post_hooks = HookList()
        return extra.post_hooks.add(hook)

    # Elements ------------------------------------------------------------------------------

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


Traced.__name__ = Traced.__qualname__ = Tensor.__name__  # in messages


def check_running(tensors: Iterable[Any]) -> None:
    """Raise if ``ad.compile`` is tracing a function in another thread that uses one of the tensors.

    The trace will restore their state, so a change would be lost.  Callers check ``special.count`` first.
    """
    for t in tensors:
        if type(t) is Traced:
            t._data.check_running()


def _unpickle(data: ndarray[Any, Any], requires_grad: bool) -> Tensor:
    # a copy: the memory may be that of a buffer given to pickle.loads
    return wrap(with_own_dtype(np.array(data, order="C"))).requires_grad_(requires_grad)


def _warn_not_retained(node: Node) -> None:
    if node.extra is None or node.extra.retain is None:
        warn(
            f".grad of the result of {node.name!r} is None: backward keeps only the gradients of leaves.\n"
            "  Call y.retain_grad() before backward, or use ad.gradients(loss, [y])."
        )


def _check_callable(what: str, hook: Any) -> None:
    if not callable(hook):
        raise InputError(f"{what}: a hook must be callable, not {type(hook).__name__}.")


def with_own_dtype(data: ndarray[Any, Any]) -> ndarray[Any, Any]:
    """Return an array in native byte order whose dtype is NumPy's own object.

    The dtype of pickled arrays, and a dtype with metadata, is another object; ops compare dtypes by identity.
    """
    own = np.dtype(data.dtype.type)
    if data.dtype is own:
        return data
    return data.view(own) if data.dtype.isnative else data.astype(own)


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
