"""``np.vectorize``, which also takes tensors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from adjoint import words
from adjoint.core.convert import asarray
from adjoint.core.namespace import rec
from adjoint.errors import InputError
from adjoint.interop.drop_in import drop_in, stopping, until_tensor
from adjoint.ops.join import stack
from adjoint.tracebacks import door

__all__ = ["vectorize"]


class vectorize(np.vectorize):  # noqa: N801  NumPy's name
    """Return a function of arrays or tensors that calls ``pyfunc``, a function of numbers, for each element.

    If no argument is a tensor, and the function returns none, it is NumPy's.  ``ad.vmap`` is much faster for
    functions of tensors.

    Parameters
    ----------
    pyfunc : callable
        The function; its arguments are numbers, or tensors without axes.
    otypes : str or list of dtype, optional
        The dtypes of the results; by default those that the function returns.
    doc : str, optional
        The docstring; by default that of the function.
    excluded : iterable of int or str, optional
        Positions and names of arguments that are passed unchanged.
    cache : bool, optional
        Whether NumPy keeps the first result, which it computes to find the dtypes.
    signature : str, optional
        The core dimensions of the arguments and results, such as ``"(n),(n)->()"``.  The function is called
        with vectors then.

    Examples
    --------
    >>> import adjoint as ad, adjoint.numpy as np
    >>> relu = np.vectorize(lambda t: t if t > 0 else 0 * t)
    >>> ad.grad(lambda x: relu(x).sum())(np.array([-1.0, 2.0]))
    array([0., 1.])
    """

    def __init__(
        self,
        pyfunc: Any = np._NoValue,
        otypes: Any = None,
        doc: str | None = None,
        excluded: Iterable[Any] | None = None,
        cache: bool = False,
        signature: str | None = None,
    ) -> None:
        super().__init__(pyfunc, otypes, doc, excluded, cache, signature)
        self._options = {
            "otypes": otypes, "doc": doc, "excluded": excluded, "cache": cache, "signature": signature,
        }  # fmt: skip
        self._types = None if otypes is None else [np.dtype(t) for t in otypes]
        if pyfunc is not np._NoValue:
            plain = np.vectorize(stopping(pyfunc), otypes, doc, excluded, cache, signature)
            self._call: Callable[..., Any] = drop_in(until_tensor(plain, self._on_tensors), self._on_tensors)

    @door
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function for each element of the arguments; return an array or a tensor of the results.

        If the function returns several values, return a tuple.
        """
        if not hasattr(self, "_call"):  # used as a decorator with options
            return vectorize(args[0], **self._options)
        return self._call(*args, **kwargs)

    def _on_tensors(self, *args: Any, **kwargs: Any) -> Any:
        given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        spread = {key: asarray(v) for key, v in given.items() if key not in self.excluded}
        cores = self._cores(len(spread))
        lead = {key: x.shape[: x.ndim - n] for (key, x), n in zip(spread.items(), cores, strict=True)}
        shape = np.broadcast_shapes(*lead.values())
        flat = {
            key: rec.reshape(rec.broadcast_to(x, shape=(*shape, *core)), shape=(-1, *core)) if x.size else x
            for key, x in spread.items()
            for core in [x.shape[len(lead[key]) :]]
        }
        count = math.prod(shape)
        if not count:
            if self._types is None or self.signature is not None:
                raise InputError(
                    "np.vectorize: the arguments have no elements, so the dtype is unknown.  Pass otypes=."
                )
            made = tuple(asarray(np.empty(shape, t)) for t in self._types)
            return made if len(made) > 1 else made[0]
        results = []
        for i in range(count):
            now = {**given, **{key: x[i] for key, x in flat.items()}}
            positional = [now.pop(k) for k in range(len(args))]
            results.append(self.pyfunc(*positional, **now))
        if isinstance(results[0], tuple):
            return tuple(self._joined(part, shape, k) for k, part in enumerate(zip(*results, strict=True)))
        return self._joined(results, shape, 0)

    def _cores(self, count: int) -> list[int]:
        """Return the numbers of core dimensions of the arguments, by the signature."""
        if self.signature is None:
            return [0] * count
        groups = re.findall(r"\(([^)]*)\)", self.signature.partition("->")[0])
        if len(groups) != count:
            raise InputError(
                f"np.vectorize: the signature {self.signature!r} has "
                f"{words.count(len(groups), 'argument')}, but {count} were passed."
            )
        return [len([d for d in group.split(",") if d.strip()]) for group in groups]

    def _joined(self, parts: Any, shape: tuple[int, ...], k: int) -> Any:
        y = stack([asarray(p) for p in parts])
        y = rec.reshape(y, shape=(*shape, *y.shape[1:]))
        return y if self._types is None else rec.astype(y, dtype=self._types[k])
