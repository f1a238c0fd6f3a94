"""Solutions of equations, differentiated by the implicit function theorem.

``root`` finds x with F(x, θ) = 0.  ``fixed_point`` finds x with f(x, θ) = x, a root of f(x, θ) - x.  The
derivative does not depend on the method of solution:

    F(x(θ), θ) = 0   ⇒   ∂F/∂x dx + ∂F/∂θ dθ = 0

The solution is one node, whose parents are the tensors that F depends on besides x.  Its backward solves
(∂F/∂x)ᵀ u = -g for the gradient g of x, and pulls u through one run of F to θ.  If the backward is itself
recorded, the linear equation for u is another root, and so on to every order.  Forward mode pushes dθ through
that run of F and solves for dx.  Inside ``vmap`` this is done at each outer level where F
depends on recorded tensors; at that level x is the solution for the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adjoint import tree, words
from adjoint.config import grad_mode, special
from adjoint.context import within
from adjoint.core.batched import Batched, settled
from adjoint.core.convert import tensor
from adjoint.core.lifted import Lifted, run_at, tracing
from adjoint.core.namespace import Namespace, rec
from adjoint.core.node import Node, next_seq
from adjoint.core.record import at_level, record_results
from adjoint.core.sparse import as_gradient_tensor
from adjoint.core.tensor import Tensor, wrap
from adjoint.core.values import unknown
from adjoint.engine.push import push_forward
from adjoint.engine.run import key_of
from adjoint.errors import ArgumentError, ConvergenceError, DTypeError, RuleError, ShapeError, TransformError
from adjoint.ops.compare import isfinite
from adjoint.ops.elementwise import sqrt
from adjoint.ops.linalg import solve
from adjoint.ops.piecewise import maximum, where
from adjoint.transforms.calls import new_op
from adjoint.transforms.convergence import Outcome
from adjoint.transforms.flat_tree import FlatTree
from adjoint.transforms.forward import linearize
from adjoint.transforms.inputs import Place, as_function, name_of
from adjoint.transforms.loops import bounded_loop
from adjoint.transforms.matrix import jacfwd, jacrev
from adjoint.transforms.recompute import captured_by, pull_record, standing
from adjoint.transforms.rerun import Rerun
from adjoint.transforms.reverse import vjp
from adjoint.typing import Tree

__all__ = ["fixed_point", "joined_solution", "root"]

DENSE = 256  # up to this number of unknowns the Jacobian is formed; beyond, GMRES uses products with it

Vector = Callable[[Tensor], Tensor]


def fixed_point(
    f: Callable[..., Any],
    x0: Tree,
    *args: Any,
    tol: float | None = None,
    max_steps: int = 1000,
    damping: float = 1.0,
) -> Any:
    """Return x with ``f(x, *args) == x``, by iterating ``x = f(x, *args)``.

    Gradients flow to ``args`` and to every other tensor that ``f`` uses, by the implicit function theorem,
    but not to ``x0``.

    Parameters
    ----------
    f : callable
        A function of x.  Its result has the structure and the shapes of x.
    x0 : tensor, array, number or pytree
        The initial value.
    *args : object
        Further arguments of ``f``.
    tol : float, optional
        The iteration ends when a step changes x by at most ``tol * max(1, |x|)``, where |x| is the largest
        absolute value.  The default is eps^¾ of the dtype.
    max_steps : int
        The largest number of steps.
    damping : float
        The factor by which steps are multiplied, above 0 and at most 1.

    Returns
    -------
    Tensor or pytree
        The solution, with the structure of ``x0``.

    Raises
    ------
    ConvergenceError
        If the iteration does not converge or gives values that are not finite.

    Examples
    --------
    >>> import adjoint as ad
    >>> a = ad.tensor(2.0, requires_grad=True)
    >>> x = ad.fixed_point(lambda x: (x + a / x) / 2, 1.0)  # Heron's rule: √a
    >>> x.backward()
    >>> a.grad.item() - 0.5 / 2 ** 0.5 < 1e-12
    True
    """
    problem = _Problem("fixed_point", f, x0, args)
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


def root(f: Callable[..., Any], x0: Tree, *args: Tree, tol: float | None = None, max_steps: int = 50) -> Any:
    """Return x with ``f(x, *args) == 0``, by Newton's method with exact derivatives.

    Steps that do not reduce the residual are shortened.  Gradients flow as in ``fixed_point``.

    Parameters
    ----------
    f : callable
        A function of x.  Its result has the structure and the shapes of x.
    x0 : tensor, array, number or pytree
        The initial value.
    *args : object
        Further arguments of ``f``.
    tol : float, optional
        The iteration ends when a step changes x by at most ``tol * max(1, |x|)``, where |x| is the largest
        absolute value.  The default is eps^¾ of the dtype.
    max_steps : int
        The largest number of steps.

    Returns
    -------
    Tensor or pytree
        The solution, with the structure of ``x0``.

    Raises
    ------
    ConvergenceError
        If the iteration does not converge, or the Jacobian is singular.

    Examples
    --------
    >>> import adjoint as ad
    >>> a = ad.tensor(2.0, requires_grad=True)
    >>> x = ad.root(lambda x: x ** 3 - a, 1.0)
    >>> x.backward()
    >>> abs(a.grad.item() - 2 ** (-2 / 3) / 3) < 1e-12
    True
    """
    problem = _Problem("root", f, x0, args)
    limit = _limits("root", problem, tol, max_steps)
    if problem.known:
        x, residual = within(grad_mode, False, _newton, problem, limit, max_steps)
        problem.size_of(max_steps, residual)
    else:
        x = within(grad_mode, False, _newton_traced, problem, limit, max_steps)
    return problem.solved(x, problem)


def _newton(problem: _Problem, limit: float, max_steps: int) -> tuple[Any, Any]:
    x = problem.start
    residual = problem(x)
    for step in range(max_steps):
        if problem.size_of(step, residual) == 0:
            return x, residual
        direction = problem.newton_step(x, residual)
        x, residual, moved = problem.line_search(x, direction, residual, limit)
        if _all(_is_small(moved, x, limit)):
            return x, residual
    raise problem.failed(max_steps, f"the largest residual is {_largest(residual):g}")


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


def _newton_traced(problem: _Problem, limit: float, max_steps: int) -> Tensor:
    def step(state: Any) -> Any:
        x, residual, _ = state
        return problem.line_search_traced(x, problem.newton_step(x, residual), residual, limit)

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
    """An equation in x, as a function of one flat vector."""

    def __init__(self, name: str, f: Callable[..., Any], x0: Any, args: Sequence[Any]) -> None:
        as_function(name, f)
        self.name = name
        self.f = f
        # copies: writes to arrays cannot be detected
        self.args = tree.map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, tuple(args))
        self.flat = FlatTree(name, x0)
        self.dtype = self.flat.dtype
        if self.dtype.kind != "f":
            raise DTypeError(f"{name}: x0 is {self.dtype}, but equations are solved in float32 or float64.")
        self.start = self.flat.flatten([t.detach() for t in self.flat.first])
        self.known = not special.count or tracing.get() is None  # whether conditions can be read

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
        size = _largest(t)
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

    def newton_step(self, x: Tensor, residual: Tensor) -> Tensor:
        """Return the Newton step d with J d = -residual, where J is the Jacobian at ``x``."""
        try:
            if x.size <= DENSE or _is_lifted(residual):
                return solve(jacfwd(self)(x), -residual)
            _, along = linearize(self, x)
            product = lambda d: along(wrap(d)).numpy()
            return wrap(gmres(product, -residual.numpy(), self.name))
        except np.linalg.LinAlgError as error:
            raise ConvergenceError(
                f"{self.name}: the Jacobian of {name_of(self.f)} is singular at a step where the largest "
                f"residual is {_largest(residual):g}.\n  Use another x0."
            ) from error

    def line_search(
        self, x: Tensor, d: Tensor, residual: Tensor, limit: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return a point along the direction ``d`` from ``x`` with its residual, and the step.

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
        """Do what ``line_search`` does, inside ``ad.compile``, where the loop must have a bound."""
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

        # the size where it is not solved, NaN or inf if it has left the numbers
        last = abs(state[1]).max() if self.start.size else 0.0 * sum(state[1])
        size = where(going | ~isfinite(last), last, 0.0)
        found = unknown(size)
        if found is not None:
            found.check(check)
        return state

    def solved(self, x: Tensor, equation: Vector) -> Any:
        """Return the solution ``x`` as a tree, connected to the tensors that the equation depends on."""
        return self.flat.unflatten(joined_solution(self.name, equation, x))


def _held(t: Any) -> Any:
    data = t
    while isinstance(data, (Tensor, Batched)):
        data = data.value if isinstance(data, Batched) else data._data
    return data


def _largest(t: Tensor) -> float:
    """Return the largest absolute value, over all elements of a batch."""
    data = np.abs(_held(t))
    return float(data.max()) if data.size else 0.0


def _is_small(step: Tensor, x: Tensor, limit: float) -> Any:
    """Return whether a step is at most ``limit`` · max(1, |x|); inside ``vmap``, for each element."""
    if not step.size:
        return True
    if _is_lifted(step) or _is_lifted(x):
        return abs(step).max() <= limit * maximum(1.0, abs(x).max())
    return _largest(step) <= limit * max(1.0, _largest(x))


def _all(condition: Any) -> bool:
    return bool(np.all(_held(condition)))


def _length(t: Tensor) -> Any:
    """Return the norm; inside ``vmap`` a tensor with one norm per element."""
    if _is_lifted(t):
        return sqrt((t * t).sum())
    size = float(np.linalg.norm(t._data))
    return size if np.isfinite(size) else np.inf


# The derivative ----------------------------------------------------------------------------------------


def joined_solution(name: str, equation: Vector, x: Tensor, outcome: Outcome | None = None) -> Tensor:
    """Return the root x of an equation, connected to the graph of the tensors that the equation depends on.

    ``name`` is the name of the caller, for errors.  ``outcome`` says whether a solver found x: if not,
    derivatives raise.
    """
    if not grad_mode.get():
        return x
    since = next_seq()
    rerun = Rerun(name, None)
    residual = rerun.first(equation, (x,), {})
    x = _at_level_of(residual, x)
    again: Vector = lambda x: rerun.again(equation, (x,), {})
    if _has_outer_history(residual._data):
        x = _joined_outside(rerun, again, jacrev(again), x, residual._data, outcome)
    if residual._node is None:
        return x
    captured = captured_by([residual], since)
    keys = [key_of(t) for t in captured]
    rerun.depends_on(keys)
    return _recorded(_Solution(name, again, residual, keys, outcome), captured, x)


def _recorded(solution: _Solution, captured: list[Tensor], x: Tensor) -> Tensor:
    op = new_op(solution.name, [not isinstance(key_of(t), Node) for t in captured], True, 1)
    op.joint, op.jvp = solution.pull, solution.push
    op.differentiable = True
    found: Tensor = record_results(op, tuple(captured), {}, x._data)
    return found


def _joined_outside(
    rerun: Rerun, equation: Vector, jacobian: Vector, x: Tensor, like: Batched, outcome: Outcome | None
) -> Tensor:
    """Connect a solution inside ``vmap`` to the graphs of tensors outside, as one solution for the batch.

    ``like`` is a value of this ``vmap``.  ``rerun`` repeats the equation with the same random numbers.
    """
    batch = _Batch(equation, jacobian, like)
    whole, outcome = batch.held(x), outcome and outcome.mapped(batch.held)
    since = next_seq()
    residual = batch.equation(whole)
    whole = _at_level_of(residual, whole)
    if _has_outer_history(residual._data):  # further out still
        whole = _joined_outside(rerun, batch.equation, batch.jacobian, whole, residual._data, outcome)
    if residual._node is not None:
        captured = captured_by([residual], since)
        keys = [key_of(t) for t in captured]
        rerun.depends_on(keys)
        solution = _Solution(rerun.name, batch.equation, residual, keys, outcome, batch)
        whole = _recorded(solution, captured, whole)
    return batch.inside(whole)


def _at_level_of(residual: Tensor, x: Tensor) -> Tensor:
    """Return x as a value of the transform that ``residual`` belongs to.

    This is needed only if the initial guess is already a solution.
    """
    return at_level(x, residual._data) if isinstance(residual._data, Lifted) else x


class _Batch:
    """An equation inside ``vmap``, viewed from outside as one equation for all elements of the batch."""

    def __init__(self, equation: Vector, jacobian: Vector, like: Batched) -> None:
        self.of_one = equation, jacobian
        self.level, self.size, self.batched = like.level, like.size_, like.batched

    def inside(self, t: Tensor) -> Tensor:
        """Return an outside tensor as a tensor inside ``vmap``."""
        return wrap(Batched(self.level, self.size, settled(t), self.batched))

    def held(self, t: Tensor) -> Tensor:
        """Return a tensor inside ``vmap`` as an outside tensor, with its batch axis, if any, in front."""
        data, batched = t._data, False
        if isinstance(data, Batched) and data.level == self.level:
            data, batched = data.value, data.batched
        found = data if isinstance(data, Tensor) else wrap(data)
        if self.batched and not batched:
            found = rec.broadcast_to(found, shape=(self.size, *found.shape))
        return found

    def run(self, f: Vector, whole: Tensor) -> Tensor:
        """Run ``f``, a function of one element, on the batch ``whole``, even after the ``vmap`` has ended."""
        level = Batched(self.level, self.size, np.zeros(()), False)
        return run_at(level, lambda: self.held(f(self.inside(whole))))

    def equation(self, whole: Tensor) -> Tensor:
        """Return the residuals of all elements."""
        return self.run(self.of_one[0], whole)

    def jacobian(self, whole: Tensor) -> Tensor:
        """Return the Jacobian of each element: they do not depend on each other."""
        return self.run(self.of_one[1], whole)


def _is_lifted(t: Tensor) -> bool:
    return isinstance(t._data, Lifted)


def _has_outer_history(data: Any) -> bool:
    """Return whether values inside ``vmap`` depend on tensors outside of it that require grad."""
    while isinstance(data, Batched):
        data = data.value
        if isinstance(data, Tensor):
            return True
    return False


class _Solution:
    """The node of a solution: it maps the gradient of x to gradients of the equation's dependencies."""

    __slots__ = ("batch", "equation", "keys", "level", "name", "outcome", "residual")

    def __init__(
        self,
        name: str,
        equation: Vector,
        residual: Tensor,
        keys: list[Any],
        outcome: Outcome | None,
        batch: _Batch | None = None,
    ) -> None:
        self.name = name
        self.equation = equation
        self.keys = keys  # the nodes and leaves that the equation depends on
        self.outcome = None if outcome is None or outcome.certain else outcome
        self.batch = batch  # if it is the equation of a vmap
        self.residual = residual._data  # at the solution
        data = residual._data
        self.level = (
            data.lift(np.zeros(())) if isinstance(data, Batched) else data if _is_lifted(residual) else None
        )

    def _residual(self, x: Tensor) -> Tensor:
        """Return the value of the equation at ``x``, recorded, inside the transform of the solution.

        This holds even if another ``vmap`` is running.
        """
        residual = within(grad_mode, True, run_at, self.level, self.equation, x)
        self._compare(x, residual._data)
        return residual

    def _compare(self, x: Tensor, now: Any) -> None:
        """Raise if the equation has a different solution than when it was solved.

        ``now`` is the value of the equation at ``x``.
        """
        before = self.residual
        if not isinstance(before, np.ndarray) or not isinstance(now, np.ndarray):
            return  # inside vmap
        if np.array_equal(before, now, equal_nan=True):
            return
        # Another number of BLAS threads rounds differently.  A change of the solution by √eps is no rounding.
        moved = self._solved(x, wrap(now - before), self._along(x), False, transposed=False)
        if not _largest(moved) <= np.finfo(now.dtype).eps ** 0.5 * max(1.0, _largest(x)):
            raise TransformError(
                f"{self.name}: the function returned different values when it ran again for the derivative.\n"
                "  It must not use arrays that are written to after the call.  Pass such arrays as arguments."
            )

    def _check(self, x: Tensor) -> None:
        """Raise if ``x`` is not a solution, because the solver failed."""
        if self.outcome is not None:
            step = lambda: self._solved(x, wrap(self.residual), self._along(x), False, transposed=False)
            within(grad_mode, False, self.outcome.check, self.name, x, step)

    def pull(self, xp: Namespace, g: Any, out: Any, *_: Any, wanted: Sequence[bool]) -> list[Any]:
        """Solve (∂F/∂x)ᵀ u = -g, and propagate u through F to its dependencies: the joint rule of the node.

        ``wanted`` says which gradients are needed.
        """
        x, seed, recording = _as_tensor(out), _as_tensor(g), xp is rec
        self._check(x)

        def product(u: Tensor) -> Tensor:
            _, pull = run_at(self.level, vjp, self.equation, x)
            (found,) = pull(u)
            return found

        u = self._solved(x, seed, product, recording, transposed=True)
        since = next_seq()
        residual = self._residual(x)
        # x is joined to its own node and is not a dependency
        keys, wanted = [*self.keys, key_of(x)], [*wanted, False]
        found = pull_record(xp, [residual], [u if recording else u._data], keys, wanted, since)
        if found is None:
            raise RuleError(
                f"{self.name}: the function used different tensors when it ran again for the backward.\n"
                "  It must use the same tensors each time it runs."
            )
        return found[:-1]

    def push(self, xp: Namespace, tangents: Any, out: Any, *_: Any) -> Any:
        """Push tangents through F to t and solve (∂F/∂x) dx = -t: the forward mode of the node."""
        x, recording = _as_tensor(out), xp is rec
        self._check(x)
        since = next_seq()
        residual = self._residual(x)
        given = tangents if isinstance(tangents, tuple) else (tangents,)
        directions = [t if t is None or isinstance(t, Tensor) else wrap(t) for t in given]
        ends = [standing(key) for key in self.keys]
        (pushed,) = push_forward([residual], ends, directions, create_graph=recording, since=since)
        if pushed is None:
            return None
        d = self._solved(x, _as_tensor(pushed), self._along(x), recording, transposed=False)
        return d if recording else d._data

    def _along(self, x: Tensor) -> Vector:
        """Return a function that multiplies a vector by ∂F/∂x."""

        def product(d: Tensor) -> Tensor:
            _, along = run_at(self.level, linearize, self.equation, x)
            return along(d)

        return product

    def _solved(self, x: Tensor, b: Tensor, product: Vector, recording: bool, transposed: bool) -> Tensor:
        """Return v with J v = -b, or Jᵀ v = -b if ``transposed``; ``product`` multiplies by that matrix."""
        try:
            if self.batch is not None or _is_lifted(x) or _is_lifted(b):
                # ordinary ops stay connected to graphs outside of surrounding vmaps
                return _solve_each(self._matrix(x, recording, transposed), -b)
            v = within(grad_mode, False, self._solved_plainly, x.detach(), b.detach(), product, transposed)
        except np.linalg.LinAlgError as error:
            raise ConvergenceError(
                f"{self.name}: the Jacobian at the solution is singular, so the solution has no derivative."
            ) from error
        return joined_solution(self.name, lambda v: product(v) + b, v) if recording else v

    def _solved_plainly(self, x: Tensor, b: Tensor, product: Vector, transposed: bool) -> Tensor:
        if x.size <= DENSE:
            return solve(self._matrix(x, False, transposed), -b)
        return wrap(gmres(lambda u: product(wrap(u)).numpy(), -b.numpy(), self.name))

    def _matrix(self, x: Tensor, recording: bool, transposed: bool) -> Tensor:
        """Return ∂F/∂x; it is part of the graph only if ``recording``."""
        keep = recording or _has_outer_history(x._data)
        jacobian = jacrev(self.equation) if self.batch is None else self.batch.jacobian
        found = within(grad_mode, keep and grad_mode.get(), run_at, self.level, jacobian, x)
        if not recording:
            found = wrap(found._data)
        return rec.matrix_transpose(found) if transposed else found


def _solve_each(matrix: Tensor, b: Tensor) -> Tensor:
    return solve(matrix, b) if b.ndim == 1 else solve(matrix, b[..., None])[..., 0]


def _as_tensor(value: Any) -> Tensor:
    t = as_gradient_tensor(value)
    return t if type(t) is type(wrap(t._data)) else wrap(t._data)


def gmres(product: Callable[[Any], Any], b: Any, name: str, restart: int = 60, cycles: int = 100) -> Any:
    """Solve A x = b by GMRES from products with A, with a restart after ``restart`` steps.

    ``cycles`` limits the restarts.  ``name`` is the name of the caller, for errors.  The basis is made by
    modified Gram-Schmidt.
    """
    limit = float(np.finfo(b.dtype).eps) ** 0.75 * float(np.linalg.norm(b))
    x = np.zeros_like(b)
    residual = b
    for _ in range(cycles):
        size = float(np.linalg.norm(residual))
        if size <= limit:
            return x
        basis = [residual / size]
        h = np.zeros((restart + 1, restart))
        for j in range(restart):
            w = np.array(product(basis[j]))
            for _pass in range(2):  # two passes keep the basis orthogonal
                for i, v in enumerate(basis):
                    c = float(v @ w)
                    h[i, j] += c
                    w -= c * v
            h[j + 1, j] = np.linalg.norm(w)
            k = j + 1
            target = np.zeros(k + 1)
            target[0] = size
            y = np.linalg.lstsq(h[: k + 1, :k], target, rcond=None)[0]
            left = float(np.linalg.norm(target - h[: k + 1, :k] @ y))
            if left <= limit or h[j + 1, j] <= 1e-14 * size:
                break
            basis.append(w / h[j + 1, j])
        x = x + np.stack(basis[:k], axis=1) @ y.astype(b.dtype)
        before, residual = size, b - product(x)
        if np.linalg.norm(residual) > 0.999 * before:
            break
    size = float(np.linalg.norm(residual))
    if size <= 10 * limit:
        return x
    raise ConvergenceError(
        f"{name}: the linear equation for the derivative was not solved: the residual is {size:g}, but "
        f"must be at most {limit:g}.\n  The Jacobian may be singular at the solution."
    )
