"""Hypothesis strategies: arrays, shapes that broadcast, and random programs of ops.

They need hypothesis, which the extra ``testing`` installs; ``adjoint.testing.strategies`` is imported when
it is first used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adjoint.core.docstrings import SharedDoc
from adjoint.errors import ArgumentError, MissingExtraError

try:
    from hypothesis import strategies as st
    from hypothesis.extra import numpy as hnp
except ImportError:
    raise MissingExtraError("adjoint.testing.strategies", "hypothesis", "testing") from None

__all__ = ["Instruction", "Program", "arrays", "broadcastable_shapes", "programs", "shapes"]
__dir__ = sorted(__all__).copy


Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


_strategy_doc = SharedDoc("""
    Parameters
    ----------
    max_dims : int, optional
        The largest number of axes.
    min_side : int, optional
        The least length.
    max_side : int, optional
        The largest length.
    xp : module
        NumPy or adjoint.
    leaves : sequence
        The inputs, as arrays or tensors.

    Returns
    -------
    SearchStrategy
        The strategy.
    """)


@_strategy_doc
def shapes(
    *, min_dims: int = 0, max_dims: int = 3, min_side: int = 0, max_side: int = 4
) -> st.SearchStrategy[Shape]:
    """Return a strategy for small shapes, including 0-d and empty ones.

    Parameters
    ----------
    min_dims : int, optional
        The least number of axes.

    >>> from hypothesis import find
    >>> find(shapes(), lambda shape: len(shape) == 2)
    (0, 0)
    """
    return hnp.array_shapes(min_dims=min_dims, max_dims=max_dims, min_side=min_side, max_side=max_side)


@_strategy_doc
def broadcastable_shapes(
    count: int = 2, *, max_dims: int = 3, min_side: int = 0, max_side: int = 4
) -> st.SearchStrategy[tuple[Shape, ...]]:
    """Return a strategy for several shapes that broadcast together.

    Parameters
    ----------
    count : int, optional
        The number of shapes.

    >>> from hypothesis import find
    >>> len(find(broadcastable_shapes(3), lambda shapes: shapes[0] != shapes[1]))
    3
    """
    found = hnp.mutually_broadcastable_shapes(
        num_shapes=count, max_dims=max_dims, min_side=min_side, max_side=max_side
    )
    return found.map(lambda both: tuple(both.input_shapes))


@st.composite
def arrays(
    draw: st.DrawFn,
    shape: Shape | st.SearchStrategy[Shape] | None = None,
    *,
    low: float = -2.0,
    high: float = 2.0,
    dtype: Any = np.float64,
    strided: bool = False,
) -> Array:
    """Return a strategy for arrays of multiples of 1/8 in an interval.

    Sums of such numbers are exact, zeros and ties are common, and examples shrink to readable ones.

    Parameters
    ----------
    shape : tuple of int or SearchStrategy, optional
        The shape; any small one by default.
    low : float, optional
        The lower bound.
    high : float, optional
        The upper bound.
    dtype : dtype, optional
        The dtype of the arrays.
    strided : bool, optional
        Whether some arrays are not contiguous.

    Returns
    -------
    SearchStrategy
        The strategy.

    Raises
    ------
    ArgumentError
        If the interval has no multiple of 1/8.

    Examples
    --------
    >>> arrays((2, 3), low=0.0)
    arrays(shape=(2, 3), low=0.0)
    """
    chosen = shape if isinstance(shape, tuple) else draw(shapes() if shape is None else shape)
    first, last = math.ceil(low * 8), math.floor(high * 8)
    if first > last:
        raise ArgumentError(
            f"arrays: the elements are multiples of 1/8, but there is none between {low} and {high}."
        )
    eighths = st.integers(first, last)
    made = draw(hnp.arrays(np.int64, chosen, elements=eighths)) / 8.0
    array = np.asarray(made).astype(dtype)
    if strided and array.ndim and draw(st.booleans()):
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        wide[..., ::-2] = array
        array = wide[..., ::-2]
    return array


# Programs --------------------------------------------------------------------------------------
# All values of a program have shapes that broadcast together, so each op accepts all of them.  Each value has
# an upper bound of its absolute value, so that products and exponentials stay small.

_SHAPES: tuple[Shape, ...] = ((), (1,), (3,), (2, 1), (2, 3), (1, 3))
_LARGEST = 20.0


@dataclass(frozen=True)
class _Step:
    """A kind of instruction: a function of a NumPy-like namespace and operands, and a bound of its result."""

    arity: int
    run: Callable[..., Any]
    bound: Callable[..., float]


_STEPS: dict[str, _Step] = {
    "add": _Step(2, lambda xp, x, y: x + y, lambda x, y: x + y),
    "subtract": _Step(2, lambda xp, x, y: x - y, lambda x, y: x + y),
    "multiply": _Step(2, lambda xp, x, y: x * y, lambda x, y: x * y),
    "divide": _Step(2, lambda xp, x, y: x / (y * y + 1), lambda x, y: x),
    "negative": _Step(1, lambda xp, x: -x, lambda x: x),
    "scale": _Step(1, lambda xp, x: 0.5 * x + 0.25, lambda x: x + 1),
    "square": _Step(1, lambda xp, x: x**2, lambda x: x * x),
    "sin": _Step(1, lambda xp, x: xp.sin(x), lambda x: 1.0),
    "cos": _Step(1, lambda xp, x: xp.cos(x), lambda x: 1.0),
    "tanh": _Step(1, lambda xp, x: xp.tanh(0.25 * x), lambda x: 1.0),
    "exp": _Step(1, lambda xp, x: xp.exp(0.1 * x), lambda x: math.exp(0.1 * x)),
    "sqrt": _Step(1, lambda xp, x: xp.sqrt(x * x + 1), lambda x: x + 1),
    "log": _Step(1, lambda xp, x: xp.log(x * x + 2), lambda x: x + 1),
    "sum": _Step(1, lambda xp, x: xp.sum(x, axis=-1, keepdims=True) if x.ndim else x, lambda x: 3 * x),
    "total": _Step(1, lambda xp, x: xp.sum(x), lambda x: 6 * x),
    "mean": _Step(1, lambda xp, x: xp.mean(x, axis=0, keepdims=True) if x.ndim else x, lambda x: x),
    "flip": _Step(1, lambda xp, x: xp.flip(x, axis=-1) if x.ndim else x, lambda x: x),
    "first": _Step(1, lambda xp, x: x[..., :1] if x.ndim else x, lambda x: x),
}


@dataclass(frozen=True)
class Instruction:
    """One step of a program.

    Parameters
    ----------
    name : str
        The name of the operation.
    operands : tuple of int
        The indices of its operands among the values before it.

    Examples
    --------
    >>> Instruction("add", (0, 1))
    Instruction(name='add', operands=(0, 1))
    """

    name: str
    operands: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """A random computation: inputs (leaves), and instructions that combine earlier values.

    The ops are analytic everywhere and their values are small.  So the complex step gives exact derivatives,
    which do not use any code of adjoint.

    Parameters
    ----------
    leaves : tuple of numpy.ndarray
        The inputs.
    instructions : tuple of Instruction
        The steps.

    Examples
    --------
    >>> import numpy as np
    >>> program = Program((np.array([1.0, 2.0, 3.0]),), (Instruction("square", (0,)),))
    >>> program.loss(np, program.leaves).item()
    14.0
    >>> program.gradients()
    [array([2., 4., 6.])]
    """

    leaves: tuple[Array, ...]
    instructions: tuple[Instruction, ...]

    @_strategy_doc
    def run(self, xp: Any, leaves: Sequence[Any]) -> list[Any]:
        """Compute all values: the leaves, then one for each instruction.

        Returns
        -------
        list
            The values.
        """
        values = list(leaves)
        for step in self.instructions:
            values.append(_STEPS[step.name].run(xp, *(values[i] for i in step.operands)))
        return values

    @_strategy_doc
    def loss(self, xp: Any, leaves: Sequence[Any]) -> Any:
        """Compute the sum of the last value.

        Returns
        -------
        array or Tensor
            The sum.
        """
        return xp.sum(self.run(xp, leaves)[-1])

    def gradients(self, step: float = 1e-30) -> list[Array]:
        """Return the gradient of the loss for each leaf, by the complex step in NumPy.

        Parameters
        ----------
        step : float, optional
            The step.

        Returns
        -------
        list of numpy.ndarray
            The gradients.
        """
        found = []
        for k, leaf in enumerate(self.leaves):
            grad = np.zeros(leaf.shape)
            for index in np.ndindex(leaf.shape):
                moved = [np.array(a, np.complex128) for a in self.leaves]
                moved[k][index] += 1j * step
                grad[index] = np.imag(self.loss(np, moved)) / step
            found.append(grad)
        return found


@st.composite
def programs(
    draw: st.DrawFn, *, min_leaves: int = 1, max_leaves: int = 3, min_size: int = 1, max_size: int = 12
) -> Program:
    """Return a strategy for programs: acyclic graphs of ops with shared values and broadcasting.

    Parameters
    ----------
    min_leaves : int, optional
        The least number of leaves.
    max_leaves : int, optional
        The largest number of leaves.
    min_size : int, optional
        The least number of instructions.
    max_size : int, optional
        The largest number of instructions.

    Returns
    -------
    SearchStrategy
        The strategy.

    Examples
    --------
    >>> from hypothesis import find
    >>> len(find(programs(), lambda program: len(program.leaves) == 2).instructions)
    1
    """
    count = draw(st.integers(min_leaves, max_leaves))
    leaves = tuple(draw(arrays(draw(st.sampled_from(_SHAPES)))) for _ in range(count))
    bounds = [2.0] * count
    steps: list[Instruction] = []
    for _ in range(draw(st.integers(min_size, max_size))):
        name = draw(st.sampled_from(sorted(_STEPS)))
        kind = _STEPS[name]
        # recent values are chosen more often, so that graphs become deep
        operands = tuple(_latest(draw, len(bounds)) for _ in range(kind.arity))
        bound = kind.bound(*(bounds[i] for i in operands))
        if bound > _LARGEST:
            name, operands = "tanh", operands[:1]
            bound = 1.0
        steps.append(Instruction(name, operands))
        bounds.append(bound)
    return Program(leaves, tuple(steps))


def _latest(draw: st.DrawFn, count: int) -> int:
    back = draw(st.integers(1, count))
    return count - (min(back, draw(st.integers(1, count))))
