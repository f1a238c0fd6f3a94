"""A dynamic axis in an ONNX file: graphs for several lengths of the axis are compared and joined.

The model is traced with three lengths.  The graphs must have the same nodes.  Integers in shapes that differ
must be affine in the length, and are computed from the shape of the input; constants that repeat the same
values along the axis are expanded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from adjoint.errors import InputError
from adjoint.interop.onnx_library import helper, numpy_helper

__all__ = ["Axes", "checked_axes", "dynamic_model"]

Axes = Mapping[str, Mapping[int, str] | Sequence[int]]


def dynamic_model(
    make: Callable[[list[Any]], Any], arrays: list[Any], axes: dict[str, int], symbol: str
) -> Any:
    """Return the model that ``make(arrays)`` returns, with a dynamic length of one axis per input.

    ``axes`` maps the names of inputs to the axis, and ``symbol`` is the name of its length.
    """
    names = [v.name for v in make(arrays).graph.input]
    given = {name: a for name, a in zip(names, arrays, strict=True) if name in axes}
    found = {a.shape[axes[name]] for name, a in given.items()}
    if len(found) != 1 or 0 in found:
        raise InputError(
            f"onnx: the axes of dynamic_axes must have one length that is not 0, but the examples have "
            f"{', '.join(map(str, sorted(found)))}."
        )
    sizes = [max(2, *found) + more for more in (0, 1, 3)]  # a length of 1 would be broadcast
    models = []
    for size in sizes:
        rows = {n: np.take(a, np.arange(size) % a.shape[axes[n]], axes[n]) for n, a in given.items()}
        models.append(make([rows.get(n, a) for n, a in zip(names, arrays, strict=True)]))
    name = next(iter(given))
    return _Join(models, sizes, name, axes[name], symbol).model


class _Join:
    """The graphs of a model for several lengths of an axis, joined to one.

    The axis is the axis ``axis`` of the input ``name``; ``symbol`` is the name of its length.
    """

    def __init__(self, models: list[Any], sizes: list[int], name: str, axis: int, symbol: str) -> None:
        self.sizes, self.symbol = sizes, symbol
        self.model = models[0]
        self.nodes: list[Any] = [helper.make_node("Shape", [name], ["length"], start=axis, end=axis + 1)]
        graphs = [m.graph for m in models]
        if any(_form(g) != _form(graphs[0]) for g in graphs):
            raise InputError(
                "onnx: the model runs different ops for different lengths of the dynamic axis, such as a "
                "loop over it.\n  Export it with fixed shapes, or write the model without the loop."
            )
        self.constants: list[Any] = []
        for stored in zip(*(g.initializer for g in graphs), strict=True):
            if not self._replaced([numpy_helper.to_array(t) for t in stored], stored[0].name):
                self.constants.append(stored[0])
        graph = graphs[0]
        del graph.initializer[:]
        graph.initializer.extend(self.constants)
        nodes = [*self.nodes, *graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
        for infos in zip(*([*g.input, *g.output] for g in graphs), strict=True):
            self._name_lengths([v.type.tensor_type.shape.dim for v in infos])

    def _affine(self, values: list[Any]) -> tuple[Any, Any] | None:
        """Return a and b with ``values[k] == a * sizes[k] + b``; None if there are none."""
        slope = (values[1] - values[0]) // (self.sizes[1] - self.sizes[0])
        start = values[0] - slope * self.sizes[0]
        fits = all(np.array_equal(slope * n + start, v) for n, v in zip(self.sizes, values, strict=True))
        return (slope, start) if fits else None

    def _computed(self, values: list[Any], name: str) -> bool:
        """Add nodes that compute integers under ``name``; return False if they are not affine."""
        found = self._affine(values)
        if found is None:
            return False
        slope, start = (self._constant(v.reshape(-1), f"{name}_{k}") for k, v in enumerate(found))
        self.nodes.append(helper.make_node("Mul", ["length", slope], [f"{name}_product"]))
        self.nodes.append(helper.make_node("Add", [f"{name}_product", start], [name]))
        return True

    def _constant(self, array: Any, name: str) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def _replaced(self, arrays: list[Any], name: str) -> bool:
        """Add nodes that compute a constant; return False if it does not depend on the length."""
        first = arrays[0]
        if all(a.shape == first.shape and np.array_equal(a, first, equal_nan=True) for a in arrays):
            return False
        same = all(a.shape == first.shape for a in arrays)
        if same and first.dtype == np.int64 and first.ndim == 1 and self._computed(arrays, name):
            return True
        if all(a.ndim == first.ndim for a in arrays) and not same:
            moving = [k for k in range(first.ndim) if len({a.shape[k] for a in arrays}) > 1]
            rows = [
                a[tuple(slice(0, 1) if k in moving else slice(None) for k in range(a.ndim))] for a in arrays
            ]
            repeats = all(np.array_equal(np.broadcast_to(rows[0], a.shape), a) for a in arrays)
            shapes = [np.array(a.shape, np.int64) for a in arrays]
            if repeats and self._computed(shapes, f"{name}_shape"):
                row = self._constant(rows[0], f"{name}_row")
                self.nodes.append(helper.make_node("Expand", [row, f"{name}_shape"], [name]))
                return True
        raise InputError(
            f"onnx: the constant {name!r} of the model, of shape {first.shape}, depends on the length of the "
            "dynamic axis.\n  Compute it from the input in the forward, or export with fixed shapes."
        )

    def _name_lengths(self, shapes: list[Any]) -> None:
        """Replace lengths of the first shape by names where they differ in the others."""
        for dims in zip(*shapes, strict=True):
            values = [np.array(d.dim_value) for d in dims]
            if any(v != values[0] for v in values):
                slope, start = self._affine(values) or (0, 0)
                plain = slope == 1 and start == 0
                dims[0].dim_param = self.symbol if plain else f"{slope}*{self.symbol}+{start}"


def _form(graph: Any) -> list[Any]:
    """Return what must be equal for all lengths: the nodes, and the names of the constants."""
    return [[n.SerializeToString() for n in graph.node], [(t.name, t.data_type) for t in graph.initializer]]


def checked_axes(given: Axes, inputs: dict[str, int], outputs: Sequence[str]) -> tuple[dict[str, int], str]:
    """Return the dynamic axis of each input, and the name of its length; raise if there are several.

    ``inputs`` maps the names of the inputs to their numbers of axes.  Entries for outputs are not needed.
    """
    axes: dict[str, int] = {}
    symbols: set[str] = set()
    for name, entry in given.items():
        if name in outputs and name not in inputs:
            continue
        if name not in inputs:
            raise InputError(
                f"onnx: dynamic_axes has the name {name!r}, but the inputs are {', '.join(inputs)}."
            )
        named = dict(entry) if isinstance(entry, Mapping) else dict.fromkeys(entry, "batch")
        symbols.update(named.values())
        if len(named) != 1 or not -inputs[name] <= next(iter(named)) < inputs[name]:
            raise InputError(
                f"onnx: dynamic_axes[{name!r}] must name one of the {inputs[name]} axes of the input, as in "
                f"{{0: 'batch'}}, but is {entry!r}."
            )
        axes[name] = next(iter(named)) % inputs[name]
    if len(symbols) != 1:
        raise InputError(
            "onnx: dynamic_axes must name one length for all inputs, such as 'batch', but has "
            f"{', '.join(sorted(symbols)) or 'none'}."
        )
    return axes, symbols.pop()
