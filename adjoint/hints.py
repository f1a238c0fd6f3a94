"""Hints for names of NumPy, PyTorch and JAX that adjoint does not have.

``add_hints(module)`` adds hints to a public module.  An unknown attribute of the module or of its classes, or
an unknown keyword argument of its functions, then raises an error that names the replacement.  Signatures,
types and ``dir()`` do not change.
"""

from __future__ import annotations

import functools
import inspect
import sys
from abc import ABCMeta
from collections.abc import Callable, Mapping
from inspect import getattr_static
from opcode import opmap
from types import FrameType, FunctionType, ModuleType
from typing import Any, NoReturn

from adjoint.errors import AbsentImportError, AbsentNameError, InputError
from adjoint.foreign_names import ABSENT_KEYWORDS, ATTRIBUTES, FUNCTIONS, KEYWORDS, PARTS, elsewhere
from adjoint.tracebacks import door, hide, is_of_call

__all__ = [
    "FUNCTIONS",
    "KEYWORDS",
    "OBSERVED",
    "Hinted",
    "HintedBase",
    "add_hints",
    "check_keywords",
    "explain_class",
    "raise_absent",
    "with_hints",
]

_RENAMED = frozenset(KEYWORDS.values())
# Modules whose objects hold functions and settings of the user: ``ad.compile`` observes their code like the
# user's, so it must not be behind a wrapper
OBSERVED = frozenset(
    ("adjoint.extend", "adjoint.optim.plateau", "adjoint.optim.schedules", "adjoint.train.compiled",
     "adjoint.train.compose", "adjoint.train.weighing")
)  # fmt: skip
_SPECIAL = frozenset(
    f"__{name}__"
    for name in """
        array bool call ceil complex contains deepcopy divmod dlpack float floor format getattr getitem index
        int iter len rdivmod round setitem trunc
        """.split()
)  # methods without public names that are wrapped
_explained: set[Any] = set()  # modules and classes


def add_hints(*modules: str) -> None:
    """Add hints to modules, given by name, and to the functions and classes in their ``__all__``.

    Functions are wrapped by ``with_hints``, which also hides the frames of adjoint in tracebacks.  Functions
    that call ``hide`` themselves are wrapped only if a parameter has a different name in other libraries.
    """
    for module in (sys.modules[name] for name in modules):
        if module not in _explained:
            _explained.add(module)
            _explain_module(module)


def _explain_module(module: ModuleType) -> None:
    for name in module.__all__:
        value: Any = vars(module).get(name)
        if isinstance(value, FunctionType) and _is_wrapped(value):
            wrapped = with_hints(value)
            setattr(module, name, wrapped)
            home = sys.modules[value.__module__]  # module may re-export the function
            if vars(home).get(name) is value:
                setattr(home, name, wrapped)
        elif isinstance(value, type):
            for base in value.__mro__:
                if base.__module__.startswith("adjoint."):
                    explain_class(base)
    if module.__name__ in PARTS:
        vars(module)["__getattr__"] = _lookup(module)


def explain_class(cls: type) -> None:
    """Make errors of a class contain hints, for unknown keywords of its methods and missing attributes."""
    if cls in _explained:
        return
    _explained.add(cls)
    for name, method in list(vars(cls).items()):
        if not isinstance(method, FunctionType):
            continue
        if name == "forward":  # modules call it in __call__, which hides frames
            wrapped = _is_renamed(method)
        else:
            wrapped = name == "__init__" or ((name in _SPECIAL or name[0] != "_") and _is_wrapped(method))
        if wrapped:
            setattr(cls, name, with_hints(method))
    if cls.__name__ in ATTRIBUTES:
        _explain_attributes(cls, ATTRIBUTES[cls.__name__])


def _is_wrapped(function: FunctionType) -> bool:
    """Return whether ``with_hints`` improves the errors of a function or method."""
    code = function.__code__
    takes_arguments = code.co_argcount or code.co_kwonlyargcount or code.co_flags & inspect.CO_VARARGS
    shows_frames = "hide" not in code.co_names and function.__module__.startswith("adjoint.")
    observed = function.__module__ in OBSERVED
    return bool(takes_arguments and shows_frames and not observed) or _is_renamed(function)


def _is_renamed(function: FunctionType) -> bool:
    """Return whether a function has a parameter with a different name or form in other libraries."""
    code = function.__code__
    if code.co_varnames[:1] == ("shape",):  # other libraries accept separate lengths
        return True
    return not _RENAMED.isdisjoint(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def with_hints(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that errors hide frames of adjoint, and contain a hint about unknown keywords."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            try:
                return function(*args, **options)
            except TypeError:
                name = function.__name__
                of_class = name in ("__init__", "forward")
                check_keywords(function, options, type(args[0]).__name__ if of_class else name)
                _check_lengths(function, args)
                raise
        except Exception as error:
            hide(error, by_user=is_of_call(error))
            raise

    return call


def check_keywords(function: Callable[..., Any], given: Mapping[str, Any], name: str) -> None:
    """Raise an error with a hint if ``given`` has a keyword that ``function`` does not have.

    ``name`` is the name of the function in the message.
    """
    parameters = inspect.signature(function).parameters.values()
    ours = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    ours = [own for own in ours if own != "self"]
    unknown = [keyword for keyword in given if keyword not in ours]
    if not unknown or any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    for keyword in unknown:
        if KEYWORDS.get(keyword) in ours:
            raise InputError(f"{name}: {keyword}= is called {KEYWORDS[keyword]}= in adjoint.") from None
        if keyword in ABSENT_KEYWORDS:
            raise InputError(f"{name} has no argument {keyword}=: {ABSENT_KEYWORDS[keyword]}.") from None
    takes = [p.name for p in parameters if p.name != "self" and p.kind is not p.VAR_POSITIONAL]
    accepted = ", ".join(takes) or "no arguments"
    raise InputError(f"{name} has no argument {unknown[0]}=.  It accepts {accepted}.") from None


def _check_lengths(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Raise an error if a function was given several lengths instead of one argument."""
    if function.__name__ == "repeat" and len(args) > 3:
        raise InputError(
            "repeat: repeats is one argument, and repeats elements.  For copies of the whole tensor use "
            f"ad.tile(x, {args[1:]})."
        ) from None
    given = next((k for k, a in enumerate(args) if not isinstance(a, int)), len(args))
    if (
        given > 1
        and function.__code__.co_varnames[0] == "shape"
        and len(args) > function.__code__.co_argcount
    ):
        name, rest = function.__name__, "".join(f", {a!r}" for a in args[given:])
        raise InputError(
            f"{name}: the shape is one argument.  Write ad.{name}({args[:given]}{rest})."
        ) from None


class _Absent:
    """A descriptor for an attribute that a class does not have: reading it raises an error with a hint.

    Unlike ``__getattr__``, it does not slow down the access to other attributes.
    """

    def __init__(self, name: str, instead: str) -> None:
        self.name, self.instead = name, instead

    @door
    def __get__(self, x: Any, cls: type) -> NoReturn:
        owner = {"Tensor": "a tensor", "At": "x.at[key]"}.get(cls.__name__, cls.__name__)
        raise AbsentNameError(f"{owner} has no {self.name!r}.  Use {self.instead}.")


def _explain_attributes(cls: type, instead: Mapping[str, str]) -> None:
    """Make a class raise an error with a hint for each attribute in ``instead`` that it does not have.

    ``instead`` maps names to replacements.  ``dir`` does not list these names.
    """
    missing = {name for name in instead if not hasattr(cls, name)}
    for name in missing:
        setattr(cls, name, _Absent(name, instead[name]))

    def names(self: Any) -> list[str]:
        return sorted(set(object.__dir__(self)) - missing.difference(getattr(self, "__dict__", ())))

    setattr(cls, "__dir__", names)  # noqa: B010  mypy rejects the assignment to a method of a class


class Hinted(type):
    """Metaclass of classes with hints for attributes: ``help`` and ``dir`` do not list absent attributes."""

    def __dir__(cls) -> list[str]:
        return [name for name in super().__dir__() if not isinstance(getattr_static(cls, name), _Absent)]


class HintedBase(Hinted, ABCMeta):
    """``Hinted`` for classes that users inherit from, also together with abstract base classes."""


def _lookup(module: ModuleType) -> Callable[[str], NoReturn]:
    """Return a ``__getattr__`` for a module; it raises an error with a hint for a missing name."""

    def lookup(name: str) -> NoReturn:
        instead = PARTS[module.__name__].get(name) or elsewhere(name)
        try:
            raise_absent(module, name, f".  Use {instead}." if instead else "", sys._getframe(1))
        except Exception as error:
            hide(error, by_user=True)
            raise

    return lookup


def raise_absent(module: ModuleType, name: str, instead: str, frame: FrameType) -> NoReturn:
    """Raise the error for a name that a module does not have.

    ``instead`` is the hint at the end of the message, or "".  ``frame`` has asked for the name: in ``from
    module import name``, Python replaces an AttributeError by an ImportError, which would lose the hint.
    """
    path = module.__name__.replace(".ops.", ".")
    if instead and frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"]:
        raise AbsentImportError(f"cannot import name {name!r} from {path!r}{instead}")
    raise (AbsentNameError if instead else AttributeError)(
        f"module {path!r} has no attribute {name!r}{instead}", name=name, obj=module
    )
