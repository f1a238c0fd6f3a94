"""Parameter groups of optimisers: the memory of parameters, the optimiser state, and the pending updates."""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from adjoint.core.inplace import writable
from adjoint.core.references import OF_TENSOR
from adjoint.core.roles import GroupRole
from adjoint.core.tensor import Tensor, castable, read_only
from adjoint.errors import ArgumentError

if TYPE_CHECKING:
    from adjoint.optim.optimizer import Optimizer

__all__ = [
    "Array", "Block", "Hyper", "ParameterGroup", "State", "Unit", "Update", "fitted", "in_parts",
    "plain_value",
]  # fmt: skip

Array = ndarray[Any, Any]
State = dict[str, Any]
Hyper = dict[str, Any]
Update = tuple[Array, Array, State, Hyper]  # to be written: flat parameter, gradient, state, hyper-parameters

SMALL = 16_384  # elements: parameters up to this size share one flat array


class Block:
    """The data of several tensors of one dtype in one flat array.

    The tensors' data become views of the flat array.  ``open`` returns that array for writing.  As for every
    write, the tensors' versions are incremented, and memory that other objects use (a detached tensor, a
    NumPy view, a graph) is copied first.
    """

    __slots__ = ("flat", "sizes", "slices", "tensors", "views")

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)
        self.sizes = [t.size for t in tensors]
        ends = np.cumsum([0, *self.sizes]).tolist()
        self.slices = [slice(a, b) for a, b in itertools.pairwise(ends)]
        self.flat: ndarray[Any, Any] = np.empty(ends[-1], tensors[0].dtype)
        self.views: list[ndarray[Any, Any]] = []
        self._gather()

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the constructor and its arguments, because pickling separates views from the flat array."""
        return Block, (self.tensors,)

    def _gather(self) -> None:
        """Copy the tensors' values into a new flat array, and replace their data by views of it."""
        flat = np.empty_like(self.flat)
        views = []
        for t, s in zip(self.tensors, self.slices, strict=True):
            flat[s] = t._data.reshape(-1)
            t._data = flat[s].reshape(t.shape)
            views.append(t._data)
        # assigned last: if an interrupt comes before this, the old views differ from the tensors' data, and
        # open() gathers again
        self.flat = flat
        self.views = views

    def open(self) -> ndarray[Any, Any]:
        """Increment the versions of all tensors and return the flat array for writing."""
        limit, count, views = OF_TENSOR, sys.getrefcount, self.views
        # every view, even a view of a view, has the flat array as its base and so adds 1 to its refcount
        exclusive = limit >= 0 and count(self.flat) <= len(views) + limit - 1
        i = 0
        for t in self.tensors:
            t._version += 1
            if t._data is not views[i] or count(views[i]) > limit:
                exclusive = False  # another object, such as a NumPy view, uses the memory
            i += 1  # noqa: SIM113  enumerate costs more
        if not exclusive:
            self._gather()
        return self.flat


class ParameterGroup(GroupRole):
    """Parameters that share hyper-parameters.

    Small parameters of one dtype are stored and updated together, in one ``Unit``.  Each large parameter has
    its own unit.
    """

    def __init__(
        self,
        params: list[Tensor],
        hyper: Hyper,
        unit: Callable[[list[Tensor], Block | None], Unit] | None = None,
    ) -> None:
        made = Unit if unit is None else unit
        self.params = params
        self.hyper = hyper
        self.checked = dict(hyper)  # the values at the last check, to detect values that a user assigned
        self.given = hyper.get("lr", 0.0)
        self.own_rate = False  # whether the group has its own learning rate
        self.ratio = 1.0  # the learning rate of the group divided by that of the optimiser
        self.units: list[Unit] = []
        small: dict[Any, list[Tensor]] = {}
        for p in params:
            if p.size <= SMALL:
                # frozen parameters in a separate block: a block with missing gradients is updated in parts
                small.setdefault((p.dtype, p.requires_grad), []).append(p)
            else:
                self.units.append(made([p], None))
        self.units += [made(members, Block(members)) for members in small.values()]
        self._unit_of = {id(p): u for u in self.units for p in u.params}

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; raise for the name of a hyper-parameter, because its value is in ``hyper``."""
        if name in self.__dict__.get("hyper", ()):
            raise ArgumentError(
                f"a parameter group has no attribute {name!r}.  Set the hyper-parameter with "
                f"optimizer.groups[i].hyper[{name!r}] = value."
            )
        object.__setattr__(self, name, value)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)  # the parameters of a copy have new ids
        self._unit_of = {id(p): u for u in self.units for p in u.params}

    def state_of(self, p: Tensor, copy: bool = False) -> State:
        """Return the state arrays of parameter ``p`` by name, each in the shape of the parameter.

        They are copies if ``copy`` is True, otherwise read-only views.
        """
        return self._unit_of[id(p)].state_of(p, copy)

    def steps_of(self, p: Tensor) -> int:
        """Return the number of updates of the parameter ``p`` so far."""
        unit = self._unit_of[id(p)]
        return unit.steps[unit.position(p)]

    def take_over(
        self, optimizer: Optimizer, data: Callable[[Tensor], Any] = operator.attrgetter("_data")
    ) -> None:
        """Adapt the state arrays to a change of ``self.hyper``, and store a copy of it as checked.

        A momentum that was 0 before, for example, needs a new state array.  ``data`` is a function that
        returns the array of a parameter.
        """
        if any(v != self.checked[k] for k, v in self.hyper.items() if k != "lr"):
            fitted = [unit.fitted_state(optimizer, self.hyper, data) for unit in self.units]
            for unit, state in zip(self.units, fitted, strict=True):
                unit.state = state
        self.hyper.update({k: plain_value(v) for k, v in self.hyper.items()})
        self.checked = dict(self.hyper)


class Unit:
    """Parameters of a group that are updated together: a block of small ones, or one large parameter."""

    def __init__(self, params: list[Tensor], block: Block | None) -> None:
        self.params = params
        self.block = block
        self.state: State | None = None  # flat arrays, in the layout of the parameters
        self.grad: Array | None = None  # scratch for the gradients of a block
        self.steps = [0] * len(params)  # the number of updates of each parameter

    def updates(
        self, optimizer: Optimizer, grads: list[Any], hyper: Hyper, scatters: list[Callable[[], None]]
    ) -> list[Update]:
        """Increment the step counts of the parameters with a gradient; return the updates to be written.

        ``grads`` has a gradient or None for each parameter.  No parameter is written here, so an error
        changes none.  For sparse gradients, functions that copy updated rows back are appended to
        ``scatters``.  The caller must call them after it has written all updates.
        """
        present = [g is not None for g in grads]
        if not any(present):
            return []
        if self.block is None:
            return [self._update_of_one(optimizer, grads[0], hyper, scatters)]
        flat = self.block.open()
        self.steps = list(map(operator.add, self.steps, present))
        if self.grad is None:
            self.grad = np.empty_like(flat)
        state = self._need_state(optimizer, flat, hyper)
        if all(present) and len(set(self.steps)) == 1:  # the usual case: update the whole block
            try:
                np.concatenate(
                    [g._data if type(g) is Tensor else g if type(g) is ndarray else _whole(g) for g in grads],
                    None,
                    self.grad,
                )
                return [(flat, self.grad, state, {**hyper, "step": self.steps[0]})]
            except _SparseError:
                pass
        return self._updates_in_parts(flat, grads, state, hyper, scatters)

    def _updates_in_parts(
        self, flat: Array, grads: list[Any], state: State, hyper: Hyper, scatters: list[Callable[[], None]]
    ) -> list[Update]:
        """Return the updates of a block with missing or sparse gradients, or with unequal step counts.

        ``flat`` is the block's array; the other arguments are as for ``updates``.
        """
        assert self.block is not None
        assert self.grad is not None
        found: list[Update] = []
        dense = [False] * len(grads)
        for i, (p, g, s) in enumerate(zip(self.params, grads, self.block.slices, strict=True)):
            if getattr(g, "rows", None) is not None:
                data = flat[s].reshape(p.shape)
                shaped = {k: v[s].reshape(p.shape) for k, v in state.items()}
                own = {**hyper, "step": self.steps[i]}
                found.append(_rows(data, fitted(g, p).coalesce(), shaped, own, scatters))
            elif g is not None:
                self.grad[s] = fitted(g, p).reshape(-1)
                dense[i] = True
        for span, step in self._spans(dense):
            part = {k: v[span] for k, v in state.items()}
            found.append((flat[span], self.grad[span], part, {**hyper, "step": step}))
        return found

    def _spans(self, present: list[bool]) -> Iterator[tuple[slice, int]]:
        """Yield the longest slices of the flat array in which all parameters can be updated by one call.

        These parameters have a gradient (``present`` is True) and the same step count.  Each slice is yielded
        as a pair with this step count.
        """
        assert self.block is not None
        runs: list[list[int]] = []  # start, stop, step
        for has, s, step in zip(present, self.block.slices, self.steps, strict=True):
            if not has:
                continue
            if runs and runs[-1][1] == s.start and runs[-1][2] == step:
                runs[-1][1] = s.stop
            else:
                runs.append([s.start, s.stop, step])
        for start, stop, step in runs:
            yield slice(start, stop), step

    def _update_of_one(
        self, optimizer: Optimizer, grad: Any, hyper: Hyper, scatters: list[Callable[[], None]]
    ) -> Update:
        (p,) = self.params
        grad = fitted(grad, p)
        data = writable(p)
        self.steps = [self.steps[0] + 1]
        hyper = {**hyper, "step": self.steps[0]}
        flat = data.reshape(-1)
        state = self._need_state(optimizer, flat, hyper)
        if type(grad) is ndarray:
            return flat, grad.reshape(-1), state, hyper
        return _rows(
            data, grad.coalesce(), {k: v.reshape(p.shape) for k, v in state.items()}, hyper, scatters
        )

    def _need_state(self, optimizer: Optimizer, flat: Array, hyper: Hyper) -> State:
        if self.state is None:
            self.state = _initial(optimizer, flat, hyper)
        return self.state

    def fitted_state(self, optimizer: Optimizer, hyper: Hyper, data: Callable[[Tensor], Any]) -> State | None:
        """Return the state with exactly the arrays that ``hyper`` requires, or None before the first update.

        ``data`` is a function that returns the array of a parameter.
        """
        if self.state is None:
            return None
        fresh = self.kept(self.initial_state(optimizer, hyper, data))
        return {name: self.state.get(name, value) for name, value in fresh.items()}

    def initial_state(
        self, optimizer: Optimizer, hyper: Hyper, data: Callable[[Tensor], Any] = operator.attrgetter("_data")
    ) -> State:
        """Return new state arrays for all parameters of the unit, as they are before the first update.

        ``data`` is a function that returns the array of a parameter.
        """
        flat = np.concatenate([data(p) for p in self.params], None)
        return _initial(optimizer, flat, hyper)

    def kept(self, state: State) -> State:
        """Return the part of the state arrays that this process stores.

        It is the whole state here; ``ShardedUnit`` returns a slice.
        """
        return state

    def take_back(self, steps: list[int], new: bool) -> None:
        """Undo ``updates`` after an error: set the step counts to ``steps`` and decrement the versions.

        If ``new`` is True, ``updates`` has made the state.
        """
        self.steps = steps
        if new:
            self.state = None
        for p in self.params:
            p._version -= 1

    def position(self, p: Tensor) -> int:
        """Return the index of a parameter in this unit."""
        return next(i for i, q in enumerate(self.params) if q is p)

    def slice_of(self, p: Tensor) -> slice:
        """Return the slice that a parameter occupies in the flat arrays of this unit."""
        return slice(0, p.size) if self.block is None else self.block.slices[self.position(p)]

    def state_of(self, p: Tensor, copy: bool) -> State:
        """Return the state arrays of parameter ``p`` by name, each in the shape of the parameter.

        They are copies if ``copy`` is True, otherwise read-only views.
        """
        found = {k: v[self.slice_of(p)].reshape(p.shape) for k, v in (self.state or {}).items()}
        return {k: v.copy() if copy else read_only(v) for k, v in found.items()}


def _initial(optimizer: Optimizer, flat: Array, hyper: Hyper) -> State:
    if flat.dtype.kind != "c":
        return optimizer.init_one(flat, hyper)
    return {k: v.view(flat.dtype) for k, v in optimizer.init_one(_parts(flat), hyper).items()}


def in_parts(update: Update) -> Update:
    """Return an update in which complex arrays are viewed as real arrays of twice the size, as in PyTorch."""
    p, g, state, hyper = update
    if p.dtype.kind != "c":
        return update
    return _parts(p), _parts(np.ascontiguousarray(g)), {k: _parts(v) for k, v in state.items()}, hyper


def _parts(flat: Array) -> Array:
    """Return a real view of a flat complex array, in which real and imaginary parts alternate."""
    return flat.view(flat.real.dtype)


def _rows(data: Array, grad: Any, state: State, hyper: Hyper, scatters: list[Callable[[], None]]) -> Update:
    """Return an update of the rows in which the sparse gradient ``grad`` has values.

    The update is made on copies of these rows of ``data`` and ``state``.  A function that writes the copies
    back is appended to ``scatters``.
    """
    rows = grad.rows
    piece = data[rows]
    part = {k: v[rows] for k, v in state.items()}

    def scatter() -> None:
        data[rows] = piece
        for name, value in part.items():
            state[name][rows] = value

    scatters.append(scatter)
    flat = {k: v.reshape(-1) for k, v in part.items()}
    values = np.asarray(grad.values).astype(data.dtype, copy=False)
    return piece.reshape(-1), values.reshape(-1), flat, hyper


class _SparseError(Exception):
    """Raised internally if a gradient of a block is sparse.  The block is then updated in parts."""


def _whole(g: Any) -> Array:
    if getattr(g, "rows", None) is not None:
        raise _SparseError
    return np.asarray(g)


def fitted(grad: Any, p: Tensor) -> Any:
    """Return ``grad``, the gradient of ``p``, as an array of the dtype of ``p``.

    A sparse gradient is returned unchanged.

    Raise a bare ValueError if the shapes differ, or TypeError if the dtype cannot be cast.  The caller adds
    the message.
    """
    rows = getattr(grad, "rows", None)
    g = grad if rows is not None else grad._data if type(grad) is Tensor else np.asarray(grad)
    if g.shape != p.shape:
        raise ValueError
    if not castable(g.dtype, p.dtype):
        raise TypeError
    return g if rows is not None else g.astype(p.dtype, copy=False)


def plain_value(value: Any) -> Any:
    """Convert a NumPy scalar to a Python number, which does not promote float32 arrays to float64.

    Return other values unchanged.
    """
    if isinstance(value, (tuple, list)):
        return tuple(map(plain_value, value))
    return value.item() if isinstance(value, np.generic) else value
