"""``compile``: run a function of tensors, or a whole training step, as one program."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import numpy as np

from adjoint import tree
from adjoint.compiler.api.check import run_both
from adjoint.compiler.api.programs import Programs, shapes_of
from adjoint.compiler.api.variant import Variant
from adjoint.compiler.build import units
from adjoint.compiler.capture.arguments import Call, Parameters, check_unchanged, containers_in
from adjoint.compiler.emit.machine import binding, using
from adjoint.compiler.host.direct import Owner
from adjoint.config import compile_mode, held_across_fork, locked, special, tapes, transform
from adjoint.context import observer, user_code
from adjoint.core.convert import array_of
from adjoint.core.lifted import UnexpectedError, enclosing, tracing
from adjoint.core.record import anomaly, saved_hooks
from adjoint.core.tensor import wrap
from adjoint.errors import AdjointError, ArgumentError, InputError
from adjoint.tracebacks import hide
from adjoint.transforms.arrays import given_arrays, outermost, returned
from adjoint.transforms.inputs import as_function, name_of
from adjoint.words import count

__all__ = ["Compiled", "compile"]


BACKENDS = ("auto", "native", "replay")
P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")
_TRIED = 4  # programs whose guards are compared natively in a call, for arguments of some shapes
_PAUSED = inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction


@overload
def compile(
    f: Callable[P, R], *, static: Any = (), backend: str = "auto", limit: int | None = None,
    flush: bool = False, level: str | None = None, device: str = "cpu",
) -> Compiled[P, R]: ...  # fmt: skip
@overload
def compile(
    f: None = None, *, static: Any = (), backend: str = "auto", limit: int | None = None,
    flush: bool = False, level: str | None = None, device: str = "cpu",
) -> Callable[[Callable[P, R]], Compiled[P, R]]: ...  # fmt: skip
def compile(
    f: Any = None, *, static: Any = (), backend: str = "auto", limit: int | None = None,
    flush: bool = False, level: str | None = None, device: str = "cpu",
) -> Any:  # fmt: skip
    """Return a compiled version of ``f``: the first call traces it into a program that later calls run.

    Tensors, modules and optimisers that ``f`` uses need not be listed.  They are found by the trace, and read
    and updated at each call.  The "replay" backend returns exactly the values of ``f``; native code may
    differ from them by rounding.

    Parameters
    ----------
    f : callable
        A function of arrays, tensors, numbers and trees of them, such as a model, a loss or a whole training
        step.
    static : str, int, or tuple of them
        Names or positions of arguments.  Python numbers in these arguments become constants of the program,
        so a new value traces ``f`` again.  Strings, None and other objects are always constants.
    backend : {"auto", "native", "replay"}
        How programs run.  "replay" calls NumPy for each instruction.  "native" compiles programs to machine
        code with llvmlite.  "auto" uses replay for the first call of a program and native code after that;
        without llvmlite it always uses replay.
    limit : int, optional
        The largest number of programs to keep.  A new one replaces the least recently used.  By default as
        many are kept as fit into a tenth of the machine's memory.
    flush : bool
        Whether native kernels replace subnormal numbers (below 1.2e-38 in float32) by 0.  Arithmetic on
        subnormal numbers can be 100 times slower.  Calls of NumPy never replace them.
    level : str, optional
        The set of vector instructions of native code; by default the widest that the processor has.  With
        "portable", all processors and the libraries of ``ad.export`` give the same bits.  The names are
        "portable", "avx512", "avx2", "sse2", "neon" and "none".  Native code is then used from the first
        call, and it computes the numbers of optimisers too, such as the bias corrections of Adam.
    device : str
        The device that runs the program: "cpu", or one that ``ad.devices()`` lists, such as "opencl",
        "opencl:1" or "webgpu".  Parameters, gradients and the state of optimisers then stay on the device
        between calls, and are read when they are used.

    Returns
    -------
    Compiled
        The compiled function.

    Raises
    ------
    ArgumentError
        If ``limit``, ``backend`` or ``level`` is not valid, or if ``static`` lists something that is not a
        parameter.
    InputError
        If ``f`` is a generator function or an async function.
    MissingExtraError
        If ``backend`` is "native" or ``level`` is given, and llvmlite is not installed.

    Examples
    --------
    >>> import adjoint as ad
    >>> w = ad.tensor([1.0, 2.0], requires_grad=True)
    >>> @ad.compile
    ... def step(x):
    ...     w.grad = None
    ...     loss = ((w * x) ** 2).sum()
    ...     loss.backward()
    ...     return loss
    >>> step(ad.tensor([3.0, 4.0])).item(), w.grad.tolist()
    (73.0, [18.0, 64.0])
    """
    if f is None:
        options = {"static": static, "backend": backend, "limit": limit, "flush": flush, "level": level}
        return functools.partial(compile, device=device, **options)
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise ArgumentError(f"compile: limit must be an integer of at least 1, but got {limit!r}.")
    if backend not in BACKENDS:
        raise ArgumentError(f"compile: backend must be one of {', '.join(BACKENDS)}, but got {backend!r}.")
    if level is not None:
        backend = _native_level(level, backend, flush)
    if backend == "native":
        binding()
    if device != "cpu":
        backend = _on_device(device, backend, flush, level)
    for each in (as_function("compile", f), getattr(f, "forward", None), f.__call__):
        if any(is_kind(each) for is_kind in _PAUSED):
            raise InputError(
                f"compile: {name_of(f)} is a generator function or an async function, which cannot be "
                "compiled.\n  Compile the functions that it calls on tensors instead."
            )
    if hasattr(type(f), "__compiled__"):  # it has its own compiled form
        return f.__compiled__(static, backend, limit, flush, level, device)
    return Compiled(f, static, backend, limit, flush, level, device)


def _native_level(level: str, backend: str, flush: bool) -> str:
    """Return the backend for a level of vector instructions; raise if they cannot be used together."""
    if backend == "replay":
        raise ArgumentError(
            f'compile: level={level!r} selects instructions of native code, but backend is "replay".\n'
            "  Leave out one of the two."
        )
    if flush and level == "portable":
        raise ArgumentError(
            'compile: flush=True cannot be combined with level="portable", because not all processors can '
            "replace\n  subnormal numbers.  Leave out one of the two."
        )
    with using(level):  # raises for an unknown level
        return "native"


def _on_device(device: str, backend: str, flush: bool, level: str | None) -> str:
    """Return the backend for a device; raise if the device is not there, or has no such option."""
    for option, given in (("backend", backend != "auto"), ("flush", flush), ("level", level is not None)):
        if given:
            raise ArgumentError(
                f"compile: {option}= is for the CPU, but device={device!r}.\n  Leave out one of the two."
            )
    target_of(device)
    return "device"


def target_of(device: str) -> Any:
    """Return what compiles programs for a device.  Its package uses the compiler, so it is imported here."""
    return importlib.import_module("adjoint.targets").Target(device)


class _Callable(Generic[P, R]):
    """Base class with ``__call__`` as a slot: calling an instance calls the function that is stored there.

    This is faster than a ``__call__`` method that calls the stored function.
    """

    __slots__ = ("__call__",)

    __call__: Callable[P, R]


def _missed(args: Any, kwargs: Any) -> Any:
    """Return itself, the result of a direct function whose program does not match a call."""
    return _missed


class _Reference:
    """A weak reference to a compiled function, which makes no cycle: it is deleted with its last reference.

    If only its ``__call__`` was kept, the next call makes the function again.
    """

    def __init__(self, compiled: Compiled[..., Any]) -> None:
        self.find = weakref.ref(compiled)
        self.make: Any = functools.partial(Compiled, compiled._f, *compiled._options)
        self.made: Compiled[..., Any] | None = None

    def __call__(self) -> Compiled[..., Any]:
        """Return the compiled function."""
        found = self.find() or self.made
        if found is None:
            found = self.made = self.make()
        return found


class Compiled(Programs, _Callable[P, R]):
    """A compiled function, as returned by ``ad.compile``."""

    @property
    def __signature__(self) -> inspect.Signature:
        """The signature of the function, for ``inspect``."""
        return inspect.signature(self._f)

    def __init__(
        self, f: Callable[..., Any], static: Any, backend: str, limit: int | None, flush: bool = False,
        level: str | None = None, device: str = "cpu",
    ) -> None:  # fmt: skip
        functools.update_wrapper(
            self, f, assigned=("__module__", "__name__", "__qualname__", "__doc__"), updated=()
        )
        super().__init__(f, Parameters(f, static), backend, limit, flush, level)
        self._options = static, backend, limit, flush, level, device
        self._target = None if device == "cpu" else target_of(device)
        # the programs that ran last with arguments of some shapes, by these; with each a function that
        # returns ``_missed`` if the program does not match, or None while it is the only program
        self._table: dict[Any, list[tuple[Variant, Any]]] = {}
        self._lock = held_across_fork(threading.RLock())
        me = _Reference(self)
        self._owner = Owner(
            lambda args, kwargs: me()._general(args, kwargs),
            lambda error, args, kwargs: me()._explained(error, args, kwargs),
            lambda _: me()._leave(),
            self._lock,
        )
        self._leave()

    def _leave(self) -> None:
        """Make the next call take the general path, which finds the program that matches the arguments."""
        general = self._owner.general
        self._direct: Callable[..., Any] | None = None  # the direct function of the last program
        self._table.clear()

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return general(args, kwargs)
            except Exception as error:
                hide(error)
                raise

        self.__call__ = self._slow = call

    def _enter(self, variant: Variant, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Make the next calls with arguments of these shapes run a program whose guards have been checked.

        They try the programs that ran with these shapes before, too.
        """
        table, shapes, slow = self._table, shapes_of(args, kwargs), self._slow
        direct = variant.make_direct(self._owner)
        if all(key == shapes and len(found) < 2 and found[0][0] is variant for key, found in table.items()):
            table[shapes] = [(variant, None)]
            self._direct, self.__call__ = direct, direct or slow
            return
        others = [each for each in table.get(shapes, ()) if each[0] is not variant and each[1] is not None]
        tried = variant.checked(self._owner._replace(general=_missed)) if direct is not None else None
        table[shapes] = [(variant, tried), *others[: _TRIED - 1]]

        def call(*args: Any, **kwargs: Any) -> Any:
            for _, each in table.get(shapes_of(args, kwargs), ()):
                if each is not None and (found := each(*args, **kwargs)) is not _missed:
                    return found
            return slow(*args, **kwargs)

        self._direct, self.__call__ = direct, call

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Compiled[P, R]: ...
    @overload
    def __get__(
        self: Compiled[Concatenate[S, Q], R], instance: S, owner: type | None = None
    ) -> _Method[Q, R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Return this function bound to ``instance``, as for a method."""
        return self if instance is None else _Method(self, instance)

    def __getattr__(self, name: str) -> Any:
        """Raise the AttributeError of a missing attribute; for a compiled object, say where to look."""
        text = f"'Compiled' object has no attribute {name!r}"
        f = self.__dict__.get("_f")  # None in a copy that is not complete yet
        if not name.startswith("__") and f is not None and not inspect.isroutine(f):
            kind = type(f).__name__
            text += f".  A compiled {kind} is only a function: use the {kind} itself, which shares its state."
        raise AttributeError(text, name=name, obj=self)

    # Copies have no programs.  A copied method belongs to the copied instance.

    def __copy__(self) -> Compiled[..., Any]:
        return Compiled(self._f, *self._options)

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiled[..., Any]:
        f = copy.deepcopy(self._f, memo)
        made: Compiled[..., Any] | None = memo.get(
            id(self)
        )  # set if copying ``_f`` has copied this function too
        return Compiled(f, *self._options) if made is None else made

    def __reduce__(self) -> Any:
        """Return the global name of this object for pickling; if it has none, its function and options."""
        name = getattr(self, "__qualname__", "")
        found: Any = sys.modules.get(self.__module__)
        for part in name.split("."):
            found = getattr(found, part, None)
        return name if found is self else (Compiled, (self._f, *self._options))

    def _general(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the program that matches the arguments, after tracing one if none does; return the result."""
        try:
            return self._call(args, kwargs)
        except IndexError as error:
            better = self._explained(error, args, kwargs)
            if better is None:
                raise
            raise better from None

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        mode = compile_mode.get()
        if mode is False or self._inline():
            if mode is not False and special.count and (watcher := observer.get()) is not None:
                return watcher.compiled(self, self._itself, args, kwargs)
            return self._itself(*args, **kwargs)
        try:
            found, plain = locked(self._lock, self._run, args, kwargs, mode)
        except UnexpectedError:
            found, plain = self._on_tensors(*args, **kwargs), self._variants[0].plain
        return returned(found) if plain and transform.get() is None else found

    def _explained(self, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Exception | None:
        """Return the error that eager code would raise for an index that is out of range.

        None if no index is out of range, or if ``error`` already has the message of eager code.
        """
        if isinstance(error, AdjointError) or self._inline():
            return None
        with self._lock:
            call = self._of(args, kwargs)
            last = self._known(call)
            return None if last is None else last.explained(call)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any], mode: Any) -> tuple[Any, bool]:
        """Return the result of a call, and whether tensors in it must be converted to NumPy arrays.

        If ``mode`` is "check", the original function runs too, and its results are compared with the
        program's.
        """
        if not kwargs and mode is True:
            for n, v in enumerate(self._variants):
                if v.flat and len(args) == v.direct and v.fits(*args) and v.holds(*args):
                    known = self._table.get(shapes_of(args, kwargs), ())
                    if n == 0 or all(each is not v or tried is None for each, tried in known):
                        self._enter(v, args, kwargs)
                    self._variants.insert(0, self._variants.pop(n))
                    return v.run_direct(args), v.plain

        def find(call: Call) -> tuple[Variant | None, Call]:
            new = mode is True and self._has_new_lengths(call)
            return (None, call) if new else self._variant(call)

        variant, call = self._matching(find, args, kwargs)
        if variant is None:  # the other lengths have programs
            return self._on_tensors(*args, **kwargs), self._variants[0].plain
        if mode == "check":
            both = run_both(variant, call, lambda: self._on_tensors(*args, **kwargs))
            return both, variant.plain
        if variant.direct >= 0 and not variant.flat and variant is self._variants[0]:
            self._enter(variant, args, kwargs)
        return variant.run(call), variant.plain

    def _itself(self, *args: Any, **kwargs: Any) -> Any:
        """Call the original function, not a program; return arrays if the arguments were arrays."""
        plain = outermost() and given_arrays(args, kwargs) and self._of(args, kwargs).moving
        found = self._on_tensors(*args, **kwargs)
        return returned(found) if plain else found

    def _on_tensors(self, *args: Any, **kwargs: Any) -> Any:
        """Call the original function, with arrays among the arguments converted to tensors, as in a trace."""
        leaves, structure = tree.flatten((args, kwargs))
        given = args, kwargs
        made: dict[int, Any] = {}
        if any(isinstance(leaf, (np.ndarray, np.generic)) for leaf in leaves):
            static = self._parameters.static_leaves(structure)
            for k, leaf in enumerate(leaves):
                if isinstance(leaf, (np.ndarray, np.generic)) and k not in static:
                    leaves[k] = made[k] = wrap(array_of(leaf))
            given = tree.unflatten(structure, leaves)
        containers = list(containers_in(given)) if made else []
        found = user_code(self, "_f")(*given[0], **given[1])
        check_unchanged(self._parameters, structure, containers, made)
        return found

    def _inline(self) -> bool:
        """Return whether a call must run the original function instead of a program.

        True inside a trace or a transform, and while something observes ops, such as a saved-tensor hook.
        """
        if tracing.get() is not None or enclosing.get() is not None:
            return True
        if transform.get() not in _DIFFERENTIATED:
            return True
        if not special.count:
            return False
        watched = saved_hooks.get() is not None or observer.get() is not None
        return bool(watched or tapes.get() or anomaly.get())

    # Inspection ------------------------------------------------------------------------------------

    def program(self, *args: Any, **kwargs: Any) -> str:
        """Return the program for these arguments as text.

        If no program matches them, the function is traced, but this program is not kept or counted.

        Returns
        -------
        str
            One line for each value that is read, each instruction and each write.
        """
        with self._lock:
            return self._shown(args, kwargs).text()

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Return the kernels of the program for these arguments, and the time of each kernel.

        Without arguments, the last program that ran is described.  Times are measured on random numbers for
        about 50 ms; tensors and optimisers are not changed.  If no program matches the arguments, the
        function is traced, but this program is not kept or counted.

        Returns
        -------
        str
            One line for each kernel, with its shortest time, the bytes it reads and writes and its ops, and
            one line for each call of NumPy, with its time and the reason why it is not native code.  The
            last lines say what to change, if the function calls NumPy or is traced often.

        Examples
        --------
        >>> import numpy as np, adjoint as ad
        >>> f = ad.compile(lambda x: ad.tanh(x * x + x).sum(), backend="replay")
        >>> f.explain(np.ones(8))
        '4 instructions, each of them a call of NumPy'
        """
        with self._lock:
            last = self._variants[0] if self._variants and not args and not kwargs else None
            return (last or self._shown(args, kwargs)).explain(self._reasons)

    def stats(self) -> dict[str, Any]:
        """Return how often and why the function was traced, and what is checked before each call.

        Returns
        -------
        dict
            "traces" (the number of traces), "reasons" (one string per trace), "optimised" (False while a
            thread still optimises the native code that calls the kernels, as after a first build) and
            "programs": a list with a dict for each program that is kept, with the keys "instructions" (their
            number), "guards" (names of the values that are checked before each call), "trace_seconds",
            "build_seconds" and "calls" (how often it ran).
        """
        with self._lock:
            return {
                "traces": len(self._reasons),
                "reasons": list(self._reasons),
                "optimised": units.optimised(),
                "programs": list(map(Variant.stats, self._variants)),  # no loop here, see ADR 18
            }

    def clear(self) -> None:
        """Delete all programs and the statistics."""
        with self._lock:
            self._forget()
            self._leave()

    def __repr__(self) -> str:
        return f"<compiled {name_of(self._f)}, {count(len(self._variants), 'program')}>"


class _Method(functools.partial[R], Generic[Q, R]):
    """A compiled function that is bound to an instance, which is passed as its first argument."""

    func: Any  # Compiled
    if TYPE_CHECKING:

        def __call__(self, /, *args: Q.args, **kwargs: Q.kwargs) -> R: ...

    def __deepcopy__(self, memo: dict[int, Any]) -> _Method[Q, R]:
        return _Method(self.func, *copy.deepcopy(self.args, memo))

    def program(self, *args: Any, **kwargs: Any) -> str:
        """Return the program for these arguments as text, as ``Compiled.program`` does."""
        return self.func.program(*self.args, *args, **kwargs)

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Return a text about the kernels of the program for these arguments; see ``Compiled.explain``."""
        last = self.func._variants and not args and not kwargs
        return self.func.explain() if last else self.func.explain(*self.args, *args, **kwargs)

    def stats(self) -> dict[str, Any]:
        """Return statistics: how often and why the method was traced, for all instances."""
        return self.func.stats()

    def clear(self) -> None:
        """Delete all programs and the statistics of the method, for all instances."""
        self.func.clear()

    def __repr__(self) -> str:
        return f"{self.func!r} of {type(self.args[0]).__name__}"


_DIFFERENTIATED = (None, "ad.grad", "ad.value_and_grad", "ad.vjp")
