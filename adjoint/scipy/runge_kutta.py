"""Coefficients of SciPy's Runge-Kutta methods, and the derivatives of their steps.

A step of length h from y evaluates the stages k_i = f(t + c_i h, y + h Σ_j a_ij k_j) and ends at y + h Σ b_i
k_i.  Inside the step, at the time t + x h, the solution is y + h Σ_i k_i Σ_m w_im x^(m+1).  Some methods have
additional stages, which are used only for these values inside the step.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from adjoint.scipy.fallback import scipy_module
from adjoint.typing import Array

__all__ = ["METHODS", "Method", "method_of", "pulled_steps", "pushed_steps", "transfer"]

METHODS = ("RK23", "RK45", "DOP853", "Radau")


class Method(NamedTuple):
    """The coefficients of a Runge-Kutta method, with the names in the module docstring."""

    a: Array
    b: Array
    c: Array
    w: Array
    needed: int  # the number of stages that the step itself needs
    implicit: bool

    @property
    def total(self) -> int:
        """The number of stages, including those used only for values inside a step."""
        return len(self.c)

    def cut(self, dense: bool) -> Method:
        """Return the method itself if ``dense``, else one without the stages for values inside a step."""
        if dense or self.needed == self.total:
            return self
        s = self.needed
        return self._replace(a=self.a[:s, :s], b=self.b[:s], c=self.c[:s], w=self.w[:s])


@functools.cache
def method_of(name: str) -> Method:
    """Return the coefficients of the SciPy method ``name``."""
    solver = getattr(scipy_module("integrate"), name)
    if name == "Radau":
        return _radau(scipy_module("integrate._ivp.radau").P)
    s = len(solver.B)
    extra = name == "DOP853"
    total = s + 1 + (3 if extra else 0)
    a, b, c = np.zeros((total, total)), np.zeros(total), np.ones(total)
    a[:s, : solver.A.shape[1]] = solver.A
    a[s, :s] = b[:s] = solver.B
    c[:s] = solver.C
    if extra:
        a[s + 1 :], c[s + 1 :] = solver.A_EXTRA, solver.C_EXTRA
        return Method(a, b, c, _dop853(solver.D, b, s), s, False)
    return Method(a, b, c, np.asarray(solver.P), s, False)


def _radau(p: Array) -> Method:
    r = math.sqrt(6)
    a = np.array(
        [
            [(88 - 7 * r) / 360, (296 - 169 * r) / 1800, (-2 + 3 * r) / 225],
            [(296 + 169 * r) / 1800, (88 + 7 * r) / 360, (-2 - 3 * r) / 225],
            [(16 - r) / 36, (16 + r) / 36, 1 / 9],
        ]
    )
    return Method(a, a[2], a.sum(1), a.T @ p, 3, True)


def _dop853(d: Array, b: Array, s: int) -> Array:
    """Return the weights ``w`` of the method DOP853.

    SciPy has them as a nested polynomial with the coefficients ``d``, which is multiplied out here.  ``b``
    are the weights of a step, and ``s`` is the number of its stages.
    """
    one = np.polynomial.Polynomial
    x, rest = one([0.0, 1.0]), one([1.0, -1.0])
    products = [
        x,
        x * rest,
        x * x * rest,
        (x * rest) ** 2,
        x * (x * rest) ** 2,
        (x * rest) ** 3,
        x * (x * rest) ** 3,
    ]
    unit = np.eye(len(b))
    # the coefficients of the products are Δ, h k₀ - Δ, 2 Δ - h (k_s + k₀) and h D k, with Δ = h Σ b k
    factors = [b, unit[0] - b, 2 * b - unit[s] - unit[0], *d]
    w = np.zeros((len(b), 7))
    for product, factor in zip(products, factors, strict=True):
        powers = product.coef[1:]
        w[:, : len(powers)] += np.outer(factor, powers)
    return w


# Derivatives of the steps: arrays have the values of all steps, (steps, stages, …) -------------------------


def transfer(m: Method, h: Array, jac: Array) -> Any:
    """Return ∂k/∂y: the Jacobian of each stage k with respect to the state y at the start of its step.

    The shape is (steps, stages, n, n).  ``m`` is the Runge-Kutta method, ``h`` are the lengths of the steps,
    and ``jac`` are the Jacobians of the right-hand side at the stages.
    """
    steps, stages, n, _ = jac.shape
    size = h[:, None, None]
    if m.implicit:
        inner = _blocks(m, h, jac)
        return np.linalg.solve(inner, jac.reshape(steps, stages * n, n)).reshape(jac.shape)
    out = np.empty_like(jac)
    one = np.eye(n)
    for i in range(stages):
        inner = one + size * np.einsum("j,sjab->sab", m.a[i, :i], out[:, :i]) if i else one
        out[:, i] = jac[:, i] @ inner
    return out


def _blocks(m: Method, h: Array, jac: Array) -> Any:
    """Return the matrix of the linear equations for the derivatives of the stages of an implicit method.

    Its blocks are δ_ij - h a_ij J_i, where ``jac`` has the Jacobians J_i of the right-hand side at the
    stages.
    """
    steps, stages, n, _ = jac.shape
    inner = -h[:, None, None, None, None] * np.einsum("ij,siab->siajb", m.a, jac)
    return inner.reshape(steps, stages * n, stages * n) + np.eye(stages * n)


def pulled_steps(
    m: Method, h: Array, k: Array, jac: Array, gy: Array, gk: Array | None
) -> tuple[Any, Any, Any]:
    """Propagate the gradients of the states (``gy``) and stages (``gk``) backwards through all steps.

    ``h`` are the lengths of the steps, ``k`` the stages and ``jac`` the Jacobians of the right-hand side
    there.  Return the gradients of the initial state, of the values of the right-hand side at the stages
    (steps, stages, n), and of the step lengths.  The gradient of a step length does not include its effect on
    the times of the stages.
    """
    steps, stages, n, _ = jac.shape
    along = transfer(m, h, jac)
    whole = np.eye(n) + h[:, None, None] * np.einsum("i,siab->sab", m.b, along)
    given = gy.copy()
    if gk is not None:
        given[:-1] += np.einsum("siab,sia->sb", along, gk)
    ends = np.empty((steps, n))  # the gradient of the state after each step
    total = given[-1]
    for s in range(steps - 1, -1, -1):
        ends[s] = total
        total = given[s] + total @ whole[s]
    size = h[:, None]
    of_k = size[..., None] * m.b[:, None] * ends[:, None, :]
    if gk is not None:
        of_k = of_k + gk
    if m.implicit:
        inner = _blocks(m, h, jac).swapaxes(-1, -2)
        of_k = np.linalg.solve(inner, of_k.reshape(steps, -1, 1)).reshape(of_k.shape)
        at = np.einsum("siab,sia->sib", jac, of_k)
    else:
        at = np.empty_like(of_k)  # the gradients of the states at which the stages are evaluated
        for i in range(stages - 1, -1, -1):
            if i + 1 < stages:
                of_k[:, i] += size * np.einsum("j,sja->sa", m.a[i + 1 :, i], at[:, i + 1 :])
            at[:, i] = np.einsum("sab,sa->sb", jac[:, i], of_k[:, i])
    of_h = np.einsum("sa,i,sia->s", ends, m.b, k) + np.einsum("sia,ij,sja->s", at, m.a, k)
    return total, of_k, of_h


def pushed_steps(
    m: Method, h: Array, k: Array, jac: Array, first: Array, of_f: Array, of_h: Array
) -> tuple[Any, Any]:
    """Propagate tangents forwards through all steps; return those of the states and of the stages.

    ``first`` is the tangent of the initial state, and ``of_h`` are those of the step lengths.  ``of_f`` are
    the tangents of the right-hand side at the stages for fixed states, of shape (steps, stages, n).
    """
    steps, stages, n, _ = jac.shape
    along, size = transfer(m, h, jac), h[:, None]
    moved = of_h[:, None, None] * np.einsum("ij,sja->sia", m.a, k)
    # the tangents of the stages of a step that begins at a fixed state
    if m.implicit:
        given = of_f + np.einsum("siab,sib->sia", jac, moved)
        own = np.linalg.solve(_blocks(m, h, jac), given.reshape(steps, -1, 1)).reshape(given.shape)
    else:
        own = np.empty_like(of_f)
        for i in range(stages):
            at = moved[:, i] + size * np.einsum("j,sja->sa", m.a[i, :i], own[:, :i])
            own[:, i] = of_f[:, i] + np.einsum("sab,sb->sa", jac[:, i], at)
    whole = np.eye(n) + h[:, None, None] * np.einsum("i,siab->sab", m.b, along)
    added = np.einsum("i,sia->sa", m.b, of_h[:, None, None] * k + size[..., None] * own)
    states = np.empty((steps + 1, n))
    states[0] = first
    for s in range(steps):
        states[s + 1] = whole[s] @ states[s] + added[s]
    return states, own + np.einsum("siab,sb->sia", along, states[:-1])
