"""Record a call of a compiled function as one graph node; its forward and backward are two programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint.compiler.program.inputs import ArgumentSource, ArraySource, Source
from adjoint.compiler.program.program import Program
from adjoint.compiler.program.symbols import Symbolic
from adjoint.config import get_default_dtype, grad_mode, special, transform
from adjoint.context import Repeated, within
from adjoint.core.lifted import run_at
from adjoint.core.namespace import Namespace, raw
from adjoint.core.node import LEAF, Node, next_seq
from adjoint.core.record import joined_copy, make_node, pick, values_of
from adjoint.core.sparse import as_gradient_tensor
from adjoint.core.tensor import Tensor, note_reading, wrap
from adjoint.engine.pull import overwritten
from adjoint.engine.run import differentiate, key_of, run_serial
from adjoint.errors import ModifiedError, RuleError, TransformError
from adjoint.transforms.calls import new_op
from adjoint.transforms.recompute import pull_record

if TYPE_CHECKING:
    from adjoint.compiler.api.variant import Variant
    from adjoint.compiler.capture.trace import Trace
    from adjoint.compiler.host.call import Outputs

__all__ = ["Backward", "Recorder", "captured_by"]


class Backward:
    """The backward of a traced function: a program of residuals (values of the forward) and seeds."""

    __slots__ = ("captured", "flows", "fresh", "program", "reads", "residuals", "run", "wanted")

    def __init__(
        self, trace: Trace, inputs: Sequence[Any], outs: Sequence[Tensor], build: Callable[[Program], Any]
    ) -> None:
        """Differentiate ``outs`` inside the trace; ``inputs`` are the symbolic arguments."""
        self.captured = captured_by(trace)
        operands = [*inputs, *self.captured]
        targets = [t for t in operands if isinstance(t, Tensor) and t._node is LEAF]
        roots = [o for o in outs if o._node is not None]
        body = trace.program.body
        mark, count = len(body), len(trace.program.sources)
        seeds = [wrap(Symbolic(trace, r.shape, r.dtype)) for r in roots]
        with _without_hooks(self.captured):
            run, leaves = differentiate(
                roots, seeds, targets=targets, retain=True, create_graph=False, runner=run_serial
            )
        found = {**run.captured, **dict(leaves)}
        # pop: if a tensor is given twice, its gradient belongs to the first position
        grads = [None if not isinstance(t, Tensor) else found.pop(key_of(t), None) for t in operands]
        values = [None if g is None else trace.value(g) for g in grads]
        self.program = Program((), body[mark:])
        del body[mark:]
        self.fresh = fresh = trace.program.sources[count:]  # sources that only the backward reads
        del trace.program.sources[count:]
        made = {o.id for i in self.program.body for o in i.outs} | {s._data.id for s in seeds}
        made |= {s.value.id for s in fresh}
        used = {a.id: a for i in self.program.body for a in i.args if isinstance(a, Symbolic)}
        used |= {v.id: v for v in values if v is not None}
        # copies of the user's arrays, with which a second derivative compares the arrays
        used |= {s.value.id: s.value for s in trace.program.sources if _is_array(s)}
        self.residuals = [v for k, v in used.items() if k not in made]
        read = {v.id for v in (*self.residuals, *(s.value for s in fresh))}
        # whether the backward reads this operand itself
        self.reads = [id(t) in trace.held and trace.held[id(t)].symbol.id in read for t in operands]
        given = [*self.residuals, *(s._data for s in seeds)]
        self.program.sources = [*(ArgumentSource(v, None) for v in given), *fresh]
        self.program.results = [v for v in values if v is not None]
        self.wanted = [v is not None for v in values]
        self.flows = [o._node is not None for o in outs]
        self.build_with(build)

    def owners(self, trace: Trace) -> list[int | Tensor | None]:
        """Return the tensor or argument of each residual; None if the forward program returns its array."""
        if trace.actions:  # these updates of optimisers may write to tensors
            return [None] * len(self.residuals)
        unwritten = [h for h in trace.held.values() if h.tensor._data is h.symbol]
        found = {h.symbol.id: h.tensor if h.argument is None else h.argument for h in unwritten}
        return [found.get(v.id) for v in self.residuals]

    def build_with(self, build: Callable[[Program], Any]) -> None:
        """Build the program by ``build`` (``replay.build`` or ``native.build``) and store it as ``run``."""
        built, fresh = build(self.program), self.fresh
        self.run: Callable[..., tuple[Any, ...]] = built
        if fresh:
            self.run = lambda *given: built(*given, *[s.read() for s in fresh])


def captured_by(trace: Trace) -> list[Tensor]:
    """Return the captured tensors that gradients may flow to."""
    held = [h for h in trace.held.values() if h.argument is None]
    # a tensor of a vmap around a loop has no node, but may depend on tensors outside of the vmap
    return [h.tensor for h in held if h.node is not None or h.tensor._node is LEAF]


@contextmanager
def _without_hooks(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Context manager that removes the hooks of tensors: they run outside of the program."""
    extras = [t._extra for t in tensors if t._extra is not None]
    before = [e.hooks for e in extras]
    try:
        for e in extras:
            e.hooks = None
        yield
    finally:
        for e, hooks in zip(extras, before, strict=True):
            e.hooks = hooks


def _is_array(source: Source) -> bool:
    """Return whether a source is an array of the user, which can change after the call."""
    return isinstance(source, ArraySource) and source.is_outside()


class Recorder:
    """Records each call of a program as one node of the graph."""

    def __init__(
        self, owner: Variant, back: Backward, residuals: Sequence[int | Tensor | None], leaves: Sequence[int]
    ) -> None:
        """Prepare to record calls of ``owner``; ``leaves`` are the positions of arguments that are leaves."""
        self.owner = owner
        self.back = back
        self.residuals = residuals
        self.results = owner.count
        self.count = len(owner.moves) + len(back.captured)
        self.nothing = (None,) * len(back.residuals)
        self.blank = (None,) * (self.count + len(back.residuals))
        # the positions of the operands whose gradients the backward computes
        self.places = [k for k, w in enumerate(back.wanted) if w]
        self.specs = [(r.shape, r.dtype) for r in owner.program.results[: self.results]]
        # by argument: the position of the first argument that is the same tensor
        self.first = [next(j for j, t in enumerate(owner.inputs) if t is x) for x in owner.inputs]
        # Tensors that must not change before a recorded backward, which calls the function again; arguments
        # are given by position.  The versions of leaves that the backward reads are always compared.
        pairs = zip(back.captured, back.reads[len(owner.moves) :], strict=True)
        read = {id(t) for t, r in pairs if r and type(t._node) is not Node}
        outside = [h.tensor for h in owner.trace.held.values() if h.argument is None]
        self.unread: list[int | Tensor] = [t for t in outside if id(t) not in read]
        self.unread += [k for k in leaves if not back.reads[k]]
        self.params = {"fixed": owner.fixed, "seen": ()}
        self.op = new_op(owner.name, (True,) * (self.count + len(back.residuals)), False, self.results)
        self.op.saves_any = True  # so a second backward is an error
        self.op.joint = self.pull
        self.op.differentiable = True

    def record(self, given: Sequence[Any], found: Sequence[Any], fixed: list[Any]) -> list[Tensor]:
        """Record a call as one node of the graph; return its results as tensors.

        ``given`` are the traced arguments, ``found`` the outputs of the program, and ``fixed`` the other
        arguments (see ``Call.fixed``).
        """
        returned = iter(found[self.results :])
        kept = [next(returned) if r is None else (given[r] if isinstance(r, int) else r)._data
                for r in self.residuals]  # fmt: skip
        # the caller may write into an array before the backward
        tensors = [t if isinstance(t, Tensor) else wrap(np.array(t)) for t in given]
        tensors += self.back.captured
        if special.count:
            note_reading(*tensors)
        parents = [t if t._node is LEAF else t._node for t in tensors]
        values = [t._data for t in tensors]
        if kept:
            parents += self.nothing
            values += kept
            tensors += kept
        outs = [wrap(r if type(r) is np.ndarray else np.asarray(r)) for r in found[: self.results]]
        data = outs[0]._data if self.results == 1 else tuple([t._data for t in outs])
        # all values are kept, whichever gradients are wanted
        seen = tuple([(given[t] if isinstance(t, int) else t)._version for t in self.unread])
        node = make_node(self.op, 0, tensors, values, {"fixed": fixed, "seen": seen}, parents, data)
        versions = [(t, t._version) for t, read in zip(tensors, self.back.reads, strict=False) if read]
        node.versions = tuple([each for each in versions if type(each[0]._node) is not Node]) or None
        if self.results == 1:
            outs[0]._node = node
            return outs
        spent = self.owner.spent.of(given)
        for k, (t, flows) in enumerate(zip(outs, self.back.flows, strict=True)):
            t._node = pick(node, k) if flows else spent[k]
        return outs

    def lines(self, name: Callable[[Any], str], outs: Outputs) -> list[str]:
        """Return lines of Python that set ``node`` to the node that ``record`` makes, for a single result.

        The lines read the variables ``x0``, ``x1`` and so on, the arguments, and the outputs ``outs`` of the
        program.  ``name`` returns the variable name of an object.
        """
        places = [f"x{k}" for k in range(len(self.owner.moves))]
        nodes = [None if s.kind is np.ndarray else s.node for s in self.owner.specs]
        kinds = [s.kind for s in self.owner.specs] + [Tensor] * len(self.back.captured)
        nodes += [Node if type(t._node) is Node else t._node for t in self.back.captured]
        places += map(name, self.back.captured)
        parents, values, versions = [], [], []

        def data(tensor: str) -> str:
            return outs.read.get(f"{tensor}._data", f"{tensor}._data")

        for x, kind, node, read in zip(places, kinds, nodes, self.back.reads, strict=True):
            parents.append(x if node is LEAF else f"{x}._node" if node is Node else "None")
            values.append(f"{x}.copy()" if kind is np.ndarray else data(x))
            if kind is Tensor and node is not Node and read:
                versions.append(f"({x}, {x}._version),")
        returned = count(self.results)
        for r in self.residuals:
            if r is None:
                values.append(outs.texts[next(returned)])
            else:
                values.append(data(f"x{r}" if isinstance(r, int) else name(r)))
        parents += ["None"] * len(self.nothing)
        (shape, dtype), *_ = self.specs
        unread = [f"x{t}" if isinstance(t, int) else name(t) for t in self.unread]
        seen = "".join([f"{t}._version, " for t in unread])
        params = f"{{'fixed': {name(self.owner.fixed)}, 'seen': ({seen})}}" if seen else name(self.params)
        filled = {
            "op": name(self.op), "seq": f"{name(next_seq)}()", "parents": f"({', '.join(parents)},)",
            "args": f"({', '.join(values)},)", "versions": f"({' '.join(versions)})" if versions else "None",
            "out": "None", "params": params, "shape": repr(shape), "dtype": name(dtype), "extra": "None",
        }  # fmt: skip
        return [f"node = {name(Node)}()", *(f"node.{slot} = {value}" for slot, value in filled.items())]

    def pull(
        self, xp: Namespace, g: Any, out: Any, *values: Any,
        wanted: Sequence[bool], fixed: list[Any], seen: tuple[int, ...],
    ) -> list[Any]:  # fmt: skip
        """Return the gradients of the values that the node saved; this is the derivative rule of the node.

        ``g`` are the gradients of the results, ``wanted`` says which gradients are needed, and ``fixed`` are
        the arguments that are not traced.  ``seen`` has the versions that the tensors ``self.unread`` had at
        the call.
        """
        n, back = self.count, self.back
        if xp is raw and self.results == 1 and type(g) is np.ndarray:
            return self._placed(back.run(*values[n:], g))
        grads = (g,) if self.results == 1 else g
        if xp is raw:
            return self._placed(back.run(*values[n:], *self.seeds(grads)))
        self._check_unchanged(values, seen)
        given = xp, grads, values[:n], wanted[:n], fixed
        outside = self.owner.key[2][3]  # the call that this one repeats was not inside a transform
        rule = (Repeated if outside else str)(f"the rule of {self.owner.name}")
        found = within(transform, rule, self._recorded, *given)
        return [*found, *self.nothing]

    def _check_unchanged(self, values: Sequence[Any], seen: Sequence[int]) -> None:
        """Raise if the function cannot be called again as at the call that the node records."""
        name, trace = self.owner.name, self.owner.trace
        if not self.owner.repeats:
            raise TransformError(
                f"ad.compile: a second derivative of {name} would call {name} again, but this function draws "
                "random numbers, changes tensors or reads a .grad.\n"
                f"  Call {name} inside `with ad.config.compiling(False):` to differentiate it twice."
            )
        for unread, version in zip(self.unread, seen, strict=True):
            t = values[unread] if isinstance(unread, int) else unread
            if t._version != version:
                raise overwritten(name, t)
        changed = [str(g.reason()) for g in self.owner.guards if not g.holds()]
        if self.owner.key[2][1] != get_default_dtype():
            changed.append("the default dtype changed")
        arrays = {s.value.id: s.owner for s in trace.program.sources if _is_array(s)}
        for v, kept in zip(self.back.residuals, values_of(values[self.count :]), strict=True):
            now = arrays.get(v.id, kept)
            if now is not kept and (now.shape, now.tobytes()) != (kept.shape, kept.tobytes()):
                changed.append(f"an array of shape {now.shape} changed")
        if changed:
            raise ModifiedError(
                f"ad.compile: a second derivative of {name} calls {name} again, but since the first call "
                f"{changed[0]}.\n  Differentiate before the change, or call {name} inside "
                "`with ad.config.compiling(False):`."
            )

    def _recorded(
        self, xp: Namespace, grads: Sequence[Any], values: Sequence[Any], wanted: Sequence[bool],
        fixed: list[Any],
    ) -> list[Any]:  # fmt: skip
        """Call the function again; return the gradients of its arguments and captured tensors."""
        given = [v if isinstance(v, Tensor) else wrap(v) for v in values[: len(self.first)]]
        # A copy has its own node.  So the gradient of an argument has no part that flows through another
        # argument or a captured tensor, which may be computed from it.
        given = [
            joined_copy(t, None if t._node is None else key_of(t)) if w else t
            for t, w in zip(given, wanted, strict=False)
        ]
        leaves = list(fixed)
        for k, first in zip(self.owner.moves, self.first, strict=True):
            if leaves[k] is None:
                leaves[k] = given[first]
        since = next_seq()
        outs = run_at(None, within, grad_mode, True, self.owner.eager, leaves)
        keys = [
            key_of(t) if t._node is not None and k == first else None
            for k, (t, first) in enumerate(zip(given, self.first, strict=True))
        ]
        keys += map(key_of, self.back.captured)
        pairs = [(o, g) for o, g in zip(outs, grads, strict=True) if g is not None and o._node is not None]
        found = pull_record(xp, [o for o, _ in pairs], [g for _, g in pairs], keys, wanted, since)
        if found is None:
            raise RuleError(
                f"ad.compile: {self.owner.name} used different tensors when it was called again for a second "
                "derivative.\n  It must compute the same values from the same tensors at each call."
            )
        return found

    def _placed(self, found: Sequence[Any]) -> list[Any]:
        """Return one gradient, or None, per parent of the node; ``found`` are the computed gradients."""
        pulled = list(self.blank)
        for k, g in zip(self.places, found, strict=True):
            pulled[k] = g
        return pulled

    def seeds(self, grads: Sequence[Any]) -> list[Any]:
        """Return the gradients of the results that depend on differentiable inputs, with zeros for None."""
        return [
            np.zeros(*spec) if g is None else g if type(g) is np.ndarray else as_gradient_tensor(g)._data
            for g, spec, flows in zip(grads, self.specs, self.back.flows, strict=True)
            if flows
        ]
