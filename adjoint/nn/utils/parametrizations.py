"""Weights that are computed from other parameters: weight_norm and spectral_norm.

The names of the parameters are PyTorch's: ``parametrizations.weight.original0`` and ``original1`` for
weight_norm; ``parametrizations.weight.original``, ``0._u`` and ``0._v`` for spectral_norm.
"""

from __future__ import annotations

import math
from typing import Any

from adjoint import words
from adjoint.config import no_grad
from adjoint.core.namespace import rec
from adjoint.core.shapes import canonical_axis, number_between, whole_number
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, InputError
from adjoint.nn import init
from adjoint.nn.arguments import check_not_mapped, sizes
from adjoint.nn.containers import ModuleDict
from adjoint.nn.convolution import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from adjoint.nn.module import Module, Parameter
from adjoint.nn.shared_docs import layer_doc
from adjoint.ops.norms import vector_norm

__all__ = ["spectral_norm", "weight_norm"]


def __dir__() -> list[str]:
    return sorted(__all__)


class _WeightNorm(Module):
    """Module that computes a weight with the direction ``original1`` and the norm ``original0``."""

    def __init__(self, weight: Tensor, axis: int | None) -> None:
        self.axis = axis
        self.original0 = Parameter(self._norm(weight.detach()))
        self.original1 = weight

    def _norm(self, v: Tensor) -> Tensor:
        """Return the norm of ``v`` over all axes except ``axis``, or over all axes if ``axis`` is None."""
        if self.axis is None:
            return (v * v).sum().sqrt()
        others = tuple(a for a in range(v.ndim) if a != self.axis)
        return (v * v).sum(others, keepdims=True).sqrt()

    def forward(self) -> Tensor:
        """Return the weight ``original0 * original1 / norm(original1)``."""
        return self.original1 * (self.original0 / self._norm(self.original1))


class _SpectralNorm(Module):
    """Module that computes a weight: the original weight divided by its largest singular value."""

    def __init__(self, weight: Tensor, axis: int, n_power_iterations: int, eps: float, rng: init.Rng) -> None:
        self.original = weight
        setattr(self, "0", _Singular(weight.detach(), axis, n_power_iterations, eps, rng))

    def forward(self) -> Tensor:
        """Return the original weight divided by its largest singular value."""
        found: Tensor = getattr(self, "0")(self.original)
        return found


class _Singular(Module):
    """Module that stores estimates of the two singular vectors of the largest singular value of a weight.

    Each call in training mode improves the estimates by the power method.
    """

    _u: Tensor
    _v: Tensor

    def __init__(self, weight: Tensor, axis: int, n_power_iterations: int, eps: float, rng: init.Rng) -> None:
        self.axis, self.n_power_iterations, self.eps = axis, n_power_iterations, eps
        rows, columns = weight.shape[axis], math.prod(weight.shape) // weight.shape[axis]
        rng = init.generator(rng)
        for name, n in (("_u", rows), ("_v", columns)):
            self.register_buffer(name, self._unit(init.normal(n, rng=rng, dtype=weight.dtype)))
        self._iterate(self._matrix(weight), 15)

    def _matrix(self, weight: Tensor) -> Tensor:
        moved = weight.moveaxis(self.axis, 0)
        return moved.reshape(moved.shape[0], -1)

    def _unit(self, v: Tensor) -> Tensor:
        return v / rec.maximum(vector_norm(v), self.eps)

    def _iterate(self, matrix: Tensor, times: int) -> None:
        """Improve the estimates for ``matrix`` by ``times`` steps of the power method."""
        u, v = self._u, self._v
        with no_grad():
            for _ in range(times):
                u = self._unit(matrix @ v)
                v = self._unit(u @ matrix)
            self._u.copy_(u)
            self._v.copy_(v)

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight divided by the estimate of its largest singular value."""
        matrix = self._matrix(weight)
        if self.training:
            fixed = matrix.detach()
            check_not_mapped("spectral_norm: the singular vectors", fixed, "Call model.eval() first.")
            self._iterate(fixed, self.n_power_iterations)
        sigma = self._u.clone() @ matrix @ self._v.clone()
        return weight / sigma


def _parametrize(module: Module, name: str, made: Module) -> None:
    """Replace the parameter ``name`` of a module by a property that calls the module ``made``."""
    kind = type(module)

    def __setattr__(self: Module, attribute: str, value: Any) -> None:  # noqa: N807  a method of the class below
        if attribute == name:
            where = ", ".join(f"parametrizations.{name}.{n}" for n in made._names("_parameters"))
            raise InputError(
                f"{kind.__name__}.{name} cannot be assigned, because it is computed from {where}.  "
                "Change these parameters instead, with copy_(value)."
            )
        kind.__setattr__(self, attribute, value)

    delattr(module, name)
    if not isinstance(getattr(module, "parametrizations", None), ModuleDict):
        setattr(module, "parametrizations", ModuleDict())  # noqa: B010  not an attribute of every module
    getattr(module, "parametrizations")[name] = made  # noqa: B009  the attribute is not declared
    made.train(module.training)
    body = {
        name: property(lambda self: self.parametrizations[name]()),
        "__setattr__": __setattr__,
        "__module__": kind.__module__,
        "__doc__": kind.__doc__,
    }
    object.__setattr__(module, "__class__", type(kind.__name__, (kind,), body))


def _weight(where: str, module: Any, name: str) -> Tensor:
    if not isinstance(module, Module):
        raise InputError(
            f"{where}: the first argument must be a module, not {words.a(type(module).__name__)}."
        )
    if name not in module._names("_parameters"):
        there = ", ".join(module._names("_parameters")) or "none"
        raise ArgumentError(
            f"{where}: {type(module).__name__} has no parameter {name!r}.  The parameters are: {there}."
        )
    weight = getattr(module, name)
    if not isinstance(weight, Tensor):
        raise ArgumentError(f"{where}: {type(module).__name__}.{name} must be a parameter, but is None.")
    return weight


_norm_doc = layer_doc.extended("""
    Parameters
    ----------
    module : Module
        The module with the parameter.
    name : str
        The name of the parameter.

    Returns
    -------
    Module
        The same module.
    """)


@_norm_doc
def weight_norm(module: Module, name: str = "weight", axis: int | None = 0) -> Module:
    """Split a parameter into its direction and its norm.

    Parameters
    ----------
    axis : int or None
        The norm is over all axes except this one.  With None there is one norm, over all axes.

    Raises
    ------
    ArgumentError
        If the module has no such parameter.

    >>> layer = ad.nn.utils.parametrizations.weight_norm(ad.nn.Linear(4, 3))
    >>> {name: p.shape for name, p in layer.named_parameters()}
    {'bias': (3,), 'parametrizations.weight.original0': (3, 1), 'parametrizations.weight.original1': (3, 4)}
    """
    weight = _weight("weight_norm", module, name)
    if axis is not None:
        axis = (
            canonical_axis("weight_norm", whole_number("weight_norm", "axis", axis), weight.ndim)
            + weight.ndim
        )
    _parametrize(module, name, _WeightNorm(weight, axis))
    return module


@_norm_doc
def spectral_norm(
    module: Module,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    axis: int | None = None,
    *,
    rng: init.Rng = None,
) -> Module:
    """Divide a parameter by its largest singular value.

    The value is estimated by the power method, which runs each time the weight is read in training.

    Parameters
    ----------
    n_power_iterations : int
        The number of steps of the power method.
    eps : float
        Lower limit of the norms in the power method.
    axis : int, optional
        The axis of the rows when the parameter is viewed as a matrix.  The default is the axis of the
        outputs.
    rng : Generator or int, optional
        Generator or seed of the initial vectors.

    Raises
    ------
    ArgumentError
        If the module has no such parameter, or it has fewer than two axes.

    >>> layer = ad.nn.utils.parametrizations.spectral_norm(ad.nn.Linear(4, 3, rng=0), rng=0)
    >>> largest = ad.linalg.svdvals(layer.weight)[0]
    >>> abs(largest.item() - 1) < 0.01
    True
    """
    weight = _weight("spectral_norm", module, name)
    sizes("spectral_norm", n_power_iterations=n_power_iterations)
    if weight.ndim < 2:
        raise ArgumentError(
            f"spectral_norm: the parameter must have at least two axes, but has shape {weight.shape}."
        )
    if axis is None:
        axis = 1 if isinstance(module, (ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)) else 0
    axis = canonical_axis("spectral_norm", whole_number("spectral_norm", "axis", axis), weight.ndim)
    small = number_between("spectral_norm: eps", eps, 0.0)
    _parametrize(module, name, _SpectralNorm(weight, axis + weight.ndim, n_power_iterations, small, rng))
    return module
