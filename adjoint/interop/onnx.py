"""ONNX files: ``save`` writes the forward of a module, ``load`` reads such a file as a module.

A module is traced in the same way as by ``ad.compile``, and each op becomes one or a few ONNX nodes.  Shapes
are those of the example inputs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adjoint import tree
from adjoint.compiler.capture.trace import Trace
from adjoint.compiler.program.program import Instruction
from adjoint.compiler.program.symbols import Symbolic
from adjoint.config import no_grad
from adjoint.core.convert import array_of
from adjoint.core.namespace import dyn
from adjoint.core.tensor import Tensor
from adjoint.errors import InputError
from adjoint.hints import add_hints
from adjoint.interop.onnx_dynamic import checked_axes, dynamic_model
from adjoint.interop.onnx_import import load
from adjoint.interop.onnx_library import helper, numpy_helper, onnx
from adjoint.nn.module import Module
from adjoint.storage.atomic import replace_file

__all__ = ["load", "save"]
__dir__ = sorted(__all__).copy


OPSET = 20
# adds the nodes of an instruction to a graph, given the names of its arguments; returns the names of its
# results
Emitter = Callable[["_Graph", Instruction, list[str]], "list[str] | str"]


def save(
    model: Module | Callable[..., Any],
    inputs: Any,
    path: str | os.PathLike[str],
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_axes: Mapping[str, Mapping[int, str] | Sequence[int]] | None = None,
) -> None:
    """Write the forward of a module or function to an ONNX file.

    The module is traced in evaluation mode, with the shapes and dtypes of ``inputs``.  With ``dynamic_axes``
    it is traced with three lengths of this axis, and the file accepts every length.

    Parameters
    ----------
    model : Module or callable
        The module, or a function of tensors.
    inputs : array_like or tuple
        One example argument, or a tuple of them.
    path : path
        The file, which is replaced atomically.
    input_names : sequence of str, optional
        The names of the inputs; by default ``input_0`` and so on.
    output_names : sequence of str, optional
        The names of the outputs; by default ``output_0`` and so on.
    dynamic_axes : dict, optional
        The axis of each input that may have any length, as in PyTorch: ``{"input_0": {0: "batch"}}`` or
        ``{"input_0": [0]}``.  All these axes have the same length.  The axes of outputs are found.

    Raises
    ------
    InputError
        If the model uses an op or a dtype that ONNX does not have, or computes something else for other
        lengths of a dynamic axis.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np, adjoint as ad
    >>> from adjoint import nn
    >>> from adjoint.interop import onnx
    >>> net = nn.Sequential(nn.Linear(3, 4, rng=0), nn.ReLU())
    >>> x = np.ones((2, 3), np.float32)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     onnx.save(net, x, os.path.join(folder, "net.onnx"))
    ...     same = onnx.load(os.path.join(folder, "net.onnx"))
    >>> bool(np.allclose(same(x), net(x).numpy()))
    True
    """
    if not callable(model):
        raise InputError(
            f"onnx.save: the model comes first, as in onnx.save(model, inputs, path), but got {model!r}."
        )
    given = inputs if isinstance(inputs, tuple) else (inputs,)
    arrays = [a.numpy() if isinstance(a, Tensor) else array_of(a) for a in given]

    def make(arrays: list[Any]) -> Any:
        return _Graph(model, arrays, input_names, output_names).model()

    if dynamic_axes is None:
        proto = make(arrays)
    else:
        names = dict(zip(_names("input", input_names, len(arrays)), (a.ndim for a in arrays), strict=True))
        outputs = output_names or [name for name in dynamic_axes if name.startswith("output_")]
        proto = dynamic_model(make, arrays, *checked_axes(dynamic_axes, names, outputs))
    try:
        onnx.checker.check_model(proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise InputError(f"onnx: the model cannot be expressed in ONNX: {error}") from None
    replace_file(Path(path), lambda temporary: onnx.save(proto, temporary))


class _ExportTrace(Trace):
    """A trace in which a fused op that ONNX does not have is replaced by the ops it consists of."""

    def emit(self, op: Any, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        """Record an op, or the ops that it consists of if ONNX does not have it; return the result."""
        if op.name not in EMITTERS and not getattr(op, "call", False):
            if op.fused is None:
                raise InputError(
                    f"onnx: the op {op.name!r} cannot be expressed in ONNX.  Write the model without it."
                )
            found = op.fused(dyn, *args, **params)
            return found
        return super().emit(op, args, params)


class _Graph:
    """The ONNX graph of a model, which is traced with the example inputs ``arrays``.

    ``inputs`` and ``outputs`` are the names of the inputs and outputs, or None.
    """

    def __init__(self, model: Any, arrays: list[Any], inputs: Any, outputs: Any) -> None:
        self.nodes: list[Any] = []
        self.initializers: dict[str, Any] = {}
        self.names: dict[int, str] = {}  # the ONNX names of traced values, by their id
        self.count = 0
        trace = _ExportTrace(arrays)
        self.trace = trace
        results: list[Any] = []

        def call() -> Any:
            stands = [trace.stand_in(a, k) for k, a in enumerate(arrays)]
            return model(*stands)

        def finish(found: Any) -> None:
            leaves = tree.flatten(found)[0]
            if not leaves or not all(isinstance(t, Tensor) for t in leaves):
                raise InputError("onnx: the model must return tensors.")
            results.extend(trace.value(t) for t in leaves)
            trace.program.results = list(results)

        training = model.training if isinstance(model, Module) else None
        if isinstance(model, Module):
            model.eval()
        try:
            with no_grad():
                trace.run(call, finish)
        finally:
            if isinstance(model, Module):
                model.train(bool(training))
        if trace.program.writes:
            raise InputError("onnx: the model writes to tensors in its forward, which ONNX cannot express.")
        self._sources(model, arrays, inputs)
        for instruction in trace.program.live():
            self._add(instruction)
        self._outputs(results, outputs)

    def _sources(self, model: Any, arrays: list[Any], names: Any) -> None:
        """Name the inputs, and store the parameters and other arrays that the model reads as constants.

        ``names`` are the names of the inputs or None, ``arrays`` the example inputs.
        """
        parameters = {}
        if isinstance(model, Module):
            parameters = {id(t): name for name, t in (*model.named_parameters(), *model.named_buffers())}
        self.inputs = _names("input", names, len(arrays))
        for source in self.trace.program.sources:
            value = source.value
            if source.kind == "argument":
                self.names[value.id] = self.inputs[source.owner]
            elif source.kind == "tensor":
                name = parameters.get(id(source.owner)) or self.fresh("constant")
                self.names[value.id] = self.constant(source.owner.numpy(), name)
            elif source.kind == "array":
                self.names[value.id] = self.constant(source.owner)
            else:
                raise InputError(
                    "onnx: the model draws random numbers or changes state in its forward, which ONNX "
                    "cannot express."
                )
        self.specs = [
            helper.make_tensor_value_info(n, _kind(a.dtype), a.shape)
            for n, a in zip(self.inputs, arrays, strict=True)
        ]

    def _add(self, i: Instruction) -> None:
        dtype = _common(i)
        args = []
        for k, a in enumerate(i.args):
            if not isinstance(a, Symbolic):
                args.append(self.constant(np.asarray(a, dtype)))
            elif i.op.name in _PROMOTING and a.dtype != dtype and (i.op.name, k) != ("where", 0):
                args.append(self.node("Cast", self.names[a.id], to=_kind(dtype)))
            else:
                args.append(self.names[a.id])
        found = EMITTERS[i.op.name](self, i, args)
        for out, name in zip(i.outs, [found] if isinstance(found, str) else found, strict=False):
            self.names[out.id] = name

    def _outputs(self, results: list[Any], names: Any) -> None:
        self.outputs = []
        for name, value in zip(_names("output", names, len(results)), results, strict=True):
            self.nodes.append(helper.make_node("Identity", [self.names[value.id]], [name]))
            self.outputs.append(helper.make_tensor_value_info(name, _kind(value.dtype), value.shape))

    def model(self) -> Any:
        """Return the graph as an ``onnx.ModelProto``."""
        used = {name for node in self.nodes for name in node.input}
        stored = [
            numpy_helper.from_array(np.asarray(a, order="C"), n)  # ascontiguousarray makes 0-d arrays 1-d
            for n, a in self.initializers.items()
            if n in used
        ]
        graph = helper.make_graph(self.nodes, "adjoint", self.specs, self.outputs, stored)
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10, producer_name="adjoint"
        )

    # Methods for emitters ----------------------------------------------------------------------------

    def fresh(self, base: str) -> str:
        """Return a name that starts with ``base`` and is not used yet."""
        self.count += 1
        return f"{base}_{self.count}"

    def constant(self, array: Any, name: str | None = None) -> str:
        """Store an array as a constant of the model; return its name."""
        name = name or self.fresh("constant")
        self.initializers[name] = np.asarray(array)
        return name

    def node(self, kind: str, *args: str, **attributes: Any) -> str:
        """Add a node of type ``kind`` with one output; return the name of the output."""
        return self.several(kind, 1, *args, **attributes)[0]

    def several(self, kind: str, outputs: int, *args: str, **attributes: Any) -> list[str]:
        """Add a node of type ``kind`` with several outputs; return the names of the outputs."""
        names = [self.fresh(kind) for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(args), names, **attributes))
        return names

    def integers(self, *values: int) -> str:
        """Store integers, such as a shape, as a constant of the model; return its name."""
        return self.constant(np.array(values, np.int64))


def _kind(dtype: Any) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def _names(what: str, given: Sequence[str] | None, count: int) -> list[str]:
    """Return ``given``, the names of the inputs or outputs, or if it is None "input_0", "input_1", ….

    ``what`` is "input" or "output".  Raise if there are not ``count`` names.
    """
    if given is None:
        return [f"{what}_{k}" for k in range(count)]
    if isinstance(given, str) or len(given) != count:
        raise InputError(
            f"onnx: {what}_names must have one name for each of the {count} {what}s, but is {given!r}."
        )
    return list(given)


def _common(i: Instruction) -> Any:
    """Return the common dtype to which NumPy casts the arguments of an instruction before it computes."""
    if i.outs[0].dtype != bool:
        return i.outs[0].dtype
    kinds = [a.dtype if isinstance(a, Symbolic) and not a.weak else a for a in i.args]
    return np.result_type(*(0.0 if isinstance(k, Symbolic) else k for k in kinds))


# Emitters: how each op is expressed in ONNX ------------------------------------------------------------

EMITTERS: dict[str, Emitter] = {}


def _form(*names: str) -> Callable[[Emitter], Emitter]:
    def enter(emitter: Emitter) -> Emitter:
        EMITTERS.update((name, emitter) for name in names)
        return emitter

    return enter


def _direct(kind: str, **attributes: Any) -> Emitter:
    return lambda g, i, args: g.node(kind, *args, **attributes)


# Ops that are expressed by one node with the same arguments.
for _pair in """
    add:Add subtract:Sub multiply:Mul divide:Div negative:Neg abs:Abs sqrt:Sqrt exp:Exp log:Log
    reciprocal:Reciprocal power:Pow pow:Pow maximum:Max minimum:Min floor:Floor ceil:Ceil rint:Round sign:Sign
    isnan:IsNaN copy:Identity
    sin:Sin cos:Cos tan:Tan asin:Asin acos:Acos atan:Atan sinh:Sinh cosh:Cosh tanh:Tanh erf:Erf
    relu:Relu sigmoid:Sigmoid softplus:Softplus matmul:MatMul where:Where
    greater:Greater less:Less equal:Equal greater_equal:GreaterOrEqual less_equal:LessOrEqual
    logical_and:And logical_or:Or logical_not:Not
""".split():
    EMITTERS[_pair.partition(":")[0]] = _direct(_pair.partition(":")[2])


# Ops whose arguments are cast to a common dtype here, because ONNX, unlike NumPy, does not do this.
_PROMOTING = {*EMITTERS, "square", "concat", "stack", "linear", "einsum", "sum", "prod", "conv", "conv_input"}


@_form("square")
def _square(g: _Graph, i: Instruction, args: list[str]) -> str:
    return g.node("Mul", args[0], args[0])


@_form("astype")
def _astype(g: _Graph, i: Instruction, args: list[str]) -> str:
    return g.node("Cast", args[0], to=_kind(i.outs[0].dtype))


@_form("reshape")
def _reshape(g: _Graph, i: Instruction, args: list[str]) -> str:
    return g.node("Reshape", args[0], g.integers(*i.outs[0].shape), allowzero=int(0 in i.outs[0].shape))


@_form("broadcast_to")
def _broadcast_to(g: _Graph, i: Instruction, args: list[str]) -> str:
    return g.node("Expand", args[0], g.integers(*i.outs[0].shape))


@_form("permute_dims")
def _permute_dims(g: _Graph, i: Instruction, args: list[str]) -> str:
    axes = [a % len(i.outs[0].shape) for a in i.params["axes"]]
    return g.node("Transpose", args[0], perm=axes)


@_form("moveaxis")
def _moveaxis(g: _Graph, i: Instruction, args: list[str]) -> str:
    axes = np.moveaxis(np.arange(len(i.outs[0].shape)), i.params["source"], i.params["destination"])
    return g.node("Transpose", args[0], perm=[int(a) for a in axes])


@_form("matrix_transpose")
def _matrix_transpose(g: _Graph, i: Instruction, args: list[str]) -> str:
    n = len(i.outs[0].shape)
    return g.node("Transpose", args[0], perm=[*range(n - 2), n - 1, n - 2])


@_form("concat")
def _concat(g: _Graph, i: Instruction, args: list[str]) -> str:
    return g.node("Concat", *args, axis=i.params["axis"])


@_form("stack")
def _stack(g: _Graph, i: Instruction, args: list[str]) -> str:
    axis = i.params["axis"] % len(i.outs[0].shape)
    return g.node("Concat", *(g.node("Unsqueeze", a, g.integers(axis)) for a in args), axis=axis)


@_form("take")
def _take(g: _Graph, i: Instruction, args: list[str]) -> str:
    return g.node("Gather", args[0], args[1], axis=i.params["axis"])


@_form("sum", "mean", "max", "min", "prod")
def _reduction(g: _Graph, i: Instruction, args: list[str]) -> str:
    shape = i.args[0].shape
    axis = i.params.get("axis")
    axes = range(len(shape)) if axis is None else [axis] if isinstance(axis, int) else axis
    keep = int(bool(i.params.get("keepdims")))
    if not shape:
        return g.node("Identity", args[0])
    return g.node(f"Reduce{i.op.name.title()}", args[0], g.integers(*axes), keepdims=keep)


@_form("index")
def _index(g: _Graph, i: Instruction, args: list[str]) -> str:
    shape = i.args[0].shape
    key = i.params["key"]
    key = key if isinstance(key, tuple) else (key,)
    if any(isinstance(k, np.ndarray) for k in key):
        positions = np.arange(int(np.prod(shape))).reshape(shape)[key]
        flat = g.node("Reshape", args[0], g.integers(-1))
        return g.node("Gather", flat, g.constant(positions.astype(np.int64)), axis=0)
    used = sum(k is not None and k is not Ellipsis for k in key)
    full = []
    for k in key:
        full += [slice(None)] * (len(shape) - used) if k is Ellipsis else [k]
    cuts: list[tuple[int, int, int, int]] = []  # start, stop, axis, step
    axis = 0
    for k in full:
        if k is None:
            continue
        n = shape[axis]
        span = range(n)[k] if isinstance(k, slice) else range(k % n, k % n + 1)
        if span != range(n):
            cuts.append((span.start, span.stop if span.stop >= 0 else -(2**62), axis, span.step))
        axis += 1
    found = args[0]
    if cuts:
        found = g.node("Slice", found, *(g.integers(*column) for column in zip(*cuts, strict=True)))
    return g.node("Reshape", found, g.integers(*i.outs[0].shape), allowzero=int(0 in i.outs[0].shape))


@_form("unindex")
def _unindex(g: _Graph, i: Instruction, args: list[str]) -> str:
    shape = i.params["shape"]
    size = int(np.prod(shape))
    positions = np.arange(size).reshape(shape)[i.params["key"]].reshape(-1, 1).astype(np.int64)
    zeros = g.constant(np.zeros(size, i.outs[0].dtype))
    flat = g.node("Reshape", args[0], g.integers(-1))
    found = g.node("ScatterND", zeros, g.constant(positions), flat, reduction="add")
    return g.node("Reshape", found, g.integers(*shape))


@_form("linear")
def _linear(g: _Graph, i: Instruction, args: list[str]) -> str:
    product = g.node("MatMul", args[0], g.node("Transpose", args[1], perm=[1, 0]))
    return product if not isinstance(i.args[2], Symbolic) else g.node("Add", product, args[2])


@_form("einsum")
def _einsum(g: _Graph, i: Instruction, args: list[str]) -> str:
    texts = [i.params["left"], i.params["right"], i.params["output"]]
    letters = dict.fromkeys("".join(texts))
    names = dict(zip(letters, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", strict=False))
    if i.params.get("extra"):
        raise InputError(
            "onnx: this einsum cannot be expressed in ONNX.  Write it with matmul and transpose."
        )
    left, right, output = ("".join(names[c] for c in text) for text in texts)
    return g.node("Einsum", *args, equation=f"{left},{right}->{output}")


@_form("softmax", "log_softmax")
def _softmax(g: _Graph, i: Instruction, args: list[str]) -> str:
    return g.node(
        "Softmax" if i.op.name == "softmax" else "LogSoftmax", args[0], axis=i.params.get("axis", -1)
    )


@_form("elu")
def _elu(g: _Graph, i: Instruction, args: list[str]) -> str:
    found = g.node("Elu", args[0], alpha=float(i.params["alpha"]))
    scale = i.params["scale"]
    return found if scale == 1 else g.node("Mul", found, g.constant(np.asarray(scale, i.outs[0].dtype)))


@_form("leaky_relu")
def _leaky_relu(g: _Graph, i: Instruction, args: list[str]) -> str:
    return g.node("LeakyRelu", args[0], alpha=float(i.params["slope"]))


@_form("hardtanh")
def _hardtanh(g: _Graph, i: Instruction, args: list[str]) -> str:
    bounds = [g.constant(np.asarray(i.params[k], i.outs[0].dtype)) for k in ("low", "high")]
    return g.node("Clip", args[0], *bounds)


@_form("normal_gate")
def _normal_gate(g: _Graph, i: Instruction, args: list[str]) -> str:
    def number(v: float) -> str:
        return g.constant(np.asarray(v, i.outs[0].dtype))

    e = g.node("Erf", g.node("Mul", args[0], number(0.5**0.5)))
    return g.node("Mul", g.node("Add", e, number(1.0)), number(0.5))


@_form("tanh_gelu")
def _tanh_gelu(g: _Graph, i: Instruction, args: list[str]) -> str:
    return g.node("Gelu", args[0], approximate="tanh")


def _window(p: dict[str, Any], kernel: Sequence[int]) -> dict[str, list[int]]:
    """Return the attributes of a convolution or pooling node with the parameters ``p``."""
    pads = [a for a, _ in p["padding"]] + [b for _, b in p["padding"]]
    shape = {"kernel_shape": list(kernel), "strides": list(p["stride"]), "dilations": list(p["dilation"])}
    return {**shape, "pads": pads}


@_form("conv")
def _conv(g: _Graph, i: Instruction, args: list[str]) -> str:
    window = _window(i.params, i.args[1].shape[2:])
    return g.node("Conv", *args, group=i.params["groups"], **window)


@_form("conv_input")
def _conv_input(g: _Graph, i: Instruction, args: list[str]) -> str:
    p = i.params
    before = [a for a, _ in p["padding"]]
    sizes = zip(i.args[0].shape[2:], i.args[1].shape[2:], p["stride"], p["dilation"], strict=True)
    full = [(n - 1) * s + (k - 1) * d + 1 for n, k, s, d in sizes]  # the size of the result without padding
    after = [f - a - n for f, a, n in zip(full, before, p["size"], strict=True)]
    extra = [max(0, -a) for a in after]  # the result is longer by this
    window = {**_window(p, i.args[1].shape[2:]), "pads": [*before, *(max(0, a) for a in after)]}
    return g.node("ConvTranspose", *args, group=p["groups"], output_padding=extra, **window)


@_form("max_pool")
def _max_pool(g: _Graph, i: Instruction, args: list[str]) -> str:
    return g.node("MaxPool", args[0], **_window(i.params, i.params["kernel"]))


@_form("window_sum")
def _window_sum(g: _Graph, i: Instruction, args: list[str]) -> str:
    kernel = i.params["kernel"]
    mean = g.node("AveragePool", args[0], count_include_pad=1, **_window(i.params, kernel))
    return g.node("Mul", mean, g.constant(np.asarray(np.prod(kernel), i.outs[0].dtype)))


@_form("layer_norm")
def _layer_norm(g: _Graph, i: Instruction, args: list[str]) -> str:
    return g.node("LayerNormalization", *args, axis=-1, epsilon=i.params["eps"])


@_form("attention_weights")
def _attention_weights(g: _Graph, i: Instruction, args: list[str]) -> str:
    k = len(i.args[1].shape)
    dtype = i.outs[0].dtype
    turned = g.node("Transpose", args[1], perm=[*range(k - 2), k - 1, k - 2])
    scores = g.node(
        "Mul", g.node("MatMul", args[0], turned), g.constant(np.asarray(i.params["scale"], dtype))
    )
    if isinstance(i.args[2], Symbolic):
        scores = g.node("Add", scores, args[2])
    if i.params["causal"]:
        n, m = i.outs[0].shape[-2:]
        scores = g.node("Add", scores, g.constant(np.triu(np.full((n, m), -np.inf, dtype), 1)))
    return g.node("Softmax", scores, axis=-1)


def _permuted(array: Any, order: Sequence[int]) -> Any:
    """Cut the first axis of an array into equal blocks, one per gate; return them joined in a new order.

    ``order`` has the old index of each new block.
    """
    blocks = np.split(array, len(order))
    return np.concatenate([blocks[k] for k in order])


def _recurrent(g: _Graph, i: Instruction, args: list[str], kind: str, order: Sequence[int]) -> list[str]:
    """Add an ONNX node of type ``kind`` ("LSTM" or "GRU"); return the names of its outputs.

    The input of the instruction is already multiplied by the input weights, so the input weights of the node
    are the identity matrix.  ``order`` is the order of the gates in ONNX.
    """
    n = i.args[1].shape[1]
    dtype = i.outs[0].dtype
    size = len(order) * n
    rows = _permuted(np.arange(size, dtype=np.int64), order)
    weights = g.constant(_permuted(np.eye(size, dtype=dtype), order)[None])
    again = g.node("Unsqueeze", g.node("Gather", args[1], g.constant(rows), axis=0), g.integers(0))
    bias = g.node("Gather", args[2], g.constant(rows), axis=0)
    zeros = g.constant(np.zeros(size, dtype))
    both = g.node("Unsqueeze", g.node("Concat", zeros, bias, axis=0), g.integers(0))
    states = [g.node("Unsqueeze", a, g.integers(0)) for a in args[3:]]
    more = {"linear_before_reset": 1} if kind == "GRU" else {}
    return g.several(kind, 1 + len(states), args[0], weights, again, both, "", *states, hidden_size=n, **more)


@_form("lstm_sequence")
def _lstm_sequence(g: _Graph, i: Instruction, args: list[str]) -> list[str]:
    # adjoint has the gates in the order i f g o, ONNX i o f g
    hidden, _, cell = _recurrent(g, i, args, "LSTM", (0, 3, 1, 2))
    return [g.node("Squeeze", hidden, g.integers(1)), g.node("Squeeze", cell, g.integers(0))]


@_form("gru_sequence")
def _gru_sequence(g: _Graph, i: Instruction, args: list[str]) -> list[str]:
    # adjoint has the gates in the order r z n, ONNX z r n
    hidden, _ = _recurrent(g, i, args, "GRU", (1, 0, 2))
    return [g.node("Squeeze", hidden, g.integers(1))]


add_hints(__name__)
