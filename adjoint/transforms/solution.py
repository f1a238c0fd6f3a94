"""Derivatives of solutions of equations, by the implicit function theorem.

For x with F(x, θ) = 0 the derivative does not depend on how x was found:

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

from adjoint import tree
from adjoint.config import grad_mode
from adjoint.context import within
from adjoint.core.batched import Batched, settled
from adjoint.core.lifted import Lifted, run_at
from adjoint.core.namespace import Namespace, rec
from adjoint.core.node import Node, next_seq
from adjoint.core.record import at_level, record_results
from adjoint.core.sparse import as_gradient_tensor
from adjoint.core.tensor import Tensor, wrap
from adjoint.engine.push import push_forward
from adjoint.engine.run import key_of
from adjoint.errors import ConvergenceError, RuleError, TransformError
from adjoint.ops.linalg import solve
from adjoint.transforms.calls import new_op
from adjoint.transforms.convergence import Outcome
from adjoint.transforms.forward import linearize
from adjoint.transforms.matrix import jacobian, jacrev
from adjoint.transforms.recompute import captured_by, pull_record, standing
from adjoint.transforms.rerun import Rerun
from adjoint.transforms.reverse import vjp

__all__ = [
    "DENSE", "Vector", "gmres", "held_array", "is_lifted", "joined_solution", "largest_absolute",
    "solve_equations",
]  # fmt: skip


DENSE = 256  # up to this number of unknowns the Jacobian is formed; beyond, GMRES uses products with it

Vector = Callable[[Tensor], Tensor]


def joined_solution(
    name: str, equation: Vector, x: Tensor, outcome: Outcome | None = None, sparse: bool = False
) -> Tensor:
    """Return the root x of an equation, connected to the graph of the tensors that the equation depends on.

    ``name`` is the name of the caller, for errors.  ``outcome`` says whether a solver found x: if not,
    derivatives raise.  ``sparse`` says whether linear equations are solved with the sparse Jacobian.
    """
    if not grad_mode.get():
        return x
    since = next_seq()
    rerun = Rerun(name, None)
    residual = rerun.first(equation, (x,), {})
    x = _at_level_of(residual, x)
    again: Vector = lambda x: rerun.again(equation, (x,), {})
    matrix = sparse_jacobian(again) if sparse else jacrev(again)
    if _has_outer_history(residual._data):
        x = _joined_outside(rerun, again, matrix, x, residual._data, outcome)
    if residual._node is None:
        return x
    captured = captured_by([residual], since)
    keys = [key_of(t) for t in captured]
    rerun.depends_on(keys)
    return _recorded(_Solution(name, again, matrix, residual, keys, outcome, sparse=sparse), captured, x)


def sparse_jacobian(f: Vector) -> Callable[[Tensor], Any]:
    """Return a function that computes the sparse Jacobian of ``f``, with the pattern that it has then."""
    derivative: Any = jacobian(f, sparse=True)
    return lambda x: derivative.fixed(x)(x)


def _recorded(solution: _Solution, captured: list[Tensor], x: Tensor) -> Tensor:
    op = new_op(solution.name, [not isinstance(key_of(t), Node) for t in captured], True, 1)
    op.joint, op.jvp = solution.pull, solution.push
    op.differentiable = True
    found: Tensor = record_results(op, tuple(captured), {}, x._data)
    return found


def _joined_outside(
    rerun: Rerun, equation: Vector, matrix: Vector, x: Tensor, like: Batched, outcome: Outcome | None
) -> Tensor:
    """Connect a solution ``x`` inside ``vmap`` to the graphs of tensors outside; return the new ``x``.

    Outside, the solutions of all batch elements are one solution.  ``like`` is a value of this ``vmap``, and
    ``rerun`` repeats the equation with the same random numbers.
    """
    batch = _Batch(equation, matrix, like)
    whole, outcome = batch.held(x), outcome and outcome.mapped(batch.held)
    since = next_seq()
    residual = batch.equation(whole)
    whole = _at_level_of(residual, whole)
    if _has_outer_history(residual._data):  # the equation also depends on tensors further outside
        whole = _joined_outside(rerun, batch.equation, batch.matrix, whole, residual._data, outcome)
    if residual._node is not None:
        captured = captured_by([residual], since)
        keys = [key_of(t) for t in captured]
        rerun.depends_on(keys)
        solution = _Solution(rerun.name, batch.equation, batch.matrix, residual, keys, outcome, batch)
        whole = _recorded(solution, captured, whole)
    return batch.inside(whole)


def _at_level_of(residual: Tensor, x: Tensor) -> Tensor:
    """Return x as a value of the transform that ``residual`` belongs to.

    This is needed only if the initial guess is already a solution.
    """
    return at_level(x, residual._data) if isinstance(residual._data, Lifted) else x


class _Batch:
    """An equation inside ``vmap``, viewed from outside as one equation for all elements of the batch."""

    def __init__(self, equation: Vector, matrix: Vector, like: Batched) -> None:
        self.of_one = equation, matrix
        self.level, self.size, self.batched = like.level, like.size_, like.batched

    def inside(self, t: Tensor) -> Tensor:
        """Return ``t``, a tensor outside ``vmap`` with a batch axis in front, as a tensor inside it."""
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

    def run(self, f: Vector, whole: Tensor) -> Any:
        """Run ``f``, a function of one element, on the batch ``whole``, even after the ``vmap`` has ended."""
        level = Batched(self.level, self.size, np.zeros(()), False)
        return run_at(level, lambda: tree.map(self.held, f(self.inside(whole))))

    def equation(self, whole: Tensor) -> Tensor:
        """Return the values of the equation for all batch elements, given the solutions ``whole``."""
        found: Tensor = self.run(self.of_one[0], whole)
        return found

    def matrix(self, whole: Tensor) -> Any:
        """Return one Jacobian for each element of ``whole``: elements do not depend on each other."""
        return self.run(self.of_one[1], whole)


def held_array(t: Any) -> Any:
    """Return the NumPy array that a tensor contains, also inside ``vmap``; return a number unchanged."""
    data = t
    while isinstance(data, (Tensor, Batched)):
        data = data.value if isinstance(data, Batched) else data._data
    return data


def largest_absolute(t: Tensor) -> float:
    """Return the largest absolute value, over all elements of a batch."""
    data = np.abs(held_array(t))
    return float(data.max()) if data.size else 0.0


def is_lifted(t: Tensor) -> bool:
    """Return whether a tensor is a value of a running transform, so that it has no array of its own."""
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

    __slots__ = ("batch", "equation", "keys", "level", "matrix", "name", "outcome", "residual", "sparse")

    def __init__(
        self,
        name: str,
        equation: Vector,
        matrix: Callable[[Tensor], Any],
        residual: Tensor,
        keys: list[Any],
        outcome: Outcome | None,
        batch: _Batch | None = None,
        sparse: bool = False,
    ) -> None:
        self.name = name
        self.equation = equation
        self.matrix = matrix  # returns ∂F/∂x, a SparseArray if ``sparse``
        self.sparse = sparse
        self.keys = keys  # the nodes and leaves that the equation depends on
        self.outcome = None if outcome is None or outcome.certain else outcome
        self.batch = batch  # set if the equation is that of a whole vmap batch
        self.residual = residual._data  # at the solution
        data = residual._data
        self.level = (
            data.lift(np.zeros(())) if isinstance(data, Batched) else data if is_lifted(residual) else None
        )

    def _residual(self, x: Tensor) -> Tensor:
        """Return the value of the equation at ``x``, recorded.

        It is evaluated inside the transform of the solution, even if another ``vmap`` is running.
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
        # A different number of BLAS threads changes the rounding, but does not change the solution by √eps.
        moved = self._solved(x, wrap(now - before), self._along(x), False, transposed=False)
        if not largest_absolute(moved) <= np.finfo(now.dtype).eps ** 0.5 * max(1.0, largest_absolute(x)):
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
        """Solve (∂F/∂x)ᵀ u = -g, and return the gradients of F's dependencies for the gradient u of F.

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
        """Return dx, the tangent of the solution: solve (∂F/∂x) dx = -t, where t is the tangent of F."""
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
            if self.batch is not None or self.sparse or is_lifted(x) or is_lifted(b):
                # ordinary ops stay connected to graphs outside of surrounding vmaps
                return solve_equations(self._matrix(x, recording, transposed), -b)
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

    def _matrix(self, x: Tensor, recording: bool, transposed: bool) -> Any:
        """Return ∂F/∂x, or its transpose if ``transposed``; it is part of the graph only if ``recording``."""
        keep = recording or _has_outer_history(x._data)
        found = within(grad_mode, keep and grad_mode.get(), run_at, self.level, self.matrix, x)
        if not recording:
            found = tree.map(lambda t: wrap(t._data), found)
        if not transposed:
            return found
        return rec.matrix_transpose(found) if isinstance(found, Tensor) else found.T


def solve_equations(matrix: Any, b: Tensor) -> Tensor:
    """Return x with A x = b, for a dense or sparse matrix, or for each of a stack of them."""
    if isinstance(matrix, Tensor):
        return solve(matrix, b) if b.ndim == 1 else solve(matrix, b[..., None])[..., 0]
    found: Tensor = rec.sparse_solve(
        matrix.data, b[..., None], pattern=matrix.pattern, method="direct", options=()
    )
    return found[..., 0]


def _as_tensor(value: Any) -> Tensor:
    t = as_gradient_tensor(value)
    return t if type(t) is type(wrap(t._data)) else wrap(t._data)


def gmres(product: Callable[[Any], Any], b: Any, name: str, restart: int = 60, cycles: int = 100) -> Any:
    """Solve A x = b by GMRES, where ``product(v)`` returns A v; restart after ``restart`` steps.

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
        f"must be at most {limit:g}.\n"
        "  The Jacobian may be singular at the solution.  If most of its elements are zeros, use sparse=True."
    )
