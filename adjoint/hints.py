"""Hints for names of NumPy, PyTorch and JAX that adjoint does not have.

``add_hints(module)`` adds hints to a public module.  An unknown attribute of the module or of its classes, or
an unknown keyword argument of its functions, then raises an error that names the replacement.  Signatures,
types and ``dir()`` do not change.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from types import FunctionType, ModuleType
from typing import Any, NoReturn

from adjoint.errors import AbsentNameError, InputError
from adjoint.foreign_names import (
    ACTIVATIONS,
    AUTOGRAD,
    GENERATOR,
    GROUPS,
    JAX,
    LAX,
    METHODS,
    MODULES,
    OPTIMIZERS,
    SCALERS,
    TORCH,
    UPDATES,
    elsewhere,
)

__all__ = [
    "ATTRIBUTES",
    "FUNCTIONS",
    "KEYWORDS",
    "PARTS",
    "add_hints",
    "check_keywords",
    "explain_class",
    "with_hints",
]

_ATTEND = "pass {0}=, which is True where a query may attend; for a boolean {1}, {0}=~{1}"
_PRESENT = "pass {0}=, which is True where there is no padding: {0}=~{1}[:, None, None, :]"
FUNCTIONS = {
    **AUTOGRAD,
    **JAX,
    **LAX,
    **TORCH,
    "as_tensor": "ad.asarray(values)",
    "from_numpy": "ad.tensor(array)",
    "is_tensor": "isinstance(x, ad.Tensor)",
    "Variable": "ad.tensor(values, requires_grad=True)",
    "autograd": "ad.gradients, ad.grad and ad.Function",
    "cat": "ad.concat(tensors, axis)",
    "chunk": "ad.split(x, parts)",
    "unbind": "ad.unstack(x)",
    "unsqueeze": "ad.expand_dims(x, axis)",
    "permute": "ad.permute_dims(x, axes)",
    "movedim": "ad.moveaxis(x, source, destination)",
    "expand": "ad.broadcast_to(x, shape)",
    "numel": "x.size",
    "clamp": "ad.clip(x, low, high)",
    "sub": "ad.subtract(x, y)",
    "mul": "ad.multiply(x, y)",
    "div": "ad.divide(x, y)",
    "mm": "ad.matmul(x, y), or x @ y",
    "bmm": "ad.matmul(x, y), or x @ y",
    "norm": "ad.linalg.norm(x)",
    "inv": "ad.linalg.inv(x)",
    "rsqrt": "1 / ad.sqrt(x)",
    "erf": "ad.special.erf(x)",
    "amax": "ad.max(x, axis)",
    "amin": "ad.min(x, axis)",
    "gather": "ad.take_along_axis(x, index, axis)",
    "index_select": "ad.take(x, index, axis)",
    "masked_select": "x[mask]",
    "repeat_interleave": "ad.repeat(x, repeats, axis)",
    "randn": "ad.random.default_rng(seed).standard_normal(shape)",
    "rand": "ad.random.default_rng(seed).random(shape)",
    "randint": "ad.random.default_rng(seed).integers(low, high, shape)",
    "manual_seed": "rng = ad.random.default_rng(seed), and pass it on: there is no global generator",
    "embedding": "ad.nn.functional.embedding(indices, table), or ad.take(table, indices, axis=0)",
    "cross_entropy": "ad.nn.functional.cross_entropy(prediction, target)",
    "Module": "ad.nn.Module",
    "clip_grad_norm_": "ad.clip_grad_norm(params, max_norm)",
    "clip_grad_value_": "ad.clip_grad_value(params, max_value)",
    "utils": "ad.clip_grad_norm(params, max_norm), ad.train.DataLoader or ad.checkpoint",
    "autocast": "layers made with dtype=np.float16, or model.astype(np.float16), and ad.GradScaler",
    "amp": "layers made with dtype=np.float16, or model.astype(np.float16), and ad.GradScaler",
    "device": "tensors as they are: they are always in CPU memory",
    "cuda": "tensors as they are: they are always in CPU memory",
    "long": "np.int64",
    "bfloat16": "ml_dtypes.bfloat16",
    "randperm": "ad.random.default_rng(seed).permutation(n)",
    "randn_like": "ad.random.default_rng(seed).standard_normal(x.shape)",
    "rand_like": "ad.random.default_rng(seed).random(x.shape)",
    "bernoulli": "ad.random.default_rng(seed).bernoulli(p)",
    "multinomial": "ad.random.default_rng(seed).categorical(logits)",
    "normal": "ad.random.default_rng(seed).normal(loc, scale, size)",
    "seed": "rng = ad.random.default_rng(seed), and pass it on: there is no global generator",
    "Generator": "ad.random.default_rng(seed)",
    "FloatTensor": "ad.tensor(values, dtype=np.float32)",
    "LongTensor": "ad.tensor(values, dtype=np.int64)",
    "Size": "a tuple",
    "func": "ad.grad, ad.vmap, ad.jacobian and ad.nn.functional_call",
    "addmm": "x @ y + b",
    "remat": "ad.checkpoint(f, *args)",
    "custom_gradient": "ad.custom_vjp(f)",
    "custom_transpose": "ad.custom_vjp(f)",
    "jit": "ad.compile(f)",
    "lax": "ad.scan, ad.fori_loop, ad.while_loop, ad.cond and ad.map",
    "tree_map": "ad.tree.map(f, tree)",
    "tree_util": "ad.tree",
    "pmap": "ad.vmap(f)",
    "device_put": "arrays as they are: they are always in CPU memory",
}

# Names in submodules, by the name of the submodule
_IN_PLACE_OF = "w.copy_(ad.nn.init.{}(w.shape, rng=rng)) under ad.no_grad()"
_SCHEDULE = "ad.optim.schedules, functions of the step: Trainer(schedule=…), or optimizer.lr = schedule(step)"
_GENERATOR = "rng = ad.random.default_rng(seed), and pass it on: there is no global generator"
_DATA = "ad.train.DataLoader(data, batch_size): data are arrays, or anything with __len__ and __getitem__"
_OPTIMIZER = "ad.optim.Adam(params), or write a subclass of ad.optim.Optimizer"
_PARALLEL = "ad.train.Trainer(…, group=ad.distributed.world()), or ad.GradientAccumulator(…, group=…)"
_LAYERS = "CELU Hardshrink Hardsigmoid Hardswish Softmin Softshrink Softsign Tanhshrink Threshold".split()
PARTS: dict[str, dict[str, str]] = {
    "adjoint.distributed": {
        "init_process_group": "group = ad.distributed.world(), in programs that mpiexec starts",
        "get_rank": "ad.distributed.world().rank",
        "get_world_size": "ad.distributed.world().size",
        "is_initialized": "ad.distributed.world().size > 1",
        "all_reduce": "ad.distributed.world().sum(array)",
        "all_gather": "ad.distributed.world().gather(value)",
        "broadcast": "ad.distributed.world().broadcast(array, root)",
        "barrier": "ad.distributed.world().barrier()",
        "DistributedDataParallel": _PARALLEL,
    },
    "adjoint.extend": {
        "defjvp": "ad.custom_jvp(f)",
    },
    "adjoint.random": {
        "PRNGKey": _GENERATOR,
        "key": _GENERATOR,
        "split": "rng.spawn(n), whose generators are independent",
        "fold_in": "rng.spawn(n), whose generators are independent",
        "seed": _GENERATOR,
        "RandomState": _GENERATOR,
        **{
            name: f"ad.random.default_rng(seed).{name}: there is no global generator"
            for name in (
                "bernoulli",
                "beta",
                "categorical",
                "chisquare",
                "choice",
                "dirichlet",
                "exponential",
                "gamma",
                "gumbel",
                "integers",
                "laplace",
                "logistic",
                "lognormal",
                "normal",
                "permutation",
                "poisson",
                "random",
                "standard_normal",
                "standard_t",
                "uniform",
            )
        },
        **{name: f"rng = ad.random.default_rng(seed) and {instead}" for name, instead in GENERATOR.items()},
        "randn": "ad.random.default_rng(seed).standard_normal(shape)",
        "rand": "ad.random.default_rng(seed).random(shape)",
        "randint": "ad.random.default_rng(seed).integers(low, high, shape)",
        "shuffle": "x[ad.random.default_rng(seed).permutation(len(x))]",
    },
    "adjoint.nn": {
        "MultiheadAttention": "ad.nn.MultiHeadAttention",
        **{
            name: f"ad.nn.functional.{name}(x)"
            for name in (
                "elu",
                "gelu",
                "leaky_relu",
                "relu",
                "sigmoid",
                "silu",
                "softmax",
                "softplus",
                "tanh",
            )
        },
        "Buffer": "module.register_buffer(name, value)",
        "LazyLinear": "ad.nn.Linear(in_features, out_features)",
        "Swish": "ad.nn.SiLU()",
        "LogSigmoid": "-ad.nn.functional.softplus(-x) in forward",
        "CosineSimilarity": "ad.nn.functional.cosine_similarity(x, y)",
        "DataParallel": _PARALLEL,
        **{name: f"{ACTIVATIONS[name.lower()]} in forward" for name in _LAYERS},
        **{
            f"{kind}Pad{n}d": "ad.pad(x, widths, mode=…) in forward"
            for kind in ("Circular", "Constant", "Reflection", "Replication", "Zero")
            for n in (1, 2, 3)
        },
    },
    "adjoint.nn.utils": {
        "weight_norm": "ad.nn.utils.parametrizations.weight_norm(module)",
        "spectral_norm": "ad.nn.utils.parametrizations.spectral_norm(module)",
        "clip_grad_norm_": "ad.clip_grad_norm(params, max_norm)",
        "clip_grad_value_": "ad.clip_grad_value(params, max_value)",
        "rnn": "ad.train.pad_collate for sequences of different lengths",
        "parameters_to_vector": "ad.concat([p.reshape(-1) for p in model.parameters()])",
        "prune": "p.copy_(p * mask) under ad.no_grad()",
    },
    "adjoint.ops.linalg": {},
    "adjoint.ops.special": {},
    "adjoint.ops.fft": {},
    "adjoint.nn.functional": {
        **ACTIVATIONS,
        "upsample": "ad.nn.functional.interpolate(x, size, scale_factor, mode)",
        "pad": "ad.pad(x, widths), with widths for every axis, starting with the first",
        "logsigmoid": "-ad.nn.functional.softplus(-x)",
        "multi_head_attention_forward": "ad.nn.MultiHeadAttention",
        "flatten": "x.reshape(len(x), -1)",
    },
    "adjoint.nn.init": {
        **{
            f"{name}_": _IN_PLACE_OF.format(name)
            for name in (
                "kaiming_normal",
                "kaiming_uniform",
                "normal",
                "orthogonal",
                "uniform",
                "xavier_normal",
                "xavier_uniform",
            )
        },
        "zeros_": "w.copy_(ad.zeros(w.shape)) under ad.no_grad()",
        "ones_": "w.copy_(ad.ones(w.shape)) under ad.no_grad()",
        "constant_": "w.copy_(ad.full(w.shape, value)) under ad.no_grad()",
        "calculate_gain": "ad.nn.init.gain(name)",
    },
    "adjoint.optim": {
        "lr_scheduler": _SCHEDULE,
        "swa_utils": "ad.optim.EMA(params)",
        "AMSGrad": "ad.optim.Adam(params, amsgrad=True)",
        "SparseAdam": "ad.optim.Adam with ad.nn.Embedding(sparse=True)",
        **dict.fromkeys(("ASGD", "Adadelta", "Adafactor", "Adamax", "Muon", "RAdam", "Rprop"), _OPTIMIZER),
    },
    "adjoint.optim.schedules": {
        "step": "ad.optim.schedules.steps(rate, every, factor)",
        "StepLR": "ad.optim.schedules.steps(rate, every, factor)",
        "MultiStepLR": "ad.optim.schedules.sequence((ad.optim.schedules.constant(rate), steps), …)",
        "ExponentialLR": "ad.optim.schedules.exponential(rate, factor)",
        "CosineAnnealingLR": "ad.optim.schedules.cosine(rate, total)",
        "CosineAnnealingWarmRestarts": "ad.optim.schedules.cosine_restarts(rate, first)",
        "LinearLR": "ad.optim.schedules.linear(rate, total)",
        "PolynomialLR": "ad.optim.schedules.polynomial(rate, total)",
        "OneCycleLR": "ad.optim.schedules.one_cycle(peak, total)",
        "ReduceLROnPlateau": "ad.optim.schedules.Plateau(rate)",
        "SequentialLR": "ad.optim.schedules.sequence((schedule, steps), …)",
        "LambdaLR": "any function of the step",
    },
    "adjoint.train": {
        "Dataset": _DATA,
        "TensorDataset": "ad.train.DataLoader((X, Y), batch_size)",
        "random_split": "np.random.default_rng(seed).permutation(len(X)), and X[order[:cut]], X[order[cut:]]",
        "ModelCheckpoint": "ad.train.BestCheckpoint(directory)",
        "CSVLogger": "ad.train.CSVLog(path)",
        "EMA": "ad.optim.EMA(params)",
    },
}


# Keywords of PyTorch and JAX, and the names of the same parameters here
KEYWORDS = {
    "argnum": "argnums",
    "in_dims": "in_axes",
    "out_dims": "out_axes",
    "dim": "axis",
    "dims": "axis",
    "axes": "axis",
    "keepdim": "keepdims",
    "keep_dims": "keepdims",
    "unbiased": "correction",
    "ddof": "correction",
    "p": "ord",
    "n_layers": "num_layers",
    "learning_rate": "lr",
    "elementwise_affine": "affine",
    "initial_accumulator_value": "initial",
    "history_size": "history",
    "T_max": "total",
    "total_iters": "total",
    "total_steps": "total",
    "T_0": "first",
    "T_mult": "multiple",
    "eta_min": "minimum",
    "min_lr": "minimum",
    "max_lr": "peak",
    "base_lr": "rate",
    "lr": "rate",
    "gamma": "factor",
    "step_size": "every",
    "pct_start": "rise",
    "is_causal": "causal",
    "tgt_is_causal": "causal",
    "accumulate_steps": "accumulate",
    "accumulation_steps": "accumulate",
    "gradient_accumulation_steps": "accumulate",
    "accumulate_grad_batches": "accumulate",
    "max_grad_norm": "clip",
    "gradient_clip_val": "clip",
    "scheduler": "schedule",
    "lr_scheduler": "schedule",
    "loss_fn": "loss",
    "criterion": "loss",
    "collate_fn": "collate",
    "prefetch_factor": "prefetch",
    "epoch": "epochs",
    "num_epochs": "epochs",
    "max_epochs": "epochs",
    "val_loader": "validate",
    "validation_data": "validate",
    "min_delta": "delta",
    "max": "max_norm",
    "mean": "loc",
    "static_argnums": "static",
    "static_argnames": "static",
}
_NOT_HERE = {
    "out": "results are new tensors; to write one into x, call x.copy_(result) under ad.no_grad()",
    "device": "all tensors are in CPU memory",
    "input": "pass the tensor as the first argument, without a keyword",
    "tensors": "pass the tensors as the first arguments, without a keyword",
    "inplace": "the result is always a new tensor",
    "axis_name": "reduce over the axis of the result: ad.vmap(f)(x).sum(0)",
    "chunk_size": "call the function on slices of the batch and join the results with ad.concat",
    "attn_mask": _ATTEND.format("mask", "attn_mask"),
    "src_mask": _ATTEND.format("mask", "src_mask"),
    "tgt_mask": _ATTEND.format("mask", "tgt_mask"),
    "memory_mask": _ATTEND.format("cross_mask", "memory_mask"),
    "key_padding_mask": _PRESENT.format("mask", "key_padding_mask"),
    "src_key_padding_mask": _PRESENT.format("mask", "src_key_padding_mask"),
    "tgt_key_padding_mask": _PRESENT.format("mask", "tgt_key_padding_mask"),
    "memory_key_padding_mask": _PRESENT.format("cross_mask", "memory_key_padding_mask"),
    "batch_first": "the first axis is always the batch axis",
    "operand": "pass the operands after the two functions, without a keyword",
    "unroll": "ad.compile compiles the steps to one loop, and eager code runs each step",
    "padding_mode": "call ad.pad(x, widths, mode=…) in front of the layer",
    "scaler": "to scale losses, write your own loop with ad.GradScaler and ad.GradientAccumulator",
    "need_weights": "only the outputs are returned",
    "num_workers": "batches are made in this process; prefetch=2 makes the next batches in a thread",
    "pin_memory": "all tensors are in CPU memory",
    "epochs": "pass it to trainer.fit(loader, epochs=…)",
    "outputs": "for gradients of tensors, call ad.gradients(loss, [w])",
    "grad_outputs": "for gradients of tensors, call ad.gradients(loss, [w])",
    "requires_grad": "a result requires grad if one of its arguments does",
}

# Attributes of instances of a class and its subclasses, by the name of the class
ATTRIBUTES = {
    "Tensor": METHODS, "Module": MODULES, "Optimizer": OPTIMIZERS, "GradScaler": SCALERS,
    "At": UPDATES, "Generator": GENERATOR, "Group": GROUPS,
}  # fmt: skip

_RENAMED = frozenset(KEYWORDS.values())
_explained: set[Any] = set()  # modules and classes


def add_hints(*modules: str) -> None:
    """Add hints to modules, given by name, and to the functions and classes in their ``__all__``.

    Only functions with a parameter that has a different name in other libraries are wrapped.
    """
    for module in (sys.modules[name] for name in modules):
        if module not in _explained:
            _explained.add(module)
            _explain_module(module)


def _explain_module(module: ModuleType) -> None:
    for name in module.__all__:
        value: Any = vars(module).get(name)
        if _is_renamed(value):
            wrapped = with_hints(value)
            setattr(module, name, wrapped)
            home = sys.modules[value.__module__]  # module may re-export the function
            if vars(home).get(name) is value:
                setattr(home, name, wrapped)
        elif isinstance(value, type):
            for base in value.__mro__:
                if base.__module__.startswith("adjoint."):
                    explain_class(base)
    if module.__name__ in PARTS:
        vars(module)["__getattr__"] = _lookup(module)


def explain_class(cls: type) -> None:
    """Make errors of a class contain hints, for unknown keywords of its methods and missing attributes."""
    if cls in _explained:
        return
    _explained.add(cls)
    for name, method in list(vars(cls).items()):
        public = not name.startswith("_") and _is_renamed(method)
        if public or (name == "__init__" and isinstance(method, FunctionType)):
            setattr(cls, name, with_hints(method))
    if cls.__name__ in ATTRIBUTES:
        _explain_attributes(cls, ATTRIBUTES[cls.__name__])


def _is_renamed(value: Any) -> bool:
    """Return whether a value is a function with a parameter that has a different name in other libraries."""
    if not isinstance(value, FunctionType):
        return False
    if value.__module__ == "adjoint.transforms.loops":  # JAX's functions have more parameters
        return True
    code = value.__code__
    return not _RENAMED.isdisjoint(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def with_hints(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that errors about unknown keywords contain a hint."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except TypeError:
            name = function.__name__
            of_class = name in ("__init__", "forward")
            check_keywords(function, options, type(args[0]).__name__ if of_class else name)
            raise

    return call


def check_keywords(function: Callable[..., Any], given: Mapping[str, Any], name: str) -> None:
    """Raise an error with a hint if ``given`` has a keyword that ``function`` does not have.

    ``name`` is the name of the function in the message.
    """
    parameters = inspect.signature(function).parameters.values()
    ours = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    ours = [own for own in ours if own != "self"]
    unknown = [keyword for keyword in given if keyword not in ours]
    if not unknown or any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    for keyword in unknown:
        if KEYWORDS.get(keyword) in ours:
            raise InputError(f"{name}: {keyword}= is called {KEYWORDS[keyword]}= in adjoint.")
        if keyword in _NOT_HERE:
            raise InputError(f"{name} has no argument {keyword}=: {_NOT_HERE[keyword]}.")
    takes = [p.name for p in parameters if p.name != "self" and p.kind is not p.VAR_POSITIONAL]
    raise InputError(f"{name} has no argument {unknown[0]}=.  It accepts {', '.join(takes)}.")


class _Absent:
    """A descriptor for an attribute that a class does not have: reading it raises an error with a hint.

    Unlike ``__getattr__``, it does not slow down the access to other attributes.
    """

    def __init__(self, name: str, instead: str) -> None:
        self.name, self.instead = name, instead

    def __get__(self, x: Any, cls: type) -> NoReturn:
        owner = {"Tensor": "a tensor", "At": "x.at[key]"}.get(cls.__name__, cls.__name__)
        raise AbsentNameError(f"{owner} has no {self.name!r}.  Use {self.instead}.")


def _explain_attributes(cls: type, instead: Mapping[str, str]) -> None:
    """Make a class raise an error with a hint for each attribute in ``instead`` that it does not have.

    ``instead`` maps names to replacements.  ``dir`` does not list these names.
    """
    missing = {name for name in instead if not hasattr(cls, name)}
    for name in missing:
        setattr(cls, name, _Absent(name, instead[name]))

    def names(self: Any) -> list[str]:
        return sorted(set(object.__dir__(self)) - missing.difference(getattr(self, "__dict__", ())))

    setattr(cls, "__dir__", names)  # noqa: B010  mypy rejects the assignment to a method of a class


def _lookup(module: ModuleType) -> Callable[[str], NoReturn]:
    """Return a ``__getattr__`` for a module; it raises an error with a hint for a missing name."""

    def lookup(name: str) -> NoReturn:
        instead = PARTS[module.__name__].get(name) or elsewhere(name)
        raise (AbsentNameError if instead else AttributeError)(
            f"module {module.__name__.replace('.ops.', '.')!r} has no attribute {name!r}"
            + (f".  Use {instead}." if instead else ""),
            name=name,
            obj=module,
        )

    return lookup
