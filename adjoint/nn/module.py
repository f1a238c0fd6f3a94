"""Module: parameters, buffers and other modules under names; a function of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Never
from weakref import WeakValueDictionary

from adjoint import tree
from adjoint.config import no_grad
from adjoint.core.convert import asarray, tensor
from adjoint.core.fitting import fitting
from adjoint.core.node import Handle, HookList
from adjoint.core.tensor import Tensor, differentiable, writable
from adjoint.errors import AdjointError, ArgumentError, InputError, ShapeError
from adjoint.grads.slots import drop

__all__ = ["Module", "Parameter", "functional_call"]


# what Parameter() made and what became a parameter by assignment, by id
_made: WeakValueDictionary[int, Tensor] = WeakValueDictionary()


def Parameter(data: Any, requires_grad: bool = True, dtype: Any = None) -> Tensor:  # noqa: N802  reads as a class
    """Make a tensor that a module trains: a leaf that requires grad.

    With ``requires_grad=False`` it is a frozen one: a parameter, saved like the others, but not trained.

    >>> Parameter([1.0, 2.0])
    tensor([1., 2.], dtype=float64, requires_grad=True)
    """
    made = tensor(data, dtype=dtype, requires_grad=requires_grad)
    _made[id(made)] = made
    return made


class Unmatched(NamedTuple):
    """What ``load_state_dict`` passed over: names of the module, and names of the state."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Module:
    """A function with parameters: subclass it, assign tensors and modules, write ``forward``.

    A leaf tensor that requires grad, or what ``Parameter`` made, becomes a parameter when it is assigned;
    ``register_buffer`` adds tensors that are saved but not trained.  Modules are trees of their parameters
    to the transforms: ``ad.grad(lambda m: loss(m(x)))(model)`` returns a model of gradients.

    >>> import adjoint as ad
    >>> class Scale(ad.nn.Module):
    ...     def __init__(self):
    ...         self.factor = ad.nn.Parameter([2.0, 3.0])
    ...     def forward(self, x):
    ...         return x * self.factor
    >>> model = Scale()
    >>> model(ad.tensor([1.0, 1.0])).sum().backward()
    >>> model.factor.grad
    tensor([1., 1.], dtype=float64)
    """

    training: bool = True
    _forward_hooks: tuple[HookList, HookList] | None = None  # before and after

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor):
            if value.is_leaf and (value.requires_grad or _made.get(id(value)) is value):
                self._names("_parameters").setdefault(name)
                self._names("_buffers").pop(name, None)
                _made[id(value)] = value
            elif name in self._names("_parameters") and value is not self.__dict__.get(name):
                self._refuse_parameter(
                    name, "tensor that does not require grad" if value.is_leaf else "result"
                )
        elif value is not None:
            value = self._instead(name, value)
        object.__setattr__(self, name, value)

    def _instead(self, name: str, value: Any) -> Any:
        """Return what is assigned where it is no tensor: an array for a buffer becomes one."""
        parameters, buffers = self._names("_parameters"), self._names("_buffers")
        if isinstance(value, Module):
            parameters.pop(name, None)
            buffers.pop(name, None)
        elif name in buffers:
            return asarray(value)
        elif name in parameters:
            self._refuse_parameter(name, type(value).__name__)
        return value

    def _refuse_parameter(self, name: str, what: str) -> Never:
        raise InputError(
            f"{type(self).__name__}.{name} is a parameter, but is assigned a {what}.\n"
            "  Assign nn.Parameter(value), or write into the parameter: "
            f"{name}.copy_(value) under ad.no_grad()."
        )

    def __delattr__(self, name: str) -> None:
        self._names("_parameters").pop(name, None)
        self._names("_buffers").pop(name, None)
        object.__delattr__(self, name)

    def _names(self, kind: str) -> dict[str, None]:
        """Names of own parameters or buffers, in the order of assignment."""
        names: dict[str, None] = self.__dict__.setdefault(kind, {})
        return names

    def register_buffer(self, name: str, value: Any) -> None:
        """Add a tensor that is saved with the module but not trained."""
        if not name.isidentifier():
            raise ArgumentError(f"a buffer's name is a Python name, not {name!r}.")
        self._names("_buffers").setdefault(name)
        self._names("_parameters").pop(name, None)
        object.__setattr__(self, name, None if value is None else asarray(value))

    # Calling ---------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs; what a subclass writes."""
        raise NotImplementedError(  # not abstract: a module may only hold others
            f"{type(self).__name__} has no forward()."
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call ``forward``; an error inside says in which module, by its path."""
        try:
            if self._forward_hooks is None:
                return self.forward(*args, **kwargs)
            return self._hooked(args, kwargs)
        except AdjointError as error:
            _add_path(error, self)
            raise

    def register_forward_hook(self, hook: Callable[[Any, Any, Any], Any]) -> Handle:
        """Call ``hook(module, inputs, output)`` after each ``forward``; what it returns replaces the output.

        ``inputs`` is the tuple of positional arguments.  None keeps the output.  Hooks run in the order of
        registration; the handle's ``remove()`` takes the hook off.

        >>> import adjoint as ad
        >>> layer, shapes = ad.nn.Linear(2, 3), []
        >>> handle = layer.register_forward_hook(lambda module, inputs, output: shapes.append(output.shape))
        >>> _ = layer(ad.ones((4, 2), dtype="float32"))
        >>> shapes
        [(4, 3)]
        >>> handle.remove()
        """
        return self._add_hook(1, hook)

    def register_forward_pre_hook(self, hook: Callable[[Any, Any], Any]) -> Handle:
        """Call ``hook(module, inputs)`` before each ``forward``; what it returns replaces the inputs.

        ``inputs`` is the tuple of positional arguments, and so is what the hook returns: a value that is no
        tuple is the only input.  None keeps the inputs.
        """
        return self._add_hook(0, hook)

    def _add_hook(self, when: int, hook: Any) -> Handle:
        if not callable(hook):
            raise InputError(f"{type(self).__name__}: a hook is a function, but got {type(hook).__name__}.")
        if self._forward_hooks is None:
            object.__setattr__(self, "_forward_hooks", (HookList(), HookList()))
        return self._forward_hooks[when].add(hook)  # type: ignore[index]  # set in the line above

    def _hooked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call ``forward`` between its hooks."""
        before, after = self._forward_hooks  # type: ignore[misc]  # called only where there are hooks
        for hook in before.snapshot():
            found = hook(self, args)
            if found is not None:
                args = found if isinstance(found, tuple) else (found,)
        output = self.forward(*args, **kwargs)
        for hook in after.snapshot():
            found = hook(self, args, output)
            output = output if found is None else found
        return output

    # Looking inside --------------------------------------------------------------------------

    def children(self) -> Iterator[Module]:
        """Yield own modules."""
        return (child for _, child in self.named_children())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yield own modules with their names."""
        for name, value in self.__dict__.items():
            if isinstance(value, Module):
                yield name, value

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yield this module and all inside it, with their paths; each once."""
        seen: set[int] = set()
        stack = [(prefix, self)]
        while stack:
            path, module = stack.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            yield path, module
            inner = [(f"{path}.{name}" if path else name, child) for name, child in module.named_children()]
            stack.extend(reversed(inner))

    def modules(self) -> Iterator[Module]:
        """Yield this module and all inside it; a shared one once."""
        return (module for _, module in self.named_modules())

    def _named(self, kind: str) -> Iterator[tuple[str, Tensor]]:
        seen: set[int] = set()
        for path, module in self.named_modules():
            for name in module._names(kind):
                value = getattr(module, name)
                if value is not None and id(value) not in seen:
                    seen.add(id(value))
                    yield (f"{path}.{name}" if path else name), value

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield all parameters with their paths; a shared one once."""
        return self._named("_parameters")

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield all buffers with their paths."""
        return self._named("_buffers")

    def parameters(self) -> list[Tensor]:
        """Return all parameters."""
        return [p for _, p in self.named_parameters()]

    def requires_grad_(self, requires_grad: bool = True) -> Module:
        """Train all parameters, or freeze them; return the module."""
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of all parameters."""
        drop(self.parameters(), set_to_none)

    def train(self, mode: bool = True) -> Module:
        """Switch dropout and batch statistics on or off, here and inside; return the module."""
        for _, module in self.named_modules():
            module.training = mode
        return self

    def eval(self) -> Module:
        """Switch to evaluation: ``train(False)``."""
        return self.train(False)

    def apply(self, function: Callable[[Module], None]) -> Module:
        """Call ``function`` with this module and all inside it; return the module."""
        for _, module in self.named_modules():
            function(module)
        return self

    def astype(self, dtype: Any) -> Module:
        """Replace all parameters and float buffers by ones of another dtype; return the module.

        A tensor that is shared stays shared.  Make the optimiser afterwards: it holds what it was given.
        """
        fresh: dict[int, tuple[Tensor, Tensor]] = {}  # the old ones too, so that no id is used again
        for _, module in self.named_modules():
            for name in (*module._names("_parameters"), *module._names("_buffers")):
                value = getattr(module, name)
                if value is None or not differentiable(value.dtype) or value.dtype.kind == "c":
                    continue
                if id(value) not in fresh:
                    new = tensor(value.detach(), dtype=dtype, requires_grad=value.requires_grad)
                    fresh[id(value)] = value, new
                object.__setattr__(module, name, fresh[id(value)][1])
        return self

    # Saving ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return all parameters and buffers by path, as copies in NumPy arrays.

        What is shared, a tensor or a whole module, is there under each of its paths, as in PyTorch.
        """
        return {path: value.numpy(copy=True) for path, value in self._everything().items()}

    def _everything(self) -> dict[str, Tensor]:
        """All parameters, then all buffers, under each of their paths."""
        modules = list(self._all_paths())
        return {
            f"{path}.{name}" if path else name: value
            for kind in ("_parameters", "_buffers")
            for path, module in modules
            for name in module._names(kind)
            if (value := getattr(module, name)) is not None
        }

    def _all_paths(self) -> Iterator[tuple[str, Module]]:
        """Like ``named_modules``, but a shared module under each of its paths."""
        stack: list[tuple[str, Module, tuple[Module, ...]]] = [("", self, ())]
        while stack:
            path, module, above = stack.pop()
            yield path, module
            above = (*above, module)
            inner = [
                (f"{path}.{name}" if path else name, child, above)
                for name, child in module.named_children()
                if not any(child is m for m in above)  # one that holds itself has paths without end
            ]
            stack.extend(reversed(inner))

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> Unmatched:
        """Take over values by path; everything is checked, and listed, before anything changes.

        Numbers of another width are converted (float64 to float32, say), those of another kind (whole or
        complex ones for a float parameter) or beyond the range of the dtype are refused.  What is shared, a
        tensor or a whole module, may be given under any of its paths; where it is given under several, the
        values must be equal.  ``strict=False`` passes over names that are missing or extra, and returns them,
        as long as there are any that are neither.
        """
        if not isinstance(state, Mapping):
            raise InputError(
                f"load_state_dict: a state is a dictionary by path, not a {type(state).__name__}."
            )
        ours = self._everything()
        problems = []
        taken: dict[int, tuple[str, Any]] = {}  # by the tensor's id: the path it is given under, the value
        for k in (k for k in ours if k in state):
            found = fitting(state[k], ours[k])
            first, value = taken.setdefault(id(ours[k]), (k, found))
            if isinstance(found, str):
                problems.append(f"  {k}: {found}")
            elif not isinstance(value, str) and value is not found and value.tobytes() != found.tobytes():
                problems.append(f"  {k}: is the same tensor as {first} here, but has other values")
        missing = [k for k, t in ours.items() if id(t) not in taken]
        extra = [k for k in state if k not in ours]
        if strict or (ours and extra and not taken):
            problems += [f"  {k}: missing" for k in missing]
            problems += [f"  {k}: not in this module" for k in extra]
        if problems:
            raise ShapeError(
                f"load_state_dict: {len(problems)} names do not fit {type(self).__name__}; nothing was "
                "loaded.\n" + "\n".join(problems) + _other_prefix(missing, extra)
            )
        with no_grad():
            for k, value in taken.values():
                writable(ours[k])[...] = value
        return Unmatched(missing, extra)

    # Showing ---------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        """Return what is worth knowing in one line; layers override it."""
        return ""

    def __repr__(self) -> str:
        lines = [self._headline()]
        for path, module in self.named_modules():
            if path:
                depth = path.count(".") + 1
                lines.append("  " * depth + f"{path.rpartition('.')[2]}: {module._headline()}")
        return "\n".join(lines)

    def _headline(self) -> str:
        tensors = [p for p in self.parameters() if isinstance(p, Tensor)]  # a Hessian has modules there
        count = sum(p.size for p in tensors)
        # a module of gradients has tensors that are no parameters
        frozen = sum(p.size for p in tensors if not p.requires_grad and _made.get(id(p)) is p)
        numbers = f"  # {count:,} parameters" if count else ""
        if frozen:
            numbers += ", frozen" if frozen == count else f", {frozen:,} of them frozen"
        return f"{type(self).__name__}({self.extra_repr()}){numbers}"


def _other_prefix(missing: Collection[str], extra: Collection[str]) -> str:
    """Say what to do where the names of a state are those of a module but for something in front."""
    for wanted, found in ((missing, extra), (extra, missing)):
        name = str(next(iter(found), ""))
        for prefix in (name[: i + 1] for i, c in enumerate(name) if c == "."):
            fitting = sum(str(k).startswith(prefix) and str(k)[len(prefix) :] in wanted for k in found)
            if 2 * fitting > len(extra) and found is extra:
                return (
                    f"\n  The names begin with {prefix!r}: load "
                    f"{{k.removeprefix({prefix!r}): v for k, v in state.items()}}."
                )
            if 2 * fitting > len(extra):
                return f"\n  The names are those of the part {prefix[:-1]!r}: load them there."
    return ""


def _add_path(error: AdjointError, module: Module) -> None:
    """Put the path of the module in which an error arose into its message."""
    inner: tuple[Module, str] | None = getattr(error, "_module", None)
    path = ""
    if inner is not None:
        name = next((n for n, m in module.named_modules() if m is inner[0]), "")
        path = ".".join(part for part in (name, inner[1]) if part)
    plain = getattr(error, "_plain", error.args[0] if error.args else "")
    head = f"the module {type(module).__name__}" + (f", at {path!r}" if path else "")
    error._module, error._plain = (module, path), plain
    error.args = (f"{plain}\n  In {head}.", *error.args[1:])


# Modules as trees ------------------------------------------------------------------------------


def _take_apart(module: Module) -> tuple[list[tuple[str, Any]], Module]:
    return list(module.named_parameters()), module


def _put_together(module: Module, values: Sequence[Any], buffers: Mapping[int, Any] | None = None) -> Module:
    """Return a copy of ``module`` with other values in place of its parameters, and of buffers by their id.

    A value that comes twice, such as the one gradient of two biases that are added, is copied: as one
    object it would be one parameter, and the copy would have another structure than ``module``.  A
    leaf that requires grad stays itself: whoever gives it twice ties two parameters.
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
    """Return the paths of plain lists, tuples and dictionaries that hold parameters which nobody sees."""
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
    """Call a module with other values for some of its parameters and buffers, by path.

    The module's own stay as they are, also in training, where layers such as BatchNorm move their running
    statistics: they move those of a copy, or the tensors that are given for them, in place.  A single tuple
    in place of ``args`` holds all arguments, as in PyTorch.

    >>> import adjoint as ad
    >>> layer = ad.nn.Linear(2, 1, bias=False)
    >>> ad.nn.functional_call(layer, {"weight": ad.ones((1, 2))}, ad.tensor([3.0, 4.0]))
    tensor([7.], dtype=float64)
    """
    if not isinstance(params, Mapping):
        raise InputError(f"functional_call: values are a dictionary by path, not a {type(params).__name__}.")
    named = module._everything()
    unknown = [str(k) for k in params if k not in named]
    if unknown:
        raise ArgumentError(
            f"functional_call: no parameters or buffers {', '.join(unknown)}; "
            f"there are {', '.join(named) or 'none'}."
        )
    given: dict[int, Any] = {}
    for k, value in params.items():
        if given.setdefault(id(named[k]), value) is not value:
            raise ArgumentError(
                f"functional_call: {k} is shared with another of the names, but has another value."
            )
    values = [given.get(id(p), p) for _, p in module.named_parameters()]
    # layers in training write into their buffers, so each buffer that is not given is copied
    buffers = {
        id(b): asarray(given[id(b)]) if id(b) in given else b.clone() for _, b in module.named_buffers()
    }
    if len(args) == 1 and isinstance(args[0], tuple):
        args = args[0]  # PyTorch's form
    return _put_together(module, values, buffers)(*args, **kwargs)
