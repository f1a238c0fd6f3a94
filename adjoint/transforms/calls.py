"""Record one call of a function as a single node with a given derivative.

Custom derivatives and checkpoints are such calls.  A ``Rule`` defines how the call runs and how gradients are
propagated back, on tensors; ``apply`` runs it and records the node.  Inside ``vmap``, a call whose arguments
depend on recorded tensors of outer levels is recorded there, with a rule that itself runs under ``vmap``.
The derivative of the rule is thus used at every level (each transform that runs has its own level).
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from adjoint import tree, words
from adjoint.config import grad_mode, special, transform
from adjoint.context import within
from adjoint.core.batched import Batched, settled
from adjoint.core.lifted import Lifted, Unknown, level_of, run_at
from adjoint.core.namespace import Namespace, rec
from adjoint.core.op import Op
from adjoint.core.record import at_level, innermost, joined_copy, record_results, tracked
from adjoint.core.sparse import as_gradient_tensor
from adjoint.core.tensor import Tensor, differentiable, held, note_reading, wrap
from adjoint.errors import RuleError, TransformError
from adjoint.transforms.batch import vmap

__all__ = [
    "VALUES", "Derivative", "ForwardRule", "Rule", "SplitTree", "apply", "new_op", "specs_of",
    "wants_gradient", "zeros_for",
]  # fmt: skip

VALUES = (Tensor, np.ndarray, np.generic, int, float, complex)  # allowed types of results


class Rule(ABC):
    """Base class of rules: how a call runs and how it is differentiated, on flat lists of tensors.

    Forward mode is the transpose of ``backward``, except for a ``ForwardRule``.
    """

    name: str
    reruns = True  # whether a recorded backward runs the forward again, to connect its values to the graph

    @abstractmethod
    def plain(self, tensors: list[Tensor]) -> list[Tensor]:
        """Run the call without recording a graph; return the outputs."""

    @abstractmethod
    def forward(self, tensors: list[Tensor]) -> tuple[list[Tensor], list[Tensor], Any]:
        """Run the call; return ``(outputs, residuals, rest)``.

        ``residuals`` are the tensors and ``rest`` the other values that ``backward`` needs.
        """

    @abstractmethod
    def backward(
        self, residuals: list[Tensor], rest: Any, grads: list[Tensor | None], wanted: Sequence[bool]
    ) -> list[Any]:
        """Return the gradient of each argument, or None for a gradient that is zero.

        ``residuals`` and ``rest`` are the second and third result of ``forward``.  ``grads`` has the gradient
        of each output, or None for zero, and ``wanted`` says which arguments need a gradient.
        """

    @abstractmethod
    def argument(self, i: int) -> str:
        """Return the name of argument ``i`` for messages."""


class ForwardRule(Rule):
    """A rule with its own forward mode."""

    @abstractmethod
    def jvp(self, tensors: list[Tensor], tangents: list[Tensor]) -> list[Tensor]:
        """Return the tangent of each output."""


def apply(rule: Rule, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Run a call on tensors; record it as one node if a gradient is wanted."""
    operands = list(tensors)
    if special.count:
        note_reading(*operands)
    top = innermost([t._data for t in operands])
    if top is not None:
        operands = [at_level(t, top) for t in operands]
    if not (grad_mode.get() and any(map(wants_gradient, operands))):
        if top is None or isinstance(top, Unknown):
            return _checked_run(rule, run_at(top, rule.plain, _cut(operands)), top)
        data = top.evaluate(_evaluated(rule), tuple(t._data for t in operands), {})
        return [wrap(d) for d in (data if isinstance(data, tuple) else (data,))]
    inputs = _cut(operands)
    # at the level of the arguments, so that the rule does not see a surrounding vmap
    outputs, residuals, rest = run_at(top, rule.forward, inputs)
    _checked_run(rule, [*outputs, *residuals], top)
    return _connected(_Ran(rule, inputs, outputs, residuals, rest), operands)


def wants_gradient(t: Tensor) -> bool:
    """Return whether a tensor can get a gradient, so that operations on it are recorded."""
    if not differentiable(t.dtype):
        return False
    return tracked(t)


def _cut(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors with the same values that are not part of the graph of this transform.

    They stay connected to the graphs of outer transforms.
    """
    if special.count:
        note_reading(*tensors)
    return [wrap(t._data) for t in tensors]  # all of them, because a tape watches tensors, not values


def _checked_run(rule: Rule, results: list[Tensor], top: Lifted | None) -> list[Tensor]:
    """Return the results; raise if they depend on tensors that are not arguments.

    The gradients of such tensors would be lost.  ``top`` is a value of the innermost transform among the
    arguments, or None.
    """
    if any(t._node is not None for t in results):
        raise TransformError(
            f"{rule.name} uses a tensor that requires grad and is not among its arguments, so its gradient "
            "would be lost.\n"
            "  Pass it as an argument, or use ad.stop_gradient(tensor) where it is meant as a constant."
        )
    _check_levels(rule, results, level_of(top))
    return results


def _check_levels(rule: Rule, results: list[Tensor], level: int) -> None:
    """Raise if a result belongs to a transform further in than ``level``, that of the arguments."""
    if any(level_of(t._data) > level for t in results):
        raise _captures(rule)


def _captures(rule: Rule) -> TransformError:
    return TransformError(
        f"{rule.name} uses a value that an enclosing ad.vmap batches, but that is not an argument "
        f"of {rule.name}.\n  Pass it as an argument."
    )


@functools.cache
def _positions(count: int) -> tuple[str, ...]:
    return tuple(f"argument {i}" for i in range(count))


def new_op(name: str, saves: Sequence[bool], saves_out: bool, outputs: int) -> Op:
    """Make the op record of one call; it is not in the op table.

    ``saves`` says for each argument whether the node saves it, ``saves_out`` whether it saves the output.
    """
    return Op(
        name=name, forward=lambda *_: None, rules=(), joint=None, kind="general", call=True,
        arity=len(saves), arg_names=_positions(len(saves)), out_name="out", outputs=outputs,
        saves_args=tuple(saves), saves_out=saves_out, reads=(), params=(),
        holomorphic=False,  # users' rules follow the convention of gradients themselves
    )  # fmt: skip


# Saved values of a call -----------------------------------------------------------------------------


class SplitTree:
    """A pytree whose tensors are stored separately, so that a rule does not keep them alive."""

    def __init__(self, whole: Any) -> None:
        self.leaves, self.structure = tree.flatten(whole)
        self.at = [k for k, leaf in enumerate(self.leaves) if isinstance(leaf, Tensor)]

    def take(self) -> list[Tensor]:
        """Remove the tensors from the tree and return them."""
        found = [self.leaves[k] for k in self.at]
        for k in self.at:
            self.leaves[k] = None
        return found

    def filled(self, tensors: Sequence[Tensor]) -> Any:
        """Return the whole tree, with ``tensors`` in the places of those that ``take`` removed."""
        leaves = list(self.leaves)
        for k, t in zip(self.at, tensors, strict=True):
            leaves[k] = t
        return tree.unflatten(self.structure, leaves)


def zeros_for(grads: list[Tensor | None], specs: list[tuple[Any, Any]]) -> list[Tensor]:
    """Return ``grads`` with None replaced by zeros; ``specs`` has the shape and dtype of each output."""
    return [
        wrap(np.zeros(shape, dtype)) if g is None else g
        for g, (shape, dtype) in zip(grads, specs, strict=True)
    ]


def specs_of(outputs: list[Tensor]) -> list[tuple[Any, Any]]:
    """Return the shape and dtype of each output."""
    return [(t.shape, t.dtype) for t in outputs]


# Inside vmap ---------------------------------------------------------------------------------------


def _evaluated(rule: Rule) -> Op:
    """Return an op that runs a call made inside ``vmap`` outside of the ``vmap``, on the whole batch."""
    op = new_op(rule.name, (), False, 1)

    def outside(*values: Any) -> Any:
        results = apply(rule, [v if isinstance(v, Tensor) else wrap(v) for v in values])
        op.outputs = len(results)
        return tuple(results) if op.outputs > 1 else results[0]

    def batch(_: Op, size: int, *own: Batched) -> Any:
        axes = [0 if a.batched else None for a in own]
        held = [a.value if isinstance(a.value, Tensor) else wrap(a.value) for a in own]
        results = apply(_mapped(rule, axes), held)
        _check_levels(rule, results, own[0].level - 1)
        op.outputs = len(results)
        return tuple(results) if op.outputs > 1 else results[0]

    op.eager = outside
    op.forward = outside
    op.batch = batch
    return op


def _mapped(rule: Rule, axes: list[Any]) -> Rule:
    return _MappedForward(rule, axes) if isinstance(rule, ForwardRule) else _Mapped(rule, axes)


def _places(tensors: list[Tensor], among: Sequence[Tensor]) -> list[int | None]:
    """Return the position of each tensor in ``among``, the first one, or None."""
    known = {id(t): i for i, t in reversed([*enumerate(among)])}
    return [known.get(id(t)) for t in tensors]


class _Mapped(Rule):
    """A rule that runs another rule under ``vmap``; outside the ``vmap`` it represents the call inside."""

    def __init__(self, rule: Rule, axes: list[Any]) -> None:
        self.rule = rule
        self.axes = axes
        self.name = rule.name
        self.reruns = rule.reruns

    def argument(self, i: int) -> str:
        """Return the name of argument ``i`` for messages."""
        return self.rule.argument(i)

    def plain(self, tensors: list[Tensor]) -> list[Tensor]:
        """Run the call under ``vmap`` on the whole batch; return the outputs."""
        found = vmap(lambda *ts: tuple(self.rule.plain(list(ts))), tuple(self.axes))(*tensors)
        return list(found)

    def forward(self, tensors: list[Tensor]) -> tuple[list[Tensor], list[Tensor], Any]:
        """Run the call under ``vmap``; return ``(outputs, residuals, rest)`` as ``Rule.forward`` does.

        Residuals that are not arguments have the batch axis in front.  Those that are arguments or outputs
        are returned as the same tensors.
        """
        rest: list[Any] = []

        def run(*ts: Tensor) -> Any:
            outputs, residuals, other = self.rule.forward(list(ts))
            places = _places(residuals, [*ts, *outputs])
            rest.append((places, other))
            return tuple(outputs), [r for r, at in zip(residuals, places, strict=True) if at is None]

        outputs, computed = vmap(run, tuple(self.axes))(*tensors)
        made, given = iter(computed), [*tensors, *outputs]
        return list(outputs), [next(made) if at is None else given[at] for at in rest[0][0]], rest[0]

    def backward(
        self, residuals: list[Tensor], rest: Any, grads: list[Tensor | None], wanted: Sequence[bool]
    ) -> list[Any]:
        """Return the gradient of each argument for the batch; without a batch axis, the sum over the batch.

        The arguments are those of ``Rule.backward``.
        """
        places, other = rest
        axes = [0 if at is None or at >= len(self.axes) else self.axes[at] for at in places]

        def pull(res: Any, gs: Any) -> Any:
            found = self.rule.backward(list(res), other, list(gs), wanted)
            # vmap needs a result, and all gradients may be None, so a number is returned too
            return 0, tuple(f if w else None for f, w in zip(found, wanted, strict=True))

        if not any(g is not None for g in grads):
            return [None] * len(self.axes)
        _, found = vmap(pull, (tuple(axes), 0))(tuple(residuals), tuple(grads))
        level = max([level_of(t._data) for t in (*residuals, *grads) if t is not None])
        _check_levels(self, [g for g in found if g is not None], level)
        return [
            g if g is None or axis is not None else rec.sum(g, axis=(-g.ndim,), keepdims=False)
            for g, axis in zip(found, self.axes, strict=True)
        ]


class _MappedForward(_Mapped, ForwardRule):
    rule: ForwardRule

    def jvp(self, tensors: list[Tensor], tangents: list[Tensor]) -> list[Tensor]:
        """Return the tangents of the outputs for the whole batch."""
        n = len(tensors)

        def push(*both: Tensor) -> Any:
            return tuple(self.rule.jvp(list(both[:n]), list(both[n:])))

        return list(vmap(push, (*self.axes, *self.axes))(*tensors, *tangents))


# The node ------------------------------------------------------------------------------------------


class _Ran(NamedTuple):
    """A call whose forward has run."""

    rule: Rule
    inputs: list[Tensor]  # the operands without their graph
    outputs: list[Tensor]
    residuals: list[Tensor]  # what the forward saved, with ``rest``
    rest: Any

    def outside(self, operands: list[Tensor], top: Batched) -> tuple[_Ran, list[Tensor]]:
        """Return this run and its operands outside of the ``vmap`` of ``top``: a run on the whole batch."""
        axes = [0 if t._data.batched else None for t in operands]
        whole = 0 in axes

        def out(t: Tensor) -> Tensor:
            inner = at_level(t, top)._data
            if inner.batched and not whole:
                raise _captures(self.rule)
            value = wrap(inner.value._data if isinstance(inner.value, Tensor) else inner.value)
            repeats = whole and not inner.batched
            return rec.broadcast_to(value, shape=(top.size_, *value.shape)) if repeats else value

        held = [v if isinstance(v := t._data.value, Tensor) else wrap(v) for t in operands]
        inputs, outputs = _cut(held), [out(t) for t in self.outputs]
        places = _places(self.residuals, [*self.inputs, *self.outputs])
        given = [*inputs, *outputs]
        residuals = [
            out(r) if at is None else given[at] for r, at in zip(self.residuals, places, strict=True)
        ]
        if not whole:
            return _Ran(self.rule, inputs, outputs, residuals, self.rest), held
        return _Ran(_mapped(self.rule, axes), inputs, outputs, residuals, (places, self.rest)), held


def _connected(run: _Ran, operands: list[Tensor]) -> list[Tensor]:
    """Return the outputs of a run, connected by its rule to the graphs of ``operands`` at every level."""
    top = innermost([t._data for t in operands])
    outputs = run.outputs
    if top is not None:
        operands = [at_level(t, top) for t in operands]
        outputs = [at_level(t, top) for t in outputs]  # also those that are the same for the whole batch
    if isinstance(top, Batched) and run.rule.reruns and any(t._data.has_history() for t in operands):
        outer, held = run.outside(operands, top)
        whole = outer.rule is not run.rule
        outputs = [wrap(Batched(top.level, top.size_, settled(t), whole)) for t in _connected(outer, held)]
    if not (grad_mode.get() and any(map(wants_gradient, operands))):
        return outputs
    return _recorded(run, operands, outputs)


def _recorded(run: _Ran, operands: list[Tensor], results: list[Tensor]) -> list[Tensor]:
    """Record a call as one node; return ``results``, the values of its outputs, connected to the node.

    Saved tensors that are arguments or outputs of the call are connected to the graph if the backward is
    itself recorded. Other saved tensors were computed inside the call: to connect them, the forward runs
    again and is recorded.
    """
    rule, inputs, outputs, residuals, rest = run
    node = Derivative(rule, len(inputs), specs_of(outputs), rest)
    known = {id(t): ("in", i) for i, t in enumerate(inputs)}
    for j, t in enumerate(outputs):
        known.setdefault(id(t), ("out", j))
    constants: list[Tensor] = []
    for r in residuals:
        place = known.get(id(r))
        if place is None:
            place = ("const", len(constants))
            constants.append(r)
        node.places.append(place)
    node.rerun = rule.reruns and any(differentiable(c.dtype) for c in constants)
    uses = {i for kind, i in node.places if kind == "in"}
    everything = node.rerun or isinstance(rule, ForwardRule)
    saves = [everything or i in uses for i in range(len(inputs))] + [True] * len(constants)
    op = new_op(rule.name, saves, any(kind == "out" for kind, _ in node.places), len(outputs))
    if not op.saves_any:
        op.saves_any = True  # ``rest`` may hold anything, so a second backward is an error
    op.joint = node.pull
    op.differentiable = True
    if isinstance(rule, ForwardRule):
        op.jvp = functools.partial(node.push, rule)
    data = tuple(t._data for t in results)
    recorded = record_results(op, (*operands, *constants), {}, data if len(data) > 1 else data[0])
    return list(recorded) if len(data) > 1 else [recorded]


class Derivative:
    """The derivative of one recorded call: ``pull`` is its reverse mode, ``push`` its forward mode."""

    __slots__ = ("count", "places", "rerun", "rest", "rule", "specs")

    def __init__(self, rule: Rule, count: int, specs: list[tuple[Any, Any]], rest: Any) -> None:
        self.rule = rule
        self.count = count  # the number of arguments; constants follow them in the node
        self.specs = specs  # shape and dtype of each output
        self.rest = rest
        self.places: list[tuple[str, int]] = []
        self.rerun = False

    def pull(self, xp: Namespace, g: Any, out: Any, *values: Any, wanted: Sequence[bool]) -> list[Any]:
        """Return the gradients of all arguments of the call; this is the derivative rule of the node.

        ``g`` are the gradients of the outputs, ``out`` are the outputs, and ``wanted`` says which gradients
        are needed.
        """
        recording = xp is rec
        n = self.count
        grads = [self._gradient(each, recording) for each in (g if len(self.specs) > 1 else (g,))]
        residuals = self._residuals(out, values, recording)
        top = innermost([t._data for t in (*residuals, *grads) if t is not None])
        backward = functools.partial(self._run, recording, top, self.rule.backward, residuals, self.rest)
        found = backward(grads, wanted[:n])
        if recording:
            self._check_zero(found, grads, values, wanted[:n], backward)
        pulled = [
            _as_gradient(self.rule, i, f, v, recording) if w else None
            for i, (f, v, w) in enumerate(zip(found, values[:n], wanted[:n], strict=True))
        ]
        return [*pulled, *(None,) * (len(values) - n)]

    def _check_zero(
        self,
        found: Sequence[Any],
        grads: list[Tensor | None],
        values: Sequence[Any],
        wanted: Sequence[bool],
        backward: Callable[..., Any],
    ) -> None:
        """Raise if a gradient in ``found``, which ``backward`` computed from ``grads``, lost its graph.

        A gradient that is not part of a graph must be zero.  If all of ``grads`` are zero, every gradient is,
        so they are computed from ones again.
        """
        cut = [i for i, w in enumerate(wanted) if w and getattr(found[i], "_node", None) is None]
        if any(found[i] is not None for i in cut) and all(g is None or _is_zero(g) for g in grads):
            again = backward([None if g is None else g + 1.0 for g in grads], wanted)
            for i in cut:
                _as_gradient(self.rule, i, again[i], values[i], True)

    def push(self, rule: ForwardRule, xp: Namespace, tangents: Any, out: Any, *values: Any) -> Any:
        """Return the tangents of all outputs of the call; this is the node's rule for forward mode.

        ``tangents`` are those of the arguments, and ``values`` are the arguments.
        """
        given = tangents if isinstance(tangents, tuple) else (tangents,)
        inputs = [_as_operand(v) for v in values[: self.count]]
        directions = [
            wrap(np.zeros(x.shape, x.dtype)) if t is None else _as_operand(t)
            for x, t in zip(inputs, given, strict=False)
        ]
        top = innermost([t._data for t in (*inputs, *directions)])
        found = self._run(xp is rec, top, rule.jvp, inputs, directions)
        pushed = [t if xp is rec else t._data for t in found]
        return tuple(pushed) if len(self.specs) > 1 else pushed[0]

    def _run(self, recording: bool, top: Any, function: Callable[..., Any], *args: Any) -> Any:
        """Call a method of the rule inside the transform that the value ``top`` belongs to.

        The call is recorded if ``recording``.
        """
        if not recording:
            return run_at(top, function, *args)
        return within(transform, f"the rule of {self.rule.name}", run_at, top, function, *args)

    def _gradient(self, g: Any, recording: bool) -> Tensor | None:
        if g is None:
            return None
        t = as_gradient_tensor(g)
        if type(t) is not type(wrap(t._data)):
            t = wrap(t._data)  # sparse rows: users' rules get plain tensors
        if recording and t._node is None:
            # a node without parents, so that the result of the rule must depend on it
            t = joined_copy(t, t if tracked(t) else None)
        return t

    def _residuals(self, out: Any, values: tuple[Any, ...], recording: bool) -> list[Tensor]:
        again: list[Tensor] | None = None
        if recording and self.rerun:
            inputs = [_as_operand(v) for v in values[: self.count]]
            top = innermost([t._data for t in inputs])
            again = self._run(recording, top, self.rule.forward, inputs)[1]
            if len(again) != len(self.places):
                raise RuleError(
                    f"{self.rule.name}: the forward saved different tensors when it ran again.\n"
                    "  It must save the same tensors each time it runs with the same arguments."
                )
        outs = out if len(self.specs) > 1 else (out,)
        found = []
        for k, (kind, i) in enumerate(self.places):
            if kind == "in":
                found.append(_as_operand(values[i]))
            elif kind == "out":
                found.append(_as_operand(outs[i]))
            elif again is not None and again[k]._node is not None:
                found.append(again[k])
            else:  # independent of the arguments, such as a mask or a random draw
                found.append(_as_operand(values[self.count + i]))
        return found


def _as_operand(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else wrap(value)


def _as_gradient(rule: Rule, i: int, found: Any, like: Any, recording: bool) -> Any:
    """Check ``found``, the gradient that a user's rule returned for argument ``i``.

    Return it with the shape and dtype of ``like``, as a tensor if ``recording``, else as an array.  If it is
    None, return None.
    """
    if found is None:
        return None
    if not isinstance(found, Tensor):
        if not isinstance(found, (np.ndarray, np.generic, int, float, complex)) or isinstance(found, bool):
            raise RuleError(
                f"the backward of {rule.name} returned {words.a(type(found).__name__)} as the gradient of "
                f"{rule.argument(i)}.\n"
                "  Return a tensor of the argument's shape, or None for zero."
            )
        array = np.asarray(found)
        plain_number = not isinstance(found, (np.ndarray, np.generic))
        found = wrap(array.astype(like.dtype) if plain_number else array.copy())
    if found.shape != like.shape:
        raise RuleError(
            f"the backward of {rule.name} returned a gradient of shape {found.shape} for {rule.argument(i)}, "
            f"which has shape {like.shape}.\n"
            "  A gradient must have the shape of its argument: sum over broadcast axes."
        )
    if found.dtype != like.dtype:
        raise RuleError(
            f"the backward of {rule.name} returned a gradient of {found.dtype} for {rule.argument(i)}, "
            f"which is {like.dtype}.\n  A gradient must have the dtype of its argument: use "
            "grad.astype(x.dtype)."
        )
    if not recording:
        return found._data
    if found._node is None and not _is_zero(found):
        raise RuleError(
            f"the backward of {rule.name} returned a gradient of {rule.argument(i)} that is not part of "
            "a graph, so it cannot be differentiated again.\n"
            "  Write the backward with ad functions of the gradient it is given, without numpy() or detach()."
        )
    return found


def _is_zero(t: Tensor) -> bool:
    data = held(t)
    return isinstance(data, np.ndarray) and not data.any()
