"""A buffer that sums gradients: weighted, in float32 or wider, compensated if asked, sparse if it can be."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from adjoint.core.shapes import Shape, checked_shape
from adjoint.core.sparse import SparseRows
from adjoint.errors import ArgumentError, DTypeError, ShapeError
from adjoint.grads.foreign import gradient_array, is_gradient_dtype, sum_dtype
from adjoint.grads.norm import chunks, global_norm, stored_values
from adjoint.grads.passes import add_all

if TYPE_CHECKING:
    from adjoint.grads.packed import Block

__all__ = [
    "GradientBuffer",
    "Tally",
    "checked_count",
    "checked_sum_dtype",
    "checked_total_weight",
    "checked_weight",
]

Array = ndarray[Any, Any]


def checked_sum_dtype(what: str, dtype: Any) -> np.dtype[Any]:
    """Return a dtype that sums gradients, or say why it cannot."""
    try:
        found = np.dtype(dtype)
    except TypeError:
        raise DTypeError(f"{what}: {dtype!r} is not a dtype.") from None
    if not is_gradient_dtype(found) or sum_dtype(found) != found:
        raise DTypeError(
            f"{what}: gradients are summed in float32, float64 or a complex dtype, but got {found}.\n"
            "  A sum in half precision loses small gradients; such gradients go into float32 sums."
        )
    return found


class Tally:
    """How much was added; buffers that always take part together share one."""

    __slots__ = ("count", "weight")

    def __init__(self, count: int = 0, weight: float = 0.0) -> None:
        self.count = count
        self.weight = weight


class GradientBuffer:
    """The weighted sum of the gradients of one parameter.

    ``add(grad, weight)`` adds weight·grad; ``get(normalize=True)`` is the sum over the total
    weight.  ``count`` and ``weight`` tell how much was added.  With ``compensated=True`` the
    rounding errors are summed beside it (Neumaier), so that very long windows lose nothing.

    >>> buffer = GradientBuffer((2,))
    >>> buffer.add([2.0, 4.0]); buffer.add([6.0, 8.0])
    >>> buffer.get(normalize=True), buffer.get(normalize=False)
    (array([4., 6.]), array([ 8., 12.]))
    """

    __slots__ = (
        "_block",
        "_dtype",
        "_errors",
        "_row_errors",
        "_rows",
        "_tally",
        "_total",
        "compensated",
        "name",
        "shape",
    )

    def __init__(
        self, shape: Any, dtype: Any = np.float64, *, compensated: bool = False, name: str = "GradientBuffer"
    ) -> None:
        self.name = name
        self.shape = checked_shape(name, shape)
        self.compensated = bool(compensated)
        self._tally = Tally()
        # None inside an accumulator: that of the first gradient
        self._dtype = None if dtype is None else checked_sum_dtype(name, dtype)
        self._total: Array | None = None  # meaningless while count is 0: nothing is zeroed
        self._errors: Array | None = None
        self._rows: SparseRows | None = None  # what was sparse so far, if nothing was dense
        self._row_errors: Array | None = None  # of their values
        self._block: Block | None = None

    @property
    def count(self) -> int:
        """How many gradients were added."""
        return self._tally.count

    @property
    def weight(self) -> float:
        """The sum of their weights."""
        return self._tally.weight

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the sum; float64 where no gradient has decided it yet."""
        return np.dtype(np.float64) if self._dtype is None else self._dtype

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def is_sparse(self) -> bool:
        """Whether all that was added had rows and values only."""
        return self._rows is not None

    @property
    def sums_plainly(self) -> bool:
        """Whether a dense gradient is added by one addition."""
        return not self.compensated and self._rows is None

    def add(self, grad: Any, weight: float = 1.0) -> None:
        """Add weight·grad; a gradient of another shape or dtype is an error and adds nothing."""
        g = self.fitting(gradient_array(self.name, grad), weak=isinstance(grad, (list, tuple, int, float)))
        weight = checked_weight(weight)
        checked_total_weight(self.weight, weight)
        self.decide(g.dtype)
        with np.errstate(all="ignore"):
            self.sum_up(g, weight)
        self.tally(weight)

    def tally(self, weight: float) -> None:
        """Count one more gradient of this weight, here alone."""
        self._tally = Tally(self.count + 1, self.weight + weight)

    def fitting(self, g: Array | SparseRows, weak: bool = False) -> Array | SparseRows:
        """Return a gradient that can be added here, or say why it cannot."""
        if g.shape != self.shape:
            raise ShapeError(
                f"{self.name}: expected a gradient of shape {self.shape}, but got {g.shape}"
                f"{_hint(g.shape, self.shape)}."
            )
        if self._dtype is not None and g.dtype is not self._dtype and not _fits(g.dtype, self._dtype):
            if weak and g.dtype.kind == self._dtype.kind:
                return g.astype(self._dtype)
            raise DTypeError(
                f"{self.name}: expected a gradient that fits into {self._dtype} sums without loss, but got "
                f"{g.dtype}.\n  Cast it first, or sum in a wider dtype (dtype=)."
            )
        return g

    def check_like(self, other: GradientBuffer, *, any_dtype: bool) -> None:
        """Raise if one that is registered under the same name is not like this."""
        if self.shape != other.shape:
            raise ShapeError(
                f"register: {self.name!r} has shape {self.shape} already, and not {other.shape}."
            )
        # None == np.dtype(float64) is true
        if not any_dtype and (self._dtype is None or self._dtype != other._dtype):
            has = "takes that of its first gradient" if self._dtype is None else f"is {self._dtype}"
            raise DTypeError(
                f"register: {self.name!r} is registered already, and the dtype of its sum {has}, not "
                f"{other._dtype}."
            )

    def decide(self, dtype: np.dtype[Any]) -> None:
        """Settle the dtype of the sum by that of the first gradient."""
        if self._dtype is None:
            self._dtype = sum_dtype(dtype)

    def sum_up(self, g: Array | SparseRows, factor: float) -> None:
        """Add factor·g to the sum, without counting it."""
        if type(g) is SparseRows:
            self._sum_rows(g, factor)
            return
        assert type(g) is ndarray
        total = self._dense()
        fresh = self.count == 0
        if self.compensated:
            self._sum_compensated(total, g, factor, fresh)
        else:
            add_all([(total, g, fresh)], factor)

    def _sum_rows(self, g: SparseRows, factor: float) -> None:
        scaled = g.mapped(np.multiply(g.values, factor, dtype=self.dtype))
        if self.count == 0:
            self._rows, self._row_errors = scaled.coalesced(), None
        elif self._rows is not None:
            # each row once: the work and the memory grow with the rows touched, not with the steps
            if self.compensated:
                self._sum_rows_compensated(self._rows, scaled.coalesced())
            else:
                self._rows = self._rows.plus(scaled).coalesced()
        elif self.compensated:
            part, total, errors = scaled.coalesced(), self._dense(), self._dense_errors()
            s, e = total[part.rows], errors[part.rows]
            total[part.rows] = _add_compensated(s, e, part.values)
            errors[part.rows] = e
        else:
            scaled.add_to(self._dense())

    def _sum_rows_compensated(self, before: SparseRows, more: SparseRows) -> None:
        rows = np.union1d(before.rows, more.rows)
        old, new = np.searchsorted(rows, before.rows), np.searchsorted(rows, more.rows)
        values = np.zeros((rows.size, *self.shape[1:]), self.dtype)
        errors = np.zeros_like(values)
        values[old] = before.values
        if self._row_errors is not None:
            errors[old] = self._row_errors
        s, e = values[new], errors[new]
        values[new] = _add_compensated(s, e, more.values)
        errors[new] = e
        self._rows = SparseRows(rows, values, self.shape, unique=True)
        self._row_errors = errors

    def _dense(self) -> Array:
        """Return the dense sum, made of the sparse one if need be."""
        if self._total is None:
            self._total = np.empty(self.shape, self.dtype)
        if self._rows is not None:
            if self.count:
                self._total[...] = 0
                self._rows.add_to(self._total)
                if self.compensated:
                    errors = self._dense_errors()
                    errors[...] = 0
                    if self._row_errors is not None:
                        errors[self._rows.rows] = self._row_errors
            self._rows = self._row_errors = None
        return self._total

    def _dense_errors(self) -> Array:
        if self._errors is None:
            self._errors = np.zeros(self.shape, self.dtype)
        return self._errors

    def _sum_compensated(self, total: Array, g: Array, factor: float, fresh: bool) -> None:
        """Neumaier: what each addition rounds away is summed in ``_errors``."""
        errors = self._dense_errors()
        if fresh:
            errors[...] = 0
            add_all([(total, g, True)], factor)
            return
        for s, e, piece in chunks(total, errors, g, written=2):
            s[...] = _add_compensated(s, e, np.multiply(piece, factor, dtype=total.dtype))

    def totals(self) -> Array | SparseRows:
        """Return the sum as it is held, not to be written to; zeros if nothing was added."""
        if self.count == 0:
            return np.zeros(self.shape, self.dtype)
        if self._rows is not None:
            if self._row_errors is None:
                return self._rows
            return self._rows.mapped(_corrected(self._rows.values, self._row_errors))
        assert self._total is not None
        return self._total if self._errors is None else _corrected(self._total, self._errors)

    def get(self, normalize: bool = True) -> Array:
        """Return the sum as a new dense array, over the total weight if ``normalize``."""
        total = self.totals()
        dense = total.to_dense() if type(total) is SparseRows else np.asarray(total)
        if normalize and self.weight:
            return np.asarray(np.divide(dense, self.weight, dtype=self.dtype))
        return dense.copy() if dense is self._total else dense

    def l2_norm(self) -> float:
        """Return the 2-norm of the sum, not normalised; large values do not overflow."""
        return global_norm([self.totals()])

    def reset(self) -> None:
        """Forget the sum; the memory is kept for the next one."""
        self._tally = Tally()
        self._rows = self._row_errors = None

    def finish(self, divisor: float, factor: float) -> None:
        """Divide the sum where it is, and scale it by ``factor``."""
        if self._rows is not None:
            values = np.divide(stored_values(self.totals()), divisor, dtype=self.dtype)
            self._rows = self._rows.mapped(np.multiply(values, factor, dtype=self.dtype))
            self._row_errors = None
            return
        total = self._dense()
        if self._errors is not None:
            total[...] = self.totals()
            self._errors[...] = 0
        if divisor != 1.0:
            np.divide(total, divisor, out=total)
        if factor != 1.0:
            np.multiply(total, factor, out=total)

    def replace(self, g: Array | SparseRows) -> None:
        """Put another finished gradient in the place of this one."""
        self._row_errors = None
        if type(g) is SparseRows:
            self._rows = g
        else:
            self._rows = None
            np.copyto(self._dense(), g)
            if self._errors is not None:
                self._errors[...] = 0  # of an earlier window, where this one was sparse

    def state_dict(self) -> dict[str, Any]:
        """Return what ``load_state_dict`` needs to go on from here, in arrays of its own."""
        state: dict[str, Any] = {
            "shape": list(self.shape),
            "dtype": None if self._dtype is None else self._dtype.name,
            "count": self.count,
            "weight": self.weight,
        }
        if self.count and self._rows is not None:
            state |= {"rows": self._rows.rows.copy(), "values": self._rows.values.copy()}
            if self._row_errors is not None:
                state["row_errors"] = self._row_errors.copy()
        elif self.count and self._total is not None:
            state["sum"] = self._total.copy()
            if self._errors is not None:
                state["errors"] = self._errors.copy()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state; one that does not fit is an error and changes nothing."""
        missing = [k for k in ("shape", "dtype", "count", "weight") if k not in state]
        if missing:
            raise ArgumentError(
                f"{self.name}: the state of a GradientBuffer has {', '.join(map(repr, missing))} too."
            )
        count = checked_count(f"{self.name}: count", state["count"])
        weight = checked_weight(state["weight"], f"{self.name}: weight")
        loaded = GradientBuffer(self.shape, state["dtype"], compensated=self.compensated, name=self.name)
        shape = checked_shape(self.name, state["shape"])
        if shape != self.shape:
            raise ShapeError(f"{self.name}: saved with shape {shape}, but here it is {self.shape}.")
        decided = self._dtype is not None and loaded._dtype is not None
        if decided and loaded._dtype != self._dtype:  # None == np.dtype(float64) is true
            raise DTypeError(
                f"{self.name}: saved with {loaded._dtype} sums, but here they are {self._dtype}."
            )
        total, errors, rows, row_errors = state.get("sum"), state.get("errors"), None, None
        for part in (total, errors):
            if part is not None and (np.shape(part) != self.shape or np.asarray(part).dtype != loaded.dtype):
                raise ShapeError(
                    f"{self.name}: the saved sum has shape {np.shape(part)} and {np.asarray(part).dtype}, "
                    f"but {self.shape} and {loaded.dtype} are expected."
                )
        if "rows" in state:
            rows = self._checked_rows(state["rows"], state.get("values"), loaded.dtype)
            if self.compensated and "row_errors" in state:
                row_errors = self._checked_rows(state["rows"], state["row_errors"], loaded.dtype).values
        if count and total is None and rows is None:
            raise ArgumentError(f"{self.name}: {count} gradients were added, but the saved state has no sum.")
        if count and loaded._dtype is None:
            raise DTypeError(f"{self.name}: {count} gradients were added, but the saved state has no dtype.")
        self._dtype = loaded._dtype or self._dtype
        self._tally, self._rows, self._row_errors = Tally(count, weight), rows, row_errors
        if total is not None:
            np.copyto(self._dense(), np.asarray(total))
            if self.compensated:
                self._errors = np.zeros(self.shape, self.dtype) if errors is None else np.array(errors)

    def _checked_rows(self, rows: Any, values: Any, dtype: np.dtype[Any]) -> SparseRows:
        """Return saved rows and values, or say why they are none of this shape."""
        index, found = np.array(rows), np.array(values)
        fits = (
            bool(self.shape)
            and index.ndim == 1
            and (index.dtype.kind in "iu" or not index.size)
            and found.shape == (index.size, *self.shape[1:])
            and found.dtype == dtype
            and bool(np.all((index >= 0) & (index < self.shape[0])))
            and np.unique(index).size == index.size
        )
        if not fits:
            raise ShapeError(
                f"{self.name}: the saved rows and values are not those of a {dtype} table of shape "
                f"{self.shape}, each row once."
            )
        return SparseRows(index.astype(np.intp), found, self.shape, unique=True)

    def __repr__(self) -> str:
        return f"GradientBuffer({self.shape}, {self.dtype}, count={self.count}, weight={self.weight:g})"


def checked_weight(weight: Any, what: str = "weight") -> float:
    """Return a weight as a float; it is finite and not negative."""
    try:
        if isinstance(weight, (str, bytes)):
            raise TypeError
        value = float(weight)
    except (TypeError, ValueError):
        raise ArgumentError(f"{what} is a number, but got {weight!r}.") from None
    except OverflowError:
        value = math.inf
    if not 0.0 <= value < math.inf:
        shown = repr(weight) if math.isfinite(value) or isinstance(weight, float) else "one beyond float64"
        raise ArgumentError(f"{what} is a finite number from 0, but got {shown}.")
    return value


def checked_total_weight(before: float, weight: float) -> None:
    """Raise if weights, each of them finite, add up to what is not."""
    if not before + weight < math.inf:
        raise ArgumentError(
            f"the weights of this window add up to more than float64 holds: {before:g} and now {weight:g}.\n"
            "  Weights are numbers of examples or tokens.  Nothing was added."
        )


def checked_count(what: str, value: Any) -> int:
    """Return a saved count, a whole number from 0."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise ArgumentError(f"load_state_dict: {what} is a whole number from 0, but got {value!r}.")
    return int(value)


def _add_compensated(s: Array, errors: Array, x: Array) -> Array:
    """Return s + x, and add to ``errors`` what that rounds away."""
    t = s + x
    errors += np.where(np.abs(s) >= np.abs(x), (s - t) + x, (x - t) + s)
    return np.asarray(t)


def _corrected(total: Array, errors: Array) -> Array:
    # an infinite sum has errors of inf - inf, which are no correction
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(total), total + errors, total)


def _fits(dtype: np.dtype[Any], total: np.dtype[Any]) -> bool:
    return np.can_cast(np.dtype(np.float32) if dtype.name == "bfloat16" else dtype, total, "safe")


def _hint(got: Shape, expected: Shape) -> str:
    same = np.prod(got, dtype=np.int64) == np.prod(expected, dtype=np.int64)
    return ": as many elements, but in another shape" if same else ""
