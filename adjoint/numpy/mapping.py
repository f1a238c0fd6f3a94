"""``np.vectorize`` on tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from adjoint.core.convert import asarray
from adjoint.core.namespace import rec
from adjoint.errors import InputError
from adjoint.ops.join import stack

__all__ = ["vectorize"]


class vectorize:  # noqa: N801  NumPy's name
    """Return a function of tensors that calls ``pyfunc``, a function of numbers, for each element.

    ``ad.vmap`` is much faster for functions of tensors.

    Parameters
    ----------
    pyfunc : callable
        The function; its arguments are tensors without axes.
    otypes : str or list of dtype, optional
        The dtypes of the results; by default those that the function returns.
    doc : str, optional
        The docstring; by default that of the function.
    excluded : iterable of int or str, optional
        Positions and names of arguments that are passed unchanged.
    cache : bool, optional
        Accepted as in NumPy, without effect.
    signature : str, optional
        Not supported: use ``ad.vmap``.

    Raises
    ------
    InputError
        If a signature is given.

    Examples
    --------
    >>> import adjoint as ad, adjoint.numpy as np
    >>> relu = np.vectorize(lambda t: t if t > 0 else 0 * t)
    >>> ad.grad(lambda x: relu(x).sum())(np.array([-1.0, 2.0]))
    tensor([0., 1.], dtype=float64)
    """

    def __init__(
        self,
        pyfunc: Callable[..., Any],
        otypes: Any = None,
        doc: str | None = None,
        excluded: Iterable[Any] | None = None,
        cache: bool = False,
        signature: str | None = None,
    ) -> None:
        if signature is not None:
            raise InputError("np.vectorize: signature= is not supported.  Use ad.vmap(f).")
        self.pyfunc, self.excluded = pyfunc, set(excluded or ())
        self.otypes = None if otypes is None else [np.dtype(t) for t in otypes]
        self.__doc__ = pyfunc.__doc__ if doc is None else doc
        self.__name__ = getattr(pyfunc, "__name__", "vectorize")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function for each element of the arguments; return a tensor of the results.

        If the function returns several values, return a tuple of tensors.
        """
        given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        spread = {key: asarray(v) for key, v in given.items() if key not in self.excluded}
        shape = np.broadcast_shapes(*(x.shape for x in spread.values()))
        flat = {
            key: rec.reshape(rec.broadcast_to(x, shape=shape), shape=(-1,)) if x.size else x
            for key, x in spread.items()
        }
        count = int(np.prod(shape))
        if not count:
            if self.otypes is None:
                raise InputError(
                    "np.vectorize: the arguments have no elements, so the dtype is unknown.  Pass otypes=."
                )
            made = tuple(asarray(np.empty(shape, t)) for t in self.otypes)
            return made if len(made) > 1 else made[0]
        results = []
        for i in range(count):
            now = {**given, **{key: x[i] for key, x in flat.items()}}
            positional = [now.pop(k) for k in range(len(args))]
            results.append(self.pyfunc(*positional, **now))
        if isinstance(results[0], tuple):
            return tuple(self._joined(part, shape, k) for k, part in enumerate(zip(*results, strict=True)))
        return self._joined(results, shape, 0)

    def _joined(self, parts: Any, shape: tuple[int, ...], k: int) -> Any:
        y = rec.reshape(stack([asarray(p) for p in parts]), shape=shape)
        return y if self.otypes is None else rec.astype(y, dtype=self.otypes[k])
