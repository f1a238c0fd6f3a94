"""Sample arguments (cases) for each op.  The tests over the op table run on all of them.

The cases of an elementwise op without parameters are drawn from the argument ``domain=`` of ``define``.  The
cases of other ops are in ``testing/samples/``, one module per family, each with a list ``CASES``.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adjoint.core.op import OPS, Op
from adjoint.testing import samples

__all__ = ["Case", "array", "cases"]


@dataclass(frozen=True)
class Case:
    """Arguments at which an op is smooth, so that finite differences are accurate.

    Parameters
    ----------
    op : str
        The name of the op.
    args : tuple
        Float64 arrays, or other values for arguments without a gradient.
    params : dict, optional
        The parameters, in the canonical form of the op: negative axes, full shapes.
    note : str, optional
        A text for the name of the test.

    Examples
    --------
    >>> import numpy as np
    >>> str(Case("sum", (np.ones((2, 3)),), {"axis": (-1,), "keepdims": False}))
    'sum-(2,3)'
    """

    op: str
    args: tuple[Any, ...]
    params: dict[str, Any] = field(default_factory=dict)
    note: str = ""

    def __str__(self) -> str:
        shapes = ",".join(str(np.shape(a)).replace(" ", "") for a in self.args)
        return f"{self.op}-{shapes}{'-' + self.note if self.note else ''}"


def array(*shape: int, low: float = -2.0, high: float = 2.0, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return a reproducible float64 array of random numbers.

    Parameters
    ----------
    *shape : int
        The lengths.
    low : float, optional
        The lower bound.
    high : float, optional
        The upper bound.
    seed : int, optional
        The seed.

    Returns
    -------
    numpy.ndarray
        The array.

    Examples
    --------
    >>> array(2, low=0, high=1).round(3)
    array([0.637, 0.27 ])
    """
    return np.random.default_rng(seed).uniform(low, high, shape)


# The shapes on which an elementwise op is tested, by its number of arguments.
_SHAPES: dict[int, tuple[tuple[tuple[int, ...], ...], ...]] = {
    1: (((),), ((3,),), ((2, 3),)),
    2: (((), ()), ((3,), (3,)), ((2, 3), (3,)), ((2, 1), (1, 3))),
    3: (((3,), (3,), (3,)), ((2, 3), (3,), (2, 1))),
}


def _from_domain(op: Op) -> list[Case]:
    """Return cases of an elementwise op; the arguments are random numbers from ``op.domain``.

    The op is smooth in this domain, which is (-2, 2) by default.
    """
    assert op.arity is not None
    domain = op.domain if op.domain is not None else (-2.0, 2.0)
    if isinstance(domain, str) or isinstance(domain[0], (int, float)):
        domain = (domain,) * op.arity
    found = []
    for shapes in _SHAPES[op.arity]:
        args = tuple(_draw(d, s, i) for i, (d, s) in enumerate(zip(domain, shapes, strict=True)))
        found.append(Case(op.name, args))
    return found


def _draw(domain: Any, shape: tuple[int, ...], seed: int) -> Any:
    if domain == "bool":
        return array(*shape, seed=seed) > 0
    if domain == "int":
        return np.random.default_rng(seed).integers(0, 5, shape)
    return array(*shape, low=domain[0], high=domain[1], seed=seed)


def cases() -> list[Case]:
    """Return the cases of all built-in ops.

    Returns
    -------
    list of Case
        The cases.

    Examples
    --------
    >>> import adjoint as ad
    >>> [str(case) for case in ad.testing.cases() if case.op == "tan"]
    ['tan-()', 'tan-(3,)', 'tan-(2,3)']
    """
    found: list[Case] = []
    for info in pkgutil.iter_modules(samples.__path__):
        found.extend(importlib.import_module(f"{samples.__name__}.{info.name}").CASES)
    listed = {case.op for case in found}
    for op in OPS.values():
        if op.name not in listed and op.kind == "elementwise" and not op.params:
            found.extend(_from_domain(op))
    return found
