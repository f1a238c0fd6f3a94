"""Implement ``ad.config.compiling("check")``: compare a program with the function it was traced from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from adjoint import tree, words
from adjoint.core.roles import UpdateRole
from adjoint.core.tensor import Tensor, wrap
from adjoint.errors import TransformError
from adjoint.grads.slots import sink
from adjoint.transforms.rerun import Generators

if TYPE_CHECKING:
    from adjoint.compiler.api.variant import Variant
    from adjoint.compiler.capture.arguments import Call

__all__ = ["run_both"]

_REMEDY = (
    "  The function depends on a value that is not guarded (checked before each call).  stats() lists the "
    "guarded values.\n"
    "  Pass the value as an argument.  A value that the function itself changes must be a tensor."
)


def run_both(variant: Variant, call: Call, function: Callable[[], Any]) -> Any:
    """Run the program, restore all state, call the original function, and return the function's result.

    Raise TransformError if the results, or the states afterwards, differ.
    """
    if sink.get() is not None:
        raise TransformError(
            'compiling("check") runs the function twice, so gradients would be added to the open micro-batch '
            "twice.\n  Check the function outside of micro_batch()."
        )
    state = _State(variant, call)
    # a program with ``changed`` was traced in this call, so the function has changed its plain data itself
    marks = variant.reads.marks if not variant.changed else list
    before = state.copied()
    found = variant.run_by_replay(call)
    _leave(found)
    after = [*state.copied(), *marks()]
    state.set_back(before)
    variant.reads.set_back()
    wanted = function()
    _compare_results(variant.name, found, wanted)
    for (what, a), (_, b) in zip(after, [*state.copied(), *marks()], strict=True):
        if not _same(a, b):
            raise TransformError(
                f"ad.compile: {what} has different values after a call of the compiled {variant.name} and "
                f"after a call of the original function.\n{_REMEDY}"
            )
    return wanted


def _leave(found: Any) -> None:
    """Replace the array of each tensor in ``found``, the results, by a copy.

    Restoring the state can then not change the results.  Tensors that are part of a graph keep their arrays.
    """
    for leaf in tree.leaves(found):
        if isinstance(leaf, Tensor) and leaf._node is None and type(leaf._data) is np.ndarray:
            leaf._data = leaf._data.copy()


class _State:
    """Copies and restores the tensors, container items, optimisers and random generators of a program."""

    def __init__(self, variant: Variant, call: Call) -> None:
        held = [h.tensor for h in variant.trace.held.values() if h.argument is None]
        given = [m for m in call.moving if isinstance(m, Tensor)]
        self.tensors = list({id(t): t for t in (*held, *given)}.values())
        self.cells = [w.owner for w in variant.program.writes if w.kind == "cell"]
        self.places = [w.owner for w in variant.program.writes if w.kind == "place"]
        updates = [w.owner for w in variant.program.writes if w.kind == "call"]
        found = [u.optimizer for u in updates if isinstance(u, UpdateRole) and u.optimizer is not None]
        self.optimizers = list({id(o): o for o in found}.values())
        self.generators = Generators.drawn_by([s.owner for s in variant.program.sources if s.kind == "draw"])

    def _units(self) -> Iterator[Any]:
        """Yield the units of all optimisers; a unit is a set of parameters that are updated together."""
        for o in self.optimizers:
            for group in o.groups:
                yield from group.units

    def copied(self) -> list[tuple[str, Any]]:
        """Return a copy of the state as a list of pairs (description for messages, copy)."""
        found: list[tuple[str, Any]] = []
        for t in self.tensors:
            grad = None if t._extra is None else t._extra.grad
            data = None if grad is None else np.array(grad._data)
            found.append((f"a tensor of shape {t.shape}", np.array(t._data)))
            found.append((f"the .grad of a tensor of shape {t.shape}", data))
        found += [("an item of a container", np.array(container[key])) for container, key in self.cells]
        found += [(place.what, place.read()) for place in self.places]
        for unit in self._units():
            state = None if unit.state is None else {k: v.copy() for k, v in unit.state.items()}
            found += [("the state of an optimiser", state), ("the update count", list(unit.steps))]
        found += [("the step count of an optimiser", o.step_count) for o in self.optimizers]
        found.append(("the state of a random generator", self.generators.read()))
        return found

    def set_back(self, copies: list[tuple[str, Any]]) -> None:
        """Restore the state from ``copies``, a result of ``copied``."""
        values = iter([value for _, value in copies])
        for t in self.tensors:
            t._data = next(values)
            grad = next(values)
            if grad is not None or t._extra is not None:
                t.grad = None if grad is None else wrap(grad)
        for container, key in self.cells:
            container[key] = next(values)
        for place in self.places:
            place.put(next(values))
        for unit in self._units():
            state = next(values)
            if state is None or unit.state is None:
                unit.state = state
            else:
                unit.state.update(state)  # in place: programs write into this dictionary
            unit.steps = list(next(values))
        for o in self.optimizers:
            o.step_count = next(values)
        self.generators.write(next(values))


def _same(a: Any, b: Any) -> bool:
    """Return whether two values are equal bit for bit, including shape and dtype."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(v, b[k]) for k, v in a.items())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return type(a) is type(b) and bool(a == b)


def _compare_results(name: str, found: Any, wanted: Any) -> None:
    """Raise TransformError if the results of the program and of the function differ.

    ``found`` are the results of the program, ``wanted`` those of the function ``name``.
    """
    if tree.structure(found) != tree.structure(wanted):
        raise TransformError(
            f"ad.compile: the compiled {name} and the original function return different structures.\n"
            f"{_REMEDY}"
        )
    for k, (a, b) in enumerate(zip(tree.leaves(found), tree.leaves(wanted), strict=True)):
        if isinstance(a, Tensor) != isinstance(b, Tensor):
            raise TransformError(
                f"ad.compile: result {k} of the compiled {name} is {words.a(type(a).__name__)}, but the "
                f"original function returns {words.a(type(b).__name__)}.\n{_REMEDY}"
            )
        x, y = (np.asarray(v.detach().numpy() if isinstance(v, Tensor) else v) for v in (a, b))
        if not _same(x, y):
            raise TransformError(
                f"ad.compile: result {k} of the compiled {name} differs from the result of the original "
                f"function.\n{_REMEDY}"
            )
