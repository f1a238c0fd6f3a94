"""The record of an op: its forward, its derivative rules, and the properties that the engine needs."""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from adjoint.core.node import Spec

__all__ = ["KINDS", "OPS", "Op", "names_read"]

RuleFunction = Callable[..., Any]
Split = tuple[Sequence[int], Sequence[int], bool]

KINDS = ("elementwise", "linear", "bilinear", "general")

OPS: dict[str, Op] = {}  # every op by name, in the order of definition


@dataclass(slots=True, eq=False, repr=False)
class Op:
    """The record of one op, with all its properties.  ``define`` makes records."""

    name: str
    forward: Callable[..., Any]  # on plain arrays
    # A function or None per array argument; empty where ``joint`` is given.
    rules: tuple[Any, ...]
    joint: RuleFunction | None  # one rule for all arguments; it gets ``wanted``, a flag per argument
    kind: str
    arity: int | None  # the number of array arguments; None for any number
    arg_names: tuple[str, ...]
    out_name: str
    saves_args: tuple[bool, ...]  # for arity None: one flag for all arguments
    saves_out: bool
    # Per rule: the indices of the arguments that it reads, and whether it reads the output.
    reads: tuple[tuple[frozenset[int], bool], ...]
    params: tuple[str, ...]
    outputs: int = 1
    jvp: RuleFunction | None = None
    batch: Callable[..., Any] | None = None  # how vmap evaluates the op (core/batching.py)
    shape: Callable[..., Any] | None = None  # shapes and dtypes of the results, without running the forward
    fused: Callable[..., Any] | None = None  # the forward written on xp
    lower: Callable[..., Any] | None = None  # how native code computes the op (core/native.py)
    phrase: Callable[..., Any] | None = None  # the text of a call of NumPy, for compiled programs
    memory: str = ""  # "view" if the result is a view of the first argument, "new" if it never is
    holomorphic: bool = True  # the engine conjugates around the rule; False: the rule does it itself
    methods: tuple[str, ...] = ()  # the names of the tensor methods and operators that run the op
    domain: Any = None  # where the op is smooth, for the tests
    reference: Callable[..., Any] | str = ""  # what tests compare the values with (testing/references.py)
    doc: str = ""
    reason: str = ""  # why no gradient flows
    literals: bool = False  # the forward or the rules inspect Python numbers among the arguments
    selects: bool = False  # elements without influence get a zero gradient, whatever their values are
    places: bool = False  # the gradient of its argument is zeros with g at params["key"]
    pure: bool = True  # no side effects; the same inputs give the same outputs
    costly: bool = False  # the forward is a ufunc that is worth several threads on a large array
    sparsity: Any = ""  # which elements its results depend on (sparsity/rules.py); "" follows from the kind
    unread: frozenset[int] = frozenset()  # the indices of outputs that no rule reads; they are not saved
    call: bool = False  # a call of a user's function: its rule runs forward and backward itself
    plain: Any = None  # the forward without a kernel, if ``forward`` runs one for large arrays
    eager: Callable[..., Any] = field(init=False)
    unsaved: Spec = field(init=False)  # what an elementwise rule gets in place of an unsaved argument
    blank: tuple[Any, ...] = field(init=False)
    differentiable: bool = field(init=False)
    saves_any: bool = field(init=False)
    usual: bool = field(init=False)  # one rule per argument, and neither ``selects`` nor ``places``
    pointwise: bool = field(init=False)  # each element of the gradient depends only on the same element of g
    _split: dict[tuple[int, int], Split] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.unsaved = Spec(self.name, (), None)
        self.blank = (self.unsaved,) * (self.arity or 0)
        self.usual = bool(self.rules) and not self.selects and not self.places
        self.pointwise = self.kind == "elementwise" and self.outputs == 1 and not self.selects
        self.saves_any = self.saves_out or any(self.saves_args)
        self.differentiable = self.joint is not None or any(r is not None for r in self.rules)

    def smooth(self, i: int) -> bool:
        """Return whether the op has a derivative rule for argument ``i``."""
        return self.joint is not None or (i < len(self.rules) and self.rules[i] is not None)

    def keeps(self, wanted: tuple[bool, ...]) -> tuple[bool, ...]:
        """Return, for each argument and then for the output, whether its value is saved.

        A value is saved if ``saves`` names it and a rule whose gradient is wanted reads it.
        """
        if self.arity is None:
            return (self.saves_args[0],) * len(wanted) + (self.saves_out,)
        if self.joint is not None or not self.saves_any:
            return (*self.saves_args, self.saves_out)
        used = [r for r, w in zip(self.reads, wanted, strict=True) if w]
        read = frozenset().union(*[r for r, _ in used])
        args = [s and i in read for i, s in enumerate(self.saves_args)]
        return (*args, self.saves_out and True in [out for _, out in used])

    def split(self, wanted: int, count: int) -> Split:
        """Return the indices of the saved arguments, of the other arguments, and whether the output is saved.

        Bit i of ``wanted`` is set if the gradient of argument i is wanted.  There are ``count`` arguments.
        ``keeps`` decides which values are saved.
        """
        if self.arity is None:  # all arguments alike; not cached, because their number is unbounded
            every = range(count)
            return (every, (), self.saves_out) if self.saves_args[0] else ((), every, self.saves_out)
        found = self._split.get((wanted, count))
        if found is None:
            *args, out = self.keeps(tuple([bool(wanted >> i & 1) for i in range(count)]))
            kept = tuple(i for i, keep in enumerate(args) if keep)
            dropped = tuple(i for i, keep in enumerate(args) if not keep)
            found = self._split[wanted, count] = (kept, dropped, out)
        return found

    def arg_name(self, i: int) -> str:
        """Return the name of argument ``i`` in the rules."""
        return self.arg_names[i] if self.arity is not None else f"{self.arg_names[0]}[{i}]"

    def __repr__(self) -> str:
        return f"<op {self.name}>"


def names_read(rule: RuleFunction, names: Iterable[str]) -> frozenset[str]:
    """Return the parameters in ``names`` that the code of a rule reads.

    The bytecode is decoded here, because ``dis`` takes fifty times as long and this runs at every import.

    >>> sorted(names_read(lambda xp, g, z, x, y: g * y, "zxy"))
    ['y']
    """
    wanted = frozenset(names)
    code = getattr(rule, "__code__", None)
    if code is None:
        return wanted  # a partial or a callable object: assume that it reads all
    units = set(memoryview(code.co_code).cast("H"))
    read = [v for i, v in enumerate(code.co_varnames) if v in wanted and not _loads(i).isdisjoint(units)]
    # a parameter that an inner function reads is a cell; other cells are numbered after the variables
    return wanted.intersection(code.co_cellvars).union(read)


_LOADS = {name: code for name, code in dis.opmap.items() if "LOAD_FAST" in name}
_LOAD_TWO = frozenset(code for name, code in _LOADS.items() if name.count("_FAST") == 2)
_LOAD_ONE = frozenset(_LOADS.values()) - _LOAD_TWO


@functools.cache
def _loads(variable: int) -> frozenset[int]:
    """Return the bytecode instructions, as ints, that read the local variable with index ``variable``.

    Some instructions access two variables, and one access may be a store.  The stored variable is counted as
    read too, which at worst saves a value that is not needed.
    """
    pairs = [(code, variable) for code in _LOAD_ONE]
    for other in range(16) if variable < 16 else ():
        pairs += [(code, arg) for code in _LOAD_TWO for arg in (variable << 4 | other, other << 4 | variable)]
    return frozenset(int.from_bytes(pair, sys.byteorder) for pair in pairs)
