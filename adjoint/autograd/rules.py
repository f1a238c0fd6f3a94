"""``autograd.extend``: primitives with rules for both modes, by autograd's names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

import adjoint.numpy as anp
from adjoint import extend, tree
from adjoint.core.convert import asarray
from adjoint.core.record import joined_copy
from adjoint.core.tensor import Tensor
from adjoint.core.values import varies
from adjoint.extend import primitive as _primitive
from adjoint.interop.drop_in import holds_tensor
from adjoint.numpy.build import Valued

__all__ = [
    "Box", "def_linear", "defjvp", "defjvp_argnum", "defjvp_argnums", "defvjp", "defvjp_argnum",
    "defvjp_argnums", "getval", "isbox", "notrace_primitive", "primitive", "primitive_vjps",
    "register_notrace", "unbroadcast_f",
]  # fmt: skip


class _Types(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, Tensor)


class Box(metaclass=_Types):
    """The type of autograd's traced values: tensors are its instances.

    Libraries register types here.  The elements of an array of any subclass are traced as those of an array.
    A function that is registered for a type is called with each argument of it, and may raise.
    """

    type_mappings: ClassVar[dict[Any, Any]] = {}
    types: ClassVar[set[Any]] = {Tensor}

    @classmethod
    def register(cls, value_type: Any) -> None:
        """Enter a type of values."""
        Box.types.add(cls)
        Box.type_mappings[value_type] = Box.type_mappings[cls] = cls


primitive_vjps: dict[Any, Any] = {}  # empty: the rules of NumPy's functions are those of the ops


class primitive(_primitive):  # noqa: N801  autograd's name
    """``adjoint.extend.primitive`` with autograd's habits, and the methods of its old versions.

    A rule that takes the values of tensors by ``getval`` is a constant when it is differentiated again.
    """

    def _gradient(self, i: int, y: Any, args: tuple[Any, ...], kwargs: dict[str, Any], g: Any) -> Any:
        found = super()._gradient(i, y, args, kwargs, g)
        if found is None or not any(map(varies, tree.leaves(g))):
            return found
        return tree.map(lambda v: v if varies(v) else joined_copy(asarray(v), None), found)

    def defgrad(self, gradfun: Any, argnum: int = 0) -> None:
        """Define the rule of one argument."""
        defvjp(self, gradfun, argnums=[argnum])

    def defvjp(self, vjpmaker: Any, argnum: int = 0) -> None:
        """Define the rule of one argument, ``vjp(g, ans, vs, gvs, *args)``."""
        defvjp(self, lambda y, *args: lambda g: vjpmaker(g, y, None, None, *args), argnums=[argnum])

    def defvjp_is_zero(self, argnums: Any = (0,)) -> None:
        """Define that no gradient flows to these arguments."""
        defvjp(self, *[None for _ in argnums], argnums=argnums)


def defvjp(fun: Any, *vjpmakers: Any, argnums: Any = None) -> None:
    """Define rules of reverse mode, as ``adjoint.extend.defvjp``.

    Functions of ``autograd.numpy`` and ``autograd.scipy`` get the rules if they have no derivative in
    adjoint.  Rules of other functions have no effect: their own operations are differentiated.
    """
    if (known := _ruled(fun)) is not None:
        extend.defvjp(known, *vjpmakers, argnums=argnums)


def defjvp(fun: Any, *jvpfuns: Any, argnums: Any = None) -> None:
    """Define rules of forward mode, as ``adjoint.extend.defjvp``; see ``defvjp``."""
    if (known := _ruled(fun)) is not None:
        extend.defjvp(known, *jvpfuns, argnums=argnums)


def _ruled(fun: Any) -> _primitive | None:
    """Return the primitive that rules of a function belong to; None if it is no primitive.

    A function of NumPy or SciPy that has no derivative in adjoint becomes one.
    """
    if isinstance(fun, _primitive):
        return fun
    ours = getattr(fun, "ours", None)
    if not isinstance(ours, Valued):
        return None
    if ours.primitive is None:
        ours.primitive = primitive(ours.theirs)
    return ours.primitive


def defvjp_argnum(fun: Any, vjpmaker: Callable[..., Any]) -> None:
    """Define all rules by one function ``vjpmaker(argnum, ans, args, kwargs)``."""
    if (known := _ruled(fun)) is not None:
        known.rules = _AnyArgument(lambda i: lambda ans, *args, **kwargs: vjpmaker(i, ans, args, kwargs))


def defjvp_argnum(fun: Any, jvpmaker: Callable[..., Any]) -> None:
    """Define all forward rules by one function ``jvpmaker(argnum, g, ans, args, kwargs)``."""
    if (known := _ruled(fun)) is not None:
        known.tangents = _AnyArgument(
            lambda i: lambda g, ans, *args, **kwargs: jvpmaker(i, g, ans, args, kwargs)
        )


def defvjp_argnums(fun: Any, vjpmaker: Callable[..., Any]) -> None:
    """Define all rules by ``vjpmaker(argnums, ans, args, kwargs)``, for several arguments at once."""
    defvjp_argnum(
        fun, lambda i, ans, args, kwargs: lambda g: next(iter(vjpmaker((i,), ans, args, kwargs)(g)))
    )


def defjvp_argnums(fun: Any, jvpmaker: Callable[..., Any]) -> None:
    """Define all forward rules by one function ``jvpmaker(argnums, gs, ans, args, kwargs)``."""
    defjvp_argnum(fun, lambda i, g, ans, args, kwargs: jvpmaker((i,), (g,), ans, args, kwargs))


class _AnyArgument(dict[int, Any]):
    """Rules that are made from the position of the argument."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: int) -> Any:
        return self._make(key)

    def __contains__(self, key: object) -> bool:
        return True

    def __bool__(self) -> bool:
        return True


def def_linear(fun: Any) -> None:
    """Define that the function is linear in each argument."""
    defjvp_argnum(fun, lambda i, g, ans, args, kwargs: fun.of_tangent(i, g, args, kwargs))


def isbox(value: Any) -> bool:
    """Return whether a value is a tensor."""
    return isinstance(value, Tensor)


def getval(x: object) -> object:
    """Return the array or the number of a tensor, and other values unchanged."""
    return x.detach().numpy(copy=True)[()] if isinstance(x, Tensor) else x


def notrace_primitive(f_raw: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that gets arrays in place of tensors, and has no derivative."""

    @functools.wraps(f_raw)
    def call(*args: Any, **kwargs: Any) -> Any:
        return f_raw(*map(getval, args), **kwargs)

    return call


def register_notrace(trace_type: Any, primitive_fun: Any) -> None:
    """Define that no gradient flows through a primitive."""
    if (known := _ruled(primitive_fun)) is not None:
        known.rules = _AnyArgument(lambda i: lambda ans, *args, **kwargs: lambda g: None)


def unbroadcast_f(target: Any, f: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return ``f`` with its result summed to the shape of ``target``, which was broadcast."""
    shape = np.shape(target)

    def call(g: Any) -> Any:
        found = f(g)
        while np.ndim(found) > len(shape):
            found = anp.sum(found, axis=0)
        for axis, n in enumerate(shape):
            if n == 1 and np.shape(found)[axis] != 1:
                found = anp.sum(found, axis=axis, keepdims=True)
        if (
            np.iscomplexobj(found)
            and not (holds_tensor(target) and target.dtype.kind == "c")
            and not np.iscomplexobj(target)
        ):
            found = anp.real(found)
        return found

    return call
