"""Read ONNX files as modules.

The supported node types are those that ``onnx.save`` writes, and those of common networks.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from adjoint import words
from adjoint.core.convert import asarray, tensor
from adjoint.core.namespace import rec
from adjoint.core.tensor import Tensor
from adjoint.errors import FileError, InputError
from adjoint.interop.onnx_library import helper, numpy_helper, onnx
from adjoint.nn import functional
from adjoint.nn.module import Module
from adjoint.ops import contraction, join, selection, shape
from adjoint.storage.atomic import refuse_other_than_files

__all__ = ["OnnxModule", "load"]


def load(path: str | os.PathLike[str]) -> OnnxModule:
    """Read an ONNX file as a module; nothing in the file is executed.

    Parameters
    ----------
    path : path
        The file.

    Returns
    -------
    OnnxModule
        The module.  Its parameters are the float tensors that the file stores.

    Raises
    ------
    FileError
        If the file is not an ONNX model.
    InputError
        If the model has nodes that are not supported.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np, adjoint as ad
    >>> from adjoint.interop import onnx
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     onnx.save(lambda x: ad.tanh(x) * 2, np.ones(3), os.path.join(folder, "f.onnx"))
    ...     f = onnx.load(os.path.join(folder, "f.onnx"))
    >>> f(np.zeros(3)).tolist()
    [0.0, 0.0, 0.0]
    """
    refuse_other_than_files(path, "cannot read a directory")
    try:
        proto = onnx.load(os.fspath(path), load_external_data=False)
        onnx.checker.check_model(proto)
    except (onnx.checker.ValidationError, ValueError, TypeError) as error:
        raise FileError(f"{os.fspath(path)} is not an ONNX model: {error}") from None
    except Exception as error:  # protobuf's error class is not public
        if type(error).__name__ != "DecodeError":
            raise
        raise FileError(f"{os.fspath(path)} is not an ONNX model.") from None
    return OnnxModule(proto)


class OnnxModule(Module):
    """The graph of an ONNX model as a module.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model.
    """

    def __init__(self, proto: Any) -> None:
        super().__init__()
        graph = proto.graph
        unknown = sorted({n.op_type for n in graph.node} - set(NODES))
        if unknown:
            raise InputError(f"onnx: these operators are not supported: {', '.join(unknown)}.")
        self._stored: dict[str, str] = {}  # by ONNX name: the attribute that has the stored float tensor
        self._constants: dict[str, Any] = {}
        for k, t in enumerate(graph.initializer):
            array = numpy_helper.to_array(t)
            if array.dtype.kind == "f":
                self._stored[t.name] = f"stored_{k}"
                setattr(self, f"stored_{k}", tensor(array, requires_grad=True))
            else:
                self._constants[t.name] = array
        self._inputs = [
            v.name for v in graph.input if v.name not in self._stored and v.name not in self._constants
        ]
        self._outputs = [v.name for v in graph.output]
        self._nodes = [
            (
                n.op_type,
                list(n.input),
                list(n.output),
                {a.name: helper.get_attribute_value(a) for a in n.attribute},
            )
            for n in graph.node
        ]

    def forward(self, *inputs: Any) -> Any:
        """Return the outputs of the model: one tensor, or a tuple of several."""
        if len(inputs) != len(self._inputs):
            raise InputError(
                f"onnx: the model takes {words.count(len(self._inputs), 'input')}, but got {len(inputs)}."
            )
        values: dict[str, Any] = {"": None, **self._constants}
        values.update((name, getattr(self, own)) for name, own in self._stored.items())
        values.update(zip(self._inputs, map(asarray, inputs), strict=True))
        for kind, given, made, attributes in self._nodes:
            found = NODES[kind](*(values[g] for g in given), **attributes)
            several = found if isinstance(found, tuple) else (found,)
            values.update(zip(made, several, strict=False))
        results = tuple(values[name] for name in self._outputs)
        return results[0] if len(results) == 1 else results


def _numbers(value: Any) -> list[int]:
    """Return an array of the file, such as a shape, as a list of integers."""
    return [int(v) for v in np.atleast_1d(value.numpy() if isinstance(value, Tensor) else value)]


def _reduce(name: str) -> Callable[..., Any]:
    def call(x: Any, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
        axis = tuple(range(x.ndim)) if axes is None else tuple(_numbers(axes))
        return getattr(rec, name)(x, axis=tuple(a % x.ndim for a in axis), keepdims=bool(keepdims))

    return call


def _reshape(x: Any, to: Any, *, allowzero: int = 0) -> Any:
    sizes = _numbers(to)
    if not allowzero:
        sizes = [x.shape[k] if n == 0 else n for k, n in enumerate(sizes)]
    return x.reshape(tuple(sizes))


def _slice(x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    first, last = _numbers(starts), _numbers(ends)
    where = range(len(first)) if axes is None else _numbers(axes)
    by = [1] * len(first) if steps is None else _numbers(steps)
    key = [slice(None)] * x.ndim
    for a, b, axis, step in zip(first, last, where, by, strict=True):
        beyond = step < 0 and b < -x.shape[axis]
        key[axis] = slice(a, None if beyond or b >= 2**31 else b, step)
    return x[tuple(key)]


def _windows(pads: Any, n: int) -> list[tuple[int, int]]:
    flat = list(pads) if pads else [0] * (2 * n)
    return list(zip(flat[:n], flat[n:], strict=True))


def _conv(x: Any, w: Any, b: Any = None, **a: Any) -> Any:
    n = x.ndim - 2
    if a.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise InputError("onnx: auto_pad is not supported.  Export the model with explicit pads.")
    found = rec.conv(
        x, w, stride=tuple(a.get("strides") or [1] * n), padding=tuple(_windows(a.get("pads"), n)),
        dilation=tuple(a.get("dilations") or [1] * n), groups=a.get("group", 1),
    )  # fmt: skip
    return found if b is None else found + b.reshape((-1, *[1] * n))


def _conv_transpose(x: Any, w: Any, b: Any = None, **a: Any) -> Any:
    n = x.ndim - 2
    stride, dilation = (tuple(a.get(k) or [1] * n) for k in ("strides", "dilations"))
    padding = _windows(a.get("pads"), n)
    extra = a.get("output_padding") or [0] * n
    size = tuple(
        (x.shape[2 + k] - 1) * stride[k] + (w.shape[2 + k] - 1) * dilation[k] + 1 + extra[k] - sum(padding[k])
        for k in range(n)
    )
    # the padding of the convolution that maps the result back to x
    fitting = tuple((p[0], p[1] - e) for p, e in zip(padding, extra, strict=True))
    found = rec.conv_input(
        x, w, size=size, stride=stride, padding=fitting, dilation=dilation, groups=a.get("group", 1)
    )
    return found if b is None else found + b.reshape((-1, *[1] * n))


def _pooled(x: Any, a: dict[str, Any]) -> dict[str, Any]:
    n = x.ndim - 2
    if a.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID") or a.get("ceil_mode"):
        raise InputError(
            "onnx: auto_pad and ceil_mode are not supported.  Export the model with explicit pads."
        )
    return {
        "kernel": tuple(a["kernel_shape"]), "stride": tuple(a.get("strides") or [1] * n),
        "padding": tuple(_windows(a.get("pads"), n)), "dilation": tuple(a.get("dilations") or [1] * n),
    }  # fmt: skip


def _average_pool(x: Any, **a: Any) -> Any:
    how = _pooled(x, a)
    total = rec.window_sum(x, **how)
    if a.get("count_include_pad") or not any(map(any, how["padding"])):
        return total / float(np.prod(how["kernel"]))
    return total / rec.window_sum(asarray(np.ones(x.shape, x.dtype)), **how)


def _layer_norm(
    x: Any, scale: Any, bias: Any = None, *, axis: int = -1, epsilon: float = 1e-5, **_: Any
) -> Any:
    return functional.layer_norm(x, x.shape[axis % x.ndim :], scale, bias, epsilon)


def _batch_norm(
    x: Any, scale: Any, bias: Any, mean: Any, var: Any, *, epsilon: float = 1e-5, **_: Any
) -> Any:
    form = (-1, *[1] * (x.ndim - 2))
    factor = scale / rec.sqrt(var + epsilon)
    return x * factor.reshape(form) + (bias - mean * factor).reshape(form)


def _gemm(
    a: Any, b: Any, c: Any = None, *, alpha: float = 1, beta: float = 1, transA: int = 0, transB: int = 0
) -> Any:
    found = (a.T if transA else a) @ (b.T if transB else b)
    found = found if alpha == 1 else alpha * found
    return found if c is None else found + (c if beta == 1 else beta * c)


def _lstm(x: Any, w: Any, r: Any, b: Any, lengths: Any, h: Any, c: Any, *, hidden_size: int, **_: Any) -> Any:
    order = (0, 2, 3, 1)  # ONNX has the gates in the order i o f g, adjoint i f g o
    n = hidden_size
    own = [_gates(a[0], order, n) for a in (w, r, b[:, : 4 * n] + b[:, 4 * n :])]
    hs, cell, _parts = rec.lstm_sequence(rec.linear(x, own[0], 0), own[1], own[2], h[0], c[0])
    return hs[:, None], hs[-1][None], cell[None]


def _gru(x: Any, w: Any, r: Any, b: Any, lengths: Any, h: Any, *, hidden_size: int, **_: Any) -> Any:
    order = (1, 0, 2)  # ONNX has the gates in the order z r n, adjoint r z n
    n = hidden_size
    own = [_gates(a[0], order, n) for a in (w, r, b[:, : 3 * n], b[:, 3 * n :])]
    hs, _parts = rec.gru_sequence(rec.linear(x, own[0], own[2]), own[1], own[3], h[0])
    return hs[:, None], hs[-1][None]


def _gates(a: Any, order: tuple[int, ...], n: int) -> Any:
    return join.concat([a[k * n : (k + 1) * n] for k in order])


def _gather(x: Any, indices: Any, *, axis: int = 0) -> Any:
    if isinstance(x, np.ndarray):
        return x.take(indices, axis)
    return selection.take(x, indices, axis)


def _scatter(x: Any, indices: Any, updates: Any, *, reduction: bytes = b"none") -> Any:
    key = tuple(np.moveaxis(np.asarray(indices), -1, 0))
    at = asarray(x).at[key]
    return at.add(updates) if reduction == b"add" else at.set(updates)


def _direct(pairs: str) -> dict[str, Callable[..., Any]]:
    """Return a dictionary from ONNX node types to functions that call one op with the same arguments.

    ``pairs`` is text such as "Add:add Mul:multiply", with the names of the node types and of the ops.
    """
    split = [pair.split(":") for pair in pairs.split()]
    return {kind: (lambda *xs, name=name: getattr(rec, name)(*xs)) for kind, name in split}


NODES: dict[str, Callable[..., Any]] = {
    **_direct("""
        Add:add Sub:subtract Mul:multiply Div:divide Neg:negative Abs:abs Sqrt:sqrt Exp:exp Log:log Pow:power
        Max:maximum Min:minimum Floor:floor Ceil:ceil Round:rint Sign:sign IsNaN:isnan Sin:sin Cos:cos Tan:tan
        Asin:asin Acos:acos Atan:atan Sinh:sinh Cosh:cosh Tanh:tanh Erf:erf Relu:relu Sigmoid:sigmoid
        Softplus:softplus MatMul:matmul Where:where Greater:greater Less:less Equal:equal
        GreaterOrEqual:greater_equal LessOrEqual:less_equal And:logical_and Or:logical_or Not:logical_not
    """),
    "Identity": lambda x: x,
    "Reciprocal": lambda x: 1 / x,
    "Gemm": _gemm,
    "Cast": lambda x, *, to, **_: rec.astype(x, dtype=helper.tensor_dtype_to_np_dtype(to)),
    "Reshape": _reshape,
    "Shape": lambda x, start=0, end=None: asarray(np.array(x.shape[start:end], np.int64)),
    "Expand": lambda x, to: x + asarray(np.zeros(_numbers(to), x.dtype)),
    "Transpose": lambda x, *, perm=None: shape.permute_dims(x, tuple(perm or range(x.ndim)[::-1])),
    "Flatten": lambda x, *, axis=1: x.reshape((int(np.prod(x.shape[:axis])), -1)),
    "Concat": lambda *xs, axis: join.concat(xs, axis),
    "Unsqueeze": lambda x, axes: shape.expand_dims(x, tuple(_numbers(axes))),
    "Squeeze": lambda x, axes: shape.squeeze(x, tuple(_numbers(axes))),
    "Gather": _gather,
    "ScatterND": _scatter,
    "Slice": _slice,
    "Einsum": lambda *xs, equation: contraction.einsum(equation.decode(), *xs),
    "ReduceSum": _reduce("sum"), "ReduceMean": _reduce("mean"), "ReduceMax": _reduce("max"),
    "ReduceMin": _reduce("min"), "ReduceProd": _reduce("prod"),
    "Softmax": lambda x, *, axis=-1: functional.softmax(x, axis=axis),
    "LogSoftmax": lambda x, *, axis=-1: functional.log_softmax(x, axis=axis),
    "Elu": lambda x, *, alpha=1.0: functional.elu(x, alpha),
    "LeakyRelu": lambda x, *, alpha=0.01: functional.leaky_relu(x, alpha),
    "Clip": lambda x, low=None, high=None: x.clip(low, high),
    "Gelu": lambda x, *, approximate=b"none": functional.gelu(x, approximate=approximate.decode()),
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": lambda x, **a: rec.max_pool(x, **_pooled(x, a)),
    "AveragePool": _average_pool,
    "GlobalAveragePool": lambda x: rec.mean(x, axis=tuple(range(2, x.ndim)), keepdims=True),
    "LayerNormalization": _layer_norm,
    "BatchNormalization": _batch_norm,
    "Dropout": lambda x, *_, **__: x,
    "LSTM": _lstm,
    "GRU": _gru,
}  # fmt: skip
