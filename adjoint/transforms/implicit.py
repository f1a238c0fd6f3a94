"""Solutions of equations, differentiated by the implicit function theorem.

``root`` finds x with F(x, θ) = 0, ``fixed_point`` x with f(x, θ) = x, the root of f(x, θ) - x.  How it
was found does not matter to its derivative:

    F(x(θ), θ) = 0   ⇒   ∂F/∂x dx + ∂F/∂θ dθ = 0

So the solution is one node, whose parents are whatever F depends on besides x.  Its backward turns
the gradient g of x into u with (∂F/∂x)ᵀ u = -g, and pulls u through one run of F to θ.  Where the
backward is itself recorded, that linear equation for u is another root, and so on to every order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from adjoint import tree
from adjoint.config import enable_grad, grad_mode, no_grad
from adjoint.core.lifted import Lifted, enclosing
from adjoint.core.namespace import Namespace, rec
from adjoint.core.node import Node, next_seq
from adjoint.core.record import record_results
from adjoint.core.sparse import as_gradient_tensor
from adjoint.core.tensor import Tensor, wrap
from adjoint.engine.run import key_of
from adjoint.errors import ArgumentError, ConvergenceError, DTypeError, RuleError, ShapeError, TransformError
from adjoint.ops.elementwise import sqrt
from adjoint.ops.linalg import solve
from adjoint.ops.piecewise import maximum, where
from adjoint.transforms.batched import Batched
from adjoint.transforms.calls import Rule, new_op
from adjoint.transforms.checkpoint import captured_by, pull_record
from adjoint.transforms.forward import linearize
from adjoint.transforms.inputs import Place, as_function, name_of
from adjoint.transforms.matrix import jacfwd, jacrev
from adjoint.transforms.packing import Packing
from adjoint.transforms.reverse import vjp

__all__ = ["fixed_point", "root"]

DENSE = 256  # up to so many unknowns the Jacobian is formed; beyond, products with it are enough

Vector = Callable[[Tensor], Tensor]


def fixed_point(
    f: Callable[..., Any],
    x0: Any,
    *args: Any,
    tol: float | None = None,
    max_steps: int = 1000,
    damping: float = 1.0,
) -> Any:
    """Return x with ``f(x, *args) == x``, found from ``x0`` by repeating ``x = f(x, *args)``.

    ``x0`` is a tensor, an array, a number, or a tree of them; x has its structure.  Gradients flow to
    ``args`` and to every tensor that ``f`` uses, by the implicit function theorem, and none to ``x0``.
    It has converged when a step changes x by at most ``tol``, relative to the largest element or
    1; None takes eps^¾ of the dtype.  ``damping`` below 1 takes shorter steps.

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
        raise ArgumentError(f"fixed_point: damping is above 0 and at most 1, but got {damping!r}.")
    with no_grad():
        x = problem.start
        for step in range(max_steps):
            change = problem(x) - x
            x = x + change if damping == 1 else x + damping * change
            size = problem.size_of(step, change)
            if _all(_is_small(change, x, limit)):
                break
        else:
            raise problem.failed(max_steps, f"the last step changed x by {size:g}")
    return problem.solved(x, lambda x: problem(x) - x)


def root(f: Callable[..., Any], x0: Any, *args: Any, tol: float | None = None, max_steps: int = 50) -> Any:
    """Return x with ``f(x, *args) == 0``, found from ``x0`` by Newton's method with exact derivatives.

    The result of ``f`` has as many numbers as x.  Gradients flow as in ``fixed_point``.  It has
    converged when a step changes x by at most ``tol``, relative to the largest element or 1.  Steps
    that do not make the residual smaller are shortened.

    >>> import adjoint as ad
    >>> a = ad.tensor(2.0, requires_grad=True)
    >>> x = ad.root(lambda x: x ** 3 - a, 1.0)
    >>> x.backward()
    >>> abs(a.grad.item() - 2 ** (-2 / 3) / 3) < 1e-12
    True
    """
    problem = _Problem("root", f, x0, args)
    limit = _limits("root", problem, tol, max_steps)
    with no_grad():
        x = problem.start
        residual = problem(x)
        for step in range(max_steps):
            size = problem.size_of(step, residual)
            if size == 0:
                break
            direction = problem.newton_step(x, residual)
            x, residual, moved = problem.line_search(x, direction, residual, limit)
            if _all(_is_small(moved, x, limit)):
                break
        else:
            raise problem.failed(max_steps, f"the largest residual is {_largest(residual):g}")
        problem.size_of(max_steps, residual)
    return problem.solved(x, problem)


def _limits(name: str, problem: _Problem, tol: float | None, max_steps: int) -> float:
    if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
        raise ArgumentError(f"{name}: max_steps is a whole number from 1, but got {max_steps!r}.")
    if tol is None:
        return float(np.finfo(problem.dtype).eps) ** 0.75
    if not tol > 0:
        raise ArgumentError(f"{name}: tol is above 0, but got {tol!r}.")
    return float(tol)


class _Problem:
    """An equation in x, as a function of one flat vector."""

    def __init__(self, name: str, f: Callable[..., Any], x0: Any, args: Sequence[Any]) -> None:
        as_function(name, f)
        self.name = name
        self.f = f
        self.args = args
        self.packing = Packing(name, x0)
        self.dtype = self.packing.dtype
        if self.dtype.kind != "f":
            raise DTypeError(f"{name}: x0 is {self.dtype}, but equations are solved in float32 or float64.")
        self.start = self.packing.pack([t.detach() for t in self.packing.first])

    def __call__(self, x: Tensor) -> Tensor:
        """Run the function on a vector."""
        result = self.f(self.packing.unpack(x), *self.args)
        what = f"{self.name}: the result of {name_of(self.f)}"
        found = tree.flatten_like(self.packing.structure, result, what)
        for i, ((shape, _), t) in enumerate(zip(self.packing.specs, found, strict=True)):
            place = Place(self.packing.structure, i, f"the result of {name_of(self.f)}")
            if not isinstance(t, Tensor):
                raise TransformError(f"{self.name}: {place} is a {type(t).__name__}, not a tensor.")
            if t.shape != shape:
                raise ShapeError(f"{self.name}: {place} has shape {t.shape}, but x has {shape} there.")
        return self.packing.pack(found)

    def size_of(self, step: int, t: Tensor) -> float:
        """Return the largest element; raise if there is none because values are not finite."""
        size = _largest(t)
        if not np.isfinite(size):
            raise ConvergenceError(
                f"{self.name}: {name_of(self.f)} gave {size} after {step} steps.\n"
                "  Start nearer to the solution, or take shorter steps."
            )
        return size

    def failed(self, steps: int, how: str) -> ConvergenceError:
        return ConvergenceError(
            f"{self.name}: {name_of(self.f)} did not converge in {steps} steps: {how}.\n"
            "  Start nearer to the solution, allow more max_steps or a larger tol"
            + (", or use a damping below 1." if self.name == "fixed_point" else ".")
        )

    def newton_step(self, x: Tensor, residual: Tensor) -> Tensor:
        """Solve J d = -residual."""
        try:
            if x.size <= DENSE or _is_lifted(residual):
                return solve(jacfwd(self)(x), -residual)
            _, along = linearize(self, x)
            product = lambda d: along(wrap(d)).numpy()
            return wrap(gmres(product, -residual.numpy(), self.name))
        except np.linalg.LinAlgError as error:
            raise ConvergenceError(
                f"{self.name}: the Jacobian of {name_of(self.f)} is singular on the way, where the largest "
                f"residual is {_largest(residual):g}.\n  Start elsewhere."
            ) from error

    def line_search(
        self, x: Tensor, d: Tensor, residual: Tensor, limit: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Go along a direction, half as far while that makes the residual larger; in a batch each alone."""
        size: Any = _length(residual)
        scale: Any = 1.0
        for _ in range(30):
            step = scale * d
            there = x + step
            with np.errstate(all="ignore"):
                found = self(there)
                good = _length(found) < size
                if isinstance(good, Tensor):  # those that are there already cannot get better
                    good = good | _is_small(step, there, limit)
            if _all(good):
                break
            scale = where(good, scale, scale / 2) if isinstance(good, Tensor) else scale / 2
        return there, found, step

    def solved(self, x: Tensor, equation: Vector) -> Any:
        """Return the solution as a tree, joined to what the equation depends on."""
        return self.packing.unpack(_joined(self.name, equation, x))


def _held(t: Any) -> Any:
    data = t
    while isinstance(data, (Tensor, Batched)):
        data = data.value if isinstance(data, Batched) else data._data
    return data


def _largest(t: Tensor) -> float:
    """The largest absolute value; over all elements of a batch."""
    data = np.abs(_held(t))
    return float(data.max()) if data.size else 0.0


def _is_small(step: Tensor, x: Tensor, limit: float) -> Any:
    """Whether a step is small beside x or 1; inside ``vmap`` for each element on its own."""
    if not step.size:
        return True
    if _is_lifted(step) or _is_lifted(x):
        return abs(step).max() <= limit * maximum(1.0, abs(x).max())
    return _largest(step) <= limit * max(1.0, _largest(x))


def _all(condition: Any) -> bool:
    return bool(np.all(_held(condition)))


def _length(t: Tensor) -> Any:
    """The norm; inside ``vmap`` a tensor, of each element on its own."""
    if _is_lifted(t):
        return sqrt((t * t).sum())
    size = float(np.linalg.norm(t._data))
    return size if np.isfinite(size) else np.inf


# The derivative ----------------------------------------------------------------------------------------


def _joined(name: str, equation: Vector, x: Tensor) -> Tensor:
    """Return the root x of an equation as a function of what else the equation depends on."""
    if not grad_mode.get():
        return x
    since = next_seq()
    residual = equation(x)
    if _has_outer_history(residual._data):
        raise TransformError(
            f"{name}: inside ad.vmap it cannot be differentiated from outside.\n"
            f"  Solve for the whole batch at once, {name}(ad.vmap(f), x0), or map over the gradient."
        )
    if residual._node is None:
        return x
    captured = captured_by([residual], set(), since)
    op = new_op(_IMPLICIT, [not isinstance(key_of(t), Node) for t in captured], True, 1)
    op.name = name
    op.joint = _Solution(name, equation, [key_of(t) for t in captured]).pull
    op.differentiable = True
    op.plain = False
    found: Tensor = record_results(op, tuple(captured), {}, x._data)
    return found


_IMPLICIT = Rule()


def _is_lifted(t: Tensor) -> bool:
    return isinstance(t._data, Lifted)


def _has_outer_history(data: Any) -> bool:
    """Whether values inside ``vmap`` depend on tensors outside of it that require grad."""
    while isinstance(data, Batched):
        data = data.value
        if isinstance(data, Tensor):
            return True
    return False


class _Solution:
    """The node of a solution: from the gradient of x to those of what the equation depends on."""

    __slots__ = ("equation", "keys", "name", "top")

    def __init__(self, name: str, equation: Vector, keys: list[Any]) -> None:
        self.name = name
        self.equation = equation
        self.keys = keys  # the nodes and leaves that the equation depends on
        self.top = enclosing.get()

    @contextmanager
    def _where_it_was_solved(self) -> Iterator[None]:
        """Run the equation at the level of the solution, whatever vmap its gradients are in now."""
        token = enclosing.set(self.top)
        try:
            yield
        finally:
            enclosing.reset(token)

    def pull(self, xp: Namespace, g: Any, out: Any, *_: Any, wanted: Sequence[bool]) -> list[Any]:
        """Solve (∂F/∂x)ᵀ u = -g and pull u through F: the joint rule of the node."""
        x, seed = _as_tensor(out), _as_tensor(g)
        recording = xp is rec
        if _is_lifted(x) or _is_lifted(seed):
            # x was solved outside of the vmap that gives g, or both are in it: with ordinary ops the
            # solution keeps whatever histories there are, at this level and at those around it
            with nullcontext() if recording or _has_outer_history(seed._data) else no_grad():
                u = self._solve(x, seed)
        else:
            with no_grad():
                u = self._solve(x.detach(), seed.detach())
            if recording:

                def adjoint_equation(u: Tensor) -> Tensor:
                    with self._where_it_was_solved():
                        _, pull = vjp(self.equation, x)
                    (product,) = pull(u)
                    return product + seed

                u = _joined(self.name, adjoint_equation, u)
        since = next_seq()
        with enable_grad(), self._where_it_was_solved():
            residual = self.equation(x)
        # joined to its own node, x is not one of those it depends on
        keys, wanted = [*self.keys, key_of(x)], [*wanted, False]
        found = pull_record(xp, [residual], [u if recording else u._data], keys, wanted, since)
        if found is None:
            raise RuleError(
                f"{self.name}: the function used other tensors when it ran again for the backward."
            )
        return found[:-1]

    def _solve(self, x: Tensor, g: Tensor) -> Tensor:
        try:
            if x.size <= DENSE or _is_lifted(x) or _is_lifted(g):
                with self._where_it_was_solved():
                    jacobian = jacrev(self.equation)(x)
                return solve(rec.matrix_transpose(jacobian), -g)
            with self._where_it_was_solved():
                _, pull = vjp(self.equation, x)
            return wrap(gmres(lambda u: pull(wrap(u))[0].numpy(), -g.numpy(), self.name))
        except np.linalg.LinAlgError as error:
            raise ConvergenceError(
                f"{self.name}: the Jacobian at the solution is singular, so the solution has no derivative."
            ) from error


def _as_tensor(value: Any) -> Tensor:
    t = as_gradient_tensor(value)
    return t if type(t) is type(wrap(t._data)) else wrap(t._data)


def gmres(product: Callable[[Any], Any], b: Any, name: str, restart: int = 60, cycles: int = 100) -> Any:
    """Solve A x = b from products with A alone: GMRES with restarts, Arnoldi by modified Gram-Schmidt."""
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
            for _pass in range(2):  # twice is enough to stay orthogonal
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
        f"{name}: the linear equation with the Jacobian was not solved: its residual is {size:g}, more "
        f"than {limit:g}.\n  The Jacobian may be singular at the solution."
    )
