"""The shapes and dtypes of an op's results, without computing values.

``infer`` is for callers that have shapes and dtypes but no data, such as a compiler that traces a program. An
op whose forward is expensive has a shape rule in its record (``shape=``).  For every other op ``infer`` runs
the forward on stand-ins: arrays of the given shape and dtype with zero strides, which take no memory.

A shape rule is ``rule(*args, **params)``, where each argument has ``shape`` and ``dtype`` or is a Python
number.  It returns one ``(shape, dtype)`` pair per output.  It returns None for invalid arguments and for
arguments that it does not cover.  The forward then runs on stand-ins, and raises the op's own error if the
arguments are invalid.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint.core.explain import explained
from adjoint.core.op import Op
from adjoint.core.record import as_result
from adjoint.core.shapes import Shape, broadcast_shapes
from adjoint.core.tensor import wrap
from adjoint.errors import AdjointError

__all__ = ["Result", "broadcast", "infer", "like_first", "real_dtype", "reduction"]

Result = tuple[tuple[Shape, Any], ...]  # shape and dtype of each output

_MOST = 10_000  # cached results; then the cache is cleared
_known: dict[Any, Result] = {}


def infer(op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Result:
    """Return the shape and dtype of each output of an op.

    The result equals what the forward would return for arrays of these shapes and dtypes.  Invalid arguments
    raise the error of the op itself.  An argument is an object with ``shape`` and ``dtype``, such as a
    ``Spec``, or a Python number; ``params`` are in canonical form.  Results are cached.

    >>> import numpy as np, adjoint as ad
    >>> from adjoint.core.node import Spec
    >>> from adjoint.core.op import OPS
    >>> x = Spec("x", (1000, 500), np.dtype(np.float32))
    >>> infer(OPS["matmul"], (x, Spec("w", (500, 20), np.dtype(np.float32))), {})
    (((1000, 20), dtype('float32')),)
    """
    if op.shape is not None:
        found = op.shape(*args, **params)
        if found is not None:
            return found
    alike = op.kind == "elementwise"
    if alike:  # shapes that do not broadcast raise first
        shape = broadcast_shapes(op.name, *[a.shape for a in args if hasattr(a, "dtype")])
    key = _key(op, args, params, alike)
    found = None if key is None else _known.get(key)
    if found is None:
        # the usual dtype objects: programs compare dtypes by identity, and a swapped array may have another
        found = tuple([(lengths, np.dtype(d.type)) for lengths, d in _run(op, args, params, alike)])
        if key is not None:
            if len(_known) >= _MOST:
                _known.clear()
            _known[key] = found
    return tuple([(shape, dtype) for _, dtype in found]) if alike else found


def _key(op: Op, args: tuple[Any, ...], params: dict[str, Any], alike: bool) -> Any:
    """Return the cache key of a call; None if a parameter cannot be hashed.

    The key of an elementwise op (``alike``) contains no shapes, because its dtypes do not depend on them.
    Floats are not part of the key, because no shape or dtype depends on the value of a float.
    """
    parts: list[Any] = [op]
    for a in args:
        if not hasattr(a, "dtype"):
            parts.append((type(a), None if type(a) in (float, complex) else a))
        else:
            parts.append(a.dtype if alike else (a.dtype, a.shape))
    try:
        if params:
            parts.append(_frozen(params))
        key = tuple(parts)
        hash(key)
    except TypeError:
        return None
    return key


def _frozen(value: Any) -> Any:
    """Return a hashable form of a parameter, different for values of different types."""
    if isinstance(value, slice):
        return slice, _frozen(value.start), _frozen(value.stop), _frozen(value.step)
    if isinstance(value, (tuple, list)):
        return type(value), tuple(map(_frozen, value))
    if isinstance(value, dict):
        return tuple([(k, _frozen(v)) for k, v in value.items()])
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype, value.tobytes()
    return type(value), value


def _run(op: Op, args: tuple[Any, ...], params: dict[str, Any], alike: bool) -> Result:
    """Return the shapes and dtypes of the outputs by running the forward on stand-ins.

    With ``alike``, for an elementwise op, the stand-ins have one element.
    """
    values: list[Any] = [_stand_in(a, alike) if hasattr(a, "dtype") else a for a in args]
    forward = op.plain or op.forward
    with np.errstate(all="ignore"):
        try:
            try:
                out = forward(*values, **params)
            except np.linalg.LinAlgError:  # ones are singular, the identity is not
                out = forward(*(_identity(v) if np.ndim(v) > 1 else v for v in values), **params)
        except AdjointError:
            raise
        except Exception as error:
            operands = tuple(wrap(v) if isinstance(v, np.ndarray) else v for v in values)
            raise explained(op, operands, params, error) from None
    results = (as_result(op, o) for o in (out if op.outputs > 1 else (out,)))
    return tuple([(o.shape, o.dtype) for o in results])


def _stand_in(a: Any, alike: bool) -> Any:
    """Return an array with the shape and dtype of ``a`` and strides of 0, which takes no memory.

    With ``alike`` it has one element.  Its elements are 1; integers are 0, which is a valid index.
    """
    value = np.zeros((), a.dtype) if a.dtype.kind in "biu" else np.ones((), a.dtype)
    return np.broadcast_to(value, (1,) if alike else a.shape)


def _identity(x: Any) -> Any:
    return np.broadcast_to(np.eye(*x.shape[-2:], dtype=x.dtype), x.shape)


# Shape rules that several ops share --------------------------------------------------------------


def like_first(x: Any, *_: Any, **__: Any) -> Result | None:
    """Shape rule of ops whose output has the shape and dtype of the first argument.

    It returns None if the argument is not float.
    """
    return None if x.dtype.kind in "biuc" else ((x.shape, x.dtype),)


def broadcast(*shapes: Shape) -> Shape | None:
    """Return the shape to which all arguments broadcast; None if they do not broadcast."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def real_dtype(dtype: Any) -> Any:
    """Return the dtype of the absolute values of floats and complex numbers."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def reduction(dtype: Callable[[Any], Any], *, empty: bool = True) -> Callable[..., Result | None]:
    """Make the shape rule of a reduction, an op with the parameters ``axis`` and ``keepdims``.

    ``dtype`` maps the dtype of the elements to the dtype of the result, or to None if it is not known.  With
    ``empty=False`` the rule returns None for a reduction of no elements, which is an error.
    """

    def rule(x: Any, axis: Any, keepdims: bool, **_: Any) -> Result | None:
        ndim, found = len(x.shape), dtype(x.dtype)
        axes = (axis,) if isinstance(axis, int) else axis
        if found is None or any(not -ndim <= a < 0 for a in axes) or len(set(axes)) < len(axes):
            return None
        if not empty and any(not x.shape[a] for a in axes):
            return None
        lengths = enumerate(x.shape, -ndim)
        return ((tuple([1 if a in axes else n for a, n in lengths if keepdims or a not in axes]), found),)

    return rule
