"""Register modules as pytrees of their parameters, and call a module with replaced parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adjoint import tree, words
from adjoint.core.convert import asarray
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, InputError
from adjoint.nn.module import Module

__all__ = ["functional_call", "unseen_parameters"]


def _take_apart(module: Module) -> tuple[list[tuple[str, Any]], Module]:
    return list(module.named_parameters()), module


def _put_together(module: Module, values: Sequence[Any], buffers: Mapping[int, Any] | None = None) -> Module:
    """Return a copy of ``module`` with the parameters ``values``.

    ``buffers`` maps the ids of old buffers to new buffers.  A value that occurs twice, such as the gradient
    of two biases that are added, is copied, because a single object would count as one shared parameter and
    change the structure of the pytree.  A leaf that requires grad is not copied: passing it twice ties two
    parameters.
    """
    distinct, seen = [], set()
    for v in values:
        again = id(v) in seen and isinstance(v, Tensor) and not (v.is_leaf and v.requires_grad)
        distinct.append(v.clone() if again else v)
        seen.add(id(v))
    replaced = dict(zip((id(p) for _, p in module.named_parameters()), distinct, strict=True))
    replaced.update(buffers or {})
    copies: dict[int, Module] = {}
    for _, m in reversed(list(module.named_modules())):
        copy = object.__new__(type(m))
        copy.__dict__.update(m.__dict__)
        copies[id(m)] = copy
    for copy in copies.values():
        for name, value in copy.__dict__.items():
            if isinstance(value, Module):
                copy.__dict__[name] = copies[id(value)]
            elif isinstance(value, Tensor) and id(value) in replaced:
                copy.__dict__[name] = replaced[id(value)]
    return copies[id(module)]


tree.register(Module, _take_apart, _put_together)


def unseen_parameters(module: Module) -> list[str]:
    """Return the paths of plain lists, tuples and dictionaries that contain parameters.

    Such parameters are not registered, so an optimiser does not find them.
    """
    seen = {id(p) for p in module.parameters()}
    found = []
    for path, m in module.named_modules():
        for name, value in m.__dict__.items():
            held = value.values() if isinstance(value, dict) else value
            for item in held if isinstance(value, (list, tuple, dict)) else ():
                leaf = isinstance(item, Tensor) and item.is_leaf
                params = item.parameters() if isinstance(item, Module) else [item] if leaf else []
                if any(p.requires_grad and id(p) not in seen for p in params):
                    found.append(f"{path}.{name}" if path else name)
                    break
    return found


def functional_call(module: Module, params: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
    """Call a module with different values for some of its parameters and buffers.

    The module itself is not changed.  In training, layers such as BatchNorm update a copy of their running
    statistics, or the tensors that are given for them, in place.

    Parameters
    ----------
    module : Module
        The module to call.
    params : mapping of str to array_like
        Values of parameters and buffers by path.
    *args : object
        Arguments of the module.  A single tuple is unpacked, as in PyTorch.
    **kwargs : object
        Keyword arguments of the module.

    Returns
    -------
    object
        The output of the module.

    Raises
    ------
    ArgumentError
        If a path is unknown, or one shared tensor is given two values.

    Examples
    --------
    >>> import adjoint as ad
    >>> layer = ad.nn.Linear(2, 1, bias=False)
    >>> ad.nn.functional_call(layer, {"weight": ad.ones((1, 2))}, ad.tensor([3.0, 4.0]))
    tensor([7.], dtype=float64)
    """
    if not isinstance(params, Mapping):
        raise InputError(
            f"functional_call: params must be a mapping of names to values, not "
            f"{words.a(type(params).__name__)}."
        )
    named = module._everything()
    unknown = [str(k) for k in params if k not in named]
    if unknown:
        raise ArgumentError(
            f"functional_call: the module has no parameters or buffers {', '.join(unknown)}.  "
            f"It has {', '.join(named) or 'none'}."
        )
    given: dict[int, Any] = {}
    for k, value in params.items():
        if given.setdefault(id(named[k]), value) is not value:
            raise ArgumentError(
                f"functional_call: {k} and another name in params are the same tensor in the module, but "
                "have different values in params.  Pass one of the two names."
            )
    values = [given.get(id(p), p) for _, p in module.named_parameters()]
    # layers in training write into their buffers, so each buffer that is not given is copied
    own = (b for _, b in module.named_buffers())
    buffers = {id(b): asarray(given[id(b)]) if id(b) in given else b.clone() for b in own}
    if len(args) == 1 and isinstance(args[0], tuple):
        args = args[0]  # all arguments in one tuple, as in PyTorch
    return _put_together(module, values, buffers)(*args, **kwargs)
