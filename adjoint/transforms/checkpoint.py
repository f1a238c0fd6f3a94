"""Less memory for more time: compute again in the backward what the forward did not keep.

``checkpoint`` records a call as one node.  The forward runs recorded, which shows which
tensors from outside the function uses besides its arguments; they become parents of the node,
and the record is dropped.  The backward runs the function again and differentiates that.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from adjoint import tree
from adjoint.config import get_default_dtype, grad_mode, held_across_fork, set_default_dtype, watched
from adjoint.core.lifted import Lifted, enclosing
from adjoint.core.namespace import Namespace, rec
from adjoint.core.node import LEAF, Node, next_seq
from adjoint.core.op import OPS, Op
from adjoint.core.record import at_level, innermost, node_of, record_results, saved_hooks, tapes
from adjoint.core.tensor import Tensor, wrap
from adjoint.engine.plan import make_plan
from adjoint.engine.pull import add, narrowed
from adjoint.engine.push import push_forward
from adjoint.engine.run import Run, key_of
from adjoint.engine.serial import run_serial
from adjoint.errors import ArgumentError, InputError, RuleError, TransformError
from adjoint.transforms.batch import vmap
from adjoint.transforms.batched import Batched
from adjoint.transforms.calls import new_op, wants_gradient
from adjoint.transforms.inputs import as_function, name_of

__all__ = ["captured_by", "checkpoint", "checkpoint_sequential", "pull_record", "saved_tensors_hooks"]

_TENSOR = object()  # stands for a tensor among results

Flat = Callable[[list[Tensor]], list[Tensor]]

# Held while the state of random generators is set back, which other threads may be using too.
_replaying = held_across_fork(threading.RLock())


def checkpoint(
    f: Callable[..., Any], *args: Any, preserve_rng_state: bool = True, debug: bool = False, **kwargs: Any
) -> Any:
    """Return ``f(*args, **kwargs)``, of which nothing but the arguments is kept for the backward.

    The backward runs ``f`` a second time.  Gradients go to the arguments, which may be trees,
    and to the tensors that ``f`` uses besides them, such as the parameters of a module.
    ``preserve_rng_state`` sets back the random generators that are found among the arguments, in
    what ``f`` closes over and in the attributes of modules, and NumPy's global one, so that the
    second run draws the same numbers.  With ``debug`` the results of both runs are compared.

    >>> import adjoint as ad, numpy as np
    >>> w = ad.tensor(np.array([2.0, 3.0]), requires_grad=True)
    >>> y = ad.checkpoint(lambda x: ad.tanh(x * w).sum(), np.array([0.0, 0.0]))
    >>> y.backward()
    >>> w.grad
    tensor([0., 0.], dtype=float64)
    """
    as_function("checkpoint", f)
    return _checkpoint(
        f, args, kwargs, debug, _Generators.of(f, args, kwargs) if preserve_rng_state else None
    )


def _checkpoint(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    debug: bool,
    generators: _Generators | None,
) -> Any:
    if not grad_mode.get():
        return f(*args, **kwargs)
    leaves, structure = tree.flatten((args, kwargs))
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    tensors: list[Tensor] = [leaves[k] for k in places]
    top, around = innermost([t._data for t in tensors]), enclosing.get()
    if around is not None and (top is None or top.level < around.level):
        return f(*args, **kwargs)  # f may use values of the vmap around: run at their level
    results: list[Any] = []

    def flat(given: list[Tensor]) -> list[Tensor]:
        filled = list(leaves)
        for k, t in zip(places, given, strict=True):
            filled[k] = t
        a, kw = tree.unflatten(structure, filled)
        outputs, shape = tree.flatten(f(*a, **kw))
        tensors = [t for t in outputs if isinstance(t, Tensor)]
        results[:] = [[_TENSOR if isinstance(t, Tensor) else t for t in outputs], shape]  # and no record
        return tensors

    found = iter(_run(flat, tensors, _Options(name_of(f), debug, generators)))
    outputs, shape = results
    return tree.unflatten(shape, [next(found) if t is _TENSOR else t for t in outputs])


def checkpoint_sequential(
    layers: Iterable[Callable[[Any], Any]],
    x: Any,
    segments: int | None = None,
    *,
    preserve_rng_state: bool = True,
    debug: bool = False,
) -> Any:
    """Apply layers one after the other, in segments that are checkpointed.

    With n layers in √n segments, as when ``segments`` is None, the memory for the backward grows
    with √n instead of n, for less than one more forward.  The last segment is kept as it
    is: its backward comes first.  Random generators are looked for before each segment: one that a
    layer of it makes only when it runs is not found.

    >>> import adjoint as ad
    >>> x = ad.tensor(0.5, requires_grad=True)
    >>> ad.checkpoint_sequential([ad.tanh] * 9, x).backward()
    """
    try:
        chain = list(layers)
    except TypeError:
        raise InputError(
            f"checkpoint_sequential: layers is a {type(layers).__name__}.  "
            "Give a list of functions or modules."
        ) from None
    if not chain or not all(map(callable, chain)):
        what = "is empty" if not chain else "holds what cannot be called"
        raise InputError(f"checkpoint_sequential: layers {what}.  Give a list of functions or modules.")
    count = round(math.sqrt(len(chain))) if segments is None else segments
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= len(chain):
        raise ArgumentError(
            f"checkpoint_sequential: segments is from 1 to the number of layers, {len(chain)}, "
            f"but got {segments if isinstance(segments, int) else type(segments).__name__}.\n"
            "  The arguments are checkpoint_sequential(layers, x, segments)."
        )
    generators: _Generators | None = None
    ends = [len(chain) * (i + 1) // count for i in range(count)]
    start = 0
    for end in ends[:-1]:
        segment = functools.partial(_in_turn, chain[start:end])
        generators = _Generators.of(segment, x, before=generators) if preserve_rng_state else None
        x = _checkpoint(segment, (x,), {}, debug, generators)
        start = end
    return _in_turn(chain[start:], x)


def _in_turn(chain: Sequence[Callable[[Any], Any]], x: Any) -> Any:
    for layer in chain:
        x = layer(x)
    return x


@contextmanager
def saved_tensors_hooks(pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> Iterator[None]:
    """Give every tensor that ops keep for the backward to ``pack``, and keep what it returns.

    When the backward needs the tensor, ``unpack`` makes it from that again: from a file, from
    a compressed form.  It has the same shape and dtype; the hooks decide whether it has the same
    values.  Leaves are not packed, since they stay in memory anyway.

    >>> import adjoint as ad, numpy as np
    >>> x = ad.tensor(np.linspace(0, 1, 4), requires_grad=True)
    >>> def pack(t):
    ...     return t.numpy().astype(np.float16)
    >>> def unpack(a):
    ...     return ad.tensor(a.astype(np.float64))
    >>> with ad.saved_tensors_hooks(pack, unpack):
    ...     y = ad.exp(x).sum()
    >>> y.backward()
    """
    as_function("saved_tensors_hooks: pack", pack)
    as_function("saved_tensors_hooks: unpack", unpack)
    with watched(saved_hooks, (pack, unpack)):
        yield


# What must be as it was when the function runs again --------------------------------------------------


class _Options:
    def __init__(self, name: str, debug: bool, generators: _Generators | None) -> None:
        self.name = name
        self.debug = debug
        self.generators = generators


class _Modes:
    """The modes of the first run, to be set for the second."""

    def __init__(self) -> None:
        self.dtype = get_default_dtype()
        self.top = enclosing.get()
        self.tapes = tapes.get()

    @contextmanager
    def restored(self) -> Iterator[None]:
        before = get_default_dtype()
        around = enclosing.set(self.top)
        mode = grad_mode.set(True)
        set_default_dtype(self.dtype)
        try:
            with _without_hooks(), ExitStack() as stack:
                if self.tapes or tapes.get():
                    stack.enter_context(watched(tapes, self.tapes))
                yield
        finally:
            set_default_dtype(before)
            grad_mode.reset(mode)
            enclosing.reset(around)


@contextmanager
def _without_hooks() -> Iterator[None]:
    """Keep hooks on saved tensors away from a record that is dropped soon."""
    if saved_hooks.get() is None:
        yield
    else:
        token = saved_hooks.set(None)
        try:
            yield
        finally:
            saved_hooks.reset(token)


class _Generators:
    """The random generators that a function can reach, with their states at the first run."""

    def __init__(self, owners: list[Any], known: dict[int, Any]) -> None:
        self.owners = self.every = owners
        self.states = [known[id(g)] if id(g) in known else _bits(g).state for g in owners]
        self.after: list[Any] = []

    @classmethod
    def of(cls, *starts: Any, before: _Generators | None = None) -> _Generators | None:
        """Find those that these values can reach; None if there can be none.

        What the run ``before``, just ended, left behind is known: to read NumPy's global state takes 0.1 ms.
        """
        # NumPy loads its generators when they are first named: before that there are none
        if "numpy.random" not in sys.modules or not grad_mode.get():
            return None
        known = {} if before is None else {id(g): s for g, s in zip(before.every, before.after, strict=False)}
        return cls([_global_bits(), *_reachable_generators(starts)], known)

    def _read(self) -> list[Any]:
        return [_bits(g).state for g in self.owners]

    def _write(self, states: list[Any]) -> None:
        for g, state in zip(self.owners, states, strict=True):
            _bits(g).state = state

    def keep_used(self) -> None:
        """Forget those that the first run did not draw from: most functions draw from none."""
        self.after = self._read()
        moved = [not _same(a, b) for a, b in zip(self.states, self.after, strict=True)]
        self.owners = [g for g, m in zip(self.owners, moved, strict=True) if m]
        self.states = [s for s, m in zip(self.states, moved, strict=True) if m]

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Set the states back for a block; afterwards they are what they were before it."""
        if not self.owners:
            yield
            return
        with _replaying:
            present = self._read()
            self._write(self.states)
            try:
                yield
            finally:
                self._write(present)


def _same(a: Any, b: Any) -> bool:
    """Compare two states: dictionaries of numbers and arrays."""
    if isinstance(a, dict):
        return all(_same(a[key], b[key]) for key in a)
    return bool(np.array_equal(a, b))


def _global_bits() -> Any:
    return np.random.mtrand._rand._bit_generator


def _bits(owner: Any) -> Any:
    """Return what holds the state of NumPy's generators and of adjoint's, which wraps one."""
    if isinstance(owner, np.random.BitGenerator):
        return owner
    if isinstance(owner, np.random.RandomState):
        return owner._bit_generator
    return (owner if isinstance(owner, np.random.Generator) else owner._numpy).bit_generator


_OPAQUE = (
    type(None),
    Tensor,
    np.ndarray,
    np.generic,
    str,
    bytes,
    int,
    float,
    complex,
    type,
    types.ModuleType,
)


def _reachable_generators(starts: Iterable[Any], limit: int = 20_000) -> Iterator[Any]:
    """Look through containers, closures, globals that functions name, and attributes."""
    stack = list(starts)
    seen: set[int] = set()
    while stack and len(seen) < limit:
        value = stack.pop()
        of: Any = type(value)
        kind = _kind(of)
        if kind == "opaque" or id(value) in seen:
            continue
        seen.add(id(value))
        if kind == "source":
            yield value
        else:
            stack.extend(_parts_of(value, kind))


@functools.lru_cache(maxsize=1024)
def _kind(of: Any) -> str:
    """Tell what values of a type are: a source of random numbers, or how to look into them."""
    if issubclass(of, _OPAQUE):
        return "opaque"
    sources = (np.random.Generator, np.random.RandomState, np.random.BitGenerator)
    ours = of.__name__ == "Generator" and of.__module__ == "adjoint.random"  # loaded when first used
    if ours or issubclass(of, sources):
        return "source"
    return next((kind for kind, types in _PARTS if issubclass(of, types)), "object")


_PARTS = (
    ("mapping", dict),
    ("sequence", (list, tuple, set, frozenset)),
    ("function", types.FunctionType),
    ("method", types.MethodType),
    ("partial", functools.partial),
)


def _parts_of(value: Any, kind: str) -> Iterable[Any]:
    if kind == "object":
        return getattr(value, "__dict__", {}).values()
    if kind == "mapping":
        return value.values()
    if kind == "sequence":
        return value
    if kind == "method":
        return [value.__self__, value.__func__]
    if kind == "partial":
        return [value.func, *value.args, *value.keywords.values()]
    cells = [cell.cell_contents for cell in value.__closure__ or () if _filled(cell)]
    if value.__module__ is not None and value.__module__.partition(".")[0] in ("adjoint", "numpy"):
        return cells
    named = (value.__globals__.get(name) for name in value.__code__.co_names)
    return [*named, *cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # a name that is not bound yet
        return False


# The node --------------------------------------------------------------------------------------------


def _run(flat: Flat, tensors: list[Tensor], options: _Options) -> list[Tensor]:
    top = innermost([t._data for t in tensors])
    if top is None:
        return _record(flat, tensors, options)
    operands = [at_level(t, top) for t in tensors]
    if any(map(wants_gradient, operands)):
        return _record(flat, operands, options)
    try:
        data = top.evaluate(_outside(flat, options), tuple(t._data for t in operands), {})
    except _UsesBatch:
        return flat(operands)
    return [wrap(d) for d in (data if isinstance(data, tuple) else (data,))]


class _UsesBatch(Exception):  # noqa: N818  not an error
    """The function uses values of the vmap around it that are not arguments."""


def _outside(flat: Flat, options: _Options) -> Op:
    """Make an op that checkpoints at the level outside a vmap, where the histories are."""
    op = new_op(f"checkpoint({options.name})", (), False, 1)

    def run(function: Flat, values: Sequence[Any], level: int) -> Any:
        token = enclosing.set(None)
        try:
            results = _run(function, [v if isinstance(v, Tensor) else wrap(v) for v in values], options)
        finally:
            enclosing.reset(token)
        if any(isinstance(t._data, Lifted) and t._data.level >= level for t in results):
            raise _UsesBatch
        op.outputs = len(results)
        return tuple(results) if op.outputs > 1 else results[0]

    def batch(_: Op, size: int, *own: Batched) -> Any:
        axes = tuple(0 if a.batched else None for a in own)
        mapped = vmap(lambda *ts: tuple(flat(list(ts))), axes)
        return run(lambda ts: list(mapped(*ts)), [a.value for a in own], own[0].level)

    op.batch = batch
    op.eager = op.forward = lambda *values: run(flat, values, 0)
    return op


def _record(flat: Flat, operands: list[Tensor], options: _Options) -> list[Tensor]:
    """Run the function and record it as one node."""
    wanted = [wants_gradient(t) for t in operands]
    call = _Checkpointed(flat, wanted, options)
    inputs = [_fresh(t._data, w) for t, w in zip(operands, wanted, strict=True)]
    since = next_seq()
    with _without_hooks():
        outputs = flat(inputs)
    if options.generators is not None:
        options.generators.keep_used()
    call.places = [i for i, t in enumerate(outputs) if t._node is not None]
    if not call.places:
        return outputs
    moving = [outputs[i] for i in call.places]
    captured = captured_by(moving, set(inputs), since)
    call.keys = [key_of(t) for t in captured]
    call.specs = [(t.shape, t.dtype) for t in moving]
    call.values = [t._data for t in moving] if options.debug else []
    saves = [True] * len(operands) + [not isinstance(k, Node) for k in call.keys]
    op = new_op(f"checkpoint({options.name})", saves, False, len(moving))
    op.joint, op.jvp = call.pull, call.push
    op.differentiable = op.saves_any = True
    op.plain = False
    data = tuple(t._data for t in moving)
    recorded = record_results(op, (*operands, *captured), {}, data if len(data) > 1 else data[0])
    for i, t in zip(call.places, recorded if len(data) > 1 else (recorded,), strict=True):
        outputs[i] = t
    return outputs


def _fresh(data: Any, wanted: bool) -> Tensor:
    t = wrap(data)
    if wanted:
        t._node = LEAF
    return t


def captured_by(roots: list[Tensor], inputs: set[Tensor], since: int) -> list[Tensor]:
    """Return what a record depends on besides its inputs: leaves, and results of earlier operations."""
    found: dict[Any, Tensor] = {}
    seen: set[Any] = set()
    stack = [key_of(r) for r in roots]
    while stack:
        key = stack.pop()
        if key is None or key in seen:
            continue
        seen.add(key)
        if isinstance(key, Node) and key.seq >= since:
            stack.extend(reversed(key.parents))
        elif isinstance(key, Node):
            found[key] = standing(key)
        elif key not in inputs:
            found[key] = key
    return list(found.values())


def pull_record(
    xp: Namespace, roots: Sequence[Tensor], seeds: Sequence[Any], keys: list[Any], wanted: Any, since: int
) -> list[Any] | None:
    """Pull gradients through a record that began at ``since``, to the nodes and leaves it rests on.

    What was there before is where this run ends: hooks and histories of it belong to the run
    around.  Returns a gradient, or None, per key; None alone if the record rests on anything else.
    """
    pairs = [(r, s) for r, s in zip(roots, seeds, strict=True) if s is not None]
    targets = None if all(wanted) else [k for k, w in zip(keys, wanted, strict=True) if w]
    plan = make_plan([key_of(r) for r, _ in pairs], targets, since=since)
    plan.ready = {}
    run = Run(xp, retain=xp is rec, on_ready=None)
    for root, seed in pairs:
        add(xp, run.grads, run.owned, run.wide, key_of(root), seed)
    run_serial(plan, run)
    if not set(keys).issuperset(run.grads):
        return None
    found = []
    for key, want in zip(keys, wanted, strict=True):
        total = run.grads.get(key) if want else None
        if total is not None and key in run.wide:
            total = narrowed(xp, total, key, run.wide)
        found.append(total)
    return found


class _Checkpointed:
    """One recorded call: what it takes to run it again, and the derivative of its node."""

    __slots__ = ("flat", "keys", "modes", "options", "places", "specs", "values", "wanted")

    def __init__(self, flat: Flat, wanted: list[bool], options: _Options) -> None:
        self.flat = flat
        self.wanted = wanted  # which arguments have gradients
        self.options = options
        self.modes = _Modes()
        self.places: list[int] = []  # of the outputs that have gradients
        self.keys: list[Any] = []  # nodes and leaves that the function uses besides its arguments
        self.specs: list[tuple[Any, Any]] = []
        self.values: list[Any] = []

    def pull(self, xp: Namespace, g: Any, out: Any, *values: Any, wanted: Sequence[bool]) -> list[Any]:
        """Run the function again and pull the gradients through it: the joint rule of the node."""
        inputs, roots, since = self._again(xp, values)
        seeds = g if len(self.specs) > 1 else (g,)
        keys = [key_of(t) for t in inputs] + self.keys
        found = pull_record(xp, roots, seeds, keys, wanted, since)
        if found is None:
            raise RuleError(
                f"checkpoint: {self.options.name} used other tensors when it ran again for the backward.\n"
                "  What it computes must depend on its arguments and on tensors that stay the same."
            )
        return found

    def push(self, xp: Namespace, tangents: Any, out: Any, *values: Any) -> Any:
        """Run the function again and push tangents through it: the forward mode of the node."""
        given = tangents if isinstance(tangents, tuple) else (tangents,)
        inputs, roots, since = self._again(xp, values)
        ends = [*inputs, *map(standing, self.keys)]
        directions = [t if t is None or isinstance(t, Tensor) else wrap(t) for t in given]
        pushed = push_forward(roots, ends, directions, create_graph=xp is rec, since=since)
        return tuple(pushed) if len(self.specs) > 1 else pushed[0]

    def _again(self, xp: Namespace, values: tuple[Any, ...]) -> tuple[list[Tensor], list[Tensor], int]:
        """Run the function again; return its inputs, its outputs and the first number of its nodes."""
        inputs = [_input(v, w, xp) for v, w in zip(values, self.wanted, strict=False)]
        since = next_seq()
        generators = self.options.generators
        with self.modes.restored(), ExitStack() as stack:
            if generators is not None:
                stack.enter_context(generators.replayed())
            outputs = self.flat(inputs)
        if len(outputs) <= self.places[-1]:
            raise self._differs("returned fewer tensors")
        roots = [outputs[i] for i in self.places]
        for i, (t, spec) in enumerate(zip(roots, self.specs, strict=True)):
            if (t.shape, t.dtype) != spec or t._node is None:
                raise self._differs(
                    f"returned shape {t.shape} and {t.dtype} instead of {spec[0]} and {spec[1]}"
                )
            if self.values:
                self._compare(i, t)
        return inputs, roots, since

    def _compare(self, i: int, t: Tensor) -> None:
        before, now = self.values[i], t._data
        if isinstance(before, np.ndarray) and not np.array_equal(before, now, equal_nan=True):
            difference = np.abs(np.subtract(before, now)).max()
            raise self._differs(
                f"computed other values: result {self.places[i]} differs by up to {difference:g}"
            )

    def _differs(self, how: str) -> TransformError:
        return TransformError(
            f"checkpoint: {self.options.name} {how} when it ran again for the backward.\n"
            "  It must do the same twice: no state that changes, and generators where checkpoint finds them."
        )


def _input(value: Any, wanted: bool, xp: Namespace) -> Tensor:
    """Return an argument for the second run: what a derivative is taken to, joined to its history."""
    if xp is not rec:
        return _fresh(value, wanted)
    t: Tensor = value
    if t._node is None:
        return _fresh(t._data, wanted)
    copy = wrap(t._data)
    copy._node = node_of(OPS["copy"], (t,), {}, (key_of(t),), t._data)
    return copy


def standing(key: Any) -> Tensor:
    """Return a tensor that stands for a node or leaf of the graph."""
    if not isinstance(key, Node):
        return key
    t = wrap(np.broadcast_to(np.zeros((), key.dtype), key.shape))
    t._node = key
    return t
