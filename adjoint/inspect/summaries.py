"""``summary``: the modules of a model with shapes, parameters, bytes and time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adjoint import tree
from adjoint.config import no_grad
from adjoint.core.tensor import Tensor
from adjoint.errors import InputError
from adjoint.inspect.profiling import quantity, time_text
from adjoint.inspect.watch import Scope, Watch
from adjoint.interop.notebook import text_html
from adjoint.nn.module import Module
from adjoint.words import a

__all__ = ["Layer", "Summary", "summary"]


@dataclass
class Layer:
    """One call of a module in a summary.

    Parameters
    ----------
    path : str
        The path of the module; "" for the model.
    kind : str
        The class of the module.
    depth : int
        The number of modules that contain it.
    output : str
        The shapes of its outputs.
    parameters : int
        The number of elements of its parameters, including those of its submodules.
    trained : int
        The number of those elements that require grad.
    made : int
        Bytes of the arrays that its ops created.
    seconds : float
        The time of the call.
    again : bool
        Whether the module was called before.

    Examples
    --------
    >>> from adjoint.inspect import Layer
    >>> Layer("0", "Linear", 1, "4×2", 6, 6, 32, 0.0, False).kind
    'Linear'
    """

    path: str
    kind: str
    depth: int
    output: str
    parameters: int
    trained: int
    made: int
    seconds: float
    again: bool


class Summary:
    """The calls of modules in one forward, as returned by ``summary``.

    Parameters
    ----------
    layers : list of Layer
        The calls, in order.
    totals : dict of str to int
        "parameters", "trained", "parameter_bytes" and "made".

    Examples
    --------
    >>> import adjoint as ad
    >>> ad.inspect.summary(ad.nn.Linear(2, 3), ad.ones((4, 2), dtype="float32")).totals["parameters"]
    9
    """

    def __init__(self, layers: list[Layer], totals: dict[str, int]) -> None:
        self.layers = layers
        self.totals = totals

    def _repr_html_(self) -> str:
        return text_html(str(self))

    def __str__(self) -> str:
        head = ["module", "output", "parameters", "made", "time"]
        lines = [head]
        for layer in self.layers:
            name = "  " * layer.depth + (f"{layer.path.rpartition('.')[2]}: " if layer.path else "")
            count = "again" if layer.again else f"{layer.parameters:,}" if layer.parameters else ""
            count += " frozen" if layer.parameters and not layer.trained and not layer.again else ""
            lines.append(
                [name + layer.kind, layer.output, count, quantity(layer.made), time_text(layer.seconds)]
            )
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        texts = [
            "  ".join(
                [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]
            ).rstrip()
            for line in lines
        ]
        t = self.totals
        frozen = t["parameters"] - t["trained"]
        return "\n".join(
            [
                *texts,
                "",
                f"{t['parameters']:,} parameters in {quantity(t['parameter_bytes'])}"
                + (f", {frozen:,} of them frozen" if frozen else "")
                + f"; the forward makes {quantity(t['made'])} of arrays.",
            ]
        )

    def __repr__(self) -> str:
        return str(self)


def _not_an_input(inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Return an error message if there is no input, or if a shape was passed instead, otherwise None."""
    call = 'summary(model, ad.ones({}, dtype="float32")).'
    if not inputs and not kwargs:
        return "summary: pass the inputs with which the model is called: " + call.format("(64, 4)")
    shape = inputs[0] if inputs else None
    if isinstance(shape, (tuple, list)) and shape and all(type(n) is int for n in shape):
        return "summary: pass an input of the model, not its shape: " + call.format(tuple(shape))
    return None


def summary(model: Module, *inputs: Any, **kwargs: Any) -> Summary:
    """Call a model once, and list its modules with shapes, parameters, bytes and time.

    The model is called in evaluation mode and under ``no_grad``.

    Parameters
    ----------
    model : Module
        The model.
    *inputs : object
        The inputs of the call.
    **kwargs : object
        Keyword arguments of the call.

    Returns
    -------
    Summary
        The summary, which prints as a table.

    Raises
    ------
    InputError
        If ``model`` is not a module, or the input is missing or a shape.

    Examples
    --------
    >>> import adjoint as ad
    >>> model = ad.nn.Sequential(ad.nn.Linear(4, 8), ad.nn.ReLU(), ad.nn.Linear(8, 2))
    >>> found = ad.inspect.summary(model, ad.ones((16, 4), dtype="float32"))
    >>> [(layer.path, layer.kind, layer.output, layer.parameters) for layer in found.layers[1:]]
    [('0', 'Linear', '16×8', 40), ('1', 'ReLU', '16×8', 0), ('2', 'Linear', '16×2', 18)]
    """
    if not isinstance(model, Module):
        raise InputError(f"summary: the first argument must be a module, not {a(type(model).__name__)}.")
    modes = [(module, module.training) for module in model.modules()]
    watch = _Shapes()
    try:
        model.eval()
        with no_grad(), watch:
            model(*inputs, **kwargs)
    except (TypeError, ValueError) as error:
        if (wrong := _not_an_input(inputs, kwargs)) is None:
            raise
        raise InputError(wrong) from error
    finally:
        for module, training in modes:
            module.training = training
    own: dict[int, int] = {}
    for event in watch.events:
        own[event.scope] = own.get(event.scope, 0) + event.made
    return Summary(_layers(watch, own), _totals(model, watch))


class _Shapes(Watch):
    """A ``Watch`` that also stores the shapes of the outputs of each module call."""

    def called(self, module: Any, run: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Call a module, store the shapes of its outputs as text in its scope, and return the outputs."""
        at = len(self.scopes)
        found = super().called(module, run, args, kwargs)
        shapes = [t.shape for t in tree.leaves(found) if isinstance(t, Tensor)]
        self.scopes[at].outputs = ", ".join("×".join(map(str, s)) or "()" for s in shapes)
        return found


def _layers(watch: Watch, own: dict[int, int]) -> list[Layer]:
    made = dict(own)
    for scope in reversed(watch.scopes):  # inner module calls before outer ones
        if scope.parent >= 0:
            made[scope.parent] = made.get(scope.parent, 0) + made.get(scope.index, 0)
    depths: dict[int, int] = {-1: -1}
    seen: set[int] = set()
    found = []
    for scope in watch.scopes:
        depths[scope.index] = depths[scope.parent] + 1
        found.append(_layer(watch, scope, depths[scope.index], made.get(scope.index, 0), seen))
    return found


def _layer(watch: Watch, scope: Scope, depth: int, made: int, seen: set[int]) -> Layer:
    module = scope.module
    parameters = module.parameters()
    again = id(module) in seen
    seen.add(id(module))
    return Layer(
        path=watch.module_path(scope.index).partition(".")[2],
        kind=type(module).__name__,
        depth=depth,
        output=str(scope.outputs or ""),
        parameters=sum(p.size for p in parameters),
        trained=sum(p.size for p in parameters if p.requires_grad),
        made=made,
        seconds=scope.stop - scope.start,
        again=again and bool(parameters),
    )


def _totals(model: Module, watch: Watch) -> dict[str, int]:
    parameters = model.parameters()
    assert watch.memory is not None
    return {
        "parameters": sum(p.size for p in parameters),
        "trained": sum(p.size for p in parameters if p.requires_grad),
        "parameter_bytes": sum(p.nbytes for p in parameters),
        "made": watch.memory.total,
    }
