"""Base classes of the values inside transforms: batched, dual and symbolic arrays.

A transform runs the user's function on tensors whose data is a ``Lifted`` value (a *lifted* value).  Each use
of a transform has a *level*; inner transforms have higher levels.  An op on values of several levels is
evaluated by the innermost transform, for which all other values are constants.  A lifted value may contain
arrays, values of outer levels, or tensors of outer levels, whose operations are recorded as usual.  So
transforms nest in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from adjoint.context import enclosing as enclosing
from adjoint.context import tracing as tracing
from adjoint.context import within
from adjoint.core.shapes import Shaped
from adjoint.core.user_code import same_in_adjoint, user_line
from adjoint.errors import InputError, TransformError

if TYPE_CHECKING:
    from abc import abstractmethod

    from adjoint.core.op import Op

__all__ = [
    "Lifted", "UnexpectedError", "Unknown", "enclosing", "level_of", "located", "made_by_host", "next_level",
    "refusal", "refuse_tracing", "run_at", "running", "tracing",
]  # fmt: skip

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)

next_level: Callable[[], int] = count(1).__next__


def refusal(error: E, traced: bool = True) -> E:
    """Return ``error``; if ``traced``, note it in the running trace of ``ad.compile``.

    Such an error is raised only in a trace, not in eager code.  If the function catches it, the trace raises
    it again at the end.
    """
    trace = tracing.get() if traced else None
    if trace is not None and trace.refused is None:
        trace.refused = error
    return error


def located(text: str, traced: bool = True) -> str:
    """Return ``text``; if ``traced`` is true, with the user's line before it."""
    return f"{user_line()}: {text}" if traced else text


def refuse_tracing(what: str, cure: str, done: str = "used") -> None:
    """Raise TransformError if ``ad.compile`` is tracing, because ``what`` cannot be used there.

    ``cure`` says what to write instead, and ``done`` is what is done with ``what``, such as "created".
    Callers check ``special.count`` first: if it is 0, no transform or context is active.
    """
    if tracing.get() is not None:
        text = f"{what} cannot be {done} inside ad.compile.\n  {cure}"
        raise refusal(TransformError(located(text)))


def made_by_host(make: Callable[[], Any], shape: tuple[int, ...], dtype: Any, form: Any = None) -> Any:
    """Return ``make()``, an array that no op computes, such as random numbers.

    Inside ``ad.compile``, return a symbol instead; the compiled function calls ``make`` at each call, in the
    same order.  ``form`` describes the draw for code without Python: a tuple of its kind, the generator and
    the options, as in ``exports.draws``.
    """
    trace = tracing.get()
    return make() if trace is None else trace.draw(make, shape, dtype, form)


def run_at(value: Any, function: Callable[..., T], *args: Any) -> T:
    """Return ``function(*args)``, called inside the transform of ``value``, even if that has ended."""
    if not isinstance(value, Lifted):
        return within(enclosing, None, function, *args)
    top = value.marker()
    try:
        return within(enclosing, top, function, *args)
    finally:
        top.release()


class UnexpectedError(Exception):
    """Raised inside a compiled program: a value is not as the trace assumed.

    Nothing has been written; the compiled function then calls the original function.
    """


class Lifted(Shaped):
    """Base class of the array-like values inside transforms; operators are installed from the op table."""

    __slots__ = ("level", "outer")
    __array_ufunc__: Any = None  # so that ndarray * lifted calls lifted.__rmul__
    transform = "a transform"  # its name in messages

    level: int
    outer: Lifted | None  # the value of ``enclosing`` before this one was set
    shape: Any  # the shape the user's function sees
    dtype: Any

    def __array__(self, *_: Any, **__: Any) -> Any:
        self.check_running()
        raise refusal(
            InputError(
                f"a value inside {self.transform} cannot be converted to an array.\n"
                f"  {same_in_adjoint() or 'Compute with ad functions instead.'}"
            ),
            isinstance(self, Unknown),
        )

    def numbers(self) -> Any:
        """Return the values as a plain array; None if they are unknown or differ between batch elements."""
        return None

    def check_running(self) -> None:
        """Raise if this value has no elements because its transform has ended."""

    def has_history(self) -> bool:
        """Return whether this value contains a tensor of an outer level that requires grad."""
        return False

    if TYPE_CHECKING:  # methods of every subclass; abc would slow down isinstance, which the hot path calls

        @abstractmethod
        def detached(self) -> Lifted:
            """Return the same values, disconnected from the graphs of tensors of outer levels."""

        @abstractmethod
        def adopt(self, leaf: Any) -> None:
            """Replace the data of a tensor by a value of this transform, so that it can be a leaf inside.

            The tensor then belongs to this transform, not to the code outside.  ``release`` restores it.
            """

        @abstractmethod
        def marker(self) -> Lifted:
            """Return the marker of this transform: the value of ``context.enclosing`` while it runs."""

        @abstractmethod
        def release(self) -> list[Any]:
            """Restore the tensors passed to ``adopt``; return those that were assigned lifted values."""

        @abstractmethod
        def lift(self, value: Any) -> Lifted:
            """Return an array, or a value or tensor of an outer level, as a constant of this transform."""

        @abstractmethod
        def evaluate(self, op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
            """Evaluate ``op`` and return its result; called on the argument that has the innermost level."""


class Unknown(Lifted):
    """Base class of traced values: arrays whose elements are not known yet.

    ``weak`` is true for a traced Python number, which gets the dtype of the arrays that it is combined with.
    ``kind`` is then the type of the number.
    """

    __slots__ = ()
    weak = False
    kind: Any = None
    alone = False  # whether the program runs without Python, so that conditions of Python are to be avoided

    if TYPE_CHECKING:

        @abstractmethod
        def decide(self, function: Callable[[Any], Any]) -> Any:
            """Return ``function(array)`` for the array that this value has in the current call."""

        @abstractmethod
        def check(self, function: Callable[[Any], Any], wrong: Callable[..., Any] | None = None) -> None:
            """Make the compiled function call ``function`` with the array at each call."""

        @abstractmethod
        def explain(self, function: Callable[[Any], None]) -> None:
            """Register a function that is called with the array if a call raises IndexError.

            It may raise a clearer error.
            """

        @abstractmethod
        def views(self, other: Any) -> bool:
            """Return whether this value may be a view of ``other``, the value that it was computed from."""

        @abstractmethod
        def as_number(self) -> Any:
            """Return the only element as a traced Python number."""

        @abstractmethod
        def choose(self, a: Any, b: Any) -> Any:
            """Return a traced Python number: ``a`` in calls where this condition is true, else ``b``."""

        @abstractmethod
        def as_tensor(self, dtype: Any) -> Any:
            """Return a traced Python number as a tensor."""

        @abstractmethod
        def keep_zeros(self, live: Any) -> Any:
            """If this gradient has a NaN, return it with zeros where ``live`` is false, else unchanged."""

        @abstractmethod
        def add_into(self, total: Any, key: Any) -> Any:
            """Return ``total`` with this gradient added at the index ``key``."""

        @abstractmethod
        def any_nan(self, values: Any) -> Any:
            """Return a traced condition: whether one of these values has a NaN."""


def level_of(value: Any) -> int:
    """Return the nesting level of the transform that a value belongs to; 0 for an array."""
    return value.level if isinstance(value, Lifted) else 0


def running(level: int) -> Lifted:
    """Return the marker of the running transform with this level; raise if that transform has ended."""
    top = enclosing.get()
    while top is not None and top.level != level:
        top = top.outer
    if top is None:
        raise InputError(
            "a value of a transform is used after the transform has ended.\n"
            "  Return the value from the transformed function instead of storing it elsewhere."
        )
    return top
