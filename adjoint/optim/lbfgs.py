"""L-BFGS with a strong-Wolfe line search."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from adjoint.config import no_grad, special
from adjoint.core.inplace import writable
from adjoint.core.lifted import refuse_tracing
from adjoint.core.shapes import number_between, whole_number
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, InputError, NoGradientError, NonFiniteError, ShapeError
from adjoint.grads.slots import drop
from adjoint.optim.parameters import parameter_list
from adjoint.storage.fitting import fitting

__all__ = ["LBFGS"]

Evaluate = Callable[[np.ndarray[Any, Any]], tuple[float, np.ndarray[Any, Any]]]


class LBFGS:
    """Limited-memory BFGS for deterministic objectives.

    ``step(closure)`` runs several iterations.  The line search satisfies the strong Wolfe conditions, so that
    each iteration reduces the loss.  A complex parameter counts as two real ones.

    Parameters
    ----------
    params : iterable of Tensor
        The parameters.
    lr : float
        The first step length that a line search tries.
    max_iter : int
        The number of iterations per call of ``step``.
    history : int
        The number of stored pairs of steps and gradient differences.
    tolerance_grad : float
        Stop when the absolute value of every element of the gradient is at most this.
    tolerance_change : float
        Stop when the step or the relative change of the loss is smaller than this.

    Examples
    --------
    >>> import adjoint as ad
    >>> w = ad.tensor([-1.2, 1.0], requires_grad=True)
    >>> opt = ad.optim.LBFGS([w], max_iter=60)
    >>> def closure():
    ...     opt.zero_grad()
    ...     loss = (1 - w[0]) ** 2 + 100 * (w[1] - w[0] ** 2) ** 2
    ...     loss.backward()
    ...     return loss
    >>> _ = opt.step(closure); np.round(w.numpy(), 6)
    array([1., 1.])
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1.0,
        max_iter: int = 20,
        history: int = 10,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-12,
    ) -> None:
        self.params: list[Tensor] = parameter_list("LBFGS", params)
        for p in self.params:
            if isinstance(p, Mapping):
                raise InputError("LBFGS: parameter groups are not supported.  Pass a list of all parameters.")
        leaves = all(isinstance(p, Tensor) and p.is_leaf for p in self.params)
        if not leaves or not any(p.requires_grad for p in self.params):  # frozen parameters are not updated
            raise InputError("LBFGS: parameters must be leaf tensors, and at least one must require grad.")
        for name, count in (("max_iter", max_iter), ("history", history)):
            if whole_number("LBFGS", name, count) < 1:
                raise ArgumentError(f"LBFGS: {name} must be positive, but is {count!r}.")
        number_between("LBFGS: tolerance_grad", tolerance_grad, 0.0)
        number_between("LBFGS: tolerance_change", tolerance_change, 0.0)
        self.lr, self.max_iter, self.history = lr, max_iter, history
        self.tolerance_grad, self.tolerance_change = tolerance_grad, tolerance_change
        self.pairs: deque[tuple[Any, Any, float]] = deque(maxlen=history)
        self.evaluations = 0
        self.iterations = 0

    @property
    def lr(self) -> float:
        """The first step length that a line search tries, relative to the quasi-Newton step."""
        return self._lr

    @lr.setter
    def lr(self, value: float) -> None:
        number_between("LBFGS: lr", value, 0.0)
        if value == 0:
            raise ArgumentError(
                "LBFGS: lr must be positive, but is 0: it is the first step length of the line search."
            )
        self._lr = float(value)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients of all parameters to None.

        Parameters
        ----------
        set_to_none : bool
            Must be True.  The parameter exists for compatibility with PyTorch.
        """
        drop(self.params, set_to_none)

    def _flat(self) -> Any:
        return np.concatenate([_reals(p._data) for p in self.params])

    def _flat_grad(self) -> Any:
        parts = [
            np.zeros(_count(p)) if p.grad is None else _reals(_like(p.grad._data, p)) for p in self.params
        ]
        return np.concatenate(parts)

    def _write(self, x: Any) -> None:
        start = 0
        with no_grad():
            for p in self.params:
                part = x[start : start + _count(p)]
                writable(p)[...] = (part.view(complex) if p.dtype.kind == "c" else part).reshape(p.shape)
                start += _count(p)

    def step(self, closure: Callable[[], Tensor]) -> float:
        """Run up to ``max_iter`` iterations.

        If ``closure`` raises an exception, the parameters are restored.

        Parameters
        ----------
        closure : callable
            A function that computes the loss, calls ``loss.backward()`` and returns the loss.

        Returns
        -------
        float
            The loss at the end.

        Raises
        ------
        NonFiniteError
            If the loss or the gradient is not finite at the start.
        """
        if special.count:
            refuse_tracing("LBFGS", "The line search branches on values: compile the closure instead.")
        before = self._flat()
        pairs, iterations = self.pairs.copy(), self.iterations
        try:
            return self._iterate(closure, before)
        except BaseException:
            self._write(before)
            self.pairs, self.iterations = pairs, iterations
            raise

    def _iterate(self, closure: Callable[[], Tensor], x: Any) -> float:
        def evaluate(x: Any) -> tuple[float, Any]:
            self._write(x)
            self.evaluations += 1
            self.zero_grad()
            loss = closure()
            if loss is None or np.shape(loss) != ():
                raise InputError(
                    "LBFGS: closure() must return the loss, one number, but "
                    + ("returned None." if loss is None else f"returned shape {np.shape(loss)}.")
                )
            if all(p.grad is None for p in self.params):
                raise NoGradientError(
                    "LBFGS: no parameter has a gradient after closure().\n  It must compute a loss from "
                    "the parameters, call loss.backward() and return the loss."
                )
            return float(loss), self._flat_grad()

        loss, g = evaluate(x)
        if not (math.isfinite(loss) and np.isfinite(g).all()):
            raise NonFiniteError(
                f"LBFGS: the initial loss is {loss} and the largest gradient is {np.abs(g).max()}, so "
                "there is no descent direction.\n  Start from parameters at which both are finite."
            )
        for _ in range(self.max_iter):
            if np.abs(g).max(initial=0.0) <= self.tolerance_grad:
                break
            d = self._direction(g)
            slope = float(g @ d)
            if slope >= 0:  # the stored curvature is bad
                self.pairs.clear()
                d, slope = -g, -float(g @ g)
            first = min(1.0, 1.0 / float(np.abs(g).sum())) * self.lr if not self.pairs else self.lr
            t, new_loss, new_g = strong_wolfe(evaluate, x, first, d, loss, g, slope)
            s = t * d
            y = new_g - g
            # the curvature must be positive, beyond rounding errors at any scale of loss and parameters
            if float(y @ s) > 1e-14 * math.sqrt(float(y @ y)) * math.sqrt(float(s @ s)):
                self.pairs.append((s, y, 1.0 / float(y @ s)))
            change = abs(new_loss - loss)
            x, loss, g = x + s, new_loss, new_g
            self.iterations += 1
            small = np.abs(s).max(initial=0.0) <= self.tolerance_change
            if t == 0.0 or small or change <= self.tolerance_change * max(1.0, abs(loss)):
                break
        self._write(x)
        return loss

    def _direction(self, g: Any) -> Any:
        """Return -H g by the two-loop recursion; H approximates the inverse Hessian from the stored pairs."""
        q = -g
        alphas = []
        for s, y, rho in reversed(self.pairs):
            a = rho * float(s @ q)
            alphas.append(a)
            q = q - a * y
        if self.pairs:
            s, y, _ = self.pairs[-1]
            q = q * (float(s @ y) / float(y @ y))
        for (s, y, rho), a in zip(self.pairs, reversed(alphas), strict=True):
            q = q + s * (a - rho * float(y @ q))
        return q

    def state_dict(self) -> dict[str, Any]:
        """Return a dictionary with copies of the stored ``"pairs"`` and the number of ``"iterations"``."""
        return {"pairs": [(s.copy(), y.copy()) for s, y, _ in self.pairs], "iterations": self.iterations}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state.  An error leaves the optimiser unchanged.

        Parameters
        ----------
        state : mapping
            The result of ``state_dict()``.
        """
        if not isinstance(state, Mapping) or not {"pairs", "iterations"} <= set(state):
            raise ArgumentError(
                'LBFGS: the state must have the keys "pairs" and "iterations".\n'
                "  Pass the value that state_dict() returned."
            )
        iterations = whole_number("LBFGS", "iterations", state["iterations"])
        size = sum(map(_count, self.params))
        pairs = []
        for i, pair in enumerate(state["pairs"]):
            found = [fitting(a, np.empty(size)) for a in pair]
            wrong = next((a for a in found if isinstance(a, str)), None)
            if len(found) != 2 or wrong:
                raise ShapeError(f"LBFGS: pair {i} of the state {wrong or 'does not have two arrays'}.")
            s, y = (np.array(a) for a in found)
            curvature = float(y @ s)
            if not 0 < curvature < math.inf:
                raise ArgumentError(
                    f"LBFGS: the curvature of pair {i} of the state must be above 0, but is {curvature}."
                )
            pairs.append((s, y, 1.0 / curvature))
        self.pairs = deque(pairs, maxlen=self.history)
        self.iterations = iterations


def _count(p: Tensor) -> int:
    """Return the number of real numbers in a parameter; a complex number counts as two."""
    return 2 * p.size if p.dtype.kind == "c" else p.size


def _like(grad: Any, p: Tensor) -> Any:
    """Return ``grad``, the gradient of ``p``, converted to complex numbers if ``p`` is complex."""
    return grad.astype(complex) if p.dtype.kind == "c" else grad


def _reals(data: Any) -> Any:
    """Return the elements of an array as a flat float64 array; a complex number becomes two elements."""
    if data.dtype.kind == "c":
        return np.ascontiguousarray(data, complex).reshape(-1).view(float)
    return np.asarray(data, float).reshape(-1)


Point = tuple[float, float, float, Any]  # step along d, loss, slope along d, gradient


def strong_wolfe(
    evaluate: Evaluate,
    x: Any,
    t: float,
    d: Any,
    loss: float,
    g: Any,
    slope: float,
    c1: float = 1e-4,
    c2: float = 0.9,
    limit: int = 25,
) -> tuple[float, float, Any]:
    """Find a step length along the direction ``d`` that satisfies the strong Wolfe conditions.

    Return this step length t, and the loss and the gradient at ``x + t d``.  ``loss``, ``g`` and ``slope``
    are the loss, the gradient and the derivative along ``d`` at ``x``.  The conditions are loss(t) ≤ loss +
    c1·t·slope and |slope(t)| ≤ c2·|slope| (Nocedal and Wright, algorithms 3.5 and 3.6).  ``t`` is tried
    first, then, like in minFunc and PyTorch, the minimum of the cubic through the last two points.  The
    search ends after ``limit`` trials.
    """
    before: Point = (0.0, loss, slope, g)
    for i in range(limit):
        now = _point(evaluate, x, d, t)
        if not math.isfinite(now[1]):
            t = (before[0] + t) / 2
            continue
        if now[1] > loss + c1 * t * slope or (i > 1 and now[1] >= before[1]):
            return _zoom(evaluate, x, d, loss, slope, [before, now], c1, c2, limit - i)
        if abs(now[2]) <= -c2 * slope:
            return t, now[1], now[3]
        if now[2] >= 0:
            return _zoom(evaluate, x, d, loss, slope, [before, now], c1, c2, limit - i)
        before, t = now, _cubic(before, now, t + 0.01 * (t - before[0]), 10 * t)
    return before[0], before[1], before[3]


def _point(evaluate: Evaluate, x: Any, d: Any, t: float) -> Point:
    loss, g = evaluate(x + t * d)
    slope = float(g @ d)
    return t, loss if math.isfinite(slope) else math.inf, slope, g  # a point without a gradient is unusable


def _zoom(
    evaluate: Evaluate,
    x: Any,
    d: Any,
    loss: float,
    slope: float,
    ends: list[Point],
    c1: float,
    c2: float,
    limit: int,
) -> tuple[float, float, Any]:
    """Shrink the interval between ``ends`` until a point satisfies both Wolfe conditions; return that point.

    The point is returned as its step length, loss and gradient.  If no such point is found, the end of the
    interval with the lower loss is returned.  The other arguments are as for ``strong_wolfe``.
    """
    length = float(np.abs(d).max(initial=0.0))
    near = False  # whether the last point was near an end of the interval
    low = _lower(ends)
    for _ in range(limit):
        a, b = sorted((ends[0][0], ends[1][0]))
        margin = 0.1 * (b - a)
        if (b - a) * length < 1e-16:
            break
        t = _cubic(ends[0], ends[1], a, b)
        near, again = min(b - t, t - a) < margin, near
        if near and (again or not a < t < b):  # twice near an end, or on it: no progress
            t = b - margin if b - t < t - a else a + margin
            near = False
        now = _point(evaluate, x, d, t)
        if not now[1] <= loss + c1 * t * slope or now[1] >= ends[low][1]:  # or NaN
            ends[1 - low] = now
            low = _lower(ends)
            continue
        if abs(now[2]) <= -c2 * slope:
            return t, now[1], now[3]
        if now[2] * (ends[1 - low][0] - ends[low][0]) >= 0:
            ends[1 - low] = ends[low]
        ends[low] = now
    return ends[low][0], ends[low][1], ends[low][3]


def _lower(ends: list[Point]) -> int:
    """Return the index in ``ends``, 0 or 1, of the point with the lower loss.

    A loss that is not finite counts as infinity.
    """
    first, second = (loss if math.isfinite(loss) else math.inf for _, loss, _, _ in ends)
    return 0 if first <= second else 1


def _cubic(p: Point, q: Point, low: float, high: float) -> float:
    """Return the minimum of the cubic through ``p`` and ``q`` with their slopes, limited to [low, high].

    Return the middle of this interval if the cubic has no minimum.
    """
    p, q = (p, q) if p[0] <= q[0] else (q, p)
    d1 = p[2] + q[2] - 3 * (p[1] - q[1]) / (p[0] - q[0])
    square = d1 * d1 - p[2] * q[2]
    if not square >= 0:
        return (low + high) / 2
    d2 = math.sqrt(square)
    t = q[0] - (q[0] - p[0]) * ((q[2] + d2 - d1) / (q[2] - p[2] + 2 * d2 or math.inf))
    return min(max(t, low), high) if math.isfinite(t) else (low + high) / 2
