"""Conversion of numbers, nested lists and arrays to tensors.

All data from outside pass through ``array_of``.  ``tensor``, ``array`` and ``asarray`` are public.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from adjoint import words
from adjoint.config import get_default_dtype, special
from adjoint.core.conversion import check_conversion
from adjoint.core.lifted import Lifted, Unknown, tracing
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor, Traced, concrete, with_own_dtype, wrap
from adjoint.errors import ArgumentError, DTypeError, InputError, ShapeError, install_command
from adjoint.tracebacks import hide

if TYPE_CHECKING:
    from adjoint.typing import ArrayLike, DTypeLike

__all__ = [
    "DeviceName", "array", "array_of", "asarray", "check_cast", "check_device", "checked_dtype",
    "foreign_array", "made", "refuse_foreign", "refuse_masked", "resolved", "tensor", "weak_array",
    "weak_tensor",
]  # fmt: skip


def tensor(
    data: ArrayLike, *, dtype: DTypeLike | None = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """Make a leaf tensor with its own copy of ``data``.

    Parameters
    ----------
    data : array_like
        Numbers, nested lists, arrays or a tensor that is not part of a graph.
    dtype : dtype_like, optional
        The dtype.  The default is the dtype that NumPy chooses; Python floats get
        ``ad.get_default_dtype()``.
    device : str, optional
        Accepted for compatibility with other libraries; only ``"cpu"`` exists.
    requires_grad : bool
        Whether operations on the tensor are recorded.

    Returns
    -------
    Tensor
        The tensor.

    Raises
    ------
    ArgumentError
        If ``device`` is not "cpu".
    LostHistoryError
        If ``data`` is or contains a tensor that requires grad.

    Examples
    --------
    >>> tensor([[1, 2], [3, 4]])
    tensor([[1, 2],
            [3, 4]], dtype=int64)
    """
    try:
        check_device("tensor", device)
        if isinstance(data, Tensor):
            check_conversion(data, "a new leaf", "Use x itself or x.clone(), which keep the graph.")
        elif special.count and tracing.get() is not None and _is_traced(data):
            data = asarray(data, dtype=dtype)
        if type(data) is Traced and data._data.numbers() is None:
            fresh = data.detach()
            if dtype is not None:
                fresh = _cast_tensor(fresh, checked_dtype(dtype))
        else:
            fresh = made(wrap(np.array(_array_of(data, dtype), copy=True, order="C")), data)
        return fresh.requires_grad_() if requires_grad else fresh
    except Exception as error:
        hide(error)
        raise


def array(data: ArrayLike, *, dtype: DTypeLike | None = None, copy: bool = True) -> Tensor:
    """Make a tensor from numbers, arrays, tensors and nested lists; gradients flow to the tensors in them.

    Parameters
    ----------
    data : array_like
        The values.
    dtype : dtype_like, optional
        The dtype.  The default is the common dtype of the values.
    copy : bool
        If False, a tensor is returned as it is, without a copy.

    Returns
    -------
    Tensor
        The tensor.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.grad(lambda x: (ad.array([x[0] ** 2, x[1], 1.0]) * x).sum())(ad.tensor([1.0, 2.0, 3.0]))
    tensor([3., 4., 1.], dtype=float64)
    """
    return asarray(data, dtype=dtype, copy=copy or None)


def asarray(
    data: ArrayLike, *, dtype: DTypeLike | None = None, device: Any = None, copy: bool | None = None
) -> Tensor:
    """Return ``data`` as a tensor; a tensor is returned unchanged, anything else is copied.

    Gradients flow to tensors inside nested lists.

    Parameters
    ----------
    data : array_like
        The values.
    dtype : dtype_like, optional
        The dtype.
    device : {"cpu"}, optional
        Accepted for the Array API standard; only ``"cpu"`` exists.
    copy : bool, optional
        If True, a tensor is copied too.  If False, an error is raised if a copy is necessary.

    Returns
    -------
    Tensor
        The tensor.

    Raises
    ------
    ArgumentError
        If ``copy=False`` and a copy is necessary.

    Examples
    --------
    >>> import adjoint as ad
    >>> x = ad.tensor([1.0, 2.0])
    >>> ad.asarray(x) is x
    True
    """
    try:
        if device is not None:
            check_device("asarray", device)
        if isinstance(data, Tensor):
            if dtype is not None and (target := checked_dtype(dtype)) != data.dtype:
                if copy is False:
                    raise ArgumentError(
                        f"asarray: {data.dtype} cannot be converted to {target} without a copy.  "
                        "Omit copy=False."
                    )
                return _cast_tensor(data, target)
            return data.clone() if copy else data
        if copy is False:
            raise ArgumentError(
                f"asarray: {words.a(type(data).__name__)} cannot be converted to a tensor without a copy.  "
                "Omit copy=False."
            )
        if isinstance(data, Unknown) and data.weak:
            return data.as_tensor(_number_dtype(data, dtype))
        if isinstance(data, (list, tuple)) and _has_history(data):
            return _stacked(data, _shared_dtype(data) if dtype is None else checked_dtype(dtype))
        array = _array_of(data, dtype)
        fresh = (
            array.base is None and array is not data and isinstance(data, (list, tuple, int, float, complex))
        )
        return made(wrap(array if fresh else array.copy()), data)
    except Exception as error:
        hide(error)
        raise


def _number_dtype(number: Any, dtype: Any) -> np.dtype[Any]:
    """Return the dtype of the tensor made from ``number``, a Python number traced by ``ad.compile``.

    ``dtype`` is the dtype that the user asked for, or None.
    """
    if dtype is None:
        return get_default_dtype() if number.dtype.char == "d" else number.dtype
    check_cast(number.dtype, target := checked_dtype(dtype))
    return target


def made(t: Tensor, data: Any = None) -> Tensor:
    """Return ``t``, a tensor that was just made; inside ``ad.compile``, make it a traced tensor.

    ``data`` is the array that ``t`` was copied from, if any.
    """
    trace = tracing.get() if special.count else None
    return t if trace is None else trace.made(t, data)


def array_of(value: ArrayLike, dtype: DTypeLike | None = None) -> ndarray[Any, Any]:
    """Return ``value`` (tensor, array, number, nested list) as a plain numeric array.

    Memory may be shared: copy the array to keep it.  If this is called while ``ad.compile`` traces, the
    compiled program is valid only while the array has these values.
    """
    if special.count and (trace := tracing.get()) is not None:
        trace.fix(value)
    return _array_of(value, dtype)


def _array_of(value: Any, dtype: Any = None) -> ndarray[Any, Any]:
    if isinstance(value, Tensor):
        data = concrete(value, "this")
        return data if dtype is None else _cast(data, checked_dtype(dtype), value)
    if isinstance(value, Unknown) and value.weak:
        value = value.kind(value)  # the program is valid for this number only
    elif isinstance(value, Lifted):
        raise InputError(
            "a value inside a transform cannot be converted to an array.\n"
            "  Compute with ad functions instead."
        )
    if type(value) is not ndarray:
        refuse_foreign(value)
        refuse_masked(value)
        if isinstance(value, (list, tuple)) and not _all_numbers(value):
            value = _unwrap_nested(value)
    try:
        data = np.asarray(value)
    except (ValueError, TypeError) as error:
        if "inhomogeneous" in str(error):
            raise ShapeError(
                "the nested list is ragged: its rows differ in length, so it has no shape.\n"
                "  Pad the rows to one length, or make one tensor per row."
            ) from None
        if hasattr(value, "tocoo"):
            raise _no_numbers(value) from None
        raise InputError(f"cannot make a tensor from {words.a(type(value).__name__)}: {error}") from None
    data = _numeric(data, value)
    if dtype is not None:
        data = _cast(data, checked_dtype(dtype), value)
    elif data.dtype.char == "d" and _python_floats(value):
        data = data.astype(get_default_dtype(), copy=False)
    return data


def _cast(data: ndarray[Any, Any], target: np.dtype[Any], value: Any) -> ndarray[Any, Any]:
    """Return the array ``data`` cast to ``target``; raise if a number is out of range.

    ``value`` is what ``data`` was made from.
    """
    check_cast(data.dtype, target)
    try:
        if target.kind in "iu" and isinstance(value, (list, tuple, int)):
            return np.asarray(value, target)  # raises where a number does not fit
        return data.astype(target, copy=False)
    except (OverflowError, ValueError, TypeError) as error:
        raise DTypeError(f"cannot make a {target} tensor from this value: {error}") from None


def _cast_tensor(t: Tensor, target: np.dtype[Any]) -> Tensor:
    """Return a tensor converted to the dtype ``target``; the conversion is recorded."""
    check_cast(t.dtype, target)
    return t if t.dtype == target else rec.astype(t, dtype=target)


def check_cast(source: np.dtype[Any], target: np.dtype[Any], where: str = "") -> None:
    """Raise if a cast from ``source`` to ``target`` would drop the imaginary part.

    ``where`` is the start of the error message, such as the name of a function.
    """
    if source.kind == "c" and target.kind != "c":
        raise DTypeError(
            f"{where}{source} to {target} would drop the imaginary part.  Use x.real if that is meant."
        )


def _no_numbers(value: Any) -> DTypeError:
    instead = "Put the numbers of an iterable into a list first: ad.tensor(list(values))."
    if hasattr(value, "tocoo"):
        instead = "Write a sparse matrix on the left: ad.scipy.sparse.csr_array(a) @ x.  For x @ a, use a.T."
    return DTypeError(
        f"cannot make a tensor from {words.a(type(value).__name__)}: use numbers, arrays or nested lists.\n"
        f"  {instead}"
    )


def _numeric(data: ndarray[Any, Any], value: Any) -> ndarray[Any, Any]:
    kind = data.dtype.kind
    if kind in "biufc" or data.dtype.name == "bfloat16":
        return with_own_dtype(data)
    if kind == "O" and not isinstance(value, (list, tuple, ndarray)):
        raise _no_numbers(value)
    what = {"O": "Python objects", "U": "strings", "S": "bytes"}.get(kind, f"dtype {data.dtype}")
    raise DTypeError(
        f"a tensor must contain numbers, but this {type(value).__name__} contains {what}.\n"
        "  Convert them first, for example np.asarray(values, dtype=float)."
    )


def _python_floats(value: Any) -> bool:
    """Return whether ``value`` is a number or a list of Python numbers: floats then get the default dtype."""
    return type(value) in _NUMBERS or (isinstance(value, (list, tuple)) and _all_numbers(value))


_NUMBERS = frozenset((float, int, bool, complex))


def _all_numbers(value: Any, depth: int = 0) -> bool:
    """Return whether a nested list contains only Python numbers; each innermost list is checked in C.

    ``depth`` is the level of the list, counted from the outermost one.
    """
    kinds = set(map(type, value))
    if kinds <= _NUMBERS:
        return True
    nested = kinds <= {list, tuple} and depth < _DEEPEST
    return nested and all(_all_numbers(v, depth + 1) for v in value)


_DEEPEST = 64  # the largest number of axes of a NumPy array


def _unwrap_nested(value: Any, depth: int = 0) -> Any:
    """Replace tensors inside nested lists by their arrays; raise for tensors that are part of a graph.

    ``depth`` is the level of the list, counted from the outermost one.
    """
    if isinstance(value, (list, tuple)):
        if depth > _DEEPEST:
            raise ShapeError(
                f"the list has more than {_DEEPEST} levels of nesting, and an array cannot have so many axes."
            )
        return [_unwrap_nested(v, depth + 1) for v in value]
    refuse_foreign(value)
    if isinstance(value, Tensor):
        check_conversion(value, "part of a plain array", "Use ad.array(list), which is differentiable.")
        return concrete(value, "this")
    return value


def _has_history(value: Any, depth: int = 0) -> bool:
    """Return whether a nested list contains tensors that are part of a graph or of a transform.

    ``depth`` is the level of the list, counted from the outermost one.
    """
    if isinstance(value, (list, tuple)):
        return depth <= _DEEPEST and any(_has_history(v, depth + 1) for v in value)
    if isinstance(value, Tensor):
        return value._node is not None or type(value) is Traced or bool(special.count)
    return isinstance(value, Unknown)


def _is_traced(value: Any, depth: int = 0) -> bool:
    """Return whether a value is, or a nested list contains, a tensor or a number traced by ``ad.compile``.

    Raise if it contains a tensor that is part of a graph.
    """
    if isinstance(value, (list, tuple)):
        return depth <= _DEEPEST and any(_is_traced(v, depth + 1) for v in value)
    if isinstance(value, Tensor):
        check_conversion(value, "part of a new leaf", "Use ad.array(list), which is differentiable.")
        return True
    return isinstance(value, Unknown)


def _shared_dtype(value: Any) -> np.dtype[Any]:
    """Return the dtype of a nested list by NumPy's promotion rules.

    Python numbers in the list adapt to the dtype of the arrays.
    """
    found: list[Any] = []

    def visit(v: Any) -> None:
        if isinstance(v, (list, tuple)):
            for item in v:
                visit(item)
        else:
            if type(v) in _NUMBERS or isinstance(v, Unknown):
                found.append(v.__class__(1))
            else:
                found.append(v.dtype if isinstance(v, Tensor) else array_of(v).dtype)

    visit(value)
    shared = np.result_type(*found)
    return get_default_dtype() if shared.char == "d" and all(type(v) in _NUMBERS for v in found) else shared


def _stacked(value: Any, dtype: np.dtype[Any]) -> Tensor:
    """Stack a nested list that contains tensors into one tensor; the stacking is recorded."""
    if not isinstance(value, (list, tuple)):
        return asarray(value, dtype=dtype)
    parts = [_stacked(v, dtype) for v in value]
    if not parts:
        return wrap(np.empty(0, dtype))
    if any(p.shape != parts[0].shape for p in parts):
        raise ShapeError(
            "the nested list is ragged: its parts have shapes "
            f"{', '.join(dict.fromkeys(str(p.shape) for p in parts))}.\n"
            "  Give parts of equal shape, or join them with ad.concat."
        )
    return rec.stack(*parts, axis=-1 - parts[0].ndim)


_FOREIGN = ("torch", "jax", "jaxlib", "tensorflow", "mlx", "tinygrad", "cupy", "autograd")


def refuse_foreign(value: Any) -> None:
    """Raise if a value is a tensor of another library."""
    module = type(value).__module__.partition(".")[0]
    if module in _FOREIGN:
        raise InputError(
            f"got a {type(value).__module__}.{type(value).__qualname__}: adjoint does not accept "
            "tensors of other libraries,\n  because no gradient would flow between the libraries.  "
            "Convert it: ad.tensor(np.asarray(value)), or ad.from_dlpack(value)."
        )


def resolved(value: ArrayLike) -> Any:
    """Return a tensor of another library with pending conjugations and negations applied to its memory.

    PyTorch's ``conj()``, and ``imag`` of its result, only set a flag and leave the memory unchanged.  Neither
    DLPack nor the buffer protocol transmits the flag.
    """
    for name in ("resolve_conj", "resolve_neg"):
        resolve = getattr(value, name, None)
        value = resolve() if callable(resolve) else value
    return value


def foreign_array(what: str, value: Any) -> ndarray[Any, Any]:
    """Return the values of an array of another library, without a copy where possible.

    bfloat16 becomes float32.  No gradient flows back.  ``what`` starts the error message.
    """
    if getattr(value, "requires_grad", False) and hasattr(value, "detach"):
        value = value.detach()
    value = resolved(value)
    # NumPy reads neither bfloat16 nor PyTorch's complex32 through DLPack: such tensors are widened first
    is_complex = getattr(value, "is_complex", None)
    widened = getattr(value, "cfloat" if callable(is_complex) and is_complex() else "float", None)
    ways: list[Any] = [np.from_dlpack] if hasattr(value, "__dlpack__") else []
    ways += [np.asarray] + ([lambda _: np.from_dlpack(widened())] if callable(widened) else [])
    reason: Exception | None = None
    for way in ways:
        try:
            data: ndarray[Any, Any] = way(value)
        except Exception as error:  # a dtype or a device that NumPy does not know; the next way may work
            reason = reason or error
        else:
            if data.dtype != object:
                return data
    raise InputError(
        f"{what}cannot read a {type(value).__module__}.{type(value).__qualname__} as an array"
        f"{f' ({reason})' if reason else ''}.\n"
        "  Pass a NumPy array, an adjoint tensor, or a CPU array with DLPack or the buffer protocol."
    )


def refuse_masked(value: ArrayLike) -> None:
    """Raise if an array has masked elements, whose hidden values would become numbers."""
    if isinstance(value, ndarray) and np.any(getattr(value, "mask", False)):
        raise InputError(
            "some elements of this masked array are masked, and adjoint has no masks.\n"
            "  Fill them first: a.filled(0.0)."
        )


def weak_array(value: Any, dtype: np.dtype[Any]) -> ndarray[Any, Any]:
    """Return a Python number as an array of ``dtype`` if that can represent its type; else of NumPy's dtype.

    For example, a float with an integer ``dtype`` becomes float64.
    """
    # type(value)() is a number, which is weak in result_type; NumPy does not know that bfloat16 is a float
    if np.result_type(dtype, type(value)()) != dtype and dtype.kind != "V":
        return np.asarray(value)
    try:
        return np.asarray(value, dtype)
    except OverflowError:
        raise ArgumentError(f"{value} is out of range for a {dtype} tensor.") from None


def weak_tensor(value: Any, dtype: np.dtype[Any]) -> Tensor:
    """Return a value as a tensor; a Python number is converted to ``dtype`` as in ``weak_array``."""
    if type(value) in (bool, int, float):
        return wrap(weak_array(value, dtype))
    if isinstance(value, Unknown) and value.weak:
        return value.as_tensor(weak_array(value.kind(1), dtype).dtype)
    return asarray(value)


class DeviceName(str):
    """The device of a tensor whose values a compiled function has left there."""

    __slots__ = ()


def check_device(op: str, device: Any) -> None:
    """Raise for every device except "cpu"; None means "cpu".

    The ``device`` of another tensor is accepted, too: values move when they are used.
    """
    if device is not None and device != "cpu" and type(device) is not DeviceName:
        raise ArgumentError(
            f'{op}: tensors are made on "cpu", but got {device!r}.\n'
            "  Compile the function that uses the tensor: ad.compile(step, device=), with a name of "
            "ad.devices()."
        )


def checked_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return ``dtype`` as a NumPy dtype; raise if tensors cannot have it."""
    try:
        target = np.dtype(dtype)
    except TypeError:
        cure = (
            f"Use ml_dtypes.bfloat16.  Install it with: {install_command('bfloat16')}."
            if dtype == "bfloat16"
            else "Use a NumPy dtype, for example np.float32."
        )
        raise DTypeError(f"{dtype!r} is not a dtype.  {cure}") from None
    if target.kind not in "biufc" and target.name != "bfloat16":
        raise DTypeError(f"tensors must have a numeric dtype, but got {target}.")
    return np.dtype(target.type)
