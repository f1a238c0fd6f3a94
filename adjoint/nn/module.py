"""``Module``, the base class of all modules, and ``Parameter``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Never, ParamSpec, Protocol, TypeVar
from weakref import WeakValueDictionary

from adjoint import words
from adjoint.config import no_grad, special
from adjoint.context import observer, user_code
from adjoint.core.convert import asarray, tensor
from adjoint.core.inplace import writable
from adjoint.core.lifted import refuse_tracing, tracing
from adjoint.core.node import Handle, HookList
from adjoint.core.roles import ModuleRole
from adjoint.core.tensor import Tensor, differentiable
from adjoint.errors import AdjointError, ArgumentError, InputError, ShapeError
from adjoint.grads.slots import drop
from adjoint.hints import HintedBase
from adjoint.interop.notebook import module_html
from adjoint.nn.module_errors import add_path, matched, name_in_errors, other_prefix
from adjoint.tracebacks import hide, is_of_call
from adjoint.typing import ArrayLike, DTypeLike

__all__ = ["Module", "Parameter"]


P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

# by id: the tensors that are parameters, because Parameter() made them or they were assigned to a module
_made: WeakValueDictionary[int, Tensor] = WeakValueDictionary()


def Parameter(data: ArrayLike, requires_grad: bool = True, dtype: DTypeLike | None = None) -> Tensor:  # noqa: N802  reads as a class
    """Make a tensor that is a parameter of the module it is assigned to.

    Parameters
    ----------
    data : array_like
        The initial value.
    requires_grad : bool
        With False the parameter is frozen: it is saved with the module, but not trained.
    dtype : dtype_like, optional
        The dtype.

    Returns
    -------
    Tensor
        A leaf tensor.

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.nn.Parameter([1.0, 2.0])
    tensor([1., 2.], dtype=float64, requires_grad=True)
    """
    made = tensor(data, dtype=dtype, requires_grad=requires_grad)
    _made[id(made)] = made
    return made


class Unmatched(NamedTuple):
    """Names that ``load_state_dict`` skipped, because the state or the module does not have them."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class _Forward(Protocol[P, R_co]):
    """A type that tells type checkers that calling a module has the signature of its ``forward``."""

    _forward_hooks: Any

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    def _hooked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...

    def _seen(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...


class Module(ModuleRole, metaclass=HintedBase):
    """Base class of functions with parameters.

    A subclass assigns tensors and modules to attributes, and defines ``forward``.  A leaf tensor that
    requires grad, or a tensor made by ``Parameter``, becomes a parameter when it is assigned.
    ``register_buffer`` adds tensors that are saved but not trained.  Transforms treat a module as a pytree
    of its parameters: ``ad.grad(lambda m: loss(m(x)))(model)`` returns a module that holds gradients.

    Examples
    --------
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
    _forward_hooks: tuple[HookList, HookList] | None = None  # called before and after ``forward``

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            if isinstance(value, Tensor):
                self._observe(name, value)
            elif value is not None:
                value = self._instead(name, value)
        except InputError as error:
            hide(error)
            raise
        object.__setattr__(self, name, value)

    def _observe(self, name: str, value: Tensor) -> None:
        """Note a parameter if ``value`` is one; raise if ``name`` is a parameter and ``value`` cannot be."""
        if value.is_leaf and (value.requires_grad or _made.get(id(value)) is value):
            self._names("_parameters").setdefault(name)
            self._names("_buffers").pop(name, None)
            _made[id(value)] = value
        elif name in self._names("_parameters") and value is not self.__dict__.get(name):
            self._refuse_parameter(name, "tensor that does not require grad" if value.is_leaf else "result")

    def _instead(self, name: str, value: Any) -> Any:
        """Return the value to store if ``value``, not a tensor, is assigned to the attribute ``name``.

        If ``name`` is a buffer, the value is converted to a tensor.  If ``name`` is a parameter, raise unless
        the value is a module.
        """
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
            f"{type(self).__name__}.{name} is a parameter, so {words.a(what)} cannot be assigned to it.\n"
            "  Assign nn.Parameter(value), or copy the value into the parameter: "
            f"`with ad.no_grad(): {name}.copy_(value)`."
        )

    def __delattr__(self, name: str) -> None:
        self._names("_parameters").pop(name, None)
        self._names("_buffers").pop(name, None)
        object.__delattr__(self, name)

    def _names(self, kind: str) -> dict[str, None]:
        """Return the names of the module's own parameters or buffers, in the order of assignment.

        ``kind`` is "_parameters" or "_buffers".
        """
        names: dict[str, None] = self.__dict__.setdefault(kind, {})
        return names

    def register_buffer(self, name: str, value: ArrayLike) -> None:
        """Add a tensor that is saved with the module but not trained.

        Parameters
        ----------
        name : str
            The name of the attribute.
        value : array_like or None
            The value.

        Raises
        ------
        ArgumentError
            If the name is not a Python identifier.
        """
        if not name.isidentifier():
            raise ArgumentError(f"register_buffer: the name must be a Python identifier, not {name!r}.")
        self._names("_buffers").setdefault(name)
        self._names("_parameters").pop(name, None)
        object.__setattr__(self, name, None if value is None else asarray(value))

    # Calling ---------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs.  Subclasses define it.

        Parameters
        ----------
        *args : object
            The inputs.
        **kwargs : object
            Keyword arguments.

        Returns
        -------
        object
            The outputs.
        """
        raise NotImplementedError(  # not abstract, because a container has no forward
            f"{type(self).__name__} has no forward().  Define it in the class to call the module."
        )

    def __call__(self: _Forward[P, R_co], *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call ``forward``.  The message of an error inside names the module and its path."""
        try:
            if special.count:
                return self._seen(args, kwargs)
            if self._forward_hooks is None:
                return self.forward(*args, **kwargs)
            return self._hooked(args, kwargs)
        except Exception as error:
            if isinstance(error, AdjointError):
                add_path(error, self)
            hide(error, by_user=is_of_call(error))
            raise

    def _seen(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call ``forward`` and the hooks, and return the output.

        The call is reported to the active trace and to the active observer, such as a profile.
        """
        trace = tracing.get()
        if trace is not None:
            if self._forward_hooks is not None and all(m is not self for m in trace.hooked):
                trace.hooked.append(self)
            trace.modules[id(self)] = self
            before = len(trace.indices), len(trace.decisions)
        if (watcher := observer.get()) is not None:
            y = watcher.called(self, self._plainly, args, kwargs)
        else:
            y = self._plainly(*args, **kwargs)
        if trace is not None:
            name_in_errors(self, trace, *before)
        return y

    def _plainly(self, *args: Any, **kwargs: Any) -> Any:
        if self._forward_hooks is not None:
            return self._hooked(args, kwargs)
        return user_code(self, "forward")(*args, **kwargs)

    def register_forward_hook(self, hook: Callable[[Any, Any, Any], Any]) -> Handle:
        """Call a function after each ``forward``.

        Hooks run in the order of registration.

        Parameters
        ----------
        hook : callable
            ``hook(module, inputs, output)``, where ``inputs`` is the tuple of positional arguments.  A
            result other than None replaces the output.

        Returns
        -------
        Handle
            Its ``remove()`` removes the hook.

        Examples
        --------
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
        """Call a function before each ``forward``.

        Parameters
        ----------
        hook : callable
            ``hook(module, inputs)``, where ``inputs`` is the tuple of positional arguments.  A result other
            than None replaces the inputs; a result that is not a tuple is the only input.

        Returns
        -------
        Handle
            Its ``remove()`` removes the hook.
        """
        return self._add_hook(0, hook)

    def _add_hook(self, when: int, hook: Any) -> Handle:
        if not callable(hook):
            raise InputError(f"{type(self).__name__}: a hook must be callable, not {type(hook).__name__}.")
        if self._forward_hooks is None:
            object.__setattr__(self, "_forward_hooks", (HookList(), HookList()))
        hooks = self._forward_hooks[when]  # type: ignore[index]  # set in the line above
        if (trace := tracing.get()) is not None:
            trace.note_hooks(hooks, outside=True)
        return hooks.add(hook)

    def _hooked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the hooks before ``forward``, ``forward``, and the hooks after it; return the output."""
        before, after = self._forward_hooks  # type: ignore[misc]  # called only where there are hooks
        for hook in before.to_call():
            found = hook(self, args)
            if found is not None:
                args = found if isinstance(found, tuple) else (found,)
        output = user_code(self, "forward")(*args, **kwargs)
        for hook in after.to_call():
            found = hook(self, args, output)
            output = output if found is None else found
        return output

    # Looking inside --------------------------------------------------------------------------

    def children(self) -> Iterator[Module]:
        """Return an iterator over the modules that are attributes of this one."""
        return (child for _, child in self.named_children())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Return an iterator over the modules that are attributes of this one, with their names."""
        for name, value in self.__dict__.items():
            if isinstance(value, Module):
                yield name, value

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Return an iterator over this module and all modules inside it, with their paths; each module once.

        Parameters
        ----------
        prefix : str
            The path of this module.

        Returns
        -------
        iterator of (str, Module)
            Paths and modules.
        """
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
        """Return an iterator over this module and all modules inside it; a shared module occurs once."""
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
        """Return an iterator over all parameters with their paths.  A shared parameter is returned once."""
        return self._named("_parameters")

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Return an iterator over all buffers with their paths."""
        return self._named("_buffers")

    def parameters(self) -> list[Tensor]:
        """Return a list of all parameters.  A shared parameter is in it once."""
        return [p for _, p in self.named_parameters()]

    def requires_grad_(self, requires_grad: bool = True) -> Module:
        """Set whether all parameters require grad: False freezes them.

        Parameters
        ----------
        requires_grad : bool
            The new value.

        Returns
        -------
        Module
            The module itself.
        """
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients of all parameters to None.

        Parameters
        ----------
        set_to_none : bool
            Must be True.  The parameter exists for compatibility with PyTorch.
        """
        drop(self.parameters(), set_to_none)

    def train(self, mode: bool = True) -> Module:
        """Set training mode in this module and all modules inside: dropout and batch statistics are used.

        Parameters
        ----------
        mode : bool
            With False, evaluation mode.

        Returns
        -------
        Module
            The module itself.
        """
        for _, module in self.named_modules():
            module.training = mode
        return self

    def eval(self) -> Module:
        """Set evaluation mode: ``train(False)``."""
        return self.train(False)

    def apply(self, function: Callable[[Module], None]) -> Module:
        """Call a function with this module and with all modules inside it.

        Parameters
        ----------
        function : callable
            The function of a module.

        Returns
        -------
        Module
            The module itself.
        """
        for _, module in self.named_modules():
            function(module)
        return self

    def astype(self, dtype: DTypeLike) -> Module:
        """Replace all parameters and float buffers by tensors of another dtype.

        A shared tensor stays shared.  Create the optimiser afterwards, because it updates the tensors that it
        was given.

        Parameters
        ----------
        dtype : dtype_like
            The new dtype.

        Returns
        -------
        Module
            The module itself.
        """
        fresh: dict[int, tuple[Tensor, Tensor]] = {}  # old and new; keeping the old prevents reuse of its id
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
        """Return copies of all parameters and buffers by path.

        A shared tensor or module appears under each of its paths, as in PyTorch.

        Returns
        -------
        dict of str to ndarray
            The values.

        Examples
        --------
        >>> import adjoint as ad
        >>> {path: value.shape for path, value in ad.nn.Linear(2, 3).state_dict().items()}
        {'weight': (3, 2), 'bias': (3,)}
        """
        if special.count:
            refuse_tracing("state_dict() of a module", "Call it outside of the compiled function.")
        return {path: value.numpy(copy=True) for path, value in self._everything().items()}

    def _everything(self) -> dict[str, Tensor]:
        """Return a dictionary of all parameters, then all buffers, by path.

        A shared tensor is in it under each of its paths.
        """
        modules = list(self._all_paths())
        return {
            f"{path}.{name}" if path else name: value
            for kind in ("_parameters", "_buffers")
            for path, module in modules
            for name in module._names(kind)
            if (value := getattr(module, name)) is not None
        }

    def _all_paths(self) -> Iterator[tuple[str, Module]]:
        """Yield modules like ``named_modules``, but a shared module under each of its paths."""
        stack: list[tuple[str, Module, tuple[Module, ...]]] = [("", self, ())]
        while stack:
            path, module, above = stack.pop()
            yield path, module
            above = (*above, module)
            inner = [
                (f"{path}.{name}" if path else name, child, above)
                for name, child in module.named_children()
                if not any(child is m for m in above)  # a module inside itself would have endless paths
            ]
            stack.extend(reversed(inner))

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> Unmatched:
        """Load values by path.  An error leaves the module unchanged.

        Values of a different precision are converted, for example float64 to float32.  A shared tensor or
        module may be given under any of its paths; values under several paths must be equal.

        Parameters
        ----------
        state : mapping of str to array_like
            The values by path, as ``state_dict`` returns them.
        strict : bool
            With False, missing and unknown names are skipped, but at least one name must match.

        Returns
        -------
        Unmatched
            The lists ``missing_keys`` and ``unexpected_keys``.

        Raises
        ------
        ShapeError
            If names or shapes do not match, or values overflow or have a different kind of dtype.

        Examples
        --------
        >>> import adjoint as ad
        >>> model, copy = ad.nn.Linear(2, 3, rng=0), ad.nn.Linear(2, 3, rng=1)
        >>> copy.load_state_dict(model.state_dict())
        Unmatched(missing_keys=[], unexpected_keys=[])
        """
        if special.count:
            refuse_tracing("load_state_dict() of a module", "Call it outside of the compiled function.")
        if not isinstance(state, Mapping):
            raise InputError(
                "load_state_dict: the state must be a mapping of names to values, such as state_dict() "
                f"returns, not {words.a(type(state).__name__)}."
            )
        ours = self._everything()
        taken, problems = matched(state, ours)
        missing = [k for k, t in ours.items() if id(t) not in taken]
        extra = [k for k in state if k not in ours]
        if strict or (ours and extra and not taken):
            problems += [f"  {k}: missing from the state" for k in missing]
            problems += [f"  {k}: not in this module" for k in extra]
        if problems:
            raise ShapeError(
                f"load_state_dict: {len(problems)} entries of the state do not match {type(self).__name__}, "
                "so nothing was loaded.\n" + "\n".join(problems) + other_prefix(missing, extra)
            )
        with no_grad():
            for k, value in taken.values():
                writable(ours[k])[...] = value
        return Unmatched(missing, extra)

    # Showing ---------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        """Return the text inside the parentheses of the module's repr; subclasses override this method."""
        return ""

    def __repr__(self) -> str:
        lines = [self._headline()]
        for path, module in self.named_modules():
            if path:
                depth = path.count(".") + 1
                lines.append("  " * depth + f"{path.rpartition('.')[2]}: {module._headline()}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return module_html(self)

    def _headline(self) -> str:
        tensors = [p for p in self.parameters() if isinstance(p, Tensor)]  # in a Hessian they are modules
        count = sum(p.size for p in tensors)
        # the tensors of a module of gradients are not parameters, so they are not called frozen
        frozen = sum(p.size for p in tensors if not p.requires_grad and _made.get(id(p)) is p)
        numbers = f"  # {words.count(count, 'parameter')}" if count else ""
        if frozen:
            numbers += ", frozen" if frozen == count else f", {frozen:,} of them frozen"
        return f"{type(self).__name__}({self.extra_repr()}){numbers}"
