"""``Symbolic``: a value in a trace, which has a shape and a dtype but no elements."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Never

import numpy as np

from adjoint.compiler.program.program import Host
from adjoint.core.lifted import Lifted, Unknown, enclosing, located, refusal
from adjoint.core.methods import attach
from adjoint.core.namespace import dyn
from adjoint.core.native import NotNative
from adjoint.core.tensor import Tensor, wrap
from adjoint.core.user_code import user_line
from adjoint.engine.zeros import may_have_nan
from adjoint.errors import TransformError
from adjoint.ops.index import is_basic

if TYPE_CHECKING:
    from adjoint.compiler.capture.trace import Trace
    from adjoint.core.op import Op

__all__ = [
    "ADD_INTO", "EXACT", "NUMBERS", "SAME", "UNKNOWN", "Nonzero", "Number", "Root", "Symbolic",
    "add_in_place", "copying", "ended_error", "plain", "refused",
]  # fmt: skip

_FLOAT64 = np.dtype(np.float64)
_TENSOR: Any = Tensor  # Any, because its methods for NumPy are attached at runtime


class Symbolic(Unknown):
    """A value inside ``ad.compile``: each op on it adds an instruction to the program.

    ``known`` is the array of a constant that was made inside the trace; None for other values.
    """

    __slots__ = ("dtype", "id", "known", "shape", "trace")
    transform = "ad.compile"
    weak = False

    def __init__(self, trace: Trace, shape: tuple[int, ...], dtype: Any) -> None:
        self.trace = trace
        self.level = trace.level
        self.shape = shape
        self.dtype = dtype
        self.known: Any = None
        self.id = trace.program.count
        trace.program.count += 1

    def lift(self, value: Any) -> Symbolic:
        """Return the symbol of a tensor or an array that was made outside of the trace."""
        self.check_running()
        return self.trace.value(value)

    def detached(self) -> Symbolic:
        """Return this value itself, because in a trace no value is connected to graphs outside."""
        return self

    def adopt(self, leaf: Any) -> None:
        """Replace the array of the tensor ``leaf`` by a symbol, until the end of the trace."""
        self.check_running()
        self.trace.capture(leaf)

    def marker(self) -> Root:
        """Return the marker of the trace, which is the value of the context variable ``enclosing``."""
        return Root(self.trace)

    def release(self) -> list[Any]:
        """Do nothing: the trace restores the tensors it captured when it ends."""
        return []

    def numbers(self) -> Any:
        """Return the array if this value is a known constant, otherwise None."""
        return self.known

    def check_running(self) -> None:
        """Raise if the trace has ended, is paused, or runs in another thread.

        It has ended if the function stored this value instead of returning it.
        """
        if self.trace.ended or self.trace.paused:
            raise ended_error(self)
        self.trace.check_thread()

    def evaluate(self, op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        """Add an instruction to the program; return the symbols of its results."""
        return self.trace.emit(op, args, params)

    @property
    def alone(self) -> bool:  # type: ignore[override]  # a class attribute of other values
        """Whether the program runs without Python."""
        return self.trace.alone

    def decide(self, function: Callable[[Any], Any]) -> Any:
        """Return ``function(array)`` for the array that this value has in the current call.

        The result is guarded: a call for which the result differs is traced again.
        """
        return self.trace.decide(function, self)

    def check(self, function: Callable[[Any], Any], wrong: Callable[..., Any] | None = None) -> None:
        """Make the program call ``function`` with this value's array at each call; it may raise.

        Native code computes ``wrong(xp, x)`` instead: whether each element is invalid.
        """
        lower = None if wrong is None else partial(_native_check, wrong)
        self.trace.call("check", function, [self], [], pure=False, lower=lower)

    def explain(self, function: Callable[[Any], None]) -> None:
        """Register a function that explains an IndexError of the compiled program.

        ``function`` is called with the actual array of this symbol, and may raise a clearer error.
        """
        self.trace.indices.append((function, self))

    def views(self, other: Any) -> bool:
        """Return whether this value is ``other``, or a view of it made by the last instruction."""
        if other is self:
            return True
        body = self.trace.program.body
        return bool(body) and body[-1].op.memory == "view" and body[-1].args[0] is other

    def __iadd__(self, other: Any) -> Any:
        return self._overwrites(self + other)

    def __isub__(self, other: Any) -> Any:
        return self._overwrites(self - other)

    def __imul__(self, other: Any) -> Any:
        return self._overwrites(self * other)

    def __itruediv__(self, other: Any) -> Any:
        return self._overwrites(self / other)

    def _overwrites(self, result: Any) -> Any:
        """Return ``result``; note that eager mode writes it into the array of this value."""
        body = self.trace.program.body
        if body and len(body[-1].outs) == 1 and body[-1].outs[0] is result:
            body[-1].in_place = True
        cast = not self.weak and result.dtype != self.dtype
        return dyn.astype(result, dtype=self.dtype) if cast else result

    def as_number(self, kind: type | None = None) -> Number:
        """Return the only element as a symbolic Python number; its type is ``kind``, or that of the dtype."""
        return self.trace.number_of(_ITEM, (self,), kind or type(np.zeros((), self.dtype).item()))

    def choose(self, a: Any, b: Any) -> Number:
        """Return a symbolic Python number: ``a`` in calls where this condition is true, else ``b``."""
        return self.trace.number_of(_CHOOSE, (self, a, b), a.__class__)

    def as_tensor(self, dtype: Any) -> Tensor:
        """Return this value as a tensor of a dtype; a Python number is converted as by ``asarray``."""
        return wrap(self.trace.call_host(copying(dtype), [self], [(self.shape, np.dtype(dtype))])[0])

    def keep_zeros(self, live: Any) -> Symbolic:
        """Return this gradient; in calls where it contains NaN, with zeros where ``live`` is false."""
        return self.trace.call_host(_KEEP_ZEROS, (self, live), [(self.shape, self.dtype)])[0]

    def add_into(self, total: Any, key: Any) -> Symbolic:
        """Return ``total`` with this gradient added at the index ``key``."""
        return self.trace.call_host(ADD_INTO, (total, self), [(total.shape, total.dtype)], {"key": key})[0]

    def any_nan(self, values: Any) -> Symbolic:
        """Return a symbolic bool: True if one of ``values`` contains NaN.

        ``where(condition, a, b)`` with this condition computes ``a`` only in calls where it is true.
        """
        (found,) = self.trace.call_host(_ANY_NAN, tuple(values), [((), np.dtype(bool))])
        self.trace.conditions.add(found.id)
        return found

    def _is_no_array(self) -> Never:
        """Raise: another thread reads this value as if it were the array of a tensor.

        All attributes of arrays call this.  A ``__getattr__`` would slow down all attributes.
        """
        self.check_running()
        raise AttributeError("a value of ad.compile is not an array")

    def _refuse(self, *_: Any) -> Never:
        self.check_running()
        raise refusal(
            TransformError(
                f"{user_line()} needs a number that is not known while ad.compile traces the function.\n"
                "  Use ad.where(condition, a, b) in place of an if.  To read the number, return it from the "
                "function."
            )
        )

    def __repr__(self) -> str:
        return f"<value of ad.compile, shape {self.shape}, {self.dtype}>"

    def __str__(self) -> str:
        return f"%{self.id}"


attach(
    Symbolic,
    **{
        k: property(Symbolic._is_no_array)
        for k in dir(np.ndarray)
        if k[0] != "_" and not hasattr(Symbolic, k)
    },
    **dict.fromkeys(("__bool__", "__float__", "__int__", "__complex__", "__index__"), Symbolic._refuse),
)


def refused(text: str) -> TransformError:
    """Return a TransformError for something that is not possible in a trace, with the user's line."""
    return refusal(TransformError(located(text)))


def ended_error(value: Any) -> TransformError:
    """Return the error for a value that is used after its trace; it names the line that computed it."""
    was = "computed"
    if isinstance(value, Symbolic):
        program = value.trace.program
        if any(s.value is value for s in program.sources if s.kind == "argument"):
            was = "an argument"
        for line in (i.line for i in program.body if any(out is value for out in i.outs)):
            was = f"computed at {line}"
    what, values = ("number", "value") if isinstance(value, Number) else ("tensor", "values")
    return refusal(
        TransformError(
            f"this {what} was {was} while ad.compile traced a function, and has no {values} outside of it.\n"
            "  Return it from the compiled function; values that the function stores elsewhere are not "
            "kept.\n"
            "  For a cache, compute the value once before the first compiled call."
        )
    )


def add_in_place(total: Any, g: Any, key: Any) -> Any:
    """Compute ``total[key] += g`` on an array that nothing else uses; return ``total``."""
    total[key] += g
    return total


def _add_into(total: Any, g: Any, key: Any) -> Any:
    return add_in_place(np.array(total), g, key)


def _any_nan(*tangents: Any) -> Any:
    return np.asarray(any(map(may_have_nan, tangents)))


def _native_check(wrong: Callable[..., Any], xp: Any, x: Any) -> list[Any]:
    if x.size:
        flags = xp.graph.copied(wrong(xp, x))
        xp.graph.checks.append(xp.any(xp.flat(flags), axis=(0,), keepdims=False))
    return []


def _native_add_into(xp: Any, total: Any, g: Any, key: Any) -> Any:
    key = key if isinstance(key, tuple) else (key,)
    if not is_basic(key):
        raise NotNative("adding at positions that index arrays give has no native form")
    return xp.index_set(total, xp.cast(total[key] + g, total.dtype), key=key)


def _native_any_nan(xp: Any, *tangents: Any) -> Any:
    flags = [xp.any(xp.flat(xp.graph.copied(t != t)), axis=(0,), keepdims=False) for t in tangents]
    return functools.reduce(xp.logical_or, flags)


def _native_exact(xp: Any, flag: Any, first: Any, other: Any) -> Any:
    """Return ``first``; in calls with the flag the program runs again in NumPy, which computes ``other``."""
    xp.graph.checks.append(flag)
    return first


_ITEM = Host(
    "item", lambda a: a.item(), lower=lambda xp, a: xp.number(xp.graph.reshape(xp.cast(a, _FLOAT64), ()))
)
_CHOOSE = Host("choose", lambda flag, a, b: a if flag else b)
ADD_INTO = Host("add_into", _add_into, lower=_native_add_into, batch="sum")
_ANY_NAN = Host("any_nan", _any_nan, lower=_native_any_nan, batch="condition")
# The last argument of these two is computed only if ``when(first argument)`` is true.
_KEEP_ZEROS = Host(
    "keep_zeros", lambda g, live: np.where(live, g, np.asarray(0, g.dtype)), when=may_have_nan,
    lower=lambda xp, g, live: xp.where(xp.logical_or(live, g == g), g, 0), batch="elementwise",
)  # fmt: skip
OTHER = Host(
    "other", lambda flag, first, other: other, when=bool,
    lower=lambda xp, flag, first, other: xp.where(flag, other, first), batch="choice",
)  # fmt: skip

EXACT = Host("exact", OTHER.forward, when=bool, lower=_native_exact, batch="choice")


def copying(dtype: Any) -> Host:
    """Return the function that copies an array or a number to an array of a dtype."""
    wanted = np.dtype(dtype)
    form = lambda xp, x: xp.strong(xp.cast(x, wanted))
    return Host("copy", partial(np.array, dtype=dtype), lower=form, batch="elementwise")


class Root(Symbolic):
    """The marker of a running trace, which is the value of the context variable ``enclosing``."""

    __slots__ = ()

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.level = trace.level
        self.outer = enclosing.get()
        self.shape, self.dtype, self.known, self.id = (), _FLOAT64, None, -1


class Number(Symbolic):
    """A symbolic Python number: an argument, a hyper-parameter of an optimiser, or a result of arithmetic.

    Arithmetic with Python numbers returns another ``Number``, which Python computes at each call.  In
    arithmetic with an array the result has the dtype of the array.  ``kind`` is the type that the number has
    in eager mode; ``isinstance(number, kind)`` is True.
    """

    __slots__ = ("kind", "now")
    weak = True

    def __init__(self, trace: Trace, kind: type = float, now: Any = None) -> None:
        super().__init__(trace, (), _DTYPES[kind])
        self.kind = kind
        self.now = UNKNOWN if now is None else now  # in the call that is traced; UNKNOWN if tensors decide it

    @property  # type: ignore[misc]  # object.__class__ can be assigned, this property cannot
    def __class__(self) -> Any:
        """Return the type that the number has in eager mode."""
        return self.kind

    def _read(self, function: Callable[[Any], Any]) -> Any:
        """Return ``function(number)`` for the number in the current call, and guard the result."""
        self.check_running()
        found = self.trace.read_number(function, self)
        return self._refuse() if found is NotImplemented else found

    def fixed(self) -> Any:
        """Return the number as a plain Python number, and guard its value."""
        return self._read(SAME.forward)

    def __bool__(self) -> bool:
        return bool(self._read(bool))

    def __int__(self) -> int:
        return int(self.fixed() if self.kind is int else self._read(int))

    def __float__(self) -> float:
        return float(self._read(float))

    def __complex__(self) -> complex:
        return complex(self._read(complex))

    def __index__(self) -> int:
        return operator.index(self.fixed() if self.kind is int else self._read(operator.index))

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return np.array(self._read(self.kind), *args, **kwargs)

    def __hash__(self) -> int:
        return hash(self.fixed()) if self.kind is int else int(self._read(hash))

    def __format__(self, spec: str) -> str:
        return str(self._read(partial(_formatted, spec)))

    def __repr__(self) -> str:
        return super().__repr__() if self.trace.ended else str(self._read(repr))

    def __str__(self) -> str:
        return super().__str__() if self.trace.ended else str(self._read(str))

    def __copy__(self) -> Number:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Number:
        return self

    def __floor__(self) -> Any:
        return self if self.kind is int else self._read(math.floor)

    def __ceil__(self) -> Any:
        return self if self.kind is int else self._read(math.ceil)

    def __trunc__(self) -> Any:
        return self if self.kind is int else self._read(math.trunc)

    def __round__(self, digits: int | None = None) -> Any:
        return self._read(round) if digits is None else self.trace.number_of(_ROUND, (self, digits))

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if all(isinstance(a, _KINDS) and not isinstance(a, np.generic) for a in inputs):
            # NumPy would convert them to arrays, which are not weak
            inputs = tuple([a.as_tensor(a.dtype) if isinstance(a, Number) else a for a in inputs])
        return _TENSOR.__array_ufunc__(self, ufunc, method, *inputs, **kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _TENSOR.__array_function__(self, function, types, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(self.kind, name):
            raise AttributeError(f"{self.kind.__name__!r} object has no attribute {name!r}")
        return getattr(self.fixed(), name) if self.kind is int else self._read(operator.attrgetter(name))


class Nonzero(Number):
    """A symbolic number that is never 0, such as a hyper-parameter; a guard checks this at each call."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return True


NUMBERS = (float, int)  # the types of Python numbers that a program can read at each call
UNKNOWN: Any = object()  # the value of a number that depends on tensors
_KINDS = (float, int, bool, complex)
_DTYPES: dict[type, Any] = {kind: np.dtype(kind) for kind in _KINDS}


def _formatted(spec: str, number: Any) -> str:
    return format(number, spec)


def _pow(x: Any, y: Any) -> Any:
    found = x**y
    if isinstance(found, complex) and not isinstance(x, complex) and not isinstance(y, complex):
        raise TransformError(
            f"ad.compile: {x!r} ** {y!r} is complex, but it was real when the function was traced.\n"
            "  Use ad.tensor(x) ** y, which returns NaN, or (x + 0j) ** y, which is always complex."
        )
    return found


def _of_numbers(name: str, primitive: str, xp: Any, *args: Any) -> Any:
    """Add an elementwise primitive on Python floats to the graph; return its result.

    ``name`` is the name of the Python operator.
    """
    views = [xp.graph.constant(float(a)) if isinstance(a, (int, float)) else a for a in args]
    if any(v.dtype != _FLOAT64 for v in views):
        raise NotNative(f"{name} of Python integers is computed by Python")
    return xp.number(xp.graph.elementwise(primitive, _FLOAT64, *views))


def _host(name: str, function: Callable[..., Any], primitive: str | None = None) -> Host:
    """Return the operator ``name`` of Python numbers.

    ``primitive`` computes it on floats; None if Python may raise an error, as in a division by zero.
    """
    return Host(name, function, lower=partial(_of_numbers, name, primitive) if primitive else None)


SAME = Host("same", lambda x: x)
_ROUND = Host("round", round)
_QUOTIENT = _host("truediv", operator.truediv, "divide")  # of a divisor that is not 0
_SAFE = {"add": "add", "sub": "subtract", "mul": "multiply", "neg": "negative", "abs": "abs"}
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "pow": _pow,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "lshift": operator.lshift,
    "rshift": operator.rshift,
}
_OF_COUNTS = ("pow", "lshift", "rshift")
# never equal to a number, or compared by their own method
_REFLECTED = (str, bytes, type(None), tuple, list, dict, set, frozenset, np.ndarray, Tensor)
_COMPARISONS = {name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}


def _binary(host: Host, method: str, reflected: bool) -> Callable[[Number, Any], Any]:
    """Return the operator method ``method`` of ``Number``, for example of ``+``.

    With two Python numbers, the method adds a call of ``host`` to the program; with a value of the trace, it
    adds the op.  If ``reflected`` is true, the operands are exchanged.
    """

    def call(self: Number, other: Any) -> Any:
        if not isinstance(other, Number) and type(other) not in _KINDS:
            if isinstance(other, Lifted):
                return getattr(Lifted, method)(self, other)
            if host.name in _COMPARISONS and not isinstance(other, _REFLECTED):
                if isinstance(other, np.generic):
                    return self.trace.number_of(host, (self, other), bool)
                # a Decimal, for example, is not equal to an object that is no float
                return self._read(partial(_swapped, host.forward, other))
            base = next((k for k in (int, float, complex) if isinstance(other, k)), None)
            if base is None or isinstance(other, np.generic) or _overrides(other, base, host.name):
                return NotImplemented  # tensors, arrays and other objects have reflected operators
            other = base(other)
        args = (other, self) if reflected else (self, other)
        if host.name in _OF_COUNTS and isinstance(args[0], int) and isinstance(args[1], int):
            bool(args[1] >= 0)  # otherwise a power is a float, and a shift is an error
        safe = host.name == "truediv" and _is_nonzero(args[1])
        return self.trace.number_of(_QUOTIENT if safe else host, args)

    return call


def _swapped(function: Callable[[Any, Any], Any], second: Any, first: Any) -> Any:
    return function(first, second)


def _overrides(value: Any, base: type, name: str) -> bool:
    """Return whether the class of ``value``, a subclass of ``base``, has its own operator ``name``."""
    methods = [f"__{name}__", f"__r{name}__"]
    return any(getattr(type(value), m, None) is not getattr(base, m, None) for m in methods)


def _is_nonzero(a: Any) -> bool:
    """Return whether it is certain that a number is not 0."""
    return isinstance(a, Nonzero) or (type(a) in _KINDS and bool(a))


def _unary(host: Host) -> Callable[[Number], Number]:
    return lambda self: self.trace.number_of(host, (self,))


for _name, _function in _ARITHMETIC.items():
    for _r in ("", "r"):
        _method = f"__{_r}{_name}__"
        attach(Number, **{_method: _binary(_host(_name, _function, _SAFE.get(_name)), _method, bool(_r))})
for _name, _function in _COMPARISONS.items():
    _method = f"__{_name}__"
    attach(Number, **{_method: _binary(Host(_name, _function), _method, False)})
for _name in ("neg", "pos", "abs", "invert"):
    attach(Number, **{f"__{_name}__": _unary(_host(_name, getattr(operator, _name), _SAFE.get(_name)))})


def plain(value: Any) -> Any:
    """Return a parameter of an op with plain numbers in place of symbolic ones, whose values are guarded."""
    kind = type(value)
    if issubclass(kind, Number):
        return value.fixed()
    if kind is slice:
        return slice(plain(value.start), plain(value.stop), plain(value.step))
    if kind is tuple or kind is list:
        return kind([plain(v) for v in value])
    return {k: plain(v) for k, v in value.items()} if kind is dict else value
