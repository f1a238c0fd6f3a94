"""Register modules as pytrees of their parameters, and call a module with replaced parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adjoint import tree, words
from adjoint.core.convert import asarray
from adjoint.core.roles import ShellRole
from adjoint.core.tensor import Tensor
from adjoint.errors import ArgumentError, InputError
from adjoint.nn.module import Module

__all__ = ["functional_call", "unseen_parameters"]


_NAMES = ("_parameters", "_buffers")
_KNOWN = frozenset({bool, int, str, type(None)})  # types of attributes that are compared by value


class Shell(ShellRole):
    """A module without its parameters.  Two are equal if their modules differ only in parameters.

    All other attributes must be the same objects, or equal numbers and texts.
    """

    __slots__ = ()

    def __init__(self, module: Module) -> None:
        self.module = module

    def __eq__(self, other: object) -> bool:
        return type(other) is Shell and self.parameters_of(other.module) is not None

    def __hash__(self) -> int:
        return hash(type(self.module))

    def parameters_of(self, other: Any) -> tuple[Any, ...] | None:
        """Return the parameters of a module that differs only in them; None for another object."""
        ours: dict[int, Any] = {}  # the objects of ``other`` in place of ours, by id, and the other way round
        theirs: dict[int, Any] = {}
        found: list[Any] = []
        stack = [(self.module, other)]
        while stack:
            a, b = stack.pop()
            known = id(a) in ours
            if ours.setdefault(id(a), b) is not b or theirs.setdefault(id(b), a) is not a:
                return None
            if known:
                continue
            pairs = _pairs(a, b)
            if pairs is None:
                return None
            parameters, modules = pairs
            for p, q in parameters:
                if id(p) not in ours:
                    found.append(q)
                if ours.setdefault(id(p), q) is not q or theirs.setdefault(id(q), p) is not p:
                    return None
            stack.extend(reversed(modules))
        return tuple(found)


def _pairs(a: Any, b: Any) -> tuple[list[Any], list[Any]] | None:
    """Return the pairs of parameters, and of submodules, of two modules; None if anything else differs."""
    if type(a) is not type(b):
        return None
    # names of parameters and buffers are made when they are first read
    x, y = ({k: v for k, v in vars(m).items() if k not in _NAMES or v} for m in (a, b))
    if [*x] != [*y]:
        return None
    names, modules = x.get("_parameters", {}), []
    for name, value in x.items():
        other = y[name]
        if isinstance(value, Module):
            modules.append((value, other))
        elif name in _NAMES:
            if [*value] != [*other]:
                return None
        elif name in names and value is not None and other is not None:
            continue
        elif value is not other and not (type(other) is type(value) in _KNOWN and value == other):
            return None
    if any(name not in x for name in names):  # a property
        return None
    return [(x[name], y[name]) for name in names if x[name] is not None], modules


def _take_apart(module: Module) -> tuple[list[tuple[str, Any]], Shell]:
    return list(module.named_parameters()), Shell(module)


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


tree.register(Module, _take_apart, lambda shell, values: _put_together(shell.module, values))


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
