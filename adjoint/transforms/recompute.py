"""Checkpointing: save memory by computing values again in the backward.

``checkpoint`` records a call as one node.  The forward runs recorded, to find the outside tensors that its
results depend on.  They become parents of the node, and the graph of this run is dropped.  The backward runs
the function again (``transforms/rerun.py``) and differentiates that run.

Each ``vmap`` that runs has a *level*; a tensor inside it contains a tensor of the level outside.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar, overload

import numpy as np

from adjoint import tree, words
from adjoint.config import grad_mode, special, watched
from adjoint.core.batched import Batched, settled
from adjoint.core.lifted import level_of
from adjoint.core.namespace import Namespace, Value, rec
from adjoint.core.node import LEAF, Node, next_seq
from adjoint.core.op import Op
from adjoint.core.record import at_level, record_results, saved_hooks
from adjoint.core.tensor import Tensor, note_reading, wrap
from adjoint.engine.plan import make_plan
from adjoint.engine.pull import add, joined, narrowed_gradient
from adjoint.engine.push import push_forward
from adjoint.engine.run import Run, key_of, run_serial
from adjoint.engine.zeros import Masked, cleaned, of_seed
from adjoint.errors import ArgumentError, InputError, RuleError, TransformError
from adjoint.transforms.calls import new_op, wants_gradient
from adjoint.transforms.inputs import as_function, name_of
from adjoint.transforms.rerun import Generators, Rerun

__all__ = ["captured_by", "checkpoint", "checkpoint_sequential", "pull_record", "saved_tensors_hooks"]

P = ParamSpec("P")
R = TypeVar("R")


@overload
def checkpoint(
    f: Callable[..., R], *args: Any, preserve_rng_state: bool, debug: bool = False, **kwargs: Any
) -> R: ...
@overload
def checkpoint(f: Callable[..., R], *args: Any, debug: bool, **kwargs: Any) -> R: ...
@overload
def checkpoint(f: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...
def checkpoint(  # type: ignore[misc]  # the overloads list the keyword arguments of f and these two apart
    f: Callable[..., Any], *args: Any, preserve_rng_state: bool = True, debug: bool = False, **kwargs: Any
) -> Any:
    """Return ``f(*args, **kwargs)``, saving only the arguments for the backward.

    The backward runs ``f`` a second time.  Gradients flow to the arguments and to the other tensors that
    ``f`` uses, such as parameters of a module.  Tensors that ``f`` writes to are restored for the second
    run, so that they change once.

    Parameters
    ----------
    f : callable
        The function.  Both runs must compute the same values.
    *args : object
        Arguments of ``f``: tensors, pytrees or other values.
    preserve_rng_state : bool
        Whether the second run draws the same random numbers.  Generators are found among the arguments and
        the variables that ``f`` names, in containers, modules and attributes of these, and in NumPy's global
        state.
    debug : bool
        Whether all elements of the results of both runs are compared, bit by bit, instead of a sample.
    **kwargs : object
        Keyword arguments of ``f``.

    Returns
    -------
    object
        The result of ``f``.

    Raises
    ------
    ModifiedError
        In the backward, if ``f`` reads a tensor that is not an argument and was written to in between.
    TransformError
        In the backward, if the second run returns different results.

    Examples
    --------
    >>> import adjoint as ad, numpy as np
    >>> w = ad.tensor(np.array([2.0, 3.0]), requires_grad=True)
    >>> y = ad.checkpoint(lambda x: ad.tanh(x * w).sum(), np.array([0.0, 0.0]))
    >>> y.backward()
    >>> w.grad
    tensor([0., 0.], dtype=float64)
    """
    as_function("checkpoint", f)
    generators = Generators.of([f], [*args, *kwargs.values()]) if preserve_rng_state else None
    return _checkpoint(f, args, kwargs, debug, generators)


def _checkpoint(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    debug: bool,
    generators: Generators | None,
) -> Any:
    if not grad_mode.get():
        return f(*args, **kwargs)
    call = _Call(f, args, kwargs, generators)
    since = next_seq()
    outputs, shape = tree.flatten(call.rerun.first(f, args, kwargs))
    for level in sorted({level_of(t._data) for out in outputs for t in _histories(out) if _is_new(t, since)}):
        outputs = _recorded(_Checkpointed(call, level, debug), outputs, since)
    call.given.clear()
    return tree.unflatten(shape, outputs)


def _chain(layers: Any) -> list[Callable[[Any], Any]]:
    """Return the layers of ``checkpoint_sequential`` as a list; raise if they are not callables."""
    try:
        chain = list(layers)
        what = "" if chain else "is empty"
    except TypeError:
        chain, what = [], f"is {words.a(type(layers).__name__)}"
    if not all(map(callable, chain)):
        what = "contains an object that is not callable"
    if what:
        raise InputError(f"checkpoint_sequential: layers {what}.  Pass a list of functions or modules.")
    return chain


def checkpoint_sequential(
    layers: Iterable[Callable[[Any], Any]],
    x: Any,
    segments: int | None = None,
    *,
    preserve_rng_state: bool = True,
    debug: bool = False,
) -> Any:
    """Apply layers one after the other, in checkpointed segments.

    With n layers in √n segments, the default, the memory for the backward grows with √n instead of n, at less
    than the cost of one more forward.  The last segment is not checkpointed, because its backward comes
    first.

    Parameters
    ----------
    layers : iterable of callable
        The layers.
    x : object
        The input of the first layer.
    segments : int, optional
        The number of segments.  The default is √n for n layers.
    preserve_rng_state : bool
        Whether the second run draws the same random numbers.  Generators are searched before each segment;
        one that is created inside a layer is not found.
    debug : bool
        Whether all elements of the results of both runs are compared.

    Returns
    -------
    object
        The output of the last layer.

    Raises
    ------
    InputError
        If ``layers`` is not an iterable of callables.

    Examples
    --------
    >>> import adjoint as ad
    >>> x = ad.tensor(0.5, requires_grad=True)
    >>> ad.checkpoint_sequential([ad.tanh] * 9, x).backward()
    """
    chain = _chain(layers)
    count = round(math.sqrt(len(chain))) if segments is None else segments
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= len(chain):
        raise ArgumentError(
            f"checkpoint_sequential: segments must be an integer from 1 to {len(chain)} (the number of "
            f"layers), but got {segments if isinstance(segments, int) else type(segments).__name__}.\n"
            "  Call it as checkpoint_sequential(layers, x, segments)."
        )
    generators: Generators | None = None
    start = 0
    for end in [len(chain) * (i + 1) // count for i in range(count - 1)]:
        segment = functools.partial(_in_turn, chain[start:end])
        generators = Generators.of(chain[start:end], [x], generators) if preserve_rng_state else None
        x = _checkpoint(segment, (x,), {}, debug, generators)
        start = end
    return _in_turn(chain[start:], x)


def _in_turn(chain: Sequence[Callable[[Any], Any]], x: Any) -> Any:
    for layer in chain:
        x = layer(x)
    return x


def saved_tensors_hooks(
    pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]
) -> AbstractContextManager[None]:
    """Return a context manager that transforms the tensors that ops save for the backward.

    ``pack`` gets each saved tensor, and its result is stored instead.  When the backward needs the tensor,
    ``unpack`` restores it, for example from a file or from a compressed form.  Leaves are not packed, because
    they stay in memory anyway.  Inside ``vmap``, ``pack`` gets the tensor of the whole batch.

    Parameters
    ----------
    pack : callable
        A function of a tensor.
    unpack : callable
        A function of the result of ``pack``.  It returns a tensor of the same shape and dtype.

    Returns
    -------
    context manager
        The hooks apply to operations inside its block.

    Examples
    --------
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
    return watched(saved_hooks, (pack, unpack))


# A tensor inside vmap contains a tensor of the outer level, which has a graph of its own ---------------


def _histories(value: Any) -> Iterator[Tensor]:
    """Yield the tensor ``value`` and, if it is inside ``vmap``, the tensors outside that it contains."""
    while isinstance(value, (Tensor, Batched)):
        if isinstance(value, Tensor):
            yield value
        value = value._data if isinstance(value, Tensor) else value.value


def _is_new(t: Tensor, since: int) -> bool:
    """Return whether a tensor was recorded in the run whose first node has the sequence number ``since``."""
    return type(t._node) is Node and t._node.seq >= since


def _part(t: Tensor, level: int) -> tuple[Tensor, list[tuple[int, int, bool]]]:
    """Unwrap ``t`` from all ``vmap`` batches with a level above ``level``; return the tensor and the batches.

    Each transform that runs has a level; inner transforms have higher levels.  A batch is a tuple (level,
    size, whether there is a batch axis), and the innermost batch is first.
    """
    value: Any = t
    batches = []
    data = t._data
    while isinstance(data, Batched) and data.level > level:
        batches.append((data.level, data.size_, data.batched))
        value = data.value
        data = value._data if isinstance(value, Tensor) else value
    return value if isinstance(value, Tensor) else wrap(value), batches


def _inside(part: Tensor, batches: list[tuple[int, int, bool]], history: bool) -> Tensor:
    """Wrap the tensor ``part`` in ``batches``, which ``_part`` removed; return the wrapped tensor.

    It is connected to the graph of ``part`` if ``history`` is True.
    """
    for level, size, batched in reversed(batches):
        part = wrap(Batched(level, size, part if history else part._data, batched))
        history = False
    return part


def _with_part(value: Any, level: int, part: Tensor) -> Any:
    """Return a copy of ``value`` in which the tensor inside it at ``level`` is replaced by ``part``.

    The graphs of inner levels are kept.
    """
    data = value._data if isinstance(value, Tensor) else value
    if not (isinstance(data, Batched) and data.level > level):
        return part
    found = Batched(data.level, data.size_, settled(_with_part(data.value, level, part)), data.batched)
    if not isinstance(value, Tensor):
        return found
    t = wrap(found)
    t._node = value._node
    return t


# The node --------------------------------------------------------------------------------------------


class _Call:
    """One call of a function, without the tensors among its arguments, which the nodes save."""

    __slots__ = ("f", "given", "leaves", "name", "places", "rerun", "structure")

    def __init__(
        self,
        f: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        generators: Generators | None,
    ) -> None:
        self.f = f
        self.name = name_of(f)
        self.rerun = Rerun(f"checkpoint({self.name})", generators)
        leaves, self.structure = tree.flatten((args, kwargs))
        self.places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        if special.count:
            note_reading(*(leaves[k] for k in self.places))
        # with their current values: the function may write to them
        self.given = [_kept(leaves[k]) for k in self.places]
        # copies, because later writes to the user's arrays cannot be detected
        self.leaves = [leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
        for k in self.places:
            self.leaves[k] = None

    def again(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Run the function on these tensors again; return the leaves of its result."""
        leaves = list(self.leaves)
        for k, t in zip(self.places, tensors, strict=True):
            leaves[k] = t
        args, kwargs = tree.unflatten(self.structure, leaves)
        return tree.leaves(self.rerun.again(self.f, args, kwargs))


def _kept(t: Tensor) -> Tensor:
    """Return a tensor with the current values and graph of ``t``, which later writes to ``t`` do not change.

    A leaf is returned unchanged.
    """
    if t._node is LEAF or (t._node is None and wants_gradient(t)):
        return t
    kept = wrap(t._data)
    kept._node = t._node
    return kept


def _recorded(call: _Checkpointed, outputs: list[Any], since: int) -> list[Any]:
    """Record a checkpointed call at one level; return the outputs, connected to the new node.

    Nodes with a number of at least ``since`` belong to the run of the call.
    """
    parts = {i: _part(out, call.level)[0] for i, out in enumerate(outputs) if isinstance(out, Tensor)}
    moving = {i: t for i, t in parts.items() if level_of(t._data) == call.level and _is_new(t, since)}
    op, operands = call.op(moving, since)
    data = tuple(t._data for t in moving.values())
    recorded = record_results(op, operands, {}, data if len(data) > 1 else data[0])
    found = list(outputs)
    for i, t in zip(moving, recorded if len(data) > 1 else (recorded,), strict=True):
        found[i] = _with_part(outputs[i], call.level, t)
    return found


def captured_by(roots: list[Tensor], since: int) -> list[Tensor]:
    """Return tensors for the leaves and earlier nodes on which ``roots``, the results of a run, depend.

    They are leaves, or placeholders for nodes (see ``standing``).  ``since`` is the sequence number of the
    first node of the run.
    """
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
        else:
            found[key] = standing(key)
    return list(found.values())


def pull_record(
    xp: Namespace, roots: Sequence[Tensor], seeds: Sequence[Any], keys: list[Any], wanted: Value, since: int
) -> list[Any] | None:
    """Propagate the gradients ``seeds`` of ``roots`` through the nodes with numbers of at least ``since``.

    The run stops at earlier nodes: their hooks and graphs belong to the surrounding run.  Return a list with
    the gradient of each node or leaf in ``keys`` (None where no gradient arrives or ``wanted`` is false).
    Return None instead of a list if the ops depend on a node or leaf that is not in ``keys``.
    """
    pairs = [(r, s) for r, s in zip(roots, seeds, strict=True) if s is not None]
    pulled = [k for k, w in zip(keys, wanted, strict=True) if w and k is not None]
    # no targets if all are wanted, so that other dependencies are detected
    targets = None if len(pulled) == len(keys) - keys.count(None) else pulled
    plan = make_plan([key_of(r) for r, _ in pairs], targets, since=since)
    plan.pending = {}
    plan.events = False
    run = Run(xp, retain=xp is rec, on_ready=None)
    for root, seed in pairs:
        add(run, key_of(root), seed, of_seed(seed))
    run_serial(plan, run)
    if not set(keys).issuperset(run.grads):
        return None
    found = []
    for key, want in zip(keys, wanted, strict=True):
        zeros = run.zeros.get(key)
        total = cleaned(xp, run.grads.get(key), zeros) if want else None
        if total is not None and key in run.wide:
            total = narrowed_gradient(xp, total, key, run.wide)
        found.append(total if total is None or zeros is None else Masked(total, zeros))
    return found


class _Checkpointed:
    """A checkpointed call as a node at one level: the values that the node saves, and its derivative.

    Inside ``vmap`` a tensor of the vmap's level contains tensors of outer levels.  A call gets a node at each
    level where its results are recorded; its operands are the values of the arguments at that level.
    """

    __slots__ = ("batches", "call", "debug", "keys", "level", "lifted", "parents", "places", "specs",
                 "values")  # fmt: skip

    def __init__(self, call: _Call, level: int, debug: bool) -> None:
        self.call = call
        self.level = level
        self.debug = debug

    def op(self, moving: dict[int, Tensor], since: int) -> tuple[Op, tuple[Tensor, ...]]:
        """Return the op and the operands of the node that records the outputs ``moving`` (by index).

        ``since`` is the sequence number of the first node of the call.
        """
        roots = list(moving.values())
        self.places = list(moving)
        self.specs = [(t.shape, t.dtype) for t in roots]
        self.values = [t._data if self.debug else _sample(t._data) for t in roots]
        parts = [_part(t, self.level) for t in self.call.given]
        self.batches = [batches for _, batches in parts]
        self.lifted = [level_of(t._data) < self.level for t, _ in parts]
        operands = [at_level(t, roots[0]._data) if lift else t
                    for (t, _), lift in zip(parts, self.lifted, strict=True)]  # fmt: skip
        self.parents = [key_of(t) if wants_gradient(t) else None for t in operands]
        known = set(self.parents)
        captured = [t for t in captured_by(roots, since) if key_of(t) not in known]
        self.keys = [*_once(self.parents), *map(key_of, captured)]
        self.call.rerun.depends_on(self.keys)
        saves = [True] * len(operands) + [not isinstance(key_of(t), Node) for t in captured]
        op = new_op(f"checkpoint({self.call.name})", saves, False, len(roots))
        op.joint, op.jvp = self.pull, self.push
        op.differentiable = op.saves_any = True
        return op, (*operands, *captured)

    def pull(self, xp: Namespace, g: Any, out: Any, *values: Any, wanted: Sequence[bool]) -> list[Any]:
        """Run the function again and propagate gradients through it: the joint rule of the node.

        ``g`` are the gradients of the outputs; ``wanted`` says which gradients are needed.
        """
        roots, since = self._again(values)
        seeds = g if len(self.specs) > 1 else (g,)
        found = pull_record(xp, roots, seeds, self.keys, wanted, since)
        if found is None or not self._has_captured(found, wanted, roots, since):
            raise RuleError(
                f"checkpoint: {self.call.name} used different tensors when it ran again for the backward.\n"
                "  It must compute the same values from the same tensors twice."
            )
        return found

    def _has_captured(
        self, found: list[Any], wanted: Sequence[bool], roots: list[Tensor], since: int
    ) -> bool:
        """Return whether the second run depends on every outside tensor that the first run depended on.

        ``found`` are the gradients of these tensors; ``wanted`` says which of the gradients are needed.
        """
        n = len(self.parents)
        if all(g is not None or not want for g, want in zip(found[n:], wanted[n:], strict=True)):
            return True
        return {key_of(t) for t in captured_by(roots, since)}.issuperset(self.keys[n:])

    def push(self, xp: Namespace, tangents: Any, out: Any, *values: Any) -> Any:
        """Run the function again and push tangents through it: the forward mode of the node."""
        given = tangents if isinstance(tangents, tuple) else (tangents,)
        roots, since = self._again(values)
        ends = [(standing(key), t) for key, t in zip(self.keys, given, strict=True) if key is not None]
        directions = [t if t is None or isinstance(t, Tensor) else wrap(t) for _, t in ends]
        pushed = push_forward(
            roots, [end for end, _ in ends], directions, create_graph=xp is rec, since=since
        )
        return tuple(pushed) if len(self.specs) > 1 else pushed[0]

    def _again(self, values: tuple[Any, ...]) -> tuple[list[Tensor], int]:
        """Run the function again; return its outputs at this level, and the number of the first new node.

        ``values`` are those that the node saved: the arguments and the captured tensors.  Raise if the
        outputs differ from those of the first run.
        """
        inputs = list(map(self._input, values, self.parents, self.batches, self.lifted))
        since = next_seq()
        outputs = self.call.again(inputs)
        if len(outputs) <= self.places[-1] or not all(isinstance(outputs[i], Tensor) for i in self.places):
            raise self._differs("returned fewer tensors")
        roots = [_part(outputs[i], self.level)[0] for i in self.places]
        for i, (t, spec) in enumerate(zip(roots, self.specs, strict=True)):
            if (t.shape, t.dtype) != spec:
                raise self._differs(
                    f"returned shape {t.shape} and {t.dtype} instead of {spec[0]} and {spec[1]}"
                )
            if not _is_new(t, since):
                raise self._differs(f"returned as result {self.places[i]} a tensor that it did not compute")
            self._compare(i, t._data)
        return roots, since

    def _input(self, value: Any, parent: Any, batches: list[tuple[int, int, bool]], lifted: bool) -> Tensor:
        """Return an argument for the second run, inside the ``vmap`` batches that it was in.

        It is connected to the node ``parent``.
        """
        t: Tensor = value if isinstance(value, Tensor) else joined(value, parent)
        if lifted:
            held = t._data.value
            t = held if isinstance(held, Tensor) else wrap(held)
        return _inside(t, batches, parent is not None or t._node is not None)

    def _compare(self, i: int, data: Any) -> None:
        """Raise if ``data``, result ``i``, differs from that of the first run.

        With ``debug`` all bits are compared, otherwise a sample of the elements.
        """
        before = self.values[i]
        if not isinstance(before, np.ndarray) or not isinstance(data, np.ndarray):
            return  # inside vmap
        now = data if self.debug else _sample(data)
        if np.array_equal(before, now, equal_nan=True):
            return
        # the number of BLAS threads may differ between the runs, which changes the rounding by about √eps
        rounding = 0.0 if self.debug else 2.0 ** (-3 * before.real.dtype.itemsize)
        with np.errstate(invalid="ignore"):
            difference = np.abs(np.subtract(before, now)).max()
        if not difference <= rounding * np.abs(before).max():
            raise self._differs(
                f"returned different values (result {self.places[i]} differs by up to {difference:g})"
            )

    def _differs(self, how: str) -> TransformError:
        return TransformError(
            f"checkpoint: {self.call.name} {how} when it ran again for the backward.\n"
            "  It must compute the same values twice. Pass random generators as arguments."
        )


def _sample(data: Any) -> Any:
    """Return a copy of up to 16 elements of an array, evenly spaced."""
    if not isinstance(data, np.ndarray) or data.size == 0:
        return data
    return data.flat[:: -(-data.size // 16)]


def _once(keys: list[Any]) -> list[Any]:
    """Return a list of the keys in which each repeated occurrence of a key is replaced by None.

    A key is a node or leaf; it must get its gradient only once.
    """
    first = {k: i for i, k in reversed(list(enumerate(keys)))}
    return [k if first[k] == i else None for i, k in enumerate(keys)]


def standing(key: Any) -> Tensor:
    """Return a tensor whose gradient flows to ``key``, a node or leaf.

    For a leaf it is the leaf.  For a node it is a placeholder, whose values must not be used.
    """
    if not isinstance(key, Node):
        return key
    t = wrap(np.broadcast_to(np.zeros((), key.dtype), key.shape))
    t._node = key
    return t
