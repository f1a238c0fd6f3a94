"""Draws that are smooth functions of their parameters and of noise: location, scale, exponentials."""

from __future__ import annotations

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.lifted import made_by_host
from adjoint.core.namespace import rec
from adjoint.core.shapes import canonical_axis
from adjoint.core.tensor import Tensor
from adjoint.ops.extremes import argmax
from adjoint.ops.half import widened
from adjoint.ops.reduce import narrowed
from adjoint.random.noise import Noise, as_float, below, draws_doc, noise_doc, not_negative, scaled_draws_doc
from adjoint.typing import ArrayLike, DTypeLike, Lengths

__all__ = ["Continuous"]


class Continuous(Noise):
    """Base class of ``Generator``: the distributions whose draws have gradients to their parameters."""

    __slots__ = ()

    @noise_doc
    def random(self, size: Lengths | None = None, dtype: DTypeLike | None = None) -> Tensor:
        """Draw from the uniform distribution on [0, 1).

        >>> ad.random.default_rng(0).random(2).shape
        (2,)
        """
        target, u = self._noise("random", "random", size, dtype)
        return u if u.dtype == target else below(rec.astype(u, dtype=target), 0.0, 1.0)

    @noise_doc
    def standard_normal(self, size: Lengths | None = None, dtype: DTypeLike | None = None) -> Tensor:
        """Draw from the normal distribution with mean 0 and standard deviation 1.

        >>> ad.random.default_rng(0).standard_normal((2, 3)).shape
        (2, 3)
        """
        target, z = self._noise("standard_normal", "standard_normal", size, dtype)
        return narrowed(z, target)

    @scaled_draws_doc
    def normal(
        self,
        loc: ArrayLike = 0.0,
        scale: ArrayLike = 1.0,
        size: Lengths | None = None,
        dtype: DTypeLike | None = None,
    ) -> Tensor:
        """Draw from the normal distribution, as loc + scale · z; gradients flow to ``loc`` and ``scale``.

        Parameters
        ----------
        scale : array_like, optional
            The standard deviation, not negative.

        >>> ad.random.default_rng(0).normal([0.0, 10.0], 0.1).shape
        (2,)
        """
        target, z, shift, width = self._noise(
            "normal", "standard_normal", size, dtype, loc, scale, check=not_negative
        )
        return narrowed(shift + width * z, target)

    @draws_doc
    def lognormal(
        self,
        mean: ArrayLike = 0.0,
        sigma: ArrayLike = 1.0,
        size: Lengths | None = None,
        dtype: DTypeLike | None = None,
    ) -> Tensor:
        """Draw from the log-normal distribution, as exp of a normal draw; gradients flow to the parameters.

        Parameters
        ----------
        mean : array_like, optional
            The mean of the logarithm.
        sigma : array_like, optional
            The standard deviation of the logarithm, not negative.

        Raises
        ------
        ArgumentError
            If ``sigma`` is negative.

        >>> bool((ad.random.default_rng(0).lognormal(size=3) > 0).all())
        True
        """
        target, z, shift, width = self._noise(
            "lognormal", "standard_normal", size, dtype, mean, sigma, check=not_negative
        )
        return narrowed(rec.exp(shift + width * z), target)

    @draws_doc
    def uniform(
        self,
        low: ArrayLike = 0.0,
        high: ArrayLike = 1.0,
        size: Lengths | None = None,
        dtype: DTypeLike | None = None,
    ) -> Tensor:
        """Draw from the uniform distribution on [low, high); gradients flow to both bounds.

        Parameters
        ----------
        low : array_like, optional
            The lower bound.
        high : array_like, optional
            The upper bound.

        >>> x = ad.random.default_rng(0).uniform(-1.0, 1.0, size=3)
        >>> bool((abs(x) <= 1).all())
        True
        """
        target, u, least, most = self._noise("uniform", "random", size, dtype, low, high)
        y = least + (most - least) * u
        return y if y.dtype == target else below(rec.astype(y, dtype=target), least, most)

    @scaled_draws_doc
    def exponential(
        self, scale: ArrayLike = 1.0, size: Lengths | None = None, dtype: DTypeLike | None = None
    ) -> Tensor:
        """Draw from the exponential distribution; gradients flow to ``scale``.

        Parameters
        ----------
        scale : array_like, optional
            The mean, not negative.

        >>> bool((ad.random.default_rng(0).exponential(2.0, size=3) >= 0).all())
        True
        """
        target, e, width = self._noise(
            "exponential", "standard_exponential", size, dtype, scale, check=not_negative
        )
        return narrowed(width * e, target)

    @scaled_draws_doc
    def laplace(
        self,
        loc: ArrayLike = 0.0,
        scale: ArrayLike = 1.0,
        size: Lengths | None = None,
        dtype: DTypeLike | None = None,
    ) -> Tensor:
        """Draw from the Laplace distribution; gradients flow to ``loc`` and ``scale``.

        >>> ad.random.default_rng(0).laplace([0.0, 1.0], 0.5).shape
        (2,)
        """
        target, e, shift, width = self._noise(
            "laplace", "standard_exponential", size, dtype, loc, scale, check=not_negative
        )
        shape = e.shape
        signs = made_by_host(lambda: self._numpy.integers(0, 2, shape, np.int8) * 2 - 1, shape, np.int8)
        return narrowed(shift + width * (e * signs), target)

    @scaled_draws_doc
    def logistic(
        self,
        loc: ArrayLike = 0.0,
        scale: ArrayLike = 1.0,
        size: Lengths | None = None,
        dtype: DTypeLike | None = None,
    ) -> Tensor:
        """Draw from the logistic distribution; gradients flow to ``loc`` and ``scale``.

        >>> ad.random.default_rng(0).logistic([0.0, 1.0], 0.5).shape
        (2,)
        """
        target, e, shift, width = self._noise(
            "logistic", "standard_exponential", size, dtype, loc, scale, check=not_negative
        )
        return narrowed(shift + width * rec.log(rec.expm1(e)), target)

    @scaled_draws_doc
    def gumbel(
        self,
        loc: ArrayLike = 0.0,
        scale: ArrayLike = 1.0,
        size: Lengths | None = None,
        dtype: DTypeLike | None = None,
    ) -> Tensor:
        """Draw from the Gumbel distribution; gradients flow to ``loc`` and ``scale``.

        Parameters
        ----------
        loc : array_like, optional
            The mode.

        >>> ad.random.default_rng(0).gumbel(size=(2, 3)).shape
        (2, 3)
        """
        target, e, shift, width = self._noise(
            "gumbel", "standard_exponential", size, dtype, loc, scale, check=not_negative
        )
        return narrowed(shift - width * rec.log(e), target)

    @draws_doc
    def gumbel_softmax(
        self, logits: ArrayLike, tau: ArrayLike = 1.0, *, hard: bool = False, axis: int = -1
    ) -> Tensor:
        """Draw relaxed one-hot vectors with probabilities softmax(logits).

        They are softmax((logits + Gumbel noise) / tau).  Gradients flow to ``logits`` and ``tau``.

        Parameters
        ----------
        logits : array_like
            The logarithms of the probabilities, up to a constant.
        tau : array_like, optional
            The temperature; smaller values give vectors nearer to one-hot.
        hard : bool, optional
            Whether to return exact one-hot vectors with the gradient of the relaxed ones.
        axis : int, optional
            The axis of the classes.

        Returns
        -------
        Tensor
            The vectors, with the shape of ``logits``.

        >>> rng = ad.random.default_rng(0)
        >>> rng.gumbel_softmax(asarray([0.0, 5.0, 0.0]), hard=True)
        tensor([0., 1., 0.], dtype=float64)
        """
        logits = as_float("gumbel_softmax", asarray(logits))
        target, wide = logits.dtype, widened(rec, logits)
        where = canonical_axis("gumbel_softmax", axis, wide.ndim)
        scores = (wide + self.gumbel(size=wide.shape, dtype=wide.dtype)) / tau
        soft = rec.softmax(scores, axis=where)
        if not hard:
            return narrowed(soft, target)
        best = argmax(soft, axis=where, keepdims=True)
        places = np.arange(wide.shape[where]).reshape((-1,) + (1,) * (-where - 1))
        one_hot = rec.astype(rec.equal(best, places), dtype=soft.dtype)
        return narrowed(soft + (one_hot - soft).detach(), target)
