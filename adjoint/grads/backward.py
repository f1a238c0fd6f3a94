"""``Tensor.backward``, ``ad.backward`` and ``ad.gradients``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy import ndarray

from adjoint import words
from adjoint.config import check_workers, get_workers, grad_mode, special, transform
from adjoint.context import Repeated, observer
from adjoint.core.batched import Batched
from adjoint.core.convert import tensor
from adjoint.core.docstrings import SharedDoc
from adjoint.core.lifted import tracing
from adjoint.core.methods import attach
from adjoint.core.namespace import raw
from adjoint.core.node import Node
from adjoint.core.references import OF_TENSOR
from adjoint.core.sparse import as_gradient_tensor
from adjoint.core.tensor import Tensor, wrap
from adjoint.engine.auto import run_auto
from adjoint.engine.memory import keep_freed_memory
from adjoint.engine.parallel import run_parallel
from adjoint.engine.plan import Plan, make_plan
from adjoint.engine.run import Run, differentiate, key_of, run_serial
from adjoint.errors import DTypeError, InputError, NoGradientError, ShapeError
from adjoint.grads.slots import Sink, commit, sink
from adjoint.grads.store import Gradients
from adjoint.tracebacks import door, hide
from adjoint.typing import ArrayLike

__all__ = [
    "backward", "backward_into_leaves", "backward_on", "gradients", "inside_transform", "seed_of",
    "several_tensors",
]  # fmt: skip


_F64, _F32 = np.dtype(np.float64), np.dtype(np.float32)
_ALONE = OF_TENSOR - 1  # the reference count of an object that only one local variable refers to
_CONSTANT = (
    "gradients: inputs[{}] of shape {} does not require grad.\n"
    "  Set requires_grad=True before computing the outputs, or pass allow_unused=True."
)
_UNUSED = (
    "gradients: no output depends on inputs[{}] of shape {}.\n"
    "  Check whether it was used only through detach() or under no_grad().  Pass allow_unused=True to get "
    "None as its gradient."
)
_TAKEN = "gradients were already passed to on_leaf_ready"
_COMMITTED = "leaves with a post-accumulate hook already have their new .grad"

OnLeafReady = Callable[[Tensor, Tensor], Any]


def runner_for(workers: int | str | None) -> Callable[[Plan, Run], None]:
    """Return the function that runs the plan of a backward in one thread or in several.

    ``workers`` is the number of threads, "auto", or None for the value of ``get_workers()``.
    """
    keep_freed_memory()
    if special.count and tracing.get() is not None:
        return run_serial
    chosen = get_workers() if workers is None else workers
    if chosen == "auto":
        return run_auto
    if workers is not None:
        check_workers(workers)
    if chosen == 1:
        return run_serial
    return partial(run_parallel, workers=int(chosen))


@lru_cache(maxsize=16)
def _one(dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return the gradient 1 that a backward from a scalar starts with; it is cached and read-only."""
    keep_freed_memory()  # here, because this runs once
    one = np.ones((), dtype)
    one.flags.writeable = False
    return one


def seed_of(root: Any, gradient: Any, name: str = "backward()", argument: str = "gradient=") -> Any:
    """Check the tensor ``root`` from which a backward starts, and return the gradient with respect to it.

    This is ``gradient``, or 1 if that is None and the root is a scalar.  ``name`` is the name of the caller
    and ``argument`` that of its parameter, for messages.
    """
    if not isinstance(root, Tensor):
        raise InputError(f"{name} starts from a tensor, but got {type(root).__name__}.")
    if root._node is None:
        if special.count and (watcher := observer.get()) is not None:
            watcher.failed(root)
        if isinstance(root._data, Batched):
            raise NoGradientError(
                f"{name} was called inside ad.vmap, where tensors have no graph and no .grad of their own.\n"
                "  Differentiate the function: ad.vmap(ad.grad(loss))(…), or ad.value_and_grad inside the "
                "mapped function.\n  optim.Pure makes updates of such parameters."
            )
        raise NoGradientError(
            f"{name} was called on a tensor of shape {root.shape} that does not require grad.\n"
            "  No input of the computation requires grad, or it was computed under no_grad() or only "
            "through ops without a gradient\n  (comparisons, argmax, integers).  Set "
            "requires_grad=True on the inputs before computing it.\n"
            "  ad.inspect.explain(function) names the line where the graph ends."
        )
    if gradient is None:
        data = root._data
        if data.shape and data.size != 1:
            raise ShapeError(
                f"{name} starts from one number, but this tensor has shape {root.shape}.\n"
                f"  Reduce it first (loss.mean().backward()), or pass {argument} with shape {root.shape}."
            )
        if data.dtype.kind == "c":
            raise DTypeError(
                f"{name} starts from a real number, but this tensor is {root.dtype}.\n"
                f"  Differentiate its real part (z.real.backward()) or abs(z), or pass {argument}."
            )
        return wrap(np.ones(data.shape, data.dtype) if data.shape else _one(data.dtype))
    exact = isinstance(gradient, (Tensor, np.ndarray))
    if isinstance(gradient, Tensor):
        seed = gradient
    else:
        seed = tensor(gradient) if exact else tensor(gradient, dtype=root.dtype)
    if seed.shape != root.shape:
        raise ShapeError(
            f"{name}: {argument} must have the shape of the tensor, {root.shape}, but has {seed.shape}."
        )
    if seed.dtype != root.dtype:
        raise DTypeError(
            f"{name}: {argument} must have the dtype of the tensor, {root.dtype}, but has {seed.dtype}."
        )
    return seed


_backward_doc = SharedDoc("""
    Parameters
    ----------
    retain_graph : bool
        Whether saved values are kept, for a second backward.
    inputs : Tensor or sequence of Tensor, optional
        Only these tensors get gradients.
    workers : int or "auto", optional
        The number of threads.  The default is ``ad.config.workers``.
    allow_unused : bool
        Whether the gradient of an input that no output depends on is None instead of an error.
    """)


@_backward_doc
def backward_into_leaves(
    self: Tensor,
    gradient: ArrayLike | None = None,
    *,
    retain_graph: bool = False,
    create_graph: bool = False,
    inputs: Sequence[Tensor] | Tensor | None = None,
    workers: int | str | None = None,
    on_leaf_ready: OnLeafReady | None = None,
) -> None:
    """Differentiate this tensor and add the gradients to the ``.grad`` of the leaves.

    If anything fails, no ``.grad`` has changed.  Inside ``with accumulator.micro_batch():``, the
    gradients of the accumulator's parameters are added to the accumulator instead of ``.grad``.

    Parameters
    ----------
    gradient : array_like, optional
        The gradient of this tensor, with its shape and dtype.  It may be omitted for a tensor of one element.
    create_graph : bool
        Whether the backward is recorded, so that the gradients can be differentiated.  This makes a
        reference cycle (leaf, ``.grad``, graph, leaf), which lasts until ``.grad`` is cleared.
        ``ad.gradients`` avoids it.
    on_leaf_ready : callable, optional
        ``on_leaf_ready(leaf, grad)`` is called for each leaf as soon as its gradient is complete.  If it
        returns True, the gradient is not added to ``.grad``.

    Raises
    ------
    NoGradientError
        If the tensor does not require grad.
    ShapeError
        If the tensor has several elements and there is no ``gradient``.
    GraphReleasedError
        If the graph was differentiated before without ``retain_graph``.

    >>> x = ad.tensor([1.0, 2.0], requires_grad=True)
    >>> (x ** 2).sum().backward()
    >>> x.grad
    tensor([2., 4.], dtype=float64)
    """
    try:
        target = sink.get()
        early = None if on_leaf_ready is None else _Early(on_leaf_ready, True, target)
        plain = gradient is None and inputs is None and workers is None and not create_graph
        if plain and _backward_plainly(self, retain_graph, early, target):
            return
        seed, targets = seed_of(self, gradient), None if inputs is None else _differentiable_inputs(inputs)
        run, leaves = _differentiated(
            early or _Early(None, True, target), self, seed, targets=targets,
            retain=retain_graph or create_graph, create_graph=create_graph, chosen=gradient is not None,
            runner=runner_for(workers),
        )  # fmt: skip
        found = {**dict(leaves), **dict(run.retained), **_captured(run, targets or ())}
        del leaves, run
        if target is not None and special.count and (trace := tracing.get()) is not None:
            trace.take(found, target)
        else:
            (commit if target is None else target.take)(found)
    except Exception as error:
        hide(error)
        raise


def _backward_plainly(root: Tensor, retain: bool, early: _Early | None, target: Sink | None) -> bool:
    """Run a backward without options from the scalar loss ``root``; return False if that is not possible.

    ``early`` handles leaves that are finished during the backward, and ``target`` receives the gradients
    instead of ``.grad``; both may be None.  ``retain`` keeps the graph.  This skips the checks of the general
    case, which take a sixth of the time for a small network.
    """
    node, data = root._node, root._data
    if (
        type(root) is not Tensor or type(node) is not Node or special.count
        or data.shape or (data.dtype is not _F32 and data.dtype is not _F64)
        or get_workers() != 1
    ):  # fmt: skip
        return False
    plan = make_plan((node,), events=early is not None)
    if plan.events and early is None:
        return False
    run = Run(raw, retain, None if early is None else early.finish)
    run.grads[node] = _one(data.dtype)
    before = grad_mode.get()
    try:  # no token, see ``differentiate``
        grad_mode.set(False)
        run_serial(plan, run)
    except BaseException as error:
        if early is not None:
            early.note(error)
        raise
    finally:
        grad_mode.set(before)
    found = run.grads
    if early is None and (run.wide or run.zeros or _hooked(found)):  # with events every leaf is finished
        found = dict(run.finish(False))
    found.update(run.retained)
    del plan, run
    (commit if target is None else target.take)(found)
    return True


def _hooked(leaves: Iterable[Tensor]) -> bool:
    """Return whether one of the leaves has hooks.

    This is checked after the backward, because a hook of an intermediate tensor may add hooks to a leaf.
    """
    for leaf in leaves:
        extra = leaf._extra
        if extra is not None and extra.hooks is not None:
            return True
    return False


class _Early:
    """The leaves whose gradients are complete while the rest of a backward still runs.

    ``finish`` handles each of them.  If ``commits`` is False, no ``.grad`` is changed, and post-accumulate
    hooks are not called.
    """

    __slots__ = ("commits", "done", "on_leaf_ready", "target")

    def __init__(self, on_leaf_ready: OnLeafReady | None, commits: bool, target: Sink | None = None) -> None:
        if on_leaf_ready is not None and not callable(on_leaf_ready):
            raise InputError(
                "backward: on_leaf_ready must be a function (leaf, grad), not "
                f"{type(on_leaf_ready).__name__}."
            )
        self.on_leaf_ready = on_leaf_ready
        self.commits = commits
        self.target = target
        self.done: list[tuple[Tensor, str]] = []

    def finish(self, leaf: Tensor, g: Any) -> Any:
        """Call ``on_leaf_ready`` and the post-accumulate hooks of a leaf, whose complete gradient is ``g``.

        Return the gradient to store at the end of the backward, or None if it is already stored or was taken.
        """
        on_leaf_ready = self.on_leaf_ready
        if on_leaf_ready is not None:
            t = wrap(g) if type(g) is ndarray else as_gradient_tensor(g)
            if on_leaf_ready(leaf, t) is True:
                self.done.append((leaf, _TAKEN))
                return None
            if t._data is g and t._node is None and sys.getrefcount(t) == _ALONE:
                g = t  # no other code refers to it or changed it, so it can become ``.grad``
        extra = leaf._extra
        if extra is None or extra.post_hooks is None or not self.commits or not extra.post_hooks.hooks:
            return g
        kept = self.target is not None and self.target.wants(leaf)
        if not kept:
            commit({leaf: g})
            self.done.append((leaf, _COMMITTED))
        for hook in extra.post_hooks.to_call():
            hook(leaf)
        return g if kept else None

    def note(self, error: BaseException) -> None:
        """Add a note to ``error`` that lists the leaves whose gradients were already complete."""
        for what in dict.fromkeys(what for _, what in self.done):
            shapes = [str(t.shape) for t, w in self.done if w == what]
            error.add_note(f"{len(shapes)} {what} (shapes {', '.join(shapes)}); no other .grad has changed.")


def _differentiated(early: _Early, root: Tensor, seed: Any, **options: Any) -> Any:
    """Run ``differentiate`` from one tensor; an error gets a note about the leaves in ``early``."""
    events = early.on_leaf_ready is not None
    on_ready = early.finish if events or early.commits else None
    try:
        return differentiate([root], [seed], on_ready=on_ready, events=events, **options)
    except BaseException as error:
        early.note(error)
        raise


def _differentiable_inputs(inputs: Any) -> list[Tensor]:
    targets = several_tensors("inputs", inputs)
    for t in targets:
        if t._node is None:
            raise NoGradientError(
                f"inputs: a tensor of shape {t.shape} does not require grad.\n"
                "  Set requires_grad=True on it before the computation."
            )
    return targets


def _captured(run: Run, tensors: Iterable[Tensor]) -> dict[Tensor, Any]:
    """Return the gradients that ``run`` computed for ``tensors``; tensors without a gradient are left out."""
    found = {t: run.captured.get(key_of(t)) for t in tensors}
    return {t: g for t, g in found.items() if g is not None}


@door
@_backward_doc
def backward(
    root: Tensor,
    gradient: ArrayLike | None = None,
    *,
    retain_graph: bool = False,
    create_graph: bool | None = None,
    inputs: Sequence[Tensor] | Tensor | None = None,
    workers: int | str | None = None,
    on_leaf_ready: OnLeafReady | None = None,
) -> Gradients:
    """Differentiate ``root`` and return the gradients of its leaves; no ``.grad`` is changed.

    Parameters
    ----------
    root : Tensor
        The tensor to differentiate.
    gradient : array_like, optional
        The gradient of ``root``, with its shape and dtype.  It may be omitted for a tensor of one element.
    create_graph : bool, optional
        Whether the backward is recorded, so that the gradients can be differentiated.  The default is True
        inside a transform such as ``ad.grad``, and False elsewhere.
    on_leaf_ready : callable, optional
        ``on_leaf_ready(leaf, grad)`` is called for each leaf as soon as its gradient is complete.  If it
        returns True, the gradient is not stored.

    Returns
    -------
    Gradients
        The gradients by tensor.

    Raises
    ------
    NoGradientError
        If ``root`` does not require grad.
    ShapeError
        If ``root`` has several elements and there is no ``gradient``.

    >>> x = ad.tensor([1.0, 2.0], requires_grad=True)
    >>> ad.backward((x ** 2).sum())[x]
    tensor([2., 4.], dtype=float64)
    """
    create = inside_transform() if create_graph is None else create_graph
    return backward_on(
        root,
        seed_of(root, gradient),
        inputs,
        retain=retain_graph or create,
        create_graph=create,
        workers=workers,
        on_leaf_ready=on_leaf_ready,
    )


def inside_transform() -> bool:
    """Return whether gradients are recorded by default, because a transform differentiates them."""
    name = transform.get()
    return name is not None and type(name) is not Repeated and grad_mode.get()


def backward_on(
    root: Tensor,
    seed: Any,
    inputs: Sequence[Tensor] | Tensor | None,
    *,
    retain: bool,
    create_graph: bool,
    workers: int | str | None = None,
    only: set[int] | None = None,
    watched: Sequence[Tensor] = (),
    on_leaf_ready: OnLeafReady | None = None,
) -> Gradients:
    """Run a backward from ``root`` with the gradient ``seed``, and return the gradients in a store.

    ``only`` limits the backward to the nodes with these sequence numbers.  ``watched`` are tensors with nodes
    whose gradients are stored as well if there are no ``inputs``.  The other arguments are as in
    ``ad.backward``.
    """
    targets = None if inputs is None else several_tensors("inputs", inputs)
    early = _Early(on_leaf_ready, False)
    run, leaves = _differentiated(
        early, root, seed, targets=targets, retain=retain, create_graph=create_graph, only=only,
        watched=watched, runner=runner_for(workers),
    )  # fmt: skip
    store = Gradients()
    for leaf, g in leaves:
        store.set(leaf, as_gradient_tensor(g))
    for t, g in _captured(run, watched if targets is None else targets).items():
        store.set(t, as_gradient_tensor(g))
    return store


def _seeds(roots: Sequence[Tensor], given: Any) -> list[Any]:
    """Return the gradients of the outputs ``roots`` with which ``gradients`` starts."""
    if given is None or not isinstance(given, (list, tuple)):
        given = [given] * (len(roots) if given is None else 1)
    if len(given) != len(roots):
        raise ShapeError(
            f"gradients: len(grad_outputs) must be the number of outputs, {len(roots)}, but is {len(given)}."
        )
    return [seed_of(r, g, "gradients()", "grad_outputs=") for r, g in zip(roots, given, strict=True)]


@door
@_backward_doc
def gradients(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool | None = None,
    allow_unused: bool = False,
    *,
    workers: int | str | None = None,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the sum of ``outputs`` with respect to each of ``inputs``.

    Parameters
    ----------
    outputs : Tensor or sequence of Tensor
        The tensors to differentiate.
    inputs : Tensor or sequence of Tensor
        The tensors to differentiate with respect to.  They may be intermediate results.
    grad_outputs : array_like or sequence of array_like, optional
        The gradients of the outputs.  They may be omitted for outputs of one element.
    retain_graph : bool, optional
        Whether saved values are kept, for a second backward.  The default is ``create_graph``.
    create_graph : bool, optional
        Whether the results are recorded and can be differentiated again.  The default is True inside a
        transform such as ``ad.grad``, and False elsewhere.

    Returns
    -------
    tuple of Tensor or None
        One gradient per input.

    Raises
    ------
    NoGradientError
        If no output depends on an input and ``allow_unused`` is False.

    >>> x = ad.tensor(2.0, requires_grad=True)
    >>> gx, = ad.gradients(x ** 3, [x], create_graph=True)
    >>> ad.gradients(gx, [x])
    (tensor(12., dtype=float64),)
    """
    roots, targets = several_tensors("outputs", outputs), several_tensors("inputs", inputs)
    seeds = _seeds(roots, grad_outputs)
    for i, t in enumerate(targets):
        if t._node is None and not allow_unused:
            raise NoGradientError(_CONSTANT.format(i, t.shape))
    create = inside_transform() if create_graph is None else create_graph
    run, leaves = differentiate(
        roots, seeds, targets=targets, retain=create if retain_graph is None else retain_graph,
        create_graph=create, chosen=grad_outputs is not None, runner=runner_for(workers),
    )  # fmt: skip
    found = {**run.captured, **dict(leaves)}
    results = [found.get(key_of(t)) for t in targets]
    for i, g in enumerate(results):
        if g is None and not allow_unused:
            raise NoGradientError(_UNUSED.format(i, targets[i].shape))
    return tuple([None if g is None else as_gradient_tensor(g) for g in results])


def several_tensors(what: str, tensors: Any) -> list[Tensor]:
    """Return one tensor or an iterable of them as a list; raise for anything else."""
    if isinstance(tensors, Tensor):
        return [tensors]
    if not isinstance(tensors, Iterable):
        raise InputError(f"{what} must be tensors, but got {type(tensors).__name__}.")
    found = list(tensors)
    for i, t in enumerate(found):
        if not isinstance(t, Tensor):
            raise InputError(f"{what}[{i}] must be a tensor, but is {words.a(type(t).__name__)}.")
    if not found:
        raise InputError(f"{what} is empty.  Pass at least one tensor.")
    return found


backward_into_leaves.__name__, backward_into_leaves.__qualname__ = "backward", "Tensor.backward"
attach(Tensor, backward=backward_into_leaves)
