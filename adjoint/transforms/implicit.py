"""Solutions of equations: ``root`` and ``fixed_point``.

``root`` finds x with F(x, θ) = 0.  ``fixed_point`` finds x with f(x, θ) = x, a root of f(x, θ) - x.
``transforms/solution.py`` differentiates them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adjoint import tree, words
from adjoint.config import grad_mode, special
from adjoint.context import within
from adjoint.core.convert import tensor
from adjoint.core.docstrings import SharedDoc
from adjoint.core.lifted import tracing
from adjoint.core.tensor import Tensor, wrap
from adjoint.core.values import unknown
from adjoint.errors import ArgumentError, ConvergenceError, DTypeError, ShapeError, TransformError
from adjoint.ops.compare import isfinite
from adjoint.ops.elementwise import sqrt
from adjoint.ops.piecewise import maximum, where
from adjoint.transforms.flat_tree import FlatTree
from adjoint.transforms.forward import linearize
from adjoint.transforms.inputs import Place, as_function, name_of
from adjoint.transforms.loops import bounded_loop
from adjoint.transforms.matrix import jacfwd, jacobian
from adjoint.transforms.solution import (
    DENSE,
    Vector,
    gmres,
    held_array,
    is_lifted,
    joined_solution,
    largest_absolute,
    solve_equations,
)
from adjoint.typing import Tree

__all__ = ["fixed_point", "root"]


_solver_doc = SharedDoc("""
    Parameters
    ----------
    f : callable
        A function of x.  Its result must have the structure and the shapes of x.
    x0 : tensor, array, number or pytree
        The initial value.
    *args : object
        Further arguments of ``f``.
    tol : float, optional
        The iteration ends when a step changes x by at most ``tol * max(1, |x|)``, where |x| is the largest
        absolute value.  The default is eps^¾ of the dtype.
    max_steps : int
        The largest number of steps.
    sparse : bool, optional
        Whether linear equations are solved with the sparse Jacobian, as ``ad.jacobian(f, sparse=True)``
        computes it.  It needs SciPy.

    Returns
    -------
    Tensor or pytree
        The solution, with the structure of ``x0``.
    """)


@_solver_doc
def fixed_point(
    f: Callable[..., Any],
    x0: Tree,
    *args: Any,
    tol: float | None = None,
    max_steps: int = 1000,
    damping: float = 1.0,
    sparse: bool = False,
) -> Any:
    """Return x with ``f(x, *args) == x``, by iterating ``x = f(x, *args)``.

    Gradients flow to ``args`` and to every other tensor that ``f`` uses, by the implicit function theorem,
    but not to ``x0``.

    Parameters
    ----------
    damping : float
        The factor by which steps are multiplied, above 0 and at most 1.

    Raises
    ------
    ConvergenceError
        If the iteration does not converge or gives values that are not finite.

    >>> a = ad.tensor(2.0, requires_grad=True)
    >>> x = ad.fixed_point(lambda x: (x + a / x) / 2, 1.0)  # Heron's rule: √a
    >>> x.backward()
    >>> a.grad.item() - 0.5 / 2 ** 0.5 < 1e-12
    True
    """
    problem = _Problem("fixed_point", f, x0, args, sparse)
    limit = _limits("fixed_point", problem, tol, max_steps)
    if not 0 < damping <= 1:
        raise ArgumentError(f"fixed_point: damping must be above 0 and at most 1, but is {damping!r}.")
    iterate = _iterate if problem.known else _iterate_traced
    x = within(grad_mode, False, iterate, problem, limit, max_steps, damping)
    return problem.solved(x, lambda x: problem(x) - x)


def _iterate(problem: _Problem, limit: float, max_steps: int, damping: float) -> Any:
    x = problem.start
    for step in range(max_steps):
        change = problem(x) - x
        x = x + change if damping == 1 else x + damping * change
        size = problem.size_of(step, change)
        if _all(_is_small(change, x, limit)):
            return x
    raise problem.failed(max_steps, f"the last step changed x by {size:g}")


@_solver_doc
def root(
    f: Callable[..., Any],
    x0: Tree,
    *args: Tree,
    tol: float | None = None,
    max_steps: int = 50,
    sparse: bool = False,
) -> Any:
    """Return x with ``f(x, *args) == 0``, by Newton's method with exact derivatives.

    Steps that do not reduce the residual are shortened.  Gradients flow as in ``fixed_point``.

    Raises
    ------
    ConvergenceError
        If the iteration does not converge, or the Jacobian is singular.

    >>> a = ad.tensor(2.0, requires_grad=True)
    >>> x = ad.root(lambda x: x ** 3 - a, 1.0)
    >>> x.backward()
    >>> abs(a.grad.item() - 2 ** (-2 / 3) / 3) < 1e-12
    True
    """
    problem = _Problem("root", f, x0, args, sparse)
    limit = _limits("root", problem, tol, max_steps)
    matrix: Any = jacobian(problem, sparse=True) if sparse else jacfwd(problem)
    if sparse:
        matrix = within(grad_mode, False, matrix.fixed, problem.start)
    if problem.known:
        x, residual = within(grad_mode, False, _newton, problem, matrix, limit, max_steps)
        problem.size_of(max_steps, residual)
    else:
        x = within(grad_mode, False, _newton_traced, problem, matrix, limit, max_steps)
    return problem.solved(x, problem)


def _newton(problem: _Problem, matrix: Any, limit: float, max_steps: int) -> tuple[Any, Any]:
    x = problem.start
    residual = problem(x)
    for step in range(max_steps):
        if problem.size_of(step, residual) == 0:
            return x, residual
        direction = problem.newton_step(x, residual, matrix)
        x, residual, moved = problem.line_search(x, direction, residual, limit)
        if _all(_is_small(moved, x, limit)):
            return x, residual
    raise problem.failed(max_steps, f"the largest residual is {largest_absolute(residual):g}")


# Inside ad.compile conditions are not known: the same iterations as bounded loops ----------------------


def _iterate_traced(problem: _Problem, limit: float, max_steps: int, damping: float) -> Tensor:
    def step(state: Any) -> Any:
        x, _ = state
        change = problem(x) - x
        return x + damping * change, change

    def unsolved(state: Any) -> Any:
        x, change = state
        return ~_is_small(change, x, limit) & isfinite(change).all()

    first = problem.start, problem.start * 0 + 1 / np.finfo(problem.dtype).eps
    found: Tensor = problem.loop(unsolved, step, first, max_steps, "the last step changed x by {:g}")[0]
    return found


def _newton_traced(problem: _Problem, matrix: Any, limit: float, max_steps: int) -> Tensor:
    def step(state: Any) -> Any:
        x, residual, _ = state
        return problem.line_search_traced(x, problem.newton_step(x, residual, matrix), residual, limit)

    def unsolved(state: Any) -> Any:
        x, residual, moved = state
        return ~_is_small(moved, x, limit) & isfinite(residual).all() & (residual != 0).any()

    x = problem.start
    first = x, problem(x), x * 0 + 1 / np.finfo(problem.dtype).eps
    found: Tensor = problem.loop(unsolved, step, first, max_steps, "the largest residual is {:g}")[0]
    return found


def _limits(name: str, problem: _Problem, tol: float | None, max_steps: int) -> float:
    if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
        raise ArgumentError(f"{name}: max_steps must be a positive integer, not {max_steps!r}.")
    if tol is None:
        return float(np.finfo(problem.dtype).eps) ** 0.75
    if not tol > 0:
        raise ArgumentError(f"{name}: tol must be positive, but is {tol!r}.")
    return float(tol)


class _Problem:
    """An equation f(x) = 0 whose unknown x is a tree, as a function of one flat vector."""

    def __init__(self, name: str, f: Callable[..., Any], x0: Any, args: Sequence[Any], sparse: bool) -> None:
        as_function(name, f)
        self.name = name
        self.__name__ = name_of(f)  # in messages about the Jacobian
        self.f = f
        if not isinstance(sparse, bool):
            raise ArgumentError(f"{name}: sparse must be True or False, not {sparse!r}.")
        self.sparse = sparse
        # copies, because later writes to the user's arrays cannot be detected
        self.args = tree.map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, tuple(args))
        self.flat = FlatTree(name, x0)
        self.dtype = self.flat.dtype
        if self.dtype.kind != "f":
            raise DTypeError(f"{name}: x0 is {self.dtype}, but equations are solved in float32 or float64.")
        self.start = self.flat.flatten([t.detach() for t in self.flat.first])
        self.known = not special.count or tracing.get() is None  # whether values are known for conditions

    def __call__(self, x: Tensor) -> Tensor:
        """Return the function's value at the vector ``x``, as a vector."""
        result = self.f(self.flat.unflatten(x), *self.args)
        what = f"{self.name}: the result of {name_of(self.f)}"
        found = tree.flatten_like(self.flat.structure, result, what)
        for i, ((shape, _), t) in enumerate(zip(self.flat.specs, found, strict=True)):
            place = Place(self.flat.structure, i, f"the result of {name_of(self.f)}")
            if isinstance(t, (np.ndarray, np.generic)):  # the result of a transform called with arrays
                t = found[i] = tensor(t)
            if not isinstance(t, Tensor):
                raise TransformError(f"{self.name}: {place} is {words.a(type(t).__name__)}, not a tensor.")
            if t.shape != shape:
                raise ShapeError(f"{self.name}: {place} has shape {t.shape}, but x has {shape} there.")
        return self.flat.flatten(found)

    def size_of(self, step: int, t: Tensor) -> float:
        """Return the largest absolute value of ``t``; raise if it is not finite.

        ``step`` is the number of the iteration, for the error.
        """
        size = largest_absolute(t)
        if not np.isfinite(size):
            raise ConvergenceError(
                f"{self.name}: {name_of(self.f)} gave {size} after {step} steps.\n"
                "  Use an x0 closer to the solution, or a function whose steps are shorter."
            )
        return size

    def failed(self, steps: int, how: str) -> ConvergenceError:
        return ConvergenceError(
            f"{self.name}: {name_of(self.f)} did not converge in {steps} steps: {how}.\n"
            "  Use an x0 closer to the solution, a larger max_steps or a larger tol"
            + (", or use a damping below 1." if self.name == "fixed_point" else ".")
        )

    def newton_step(self, x: Tensor, residual: Tensor, matrix: Callable[[Tensor], Any]) -> Tensor:
        """Return the Newton step d with J d = -residual, where J is the Jacobian at ``x``.

        ``matrix`` computes it.
        """
        try:
            if self.sparse or x.size <= DENSE or is_lifted(residual):
                return solve_equations(matrix(x), -residual)
            _, along = linearize(self, x)
            product = lambda d: along(wrap(d)).numpy()
            return wrap(gmres(product, -residual.numpy(), self.name))
        except np.linalg.LinAlgError as error:
            raise ConvergenceError(
                f"{self.name}: the Jacobian of {name_of(self.f)} is singular at a step where the largest "
                f"residual is {largest_absolute(residual):g}.\n  Use another x0."
            ) from error

    def line_search(
        self, x: Tensor, d: Tensor, residual: Tensor, limit: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return a point in the direction ``d`` from ``x``, the residual there, and the step to that point.

        The step is halved, for each batch element separately, while the norm of the residual does not
        decrease.  A step of at most ``limit``, relative to x, is accepted.
        """
        size: Any = _length(residual)
        scale: Any = 1.0
        for _ in range(30):
            step = scale * d
            there = x + step
            with np.errstate(all="ignore"):
                found = self(there)
                good = _length(found) < size
                if isinstance(good, Tensor):  # converged elements cannot improve
                    good = good | _is_small(step, there, limit)
            if _all(good):
                break
            scale = where(good, scale, scale / 2) if isinstance(good, Tensor) else scale / 2
        return there, found, step

    def line_search_traced(
        self, x: Tensor, d: Tensor, residual: Tensor, limit: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the result of ``line_search`` inside ``ad.compile``, where the loop must have a bound."""
        size = _length(residual)

        def shorter(scale: Tensor) -> Tensor:
            return scale / 2

        def bad(scale: Tensor) -> Any:
            step = scale * d
            return ~((_length(self(x + step)) < size) | _is_small(step, x + step, limit))

        one = size * 0 + 1
        _, scale = bounded_loop(self.name, bad, shorter, bad(one), one, 29)
        step = scale * d
        return x + step, self(x + step), step

    def loop(self, unsolved: Any, step: Any, first: Any, max_steps: int, how: str) -> Any:
        """Repeat ``step`` from ``first`` while ``unsolved`` is true, inside ``ad.compile``.

        The compiled program raises after ``max_steps`` steps; ``how`` describes the failure in the message.
        """
        going, state = bounded_loop(self.name, unsolved, step, unsolved(first), first, max_steps)

        def check(size: Any) -> None:
            if not np.isfinite(size).all():
                self.size_of(max_steps, wrap(np.asarray(size)))
            if (size > 0).any():
                raise self.failed(max_steps, how.format(np.max(size)))

        # the size of the last step or residual where not solved; NaN or inf if the iteration diverged
        last = abs(state[1]).max() if self.start.size else 0.0 * sum(state[1])
        size = where(going | ~isfinite(last), last, 0.0)
        found = unknown(size)
        if found is not None:
            found.check(check)
        return state

    def solved(self, x: Tensor, equation: Vector) -> Any:
        """Return the solution ``x`` as a tree, connected to the tensors that the equation depends on."""
        return self.flat.unflatten(joined_solution(self.name, equation, x, sparse=self.sparse))


def _is_small(step: Tensor, x: Tensor, limit: float) -> Any:
    """Return whether the largest element of a step is at most ``limit`` · max(1, |x|).

    Inside ``vmap``, return a tensor with the answer for each batch element.
    """
    if not step.size:
        return True
    if is_lifted(step) or is_lifted(x):
        return abs(step).max() <= limit * maximum(1.0, abs(x).max())
    return largest_absolute(step) <= limit * max(1.0, largest_absolute(x))


def _all(condition: Any) -> bool:
    return bool(np.all(held_array(condition)))


def _length(t: Tensor) -> Any:
    """Return the 2-norm of a tensor, infinity instead of NaN; inside ``vmap``, one norm per element."""
    if is_lifted(t):
        return sqrt((t * t).sum())
    size = float(np.linalg.norm(t._data))
    return size if np.isfinite(size) else np.inf
