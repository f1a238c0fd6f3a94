"""Custom derivatives: ``custom_vjp``, ``custom_jvp``, ``stop_gradient`` and ``straight_through``.

Each call is recorded as one node (``transforms/calls.py``), like that of the class ``Function``.  A backward
written with ad functions can be differentiated again, and its transpose gives forward mode.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from adjoint import tree, words
from adjoint.config import grad_mode
from adjoint.context import user_code
from adjoint.core.convert import asarray
from adjoint.core.lifted import enclosing
from adjoint.core.node import next_seq
from adjoint.core.record import joined_copy
from adjoint.core.sparse import as_gradient_tensor
from adjoint.core.tensor import Tensor, differentiable, held, wrap
from adjoint.engine.run import differentiate, key_of, run_serial
from adjoint.errors import ArgumentError, InputError, RuleError, ShapeError, TransformError
from adjoint.tracebacks import door
from adjoint.transforms.calls import VALUES, ForwardRule, Rule, SplitTree, apply, specs_of, zeros_for
from adjoint.transforms.inputs import Place, as_function, name_of

__all__ = ["custom_jvp", "custom_vjp", "stop_gradient", "straight_through"]

T = TypeVar("T")


def stop_gradient(x: T) -> T:
    """Return the same values as constants, through which no gradient flows.

    Parameters
    ----------
    x : tensor or pytree
        The values.  Leaves that are not tensors are returned unchanged.

    Returns
    -------
    tensor or pytree
        The same values, not part of a graph.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.grad(lambda x: x * ad.stop_gradient(x))(3.0)
    np.float64(3.0)
    """
    return tree.map(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, x)


def straight_through(f: Callable[[Tensor], Any], x: Any) -> Tensor:
    """Return ``f(x)`` with the gradient of the identity: a straight-through estimator.

    It is meant for functions whose derivative is zero or undefined: rounding, signs, hard choices.

    Parameters
    ----------
    f : callable
        A function that keeps the shape.  It may use NumPy.
    x : array_like
        The argument.

    Returns
    -------
    Tensor
        Exactly ``f(x)``.

    Raises
    ------
    ShapeError
        If ``f`` changes the shape.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.grad(lambda x: ad.straight_through(ad.round, x) ** 2)(2.6)
    np.float64(6.0)
    """
    as_function("straight_through", f)
    return apply(_StraightThrough(f), [asarray(x)])[0]


class _StraightThrough(Rule):
    def __init__(self, f: Callable[[Tensor], Any]) -> None:
        self.f = f
        self.name = f"straight_through({name_of(f)})"

    def plain(self, tensors: list[Tensor]) -> list[Tensor]:
        (x,) = tensors
        y = stop_gradient(asarray(self.f(x)))
        if y.shape != x.shape:
            raise ShapeError(
                f"straight_through: {name_of(self.f)} must keep the shape of x, {x.shape}, but returned "
                f"{y.shape}."
            )
        return [y.astype(x.dtype) if y.dtype != x.dtype else y]

    def forward(self, tensors: list[Tensor]) -> tuple[list[Tensor], list[Tensor], Any]:
        return self.plain(tensors), [], None

    def backward(
        self, residuals: list[Tensor], rest: Any, grads: list[Tensor | None], wanted: Sequence[bool]
    ) -> list[Any]:
        return list(grads)

    def argument(self, i: int) -> str:
        return "x"


# Trees of arguments and results ----------------------------------------------------------------------


class _Arguments(SplitTree):
    """The arguments of one call; the tensors in differentiable arguments are stored separately."""

    def __init__(self, f: Any, args: tuple[Any, ...], fixed: Sequence[int]) -> None:
        self.f = f
        self.fixed = {i: args[i] for i in fixed}
        self.count = len(args)
        self.moving = [i for i in range(len(args)) if i not in self.fixed]
        super().__init__(tuple(args[i] for i in self.moving))

    def all(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        """Return all arguments of the call, with ``tensors`` put back into their positions."""
        args = dict(self.fixed)
        args.update(zip(self.moving, self.filled(tensors), strict=True))
        return tuple(args[i] for i in range(self.count))

    def name(self, i: int) -> str:
        """Return the name of tensor ``i`` among the arguments for messages, such as "x[0]"."""
        k = self.at[i]
        for position, child in zip(self.moving, self.structure.children, strict=True):
            if k < child.count:
                return str(Place(child, k, (self.f, position)))
            k -= child.count
        raise AssertionError


def _bound(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the arguments of a call of ``f``, with keyword arguments and defaults, as a tuple."""
    if not kwargs:
        return args
    try:
        found = inspect.signature(f).bind(*args, **kwargs)
    except TypeError as error:
        raise InputError(f"{name_of(f)}: {error}.") from None
    found.apply_defaults()
    if found.kwargs:
        raise InputError(
            f"{name_of(f)}: {', '.join(found.kwargs)} is keyword-only, which custom derivatives "
            "do not support.  Make the parameter positional."
        )
    return found.args


def _outputs(name: str, result: Any) -> tuple[list[Tensor], tree.Structure]:
    leaves, structure = tree.flatten(result)
    if not leaves:
        what = "None" if result is None else "no tensors"
        raise TransformError(
            f"{name} returned {what}.  Return a tensor, or nested tuples, lists or dicts of tensors."
        )
    for i, leaf in enumerate(leaves):
        if not isinstance(leaf, VALUES):
            place = Place(structure, i, f"the result of {name}")
            raise TransformError(f"{place} is {words.a(type(leaf).__name__)}, not a tensor.")
    return [asarray(leaf) for leaf in leaves], structure


# custom_vjp ------------------------------------------------------------------------------------------


class _Custom(ABC):
    """Base class of ``custom_vjp`` and ``custom_jvp``: a callable that replaces the function."""

    kind: ClassVar[str]

    def __init__(self, f: Callable[..., Any], nondiff_argnums: Sequence[int] = ()) -> None:
        as_function(self.kind, f)
        self.f = f
        self.name = name_of(f)
        several = nondiff_argnums if isinstance(nondiff_argnums, (tuple, list)) else (nondiff_argnums,)
        if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in several):
            raise ArgumentError(
                f"{self.kind}: nondiff_argnums must be positions, integers from 0, not {nondiff_argnums!r}."
            )
        self.fixed = tuple(sorted(set(several)))
        functools.update_wrapper(self, f, updated=())

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    @abstractmethod
    def _rule(self, args: _Arguments) -> _CustomRule: ...

    @door
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, and record the call with its custom derivative."""
        args = _bound(self.f, args, kwargs)
        if self.fixed and self.fixed[-1] >= len(args):
            raise ArgumentError(
                f"{self.kind}: nondiff_argnums={self.fixed} is out of range: {self.name} was called with "
                f"{words.count(len(args), 'argument')}."
            )
        given = _Arguments(self.f, args, self.fixed)
        rule = self._rule(given)
        tensors = given.take()
        outputs = apply(rule, tensors) if tensors else rule.plain([])
        return tree.unflatten(rule.structure, outputs)


class _CustomRule(Rule):
    """Base class of the rules of one call of a function with a custom derivative."""

    structure: tree.Structure  # of the result

    def __init__(self, custom: Any, args: _Arguments) -> None:
        self.custom = custom
        self.args = args
        self.name = custom.name

    def argument(self, i: int) -> str:
        return repr(self.args.name(i))

    def plain(self, tensors: list[Tensor]) -> list[Tensor]:
        outputs, self.structure = _outputs(self.name, user_code(self.custom, "f")(*self.args.all(tensors)))
        return outputs


class custom_vjp(_Custom):  # noqa: N801  a decorator that reads as a function
    """Define the backward of a function.

    Use it as a decorator, and call ``f.defvjp(fwd, bwd)``.  A ``bwd`` written with ad functions can itself be
    differentiated, and used in forward mode.

    Parameters
    ----------
    f : callable
        The function.  Arguments and results may be pytrees.
    nondiff_argnums : tuple of int
        Positions of arguments without a gradient.  They are passed to ``bwd`` first.

    Examples
    --------
    >>> import adjoint as ad
    >>> @ad.custom_vjp
    ... def clipped(x):
    ...     return x
    >>> clipped.defvjp(lambda x: (x, None), lambda _, g: (ad.clip(g, -1.0, 1.0),))
    >>> ad.grad(lambda x: clipped(x) ** 2)(5.0)
    np.float64(1.0)
    """

    kind = "custom_vjp"
    fwd: Callable[..., Any] | None = None
    bwd: Callable[..., Any] | None = None
    rule: Callable[..., Any] | None = None  # of forward mode, as in custom_jvp; adjoint.extend sets it

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        """Set the forward and the backward.

        Parameters
        ----------
        fwd : callable
            ``fwd(*args)`` returns ``(result, residuals)``; the residuals may be a pytree.
        bwd : callable
            ``bwd(*nondiff, residuals, g)`` returns a tuple with one gradient per argument, with the
            structure of the argument; None means zero.
        """
        self.fwd = as_function("defvjp: fwd", fwd)
        self.bwd = as_function("defvjp: bwd", bwd)

    def _rule(self, args: _Arguments) -> _VjpRule:
        if self.fwd is None or self.bwd is None:
            raise TransformError(
                f"custom_vjp: {self.name} has no derivative yet.  Call {self.name}.defvjp(fwd, bwd) first."
            )
        return (_VjpRule if self.rule is None else _BothRule)(self, args)


class _VjpRule(_CustomRule):
    def forward(self, tensors: list[Tensor]) -> tuple[list[Tensor], list[Tensor], Any]:
        fwd = user_code(self.custom, "fwd")
        both = fwd(*self.args.all(tensors))
        if not isinstance(both, tuple) or len(both) != 2:
            got = words.count(len(both), "value") if isinstance(both, tuple) else words.a(type(both).__name__)
            raise RuleError(
                f"custom_vjp: the forward of {self.name}, {name_of(fwd)}, must return (result, "
                "residuals), but "
                f"returned {got}."
            )
        outputs, self.structure = _outputs(name_of(fwd), both[0])
        residuals = SplitTree(both[1])
        return outputs, residuals.take(), (residuals, specs_of(outputs), self.structure)

    def backward(
        self, residuals: list[Tensor], rest: Any, grads: list[Tensor | None], wanted: Sequence[bool]
    ) -> list[Any]:
        kept, specs, structure = rest
        bwd = user_code(self.custom, "bwd")
        g = tree.unflatten(structure, zeros_for(grads, specs))
        found = bwd(*self.args.fixed.values(), kept.filled(residuals), g)
        moving = self.args.structure.children
        if not isinstance(found, (tuple, list)) or len(found) != len(moving):
            got = f"{len(found)}" if isinstance(found, (tuple, list)) else words.a(type(found).__name__)
            raise RuleError(
                f"custom_vjp: the backward of {self.name}, {name_of(bwd)}, must return a tuple with one "
                "gradient "
                f"per argument, {len(moving)} in all, but returned {got}."
            )
        leaves: list[Any] = []
        for position, structure, each in zip(self.args.moving, moving, found, strict=True):
            place = f"the backward of {self.name}: the gradient of argument {position}"
            leaves += tree.flatten_like(structure, each, place, holes=True)
        return [leaves[k] for k in self.args.at]


# custom_jvp ------------------------------------------------------------------------------------------


class custom_jvp(_Custom):  # noqa: N801  a decorator that reads as a function
    """Define the forward derivative of a function; reverse mode is its transpose.

    Use it as a decorator, and call ``f.defjvp(jvp)``.

    Parameters
    ----------
    f : callable
        The function.  Arguments and results may be pytrees.
    nondiff_argnums : tuple of int
        Positions of arguments without a derivative.  They are passed to ``jvp`` first.

    Examples
    --------
    >>> import adjoint as ad
    >>> @ad.custom_jvp
    ... def log1pexp(x):
    ...     return ad.log1p(ad.exp(x))
    >>> @log1pexp.defjvp
    ... def _(primals, tangents):
    ...     (x,), (t,) = primals, tangents
    ...     return log1pexp(x), t * ad.sigmoid(x)
    >>> ad.grad(log1pexp)(0.0), ad.jvp(log1pexp, (0.0,), (2.0,))[1]
    (np.float64(0.5), np.float64(1.0))
    """

    kind = "custom_jvp"
    rule: Callable[..., Any] | None = None

    def defjvp(self, jvp: Callable[..., Any]) -> Callable[..., Any]:
        """Set the forward derivative.  This method can be used as a decorator.

        Parameters
        ----------
        jvp : callable
            ``jvp(*nondiff, primals, tangents)`` returns ``(result, tangent)``.  It must use ad functions
            that are linear in the tangents.

        Returns
        -------
        callable
            The same function.
        """
        self.rule = as_function("defjvp: jvp", jvp)
        return jvp

    def _rule(self, args: _Arguments) -> _JvpRule:
        if self.rule is None:
            raise TransformError(
                f"custom_jvp: {self.name} has no derivative yet.  Call {self.name}.defjvp(jvp) first."
            )
        return _JvpRule(self, args)


class _JvpRule(_CustomRule, ForwardRule):
    def forward(self, tensors: list[Tensor]) -> tuple[list[Tensor], list[Tensor], Any]:
        outputs = self.plain(tensors)
        return outputs, list(tensors), (self.structure, specs_of(outputs))

    def jvp(self, tensors: list[Tensor], tangents: list[Tensor]) -> list[Tensor]:
        rule = user_code(self.custom, "rule")
        primals = self.args.filled(tensors)
        both = rule(*self.args.fixed.values(), primals, self._directions(tangents))
        if not isinstance(both, tuple) or len(both) != 2:
            got = words.count(len(both), "value") if isinstance(both, tuple) else words.a(type(both).__name__)
            raise RuleError(
                f"custom_jvp: the derivative of {self.name} must return (result, tangent), but returned "
                f"{got}."
            )
        outputs, structure = _outputs(name_of(rule), both[0])
        name = f"custom_jvp: the tangent of {self.name}"
        pushed = []
        for i, (y, t) in enumerate(
            zip(outputs, tree.flatten_like(structure, both[1], name, holes=True), strict=True)
        ):
            t = wrap(np.zeros(y.shape, y.dtype)) if t is None else asarray(t)
            if t.shape != y.shape or t.dtype != y.dtype:
                raise RuleError(
                    f"{Place(structure, i, name)} has shape {t.shape} and dtype {t.dtype}, but must have "
                    f"shape {y.shape} and dtype {y.dtype}, like the function's result."
                )
            pushed.append(t)
        return pushed

    def _directions(self, tangents: list[Tensor]) -> tuple[Any, ...]:
        """Return ``tangents``, those of the tensors, in the structure of the arguments.

        Arrays and numbers among the arguments have zero tangents.
        """
        leaves: list[Any] = [None if v is None else np.zeros_like(_number(v)) for v in self.args.leaves]
        for k, t in zip(self.args.at, tangents, strict=True):
            leaves[k] = t
        return tree.unflatten(self.args.structure, leaves)

    def backward(
        self, residuals: list[Tensor], rest: Any, grads: list[Tensor | None], wanted: Sequence[bool]
    ) -> list[Any]:
        """Return the gradients by transposing the user's jvp; the arguments are those of ``Rule.backward``.

        The jvp is linear in the tangents t, so the gradient of an argument is d/dt <g, jvp(t)>.
        """
        since = next_seq()
        history = any(t is not None and t._node is not None for t in (*residuals, *grads))
        before = grad_mode.get()
        create = before and history
        try:
            grad_mode.set(True)
            leaves = [_direction(x, w) for x, w in zip(residuals, wanted, strict=True)]
            pushed = self.jvp(residuals, leaves)
            pairs = [(t, g) for t, g in zip(pushed, grads, strict=True) if g is not None]
            for t, _ in pairs:
                self._check_linear(t)
            moving = [(t, g) for t, g in pairs if t._node is not None]
            if not moving:
                return [None] * len(leaves)
            run, _ = differentiate(
                [t for t, _ in moving],
                [g for _, g in moving],
                targets=[x for x in leaves if x._node is not None],
                retain=create,
                create_graph=create,
                since=since,
                runner=run_serial,
            )
        finally:
            grad_mode.set(before)
        found = [run.captured.get(key_of(x)) for x in leaves]
        return [None if g is None else as_gradient_tensor(g) for g in found]

    def _check_linear(self, t: Tensor) -> None:
        data = held(t)
        if t._node is None and isinstance(data, np.ndarray) and data.any():
            raise RuleError(
                f"custom_jvp: the tangent of {self.name} does not depend on the tangents of the arguments, "
                "but is not zero.\n"
                "  It must be linear in them.  Compute it with ad functions, without numpy() or detach()."
            )


def _number(leaf: Any) -> Any:
    return leaf if isinstance(leaf, (np.ndarray, np.generic, int, float, complex)) else 0.0


def _direction(x: Tensor, wanted: bool) -> Tensor:
    """Return a tangent like ``x``: zeros; if ``wanted``, ones that are a leaf that requires grad."""
    wanted = wanted and differentiable(x.dtype)
    # a jvp is linear in the tangents, so any values do, but zeros would hide a jvp that loses them
    values = (np.ones if wanted else np.zeros)(x.shape, x.dtype)
    top = enclosing.get()
    t = wrap(values if top is None else top.lift(values))
    return joined_copy(t, None) if wanted else t


class _BothRule(_VjpRule, ForwardRule):
    """The rule of a function with derivatives in both modes."""

    jvp = _JvpRule.jvp
    _directions = _JvpRule._directions
