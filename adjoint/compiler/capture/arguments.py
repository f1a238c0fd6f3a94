"""The arguments of a call of a compiled function: which of them are traced, and the key of the program."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from adjoint import tree
from adjoint.compiler.guards.values import exact
from adjoint.compiler.program.symbols import NUMBERS
from adjoint.config import get_default_dtype, grad_mode, transform
from adjoint.core.convert import array_of, refuse_foreign
from adjoint.core.node import LEAF, Node
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, InputError, TransformError
from adjoint.grads.slots import sink
from adjoint.transforms.inputs import name_of
from adjoint.words import a

__all__ = ["Call", "HeldObject", "Parameters", "Wanted", "check_unchanged", "containers_in", "opened"]

_MODES = (
    "the grad mode",
    "the default dtype",
    "whether a micro-batch is open",
    "whether a transform calls the function",
    "the order of dict keys",
    "a static field",
)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class HeldObject:
    """An argument that is not traced, such as a module that an optimiser outside of the function has too.

    Two of them are equal if they hold the same object.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is HeldObject and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return f"another {type(self.value).__name__}"

    @staticmethod
    def open(value: Any) -> Any:
        """Return the object that ``value`` holds, or ``value`` itself."""
        return value.value if type(value) is HeldObject else value


class Parameters:
    """The parameters of a compiled function: their names, and which of them are static (not traced).

    ``held`` has the positions and names of arguments that are objects of Python which are read like closure
    variables, because the function reaches their tensors in another way too.
    """

    def __init__(self, f: Callable[..., Any], static: Any) -> None:
        shown = getattr(getattr(f, "__self__", None), "__wrapped__", f)  # of a sparse derivative
        self.function = name_of(shown)
        code = getattr(getattr(shown, "__func__", shown), "__code__", None)
        line = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
        self.place = f"{self.function}{line}"  # for messages: its name, and the line of its definition
        try:
            found = list(inspect.signature(getattr(f, "forward", f)).parameters.values())
        except (TypeError, ValueError):  # a built-in function
            found = None
        self.positional = [p.name for p in found or () if p.kind in _POSITIONAL]
        self.others = [p.name for p in found or () if p.kind is p.KEYWORD_ONLY]
        kinds = {p.kind: p.name for p in found or ()}
        self.many = kinds.get(inspect.Parameter.VAR_POSITIONAL)  # the name "args" of ``*args``
        self.any_position = found is None or self.many is not None
        self.any_name = found is None or inspect.Parameter.VAR_KEYWORD in kinds
        self.static = self._places((static,) if isinstance(static, (str, int)) else tuple(static))
        self.held: frozenset[Any] = frozenset()

    def _places(self, static: tuple[Any, ...]) -> frozenset[Any]:
        """Convert the option ``static`` to a set of positions and of names in the form ``"['name']"``."""
        found: set[Any] = set()
        for s in static:
            if not isinstance(s, (str, int)) or isinstance(s, bool):
                raise ArgumentError(
                    f"compile: static must contain names or positions of arguments, but got {s!r}."
                )
            names = self.positional
            if isinstance(s, str):
                known = self.any_name or s in names or s in self.others
                found |= {names.index(s) if s in names else None, f"[{s!r}]"}
            else:
                known = 0 <= s < len(names) or (s >= 0 and self.any_position)
                found |= {s, f"[{names[s]!r}]" if 0 <= s < len(names) else None}
            if not known:
                given = ", ".join([*names, *self.others])
                has = f"has the parameters {given}" if given else "has no parameters"
                raise ArgumentError(f"compile: static= contains {s!r}, but {self.function} {has}.")
        return frozenset(found - {None})

    def hold(self, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: set[int]) -> bool:
        """Hold the arguments that are objects with one of the ``tensors``, given by id.

        Return whether all of these tensors are in such objects.
        """
        found, places = set(), set()
        for place, value in (*enumerate(args), *kwargs.items()):
            inside = {id(leaf) for leaf in tree.leaves(value)} & tensors
            if inside and type(value) not in (list, tuple, dict) and not isinstance(value, Tensor):
                found |= inside
                places.add(place)
        self.held |= places
        return found == tensors

    def with_held(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Return the arguments of a call, with ``HeldObject`` in place of those that are held."""
        return (
            tuple([HeldObject(v) if k in self.held and _is_object(v) else v for k, v in enumerate(args)]),
            {k: HeldObject(v) if k in self.held and _is_object(v) else v for k, v in kwargs.items()},
        )

    def name(self, position: int) -> str:
        """Return the name of the argument at ``position``, for messages, such as ``x`` or ``args[0]``."""
        if position < len(self.positional):
            return self.positional[position]
        return f"{self.many or 'args'}[{position - len(self.positional)}]"

    def arguments(self, structure: tree.Structure) -> Iterator[tuple[str, tree.Structure, bool]]:
        """Yield the name and structure of each argument of a call, and whether it is static."""
        args, kwargs = structure.children
        for k, child in enumerate(args.children):
            yield self.name(k), child, k in self.static
        for name, child in zip(kwargs.names, kwargs.children, strict=True):
            yield name[2:-2], child, name in self.static

    def static_leaves(self, structure: tree.Structure) -> frozenset[int]:
        """Return the indices of the leaves of static arguments, among the leaves of all arguments."""
        found: list[int] = []
        n = 0
        for _, child, static in self.arguments(structure):
            if static:
                found.extend(range(n, n + child.count))
            n += child.count
        return frozenset(found)

    def paths(self, structure: tree.Structure) -> list[str]:
        """Return the names of all leaves of the arguments, for messages, such as ``x`` or ``batch['x']``."""
        return [path for name, child, _ in self.arguments(structure) for path in child.paths(name)]


_PLAIN: tuple[type, ...] = (int, float, complex, bool, str, bytes, type(None))  # contain no objects


def _is_object(value: Any) -> bool:
    """Return whether an argument may be held: it is not an array, a number or a plain container."""
    return not isinstance(value, (Tensor, ndarray, np.generic, list, tuple, dict, *_PLAIN))


class Wanted(NamedTuple):
    """The type, shape, dtype and graph node that an argument must have to run with a traced program."""

    kind: type
    shape: tuple[int, ...]
    dtype: Any
    node: Any  # None: no gradient; LEAF: requires grad; Node: computed by recorded ops

    @classmethod
    def of(cls, leaf: Any) -> Wanted:
        """Return the type, shape, dtype and node of the argument ``leaf``."""
        if type(leaf) in NUMBERS:
            return cls(type(leaf), (), None, None)
        node = getattr(leaf, "_node", None)
        return cls(type(leaf), leaf.shape, leaf.dtype, Node if type(node) is Node else node)


class Call:
    """The arguments of one call of a compiled function.

    ``varying`` has pairs of a structure and the index of a leaf, which is traced if it is an integer.
    ``leaves`` are the elements of the arguments that are not containers.  ``moving`` are the leaves that are
    traced, and ``moves`` are their indices.  Calls with equal ``key`` can run the same program.
    """

    __slots__ = ("given", "key", "leaves", "moves", "moving", "structure")

    def __init__(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], parameters: Parameters,
        varying: Collection[tuple[tree.Structure, int]] = (),
    ) -> None:  # fmt: skip
        self.given = args, kwargs
        given = parameters.with_held(args, kwargs) if parameters.held else (args, kwargs)
        self.leaves, self.structure = tree.flatten(given)
        fixed = parameters.static_leaves(self.structure) if parameters.static else frozenset()
        self.moves: list[int] = []
        self.moving: list[Any] = []
        signature: list[Any] = []
        for k, leaf in enumerate(self.leaves):
            kind = type(leaf)
            if isinstance(leaf, Tensor):
                if k in fixed:
                    raise InputError(
                        f"compile: {parameters.paths(self.structure)[k]} is a tensor, but static= lists it.\n"
                        "  Only numbers, strings and other hashable objects can be static.  Remove the "
                        "argument from static=, or pass a Python number."
                    )
                node = leaf._node
                signature.append(
                    (leaf.shape, leaf.dtype, None if node is None else node is LEAF, self._first(leaf))
                )
            elif kind is ndarray and leaf.dtype.isnative and k not in fixed:
                signature.append((leaf.shape, self._numeric(k, parameters).dtype))
            elif isinstance(leaf, (ndarray, np.generic)) and k not in fixed:
                leaf = self.leaves[k] = array_of(self._numeric(k, parameters))
                signature.append((leaf.shape, leaf.dtype))
            elif kind is float and k not in fixed:
                signature.append(float)
            elif kind is int and varying and k not in fixed and (self.structure, k) in varying:
                signature.append(int)
            else:
                refuse_foreign(leaf)
                signature.append((kind, self._hashable(k, parameters), exact(leaf)))
                continue
            self.moves.append(k)
            self.moving.append(leaf)
        modes = grad_mode.get(), get_default_dtype(), sink.get() is None, transform.get() is None
        # structures are equal for any order of dict keys, but the order of the leaves depends on that order
        inside = [(issubclass(s.kind, dict), s.rest) for s in _containers(self.structure)]
        keys = tuple([rest for is_dict, rest in inside if is_dict])
        constants = tuple([_constants(rest) for is_dict, rest in inside if not is_dict and rest is not None])
        self.key = (self.structure, tuple(signature), (*modes, keys, constants))

    def differs_in_shapes(self, had: Any) -> bool:
        """Return whether this call differs from a program with the key ``had`` only in lengths of axes."""
        structure, signature, modes = self.key
        if had[0] != structure or had[2] != modes or had[1] == signature:
            return False
        return all(x == y or _differ_in_shape(x, y) for x, y in zip(had[1], signature, strict=True))

    def objects(self, parameters: Parameters) -> dict[str, Any]:
        """Return the arguments that are or contain objects which are not traced, by parameter name.

        Traced leaves are replaced by None first.
        """
        given = [c for child in self.structure.children for c in child.children]
        if len(self.moves) == len(given) and all(c.kind is tree.Structure.LEAF for c in given):
            return {}
        moving = set(self.moves)
        leaves = [None if k in moving else leaf for k, leaf in enumerate(self.leaves)]
        args, kwargs = tree.unflatten(self.structure, leaves)
        named = {parameters.name(k): v for k, v in enumerate(args)} | kwargs
        return {k: HeldObject.open(v) for k, v in named.items() if type(v) not in _PLAIN}

    def fixed(self) -> list[Any]:
        """Return all leaves of the arguments, with None in place of the traced arrays and tensors."""
        found = list(self.leaves)
        for k in self.moves:
            if type(found[k]) not in NUMBERS:
                found[k] = None
        return found

    def changed_integers(self, had: Any, parameters: Parameters) -> set[tuple[tree.Structure, int]]:
        """Return the integers that differ from those of a program with the key ``had``, as for ``varying``.

        Empty if anything else differs, except lengths of axes.
        """
        structure, signature, modes = self.key
        if had[0] != structure or had[2] != modes:
            return set()
        pairs = enumerate(zip(had[1], signature, strict=True))
        changed = {k: (x, y) for k, (x, y) in pairs if x != y and not _differ_in_shape(x, y)}
        static = parameters.static_leaves(structure)
        if any(k in static or not _is_integer(x) or not _is_integer(y) for k, (x, y) in changed.items()):
            return set()
        return {(structure, k) for k in changed}

    def _first(self, leaf: Any) -> int | None:
        """Return the index of the first traced leaf that is the object ``leaf``; None if there is none."""
        return next((k for k, m in zip(self.moves, self.moving, strict=True) if m is leaf), None)

    def _numeric(self, k: int, parameters: Parameters) -> Any:
        leaf = self.leaves[k]
        if leaf.dtype.kind not in "biufc" and leaf.dtype.name != "bfloat16":
            name = parameters.paths(self.structure)[k]
            raise InputError(f"compile: {name} is an array of dtype {leaf.dtype}, but must be numeric.")
        return leaf

    def _hashable(self, k: int, parameters: Parameters) -> Any:
        leaf = self.leaves[k]
        try:
            hash(leaf)
        except TypeError:
            raise InputError(
                f"compile: {parameters.paths(self.structure)[k]} is {a(type(leaf).__name__)}, which is not "
                "hashable.\n"
                "  Pass arrays, tensors, numbers, strings or other hashable objects, or use the object as a "
                "global or closure variable."
            ) from None
        return leaf

    def difference(self, had: Any, parameters: Parameters) -> str:
        """Return a sentence that says how this call differs from that of a program with the key ``had``."""
        structure, signature, modes = self.key
        if had[0] != structure:
            return _changed_structure(had[0], structure, parameters)
        if had[2] != modes:
            changed = [n for n, x, y in zip(_MODES, had[2], modes, strict=True) if x != y]
            return f"{' and '.join(changed)} changed"
        paths = parameters.paths(structure)
        for path, x, y in zip(paths, had[1], signature, strict=True):
            if x != y:
                return f"{path} changed from {_said(x, paths)} to {_said(y, paths)}"
        return "the arguments changed"


def opened(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments as the function gets them, with the objects in place of ``HeldObject``."""
    return tuple(map(HeldObject.open, args)), {k: HeldObject.open(v) for k, v in kwargs.items()}


def containers_in(value: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Yield each list and dictionary in nested arguments, and its items."""
    if isinstance(value, (list, dict)):
        yield value, _items(value)
    if isinstance(value, (list, tuple, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from containers_in(each)


def _items(container: Any) -> list[Any]:
    """Return the elements of a list, or the keys and values of a dictionary."""
    return [*container, *container.values()] if isinstance(container, dict) else list(container)


def check_unchanged(
    parameters: Parameters,
    structure: tree.Structure,
    containers: list[tuple[Any, list[Any]]],
    made: dict[int, Tensor],
) -> None:
    """Raise TransformError if the function has changed a container or an array that is an argument.

    The function gets copies of containers, and tensors in place of arrays.  ``containers`` has the copies,
    and the items that they had before the call.  ``made`` has the tensors, by their indices among the leaves
    of the arguments, whose structure is ``structure``.  Tensors without axes may stand for scalars of NumPy,
    which nothing can change, so they are not checked.
    """
    for container, before in containers:
        now = _items(container)
        if len(now) != len(before) or any(x is not y for x, y in zip(now, before, strict=True)):
            raise TransformError(
                f"ad.compile: {parameters.place} changes {a(type(container).__name__)} that is an "
                "argument; compiled functions can change only tensors.\n"
                "  Copy it first, as in batch = dict(batch), or return the new value."
            )
    for k, t in made.items():
        if t._version and t.shape:
            name = parameters.paths(structure)[k]
            raise TransformError(
                f"ad.compile: {parameters.place} changes {name}, which is a NumPy array; compiled "
                "functions can change only tensors.\n"
                "  Compute a new value, as x = x + 1 in place of x += 1, or pass ad.tensor(x)."
            )


def _containers(structure: tree.Structure) -> Iterator[tree.Structure]:
    """Yield the structures of a container and of all containers in it."""
    yield structure
    for child in structure.children:
        if isinstance(child.kind, type):  # not a leaf or a constant
            yield from _containers(child)


def _constants(rest: Any) -> tuple[Any, ...]:
    """Return what ``==`` ignores in the constants of a container: their types, and the signs of zeros.

    ``rest`` is a dictionary with the static fields of a dataclass, or the data of a registered container.
    """
    values = rest.values() if type(rest) is dict else (rest,)
    return tuple([(type(v), None if (mark := exact(v)) is v else mark) for v in values])


def _changed_structure(had: tree.Structure, has: tree.Structure, parameters: Parameters) -> str:
    """Return a text that describes the first argument whose structure differs in ``had`` and ``has``."""
    before, after = ({n: c for n, c, _ in parameters.arguments(s)} for s in (had, has))
    for name, child in after.items():
        if name not in before:
            return f"argument {name} was added"
        if before[name] != child:
            was, now = before[name].describe(), child.describe()
            now = "another one, which differs in more than its parameters" if now == was else now
            return f"{name} changed from {was} to {now}"
    gone = [n for n in before if n not in after]
    return f"argument {gone[0]} was left out" if gone else "the arguments changed"


def _said(part: Any, paths: list[str]) -> str:
    """Return a text for a leaf's entry in a program's key, such as "float64[3] that requires grad"."""
    if part in NUMBERS:
        return a(part.__name__)
    if not isinstance(part[0], tuple):
        # Python does not write integers of more than 4300 digits
        long = isinstance(part[1], int) and part[1].bit_length() > 1024
        return "a long integer" if long else f"{part[1]!r}"
    text = f"{part[1]}{list(part[0])}"
    if len(part) > 2 and part[2] is not None:
        text += " that requires grad" if part[2] else " that is part of a graph"
    if len(part) > 3 and part[3] is not None:
        text += f", the same tensor as {paths[part[3]]}"
    return text


def _differ_in_shape(x: Any, y: Any) -> bool:
    """Return whether two leaves' entries in keys are those of arrays that differ only in lengths of axes."""
    arrays = type(x) is type(y) is tuple and type(x[0]) is type(y[0]) is tuple
    return arrays and len(x[0]) == len(y[0]) and x[1:] == y[1:]


def _is_integer(part: Any) -> bool:
    """Return whether a leaf's entry in a program's key is that of an integer which is a constant."""
    return type(part) is tuple and part[0] is int
