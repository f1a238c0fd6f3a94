"""Names from NumPy and PyTorch that adjoint does not have, and what to write instead: for messages alone."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, ParamSpec, TypeVar

from adjoint.core.methods import attach
from adjoint.errors import InputError

__all__ = [
    "FUNCTIONS",
    "KEYWORDS",
    "METHODS",
    "dropped_only",
    "explain_methods",
    "explain_options",
    "explained",
    "refuse",
]

P = ParamSpec("P")
R = TypeVar("R")

_IN_PLACE = "x = x {} y, or x.copy_(value) under ad.no_grad() to write into x"
_PRESENT = "mask=~{}[:, None, None, :]"
_DTYPE = "x.astype(np.{})"

METHODS = {
    "view": "x.reshape(shape)",
    "view_as": "x.reshape(other.shape)",
    "unsqueeze": "x.expand_dims(axis), or x[:, None]",
    "t": "x.T",
    "permute": "x.permute_dims(axes), or x.transpose(*axes)",
    "expand": "x.broadcast_to(shape)",
    "expand_as": "x.broadcast_to(other.shape)",
    "contiguous": "x as it is: its layout in memory does not matter",
    "cpu": "x as it is: it is in the memory of the processor",
    "cuda": "x as it is: adjoint computes on the processor alone",
    "to": "x.astype(dtype)",
    "type": "x.astype(dtype), or x.dtype",
    "float": _DTYPE.format("float32"),
    "double": _DTYPE.format("float64"),
    "half": _DTYPE.format("float16"),
    "int": _DTYPE.format("int32"),
    "long": _DTYPE.format("int64"),
    "bool": _DTYPE.format("bool_"),
    "data": "x.detach(), or x.numpy()",
    "detach_": "x.detach()",
    "dim": "x.ndim",
    "ndimension": "x.ndim",
    "numel": "x.size",
    "nelement": "x.size",
    "clamp": "x.clip(low, high)",
    "amax": "x.max(axis)",
    "amin": "x.min(axis)",
    "norm": "ad.linalg.norm(x)",
    "unbind": "x.unstack()",
    "chunk": "x.split(parts)",
    "narrow": "a slice, x[start:stop]",
    "masked_fill": "ad.where(mask, value, x)",
    "masked_select": "x[mask]",
    "gather": "x.take_along_axis(index, axis)",
    "scatter": "ad.put_along_axis(x, index, values, axis), or x.at[index].set(values)",
    "scatter_add": "x.at[index].add(values)",
    "index_select": "x.take(index, axis)",
    "pow": "x ** y",
    "mm": "x @ y",
    "bmm": "x @ y",
    "copy": "x.clone(), or x.numpy(copy=True)",
    "fill": "x.copy_(value) under ad.no_grad()",
    "add_": _IN_PLACE.format("+"),
    "sub_": _IN_PLACE.format("-"),
    "mul_": _IN_PLACE.format("*"),
    "div_": _IN_PLACE.format("/"),
    "zero_": "x.copy_(ad.zeros_like(x)) under ad.no_grad(); for a gradient, x.grad = None",
    "fill_": "x.copy_(ad.full_like(x, value)) under ad.no_grad()",
    "clamp_": "x.copy_(x.clip(low, high)) under ad.no_grad()",
}

FUNCTIONS = {
    "array": "ad.tensor(values)",
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
    "manual_seed": "rng = ad.random.default_rng(seed), which is passed on: there is no global generator",
    "cross_entropy": "ad.nn.functional.cross_entropy(prediction, target)",
    "Module": "ad.nn.Module",
}


class _Elsewhere:
    """An attribute that is not there, and says what is; it costs the others nothing, as __getattr__ would."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, x: Any, cls: type | None = None) -> NoReturn:
        raise AttributeError(f"a tensor has no {self.name!r}.  Use {METHODS[self.name]}.")


def explain_methods(cls: type) -> None:
    """Let ``cls`` explain the methods that it does not have; ``dir`` does not list them."""
    missing = {name for name in METHODS if not any(name in c.__dict__ for c in cls.__mro__)}
    for name in missing:
        setattr(cls, name, _Elsewhere(name))

    def names(self: Any) -> list[str]:
        return sorted(set(object.__dir__(self)) - missing)

    attach(cls, __dir__=names)


# Names that people know from PyTorch for what is called otherwise here; for some, what to do instead
KEYWORDS = {
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
}
_NOT_HERE = {
    "out": "results are new tensors; x.copy_(result) under ad.no_grad() writes one",
    "device": "all tensors are in the memory of the processor",
    "input": "the tensor comes first, without a name",
    "tensors": "the tensors come first, without a name",
    "inplace": "results are new tensors",
    "attn_mask": "give mask=, True where a query may look: mask=~attn_mask of a boolean one",
    "src_mask": "give mask=, True where a query may look: mask=~src_mask of a boolean one",
    "key_padding_mask": f"give mask=, True where there is something: {_PRESENT.format('key_padding_mask')}",
    "src_key_padding_mask": (
        f"give mask=, True where there is something: {_PRESENT.format('src_key_padding_mask')}"
    ),
    "need_weights": "the outputs come back alone",
    "num_workers": "batches are made in this process; prefetch=2 makes them ahead, in a thread",
    "pin_memory": "all tensors are in the memory of the processor",
    "epochs": "trainer.fit(loader, epochs=…) takes it",
    "requires_grad": "results require grad where what they are made of does",
}


def refuse(function: Callable[..., Any], given: Mapping[str, Any], name: str = "") -> NoReturn:
    """Raise for keywords that a function does not have: say what they are called, or all that it has."""
    parameters = inspect.signature(function).parameters.values()
    ours = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    ours = [own for own in ours if own != "self"]
    name = name or function.__name__
    for keyword in given:
        if KEYWORDS.get(keyword) in ours:
            raise InputError(f"{name}: {keyword}= is called {KEYWORDS[keyword]}= here.")
        if keyword in _NOT_HERE:
            raise InputError(f"{name}: there is no {keyword}=: {_NOT_HERE[keyword]}.")
    raise InputError(f"{name}: there is no {next(iter(given))}=; it takes {', '.join(ours)}.")


def explained(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function say what a keyword that it does not have is called."""

    @functools.wraps(function)
    def explaining(*args: P.args, **options: P.kwargs) -> R:
        try:
            return function(*args, **options)
        except TypeError:
            unknown = {k: v for k, v in options.items() if k not in inspect.signature(function).parameters}
            if unknown:
                refuse(function, unknown)
            raise

    return explaining


def explain_options(classes: Iterable[Any]) -> None:
    """Let constructors, those that classes inherit too, say what a keyword they do not have is called."""
    package = __name__.partition(".")[0]
    bases = {base: None for cls in classes if isinstance(cls, type) for base in cls.__mro__}
    for cls in bases:
        own = vars(cls).get("__init__")
        if cls.__module__.partition(".")[0] == package and inspect.isfunction(own):
            attach(cls, __init__=_explaining(own))


def _explaining(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def explaining(self: Any, *args: Any, **options: Any) -> None:
        try:
            init(self, *args, **options)
        except TypeError:
            parameters = inspect.signature(init).parameters
            unknown = {k: v for k, v in options.items() if k not in parameters}
            if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
                refuse(init, unknown, type(self).__name__)
            raise

    return explaining


def dropped_only(set_to_none: bool) -> None:
    """Refuse PyTorch's other way of zero_grad."""
    if not set_to_none:
        raise InputError(
            "zero_grad drops gradients and does not fill them with zeros: there is no set_to_none=False."
        )
