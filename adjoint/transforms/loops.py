"""Loops and conditionals as in JAX: ``scan``, ``fori_loop``, ``while_loop``, ``cond``, ``map``.

They are plain Python loops on tensors, so that every transform works with them.  Inside ``vmap`` a condition
that differs between the elements of the batch is a mask.  Inside ``ad.compile`` the trace may run the body
once (``Trace.scan``); otherwise the loop is unrolled.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Never

import numpy as np

from adjoint import tree
from adjoint.config import special
from adjoint.core.convert import asarray
from adjoint.core.lifted import Lifted, Unknown, located, refusal, tracing
from adjoint.core.tensor import Tensor, held, note_reading
from adjoint.core.values import tracked, unknown
from adjoint.errors import ArgumentError, ConvergenceError, NoGradientError, ShapeError, TransformError
from adjoint.ops.piecewise import where
from adjoint.transforms.calls import ForwardRule, apply
from adjoint.transforms.inputs import as_function, name_of
from adjoint.transforms.loop_body import Body, check_results_match, run_scan
from adjoint.typing import Tree

__all__ = ["bounded_loop", "cond", "fori_loop", "map", "scan", "scan_until", "while_loop"]


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Tree,
    xs: Tree = None,
    length: int | None = None,
    reverse: bool = False,
    *,
    checkpoint: bool | int = False,
) -> tuple[Any, Any]:
    """Apply ``carry, y = f(carry, x)`` to each row of ``xs``; return the last carry and the stacked ``y``.

    Parameters
    ----------
    f : callable
        The body.  The carry that it returns must have the structure, shapes and dtypes of its argument.
    init : tree of tensors, arrays and numbers
        The first carry.  Python numbers get the dtype that they have after the first step.
    xs : tree of tensors and arrays, optional
        The values to loop over, along the first axis of each leaf.
    length : int, optional
        The number of steps; needed only without ``xs``.
    reverse : bool
        Whether the loop goes from the last row to the first.  The stacked ``y`` keep the order of the rows.
    checkpoint : bool or int
        Whether the backward runs the steps again, so that memory grows with the square root of the number of
        steps.  An integer is the number of steps per segment.

    Returns
    -------
    tuple
        The last carry, and the tree of ``y`` with an axis for the steps in front.

    Raises
    ------
    ShapeError, DTypeError, InputError
        If the body returns a carry of a different structure, shape or dtype, or the lengths of ``xs`` differ.

    Examples
    --------
    >>> import adjoint as ad
    >>> total, sums = ad.scan(lambda c, x: (c + x, c + x), 0.0, ad.tensor([1.0, 2.0, 3.0]))
    >>> total.item(), sums.tolist()
    (6.0, [1.0, 3.0, 6.0])
    """
    leaves, structure = tree.flatten(xs)
    rows = [_rows(k, leaf) for k, leaf in enumerate(leaves)]
    body = Body("scan", as_function("scan", f), rows, structure)
    return run_scan(body, body.start(init), _count(rows, length), reverse, checkpoint)


def map(f: Callable[[Any], Any], xs: Tree, *, checkpoint: bool | int = False) -> Any:
    """Apply ``f`` to each row of ``xs``, one after the other; return the stacked results.

    ``ad.vmap(f)(xs)`` computes the same in one batch, with more memory.

    Parameters
    ----------
    f : callable
        A function of one row.
    xs : tree of tensors and arrays
        The values to loop over, along the first axis of each leaf.
    checkpoint : bool or int
        As in ``scan``.

    Returns
    -------
    tree of tensors
        The results, with an axis for the rows in front.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.map(lambda x: x.sum(), ad.tensor([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [3.0, 7.0]
    """
    as_function("map", f)
    return scan(lambda carry, x: (carry, f(x)), (), xs, checkpoint=checkpoint)[1]


def fori_loop(
    lower: int,
    upper: int,
    body_fun: Callable[[Any, Any], Any],
    init_val: Tree,
    *,
    checkpoint: bool | int = False,
) -> Any:
    """Apply ``val = body_fun(i, val)`` for ``i`` from ``lower`` up to, but not including, ``upper``.

    Parameters
    ----------
    lower, upper : int
        The range of ``i``.
    body_fun : callable
        The body.  It must return a value with the structure, shapes and dtypes of ``val``.
    init_val : tree of tensors, arrays and numbers
        The first value.
    checkpoint : bool or int
        As in ``scan``.

    Returns
    -------
    tree of tensors
        The last value.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.fori_loop(0, 5, lambda i, x: x + i, 0.0).item()
    10.0
    """
    as_function("fori_loop", body_fun)
    first, last = _whole("lower", lower), _whole("upper", upper)
    body = Body("fori_loop", body_fun, lower=first)
    return run_scan(body, body.start(init_val), builtins.max(0, last - first), False, checkpoint)[0]


def while_loop(
    cond_fun: Callable[[Any], Any],
    body_fun: Callable[[Any], Any],
    init_val: Tree,
    *,
    limit: int | None = None,
) -> Any:
    """Apply ``val = body_fun(val)`` as long as ``cond_fun(val)`` is true.

    Forward mode always works.  Reverse mode needs ``limit``.

    Parameters
    ----------
    cond_fun : callable
        Returns one boolean.
    body_fun : callable
        The body.  It must return a value with the structure, shapes and dtypes of ``val``.
    init_val : tree of tensors, arrays and numbers
        The first value.
    limit : int, optional
        The largest number of steps.

    Returns
    -------
    tree of tensors
        The first value for which the condition is false.

    Raises
    ------
    ConvergenceError
        If the condition still holds after ``limit`` steps.
    NoGradientError
        In a backward through a loop without ``limit``.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.while_loop(lambda x: x < 100, lambda x: x * 2, 1.0).item()
    128.0
    """
    as_function("while_loop", cond_fun)
    body = Body("while_loop", as_function("while_loop", body_fun))
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise ArgumentError(f"while_loop: limit must be a non-negative integer, but got {limit!r}.")
    val = body.start(init_val)
    going, steps = _flag("while_loop", cond_fun(val)), 0
    while _any(going, limit, steps):
        if steps == limit and unknown(going) is None:
            raise _unfinished(limit)
        if limit is not None and unknown(going) is not None and not (body.weak and steps == 0):
            going, val = bounded_loop("while_loop", cond_fun, body_fun, going, val, limit - steps)
            unknown(going).check(_refuse_true(limit))  # type: ignore[union-attr]  # it is one
            break
        new = body.next(body_fun(val))
        if not isinstance(going, bool):
            new = tree.map(lambda a, b, going=going: where(going, a, b), new, val)
        flag = _flag("while_loop", cond_fun(new))
        going = flag if isinstance(going, bool) else going & flag
        val, steps = new, steps + 1
    return val if limit is not None else _forward_only(body, val)


def bounded_loop(
    name: str,
    cond_fun: Callable[[Any], Any],
    body_fun: Callable[[Any], Any],
    going: Any,
    val: Any,
    limit: int,
) -> tuple[Any, Any]:
    """Run ``body_fun`` while ``cond_fun`` is true, at most ``limit`` times.

    Return the last condition and value.  ``going`` is the condition for the first value, ``val``.  This is a
    scan whose steps keep the value once the condition is false.
    """

    def step(state: Any, _: Any) -> Any:
        going, val = state
        new = tree.map(lambda a, b: where(going, a, b), body_fun(val), val)
        return (going & _flag(name, cond_fun(new)), new), ()

    with _refused_for(going):
        found: tuple[Any, Any] = scan_until(name, step, (going, val), limit)[0]
    return found


def scan_until(name: str, step: Callable[[Any, Any], Any], init: Any, limit: int) -> tuple[Any, Any]:
    """Run a scan of ``limit`` steps that change nothing once the first leaf of the carry is false.

    ``init`` is the first carry.  Return the last carry and the stacked results.  Inside ``ad.compile``,
    later steps are not computed.
    """
    body = Body(name, step, structure=tree.structure(None))
    body.settles = body.flagged = True
    return run_scan(body, body.start(init), limit, False, False)


def cond(pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any) -> Any:
    """Return ``true_fun(*operands)`` if ``pred`` is true, else ``false_fun(*operands)``.

    Inside ``vmap`` and ``ad.compile``, where ``pred`` is not one known boolean, both run and the results are
    chosen by ``ad.where``.

    Parameters
    ----------
    pred : bool or tensor of one boolean
        The condition.
    true_fun, false_fun : callable
        The branches.  Their results must have the same structure, shapes and dtypes.
    *operands : tree
        Arguments of the branches.

    Returns
    -------
    tree of tensors
        The result of one branch.

    Examples
    --------
    >>> import adjoint as ad
    >>> x = ad.tensor(-3.0)
    >>> ad.cond(x > 0, lambda x: x, lambda x: -x, x).item()
    3.0
    """
    as_function("cond", true_fun)
    as_function("cond", false_fun)
    flag = _flag("cond", pred)
    if isinstance(flag, bool):
        return (true_fun if flag else false_fun)(*operands)
    trace = tracing.get() if special.count else None
    mark = None if trace is None else trace.mark()
    with _refused_for(flag):
        chosen, other = true_fun(*operands), false_fun(*operands)
        check_results_match("cond", name_of(false_fun), "the other branch", chosen, other)
    if trace is not None:
        drawn, written = trace.since(mark)
        if drawn or written:
            raise refusal(
                TransformError(
                    located(
                        "cond: a branch draws random numbers or writes into tensors.\n"
                        "  Inside ad.compile both branches run: draw and write outside the branches."
                    )
                )
            )
    return tree.map(functools.partial(_chosen, flag), chosen, other)


def _chosen(flag: Tensor, a: Any, b: Any) -> Any:
    """Return ``a`` where ``flag`` is true, else ``b``, as a tensor.

    If ``ad.compile`` traces ``flag`` and both values are Python numbers, return a traced number.
    """
    numbers = isinstance(a, _NUMBERS) and isinstance(b, _NUMBERS) and not isinstance(a, np.generic)
    if numbers and isinstance(flag._data, Unknown) and a.__class__ is b.__class__:
        return flag._data.choose(a, b)
    return where(flag, a, b)


_NUMBERS = (bool, int, float, complex)


# Lengths -------------------------------------------------------------------------------------------


def _rows(k: int, leaf: Any) -> Tensor:
    t = leaf if isinstance(leaf, Tensor) else asarray(leaf)
    if not t.ndim:
        raise ShapeError(f"scan: leaf {k} of xs is a single number, but it needs an axis to loop over.")
    return t


def _count(rows: Sequence[Tensor], length: int | None) -> int:
    counts = {r.shape[0] for r in rows}
    if length is not None:
        counts.add(_whole("length", length))
    if not counts:
        raise ArgumentError("scan: pass xs or length; the number of steps is unknown without them.")
    if len(counts) > 1:
        raise ShapeError(
            f"scan: the first axes of xs have lengths {', '.join(str(r.shape[0]) for r in rows)}"
            + (f", and length is {length}" if length is not None else "")
            + ": they must be equal."
        )
    return counts.pop()


def _whole(name: str, value: Any) -> int:
    if isinstance(value, Tensor) and unknown(value) is not None:
        raise refusal(
            TransformError(
                located(
                    f"inside ad.compile, {name} of a loop must be known when the function is traced, but "
                    "is computed there.\n"
                    "  Pass it as a Python integer, or use ad.while_loop with limit=."
                )
            )
        )
    try:
        return int(value.item() if isinstance(value, Tensor) else value.__index__())
    except (AttributeError, TypeError, ValueError):
        raise ArgumentError(f"{name} of a loop must be an integer, but got {value!r}.") from None


# Conditions ------------------------------------------------------------------------------------------


def _flag(name: str, value: Any) -> Any:
    """Return the condition ``value`` as a bool, or as a boolean 0-d tensor if its value is not known.

    It is not known inside ``vmap`` and ``ad.compile``.  ``name`` is the name of the caller, for errors.
    """
    if isinstance(value, (bool, np.bool_)) and not isinstance(value, Unknown):
        return bool(value)
    t = asarray(value)
    if t.shape != ():
        raise ShapeError(f"{name}: the condition must be one boolean, but has shape {t.shape}.")
    if t.dtype != bool:
        t = t != 0
    if special.count:
        note_reading(t)
    return bool(t._data) if type(t._data) is np.ndarray else t


@contextmanager
def _refused_for(flag: Tensor) -> Iterator[None]:
    """Context manager for a block that eager code would run only if ``flag`` is true.

    An error in the block is passed to ``refusal``, because eager code might not raise it.
    """
    try:
        yield
    except Exception as error:
        refusal(error, isinstance(flag._data, Unknown))
        raise


def _any(going: Any, limit: int | None, steps: int) -> bool:
    """Return whether a loop continues, because the condition ``going`` is true for any batch element.

    Inside ``ad.compile`` the condition is not known: the loop continues until ``steps`` exceeds ``limit``,
    and a ``limit`` of None raises.
    """
    if isinstance(going, bool):
        return going
    if unknown(going) is None:
        return bool(np.any(held(going)))
    if limit is None:
        raise refusal(
            TransformError(
                located(
                    "while_loop: inside ad.compile the condition is unknown, so the loop needs a limit.\n"
                    "  Pass limit=, the largest number of steps, or call the loop outside of the compiled "
                    "function."
                )
            )
        )
    return steps <= limit


def _unfinished(limit: int | None) -> ConvergenceError:
    return ConvergenceError(
        f"while_loop: the condition is still true after limit={limit} steps.  Pass a larger limit."
    )


def _refuse_true(limit: int | None) -> Callable[[Any], None]:
    def function(going: Any) -> None:
        if np.any(going):
            raise _unfinished(limit)

    return function


class _ForwardOnly(ForwardRule):
    """The identity function with a derivative rule for forward mode only; a backward pass raises."""

    name = "while_loop"

    def argument(self, i: int) -> str:
        """Return the name of value ``i`` for messages."""
        return f"leaf {i}"

    def plain(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return ``tensors``."""
        return tensors

    def forward(self, tensors: list[Tensor]) -> tuple[list[Tensor], list[Tensor], Any]:
        """Return ``tensors``.  Nothing is saved for the backward."""
        return tensors, [], None

    def jvp(self, tensors: list[Tensor], tangents: list[Tensor]) -> list[Tensor]:
        """Return ``tangents``."""
        return tangents

    def backward(self, *_: Any) -> Never:
        """Raise an error, because a ``while_loop`` without a bound has no reverse mode."""
        raise NoGradientError(
            "while_loop: reverse mode needs a bound on the number of steps.\n"
            "  Pass limit=, the largest number of steps; or use ad.fori_loop, ad.jvp, or ad.fixed_point and "
            "ad.root, which need no record of the steps."
        )


def _forward_only(body: Body, val: Any) -> Any:
    leaves, structure = tree.flatten(val)
    if not any(isinstance(t, Tensor) and (tracked(t) or isinstance(t._data, Lifted)) for t in leaves):
        return val
    return tree.unflatten(structure, apply(_ForwardOnly(), leaves))
