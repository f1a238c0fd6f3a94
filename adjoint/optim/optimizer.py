"""The base class of optimisers: hyper-parameters, groups, and updates in place.

An optimiser is defined by a pure function on arrays, ``apply_one(xp, p, g, state, hyper)``, which returns the
new parameter and the new state.  Small parameters are updated together as one flat array, which needs few
NumPy calls.  Large parameters are updated in pieces that fit in the CPU cache, by several threads.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from adjoint import words
from adjoint.config import grad_mode, special
from adjoint.context import user_code
from adjoint.core.batched import Batched
from adjoint.core.lifted import refuse_tracing, tracing
from adjoint.core.namespace import Namespace, raw
from adjoint.core.roles import OptimizerRole
from adjoint.core.shapes import number_between
from adjoint.core.tensor import Tensor, Traced, castable
from adjoint.errors import ArgumentError, DTypeError, InputError, ShapeError, TransformError
from adjoint.grads.slots import drop
from adjoint.hints import HintedBase
from adjoint.interop.notebook import optimizer_html
from adjoint.ops.half import is_half, wide
from adjoint.optim.formula import form_of
from adjoint.optim.groups import Array, Hyper, ParameterGroup, State, Unit, Update, in_parts, plain_value
from adjoint.optim.parameters import check_parameter, parameter_list
from adjoint.optim.saved import read_state, saved_state
from adjoint.optim.shard import ShardedUnit, check_ranks
from adjoint.optim.traced import trace_update
from adjoint.threads.spread import ALONE, SHARED, pieces, run_parts, threads_for
from adjoint.tracebacks import hide

if TYPE_CHECKING:
    from adjoint.distributed.group import Group

__all__ = ["Hyper", "Optimizer", "State"]

_grad = operator.attrgetter("grad")
_own_rate = operator.attrgetter("own_rate")

# a function and its arguments
Part = tuple[Callable[[Array, Array, State, Any], None], Array, Array, State, Any]

_FLAGS = ("maximize", "nesterov", "amsgrad", "centered")

LEAST = 262_144  # the least number of elements per thread; with half as many, threads do not pay off


class Optimizer(OptimizerRole, metaclass=HintedBase):
    """Base class of optimisers, which update parameters from their gradients.

    A parameter whose ``grad`` is None is not updated, and its state is kept.  A frozen parameter
    (``requires_grad=False``) is updated again after it is unfrozen.

    Parameters
    ----------
    params : iterable of Tensor or of dict
        The parameters, or groups ``{"params": [...], "lr": ...}`` that override the defaults.
    shard : Group, optional
        Ranks that each keep a slice of the state.  All ranks must pass the same gradients to each update.
    **defaults : object
        The hyper-parameters.

    Raises
    ------
    InputError
        If there are no parameters, or they are not leaf tensors.

    Examples
    --------
    >>> import adjoint as ad
    >>> class Plain(ad.optim.Optimizer):
    ...     def apply_one(self, xp, p, g, state, hyper):
    ...         return p - hyper["lr"] * g, {}
    >>> w = ad.tensor([1.0, 2.0], requires_grad=True)
    >>> opt = Plain([w], lr=0.5)
    >>> w.sum().backward(); opt.step(); w.detach()
    tensor([0.5, 1.5], dtype=float64)
    """

    slots: ClassVar[tuple[str, ...]] = ()  # the names of the state arrays of each parameter
    pure: ClassVar[bool] = True  # whether the step that ``numbers`` gets may be a tensor, as in ``Pure``

    def __init__(self, params: Iterable[Any], *, shard: Group | None = None, **defaults: Any) -> None:
        if special.count:
            refuse_tracing("an optimiser", "Create it outside the compiled function.", "created")
        if shard is not None:
            check_ranks(type(self).__name__, shard)
        self.shard = shard
        self.defaults = {"maximize": False, **defaults}
        self.step_count = 0
        self.groups: list[ParameterGroup] = []
        self._paused = False  # whether all learning rates are 0 because lr was set to 0
        self._complex = False  # whether a parameter is complex
        given = parameter_list(type(self).__name__, params)
        if not given:
            raise InputError(
                f"{type(self).__name__}: there are no parameters to optimise.\n"
                "  Modules and parameters in plain lists or dictionaries are not found: use nn.ModuleList, "
                "nn.ModuleDict or nn.ParameterList."
            )
        grouped = isinstance(given[0], Mapping)
        for i, g in enumerate(given):
            if isinstance(g, Mapping) != grouped:
                raise InputError(
                    f"{type(self).__name__}: pass either parameters or groups, but element 0 is a "
                    f"{type(given[0]).__name__} and element {i} is {words.a(type(g).__name__)}.\n"
                    '  Put single parameters into a group: {"params": [...]}.'
                )
        for g in given if grouped else [{"params": given}]:
            self.add_group(g)
        if not any(p.requires_grad for p in self.params):
            raise InputError(
                f"{type(self).__name__}: no parameter requires grad, so nothing can be trained."
                "\n  Unfreeze a module or a tensor with requires_grad_(True)."
            )

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; raise for the name of a hyper-parameter, because the groups have its value."""
        if name in self.__dict__.get("defaults", ()) and not hasattr(type(self), name):
            raise ArgumentError(
                f"{type(self).__name__} has no attribute {name!r}.  Set the hyper-parameter of each group:\n"
                f"  for group in optimizer.groups: group.hyper[{name!r}] = value"
            )
        object.__setattr__(self, name, value)

    # Defined by subclasses -------------------------------------------------------------------

    def init_one(self, p: Array, hyper: Hyper) -> State:
        """Return the state of a parameter before its first update: arrays of its shape and dtype.

        A complex parameter is passed as an array of real numbers, here and in ``apply_one``.

        Parameters
        ----------
        p : ndarray
            The parameter, flat.
        hyper : dict
            The hyper-parameters of its group.

        Returns
        -------
        dict of str to ndarray
            The state.
        """
        return {name: np.zeros_like(p) for name in self.slots}

    def numbers(self, hyper: Hyper) -> Hyper:
        """Return the hyper-parameters and other numbers for ``apply_one``.

        This is called once per step for each set of parameters that are updated together.  Compute here
        everything other than arithmetic on arrays, such as powers of the step.

        Parameters
        ----------
        hyper : dict
            The hyper-parameters of the group, and ``"step"``, the number of this update, from 1.

        Returns
        -------
        dict
            The numbers.
        """
        return hyper

    def apply_one(self, xp: Namespace, p: Any, g: Any, state: State, hyper: Hyper) -> tuple[Any, State]:
        """Return the updated parameter and state.  Overrides must be pure and elementwise.

        Parameters
        ----------
        xp : Namespace
            The functions to use: ``xp.sqrt``.
        p, g : ndarray
            The parameter and its gradient, flat.
        state : dict
            The arrays of ``init_one``.
        hyper : dict
            The result of ``numbers``.

        Returns
        -------
        tuple
            The new parameter, and a dictionary of the new state.
        """
        raise NotImplementedError  # not abstract: a subclass may override step() instead

    def check(self, hyper: Hyper) -> None:
        """Raise if a hyper-parameter is out of range.

        Parameters
        ----------
        hyper : dict
            The hyper-parameters.

        Raises
        ------
        ArgumentError
            If a value is invalid.
        """
        for name, value in hyper.items():
            what = f"{type(self).__name__}: {name}"
            if name == "betas":
                if not isinstance(value, (tuple, list)) or len(value) != 2:
                    raise ArgumentError(f"{what} must be two numbers, but are {value!r}.")
                for beta in value:
                    number_between(what, beta, 0.0, 1.0)
                    if beta == 1:
                        raise ArgumentError(f"{what} must be below 1, but are {value!r}.")
            elif name in ("momentum", "alpha", "beta", "decay"):
                number_between(what, value, 0.0, 1.0)
            elif name in ("lr", "eps", "weight_decay", "dampening", "lr_decay", "momentum_decay", "initial"):
                number_between(what, value, 0.0)
            elif name in _FLAGS and not isinstance(value, (bool, np.bool_)):
                raise ArgumentError(f"{what} must be True or False, but is {value!r}.")

    # Public ------------------------------------------------------------------------------------

    def add_group(self, group: Mapping[str, Any]) -> None:
        """Add parameters with their own hyper-parameters.

        Parameters
        ----------
        group : mapping
            ``{"params": [...], "lr": ...}``.  Hyper-parameters that are left out have their defaults.

        Raises
        ------
        ArgumentError
            If a parameter is already in the optimiser, or a hyper-parameter is unknown.
        """
        if special.count:
            refuse_tracing("add_group() of an optimiser", "Call it outside the compiled function.")
        if not isinstance(group, Mapping) or "params" not in group:
            what = f"has only {', '.join(map(str, group))}" if isinstance(group, Mapping) else f"is {group!r}"
            raise InputError(
                f'{type(self).__name__}: a group must be {{"params": [...], "lr": ...}}, but this one {what}.'
            )
        params = group["params"]
        params = [params] if isinstance(params, Tensor) else parameter_list(type(self).__name__, params)
        self._refuse_unknown(set(group) - {"params", "names"})
        taken = {id(p) for g in self.groups for p in g.params}
        for i, p in enumerate(params):
            if type(p) is Traced and isinstance(p._data, Batched):
                raise TransformError(
                    f"{type(self).__name__}: params[{i}] is a value inside ad.vmap, which cannot be updated "
                    f"in place.\n  Use optim.Pure(optim.{type(self).__name__}, lr=…), which returns new "
                    "parameters and a new state."
                )
            check_parameter(type(self).__name__, i, p)
            if id(p) in taken:
                raise ArgumentError(f"{type(self).__name__}: params[{i}] of shape {p.shape} is given twice.")
            taken.add(id(p))
        hyper = {**self.defaults, **{k: v for k, v in group.items() if k not in ("params", "names")}}
        self.check(hyper)
        hyper = {k: plain_value(v) for k, v in hyper.items()}
        unit = None if self.shard is None else partial(ShardedUnit, ranks=self.shard)
        added = ParameterGroup(params, hyper, unit)
        added.own_rate = "lr" in group
        if self.groups and "lr" in hyper:
            self._relate(added)
        self.groups.append(added)
        if added.ratio not in (0.0, 1.0) and self._lead() is added:  # ratios are relative to this group now
            for g in self.groups[:-1]:
                g.ratio /= added.ratio
            added.ratio = 1.0
        self._complex = self._complex or any(p.dtype.kind == "c" for p in params)

    def _refuse_unknown(self, names: set[str]) -> None:
        unknown = sorted(names - set(self.defaults))
        if unknown:
            raise ArgumentError(
                f"{type(self).__name__}: unknown hyper-parameters {', '.join(unknown)}.\n"
                f"  The hyper-parameters are {', '.join(sorted(self.defaults))}."
            )

    def _check_written(self, hyper: Hyper) -> None:
        """Raise if ``hyper``, which the user may have changed, has unknown, missing or invalid entries."""
        self._refuse_unknown(set(hyper))
        missing = [name for name in self.defaults if name not in hyper]
        if missing:
            raise ArgumentError(
                f"{type(self).__name__}: the hyper-parameters of a group are missing {', '.join(missing)}."
            )
        self.check(hyper)

    def _relate(self, added: ParameterGroup) -> None:
        """Store the ratio of a new group's learning rate to ``self.lr``; later changes of ``lr`` keep it."""
        lead = self._lead()
        rate = lead.hyper["lr"] or lead.given  # the rate it was created with, if lr is 0 now
        if rate:
            added.ratio = added.given / rate
        elif added.given:  # the first group with a rate above 0: earlier groups stay at 0
            for g in self.groups:
                g.ratio = 0.0

    @property
    def params(self) -> list[Tensor]:
        """All parameters, group after group."""
        return [p for g in self.groups for p in g.params]

    def _lead(self) -> ParameterGroup:
        """Return the group whose learning rate is ``self.lr``.

        This is the first group whose rate is or was above 0.  Groups that use the default rate are considered
        before groups that were given their own rate.
        """
        if len(self.groups) == 1:
            return self.groups[0]
        ranked = sorted(self.groups, key=_own_rate)
        ratios = (g for g in ranked if g.ratio)
        if self._paused:
            return next(ratios, ranked[0])
        return next((g for g in ranked if g.hyper.get("lr")), next(ratios, ranked[0]))

    @property
    def lr(self) -> float:
        """The learning rate.  Setting it scales the rates of all groups.

        This is the rate of the first group without its own rate, or of the first group with a rate above 0
        if all have their own.  The ratios between groups are kept, even after the rate was set to 0.  A group
        with rate 0 stays at 0; but if all groups have rate 0, all get the new rate.  The value is NaN for an
        optimiser without a learning rate.
        """
        return float(self._lead().hyper.get("lr", math.nan))

    @lr.setter
    def lr(self, value: float) -> None:
        if "lr" not in self.defaults:
            raise ArgumentError(f"{type(self).__name__} has no learning rate to set.")
        if special.count:
            refuse_tracing(
                "the learning rate",
                "Set it outside the compiled function, which reads it at each call.",
                "set",
            )
        number_between(f"{type(self).__name__}: lr", value, 0.0)
        before = self.lr
        for g in self.groups:
            # the rate of this group was assigned separately: keep its new ratio
            if before and not self._paused and g.hyper["lr"] != before * g.ratio:
                g.ratio = float(g.hyper["lr"]) / before
            g.hyper["lr"] = g.checked["lr"] = float(value) * g.ratio
        self._paused = value == 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients of all parameters to None.

        Parameters
        ----------
        set_to_none : bool
            Must be True.  The parameter exists for compatibility with PyTorch.
        """
        for group in self.groups:
            drop(group.params, set_to_none)

    def step(self) -> None:
        """Update every parameter that has a gradient."""
        try:
            self._update(_grad)
        except Exception as error:
            hide(error)
            raise

    def apply(self, grads: Mapping[Any, Any]) -> None:
        """Update parameters from given gradients.

        Parameters
        ----------
        grads : Gradients or dict
            The gradients by parameter, or by the ``id`` of the parameter.

        Raises
        ------
        ShapeError
            If a gradient and its parameter have different shapes.  Nothing is updated then.
        DTypeError
            If a gradient cannot be cast to the parameter's dtype.  Nothing is updated then.
        """
        strange = next((k for k in grads if not isinstance(k, (Tensor, int))), None)
        if strange is not None:
            raise InputError(
                f"{type(self).__name__}: the keys of grads must be parameters, but one key is {strange!r}."
            )
        gradient = lambda p: _found(grads, p)
        self._refuse_misfits(gradient)
        self._update(gradient)

    def _update(self, gradient: Callable[[Tensor], Any]) -> None:
        if special.count and (trace := tracing.get()) is not None:
            if self.shard is not None:
                refuse_tracing("an optimiser with shard=", "Call its step() outside the compiled function.")
            trace_update(trace, self, gradient)
            return
        grads = [list(map(gradient, unit.params)) for group in self.groups for unit in group.units]
        try:
            self.update_units(grads)
        except (ValueError, TypeError) as error:
            if not hasattr(error, "__notes__"):  # no note from _take_back: no parameter was written
                self._refuse_misfits(gradient)
            raise

    def update_units(self, grads: list[list[Any]], restored: bool = False) -> None:
        """Update all parameters that have a gradient.

        ``grads`` has one list per unit (a ``Unit`` is a set of parameters that are updated together), with
        None for a parameter without a gradient.  If ``restored`` is True, the caller restores the optimiser
        after an error, so this method does not.
        """
        groups = self.groups
        written = [group for group in groups if group.hyper != group.checked]
        for group in written:
            self._check_written(group.hyper)
        updates: list[Update] = []
        scatters: list[Callable[[], None]] = []  # copy updated rows of sparse gradients back
        units = [(unit, unit.steps, unit.state is None) for group in groups for unit in group.units]
        before, count = grad_mode.get(), self.step_count
        try:
            # off, because parameters are written; set inside try, so that an interrupt cannot leave it off
            grad_mode.set(False)
            for group in written:
                group.take_over(self)
            given = iter(grads)
            for group in groups:
                for unit in group.units:
                    updates += unit.updates(self, next(given), group.hyper, scatters)
            self._write(updates)
            for scatter in scatters:
                scatter()
        except BaseException as error:
            if not restored:
                self._take_back(error, count, units)
            raise
        finally:
            grad_mode.set(before)

    def _take_back(
        self, error: BaseException | None, count: int, units: Iterable[tuple[Unit, list[int], bool]] = ()
    ) -> None:
        """Restore units after an error in an update: each with its step counts, and whether it had no state.

        If the error came while parameters were written, they cannot be restored: add a note to ``error``
        instead.  ``count`` is the ``step_count`` before the update.
        """
        if self.step_count != count:  # an interrupt, or an error in a user's apply_one
            text = (
                f"{type(self).__name__}: this error interrupted the update.  Some parameters are updated, "
                "others are not."
            )
            if error is not None and text not in getattr(error, "__notes__", ()):
                error.add_note(text)
            return
        for unit, before, new in units:
            if unit.steps is not before:
                unit.take_back(before, new)

    def _refuse_misfits(self, gradient: Callable[[Tensor], Any]) -> None:
        """Raise if the shape or dtype of a gradient does not match its parameter.

        ``gradient`` is a function that returns the gradient of a parameter, or None.
        """
        for i, p in enumerate(self.params):
            if (g := gradient(p)) is None:
                continue
            where = f"{type(self).__name__}: the gradient of params[{i}]"
            g = g if isinstance(g, Tensor) or hasattr(g, "rows") else np.asarray(g)
            if g.shape != p.shape:
                raise ShapeError(f"{where} has shape {g.shape}, but the parameter has shape {p.shape}.")
            if not castable(g.dtype, p.dtype):
                raise DTypeError(f"{where} is {g.dtype}, which cannot be cast to the parameter's {p.dtype}.")

    @np.errstate(all="ignore")  # a warning raised as an error would leave the update incomplete
    def _write(self, updates: list[Update]) -> None:
        """Compute all updates and write them, in pieces; use several threads if the parameters are large."""
        parts: list[Part] = []
        for update in updates:
            p, g, state, hyper = in_parts(update) if self._complex else update
            hyper = self.numbers(hyper)
            form = form_of(self, state, hyper) if p.dtype.char in "fd" else None
            if is_half(p):
                parts.append((self._write_half, p, g, state, hyper))
            elif form is None:
                parts.append((self._write_pure, p, g, state, hyper))
            else:
                parts.append((form.write, p, g, state, form.scalars(hyper, p.dtype)))
        object.__setattr__(self, "step_count", self.step_count + 1)  # our ``__setattr__`` takes longer
        if len(parts) == 1 and parts[0][1].nbytes <= ALONE:  # the usual case: one piece in one thread
            write, p, g, state, numbers = parts[0]
            write(p, g, state, numbers)
            return
        threads = threads_for(sum([part[1].size for part in parts]), LEAST)
        bytes_ = ALONE if threads == 1 else SHARED
        cut: list[Part] = []
        for write, p, g, state, numbers in parts:
            for s in pieces(p.size, bytes_ // p.itemsize):
                cut.append((write, p[s], g[s], {k: v[s] for k, v in state.items()}, numbers))
        run_parts(_write_part, cut, threads)

    def _write_half(self, p: Array, g: Array, state: State, hyper: Hyper) -> None:
        """Update a parameter of half precision in float32, and round once."""
        new, old = wide(p), {k: wide(v) for k, v in state.items()}
        self._write_pure(new, wide(g), old, hyper)
        p[...] = new
        for name, value in old.items():
            state[name][...] = value

    def _write_pure(self, p: Array, g: Array, state: State, hyper: Hyper) -> None:
        new, new_state = user_code(self, "apply_one")(raw, p, -g if hyper["maximize"] else g, state, hyper)
        p[...] = new
        for name, value in new_state.items():
            state[name][...] = value

    def state_of(self, p: Tensor) -> State:
        """Return the state of one parameter.

        Parameters
        ----------
        p : Tensor
            The parameter.

        Returns
        -------
        dict of str to ndarray
            Read-only arrays of the parameter's shape.

        Raises
        ------
        InputError
            If the tensor is not a parameter of the optimiser.
        """
        for group in self.groups:
            for q in group.params:
                if q is p:
                    return group.state_of(p)
        raise InputError("state_of: this tensor is not a parameter of the optimiser.")

    def state_dict(self) -> dict[str, Any]:
        """Return a dictionary with copies of the step count, the hyper-parameters and the state.

        "applied" has the hyper-parameters to which the state belongs.  Those in "groups" differ from them if
        they were changed after the last update; the next update then adapts the state.

        With ``shard=`` all ranks must call this method.  Each rank gets the whole state, which can be loaded
        on any number of ranks.
        """
        return saved_state(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state.  An error leaves the optimiser unchanged.

        Parameters
        ----------
        state : mapping
            The result of ``state_dict()``.

        Raises
        ------
        ArgumentError
            If the state belongs to a different kind of optimiser, or has different groups.
        """
        if special.count:
            refuse_tracing("load_state_dict() of an optimiser", "Call it outside the compiled function.")
        saved, count = read_state(self, state)
        for g, (hyper, applied, ratio, units) in zip(self.groups, saved, strict=True):
            g.hyper.update(hyper)
            g.checked, g.ratio = applied, ratio
            for unit, (arrays, steps) in zip(g.units, units, strict=True):
                unit.state, unit.steps = None if arrays is None else unit.kept(arrays), steps
        self.step_count = count
        self._paused = bool(state.get("paused", not any(g.hyper.get("lr") for g in self.groups)))

    def __repr__(self) -> str:
        numbers = words.count(sum(p.size for p in self.params), "number")
        hyper = ", ".join(f"{k}={v}" for k, v in self.groups[0].hyper.items() if v)
        return f"{type(self).__name__}({words.count(len(self.params), 'tensor')}, {numbers}; {hyper})"

    def _repr_html_(self) -> str:
        return optimizer_html(self)


def _write_part(part: Part) -> None:
    write, p, g, state, numbers = part
    write(p, g, state, numbers)


def _found(grads: Mapping[Any, Any], p: Tensor) -> Any:
    g = grads.get(id(p)) if isinstance(grads, dict) else grads.get(p)
    return grads.get(p) if g is None and isinstance(grads, dict) else g
