"""Errors inside ``ad.compile`` name the user's line and what to write instead; each message is read whole."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import nn, optim
from adjoint.errors import (
    AbsentNameError,
    AdjointError,
    IndexingError,
    InPlaceError,
    InputError,
    ShapeError,
    TransformError,
)

x = np.arange(3.0)
w = ad.tensor(x, requires_grad=True)
loss = (w * 2.0).sum()
model = nn.Linear(3, 3, rng=0)
state = model.state_dict()
optimizer = optim.SGD(model.parameters(), lr=0.1)
z = ad.tensor([1.0 + 2.0j], requires_grad=True)
complex_optimizer = optim.SGD([z], lr=0.1)
average = optim.EMA(model.parameters())
table = nn.Embedding(5, 3, sparse=True, rng=0)
accumulator = ad.GradientAccumulator(model.parameters(), accumulation_steps=2)

_READ = "Inside ad.compile tensors have no values.\n  "
_CHOOSE = "Return the tensor and read it outside; to choose between two values use ad.where(condition, a, b)."
_BOUND = (
    "{line}: the bounds and step of a slice must be integers or None, but one is a tensor whose value is not "
    "known inside ad.compile and ad.vmap; the shape of the result would depend on it.\n"
    "  Pass the bound as a Python int, or select with ad.where(ad.arange(len(x)) < n, x, 0).  For a slice of "
    "fixed length, use indices: x[start + ad.arange(3)]."
)
_MASK = (
    "{line}: a mask cannot be an index inside ad.compile, because the shape of the result would depend on "
    "values.\n"
    "  Use ad.where(mask, a, b)."
)


_GRAPH = "has a graph, which compiled functions do not support.\n  "


def swap(a: Any) -> Any:
    with average.swapped():
        return model(a)


def micro_batch(a: Any) -> Any:
    with accumulator.micro_batch():
        return model(a)


MISTAKES: dict[str, tuple[type[AdjointError], Callable[[Any], Any], str]] = {
    "item": (
        InputError,
        lambda a: a.sum().item(),
        "{line} reads the value of a tensor with item().  " + _READ + _CHOOSE,
    ),
    "tolist": (
        InputError,
        lambda a: a.tolist(),
        "{line} reads the values of a tensor with tolist().  " + _READ + _CHOOSE,
    ),
    "numpy": (
        InputError,
        lambda a: a.numpy(),
        "{line} reads the values of a tensor with numpy().  " + _READ + _CHOOSE,
    ),
    "float": (
        InputError,
        lambda a: math.sin(a[0]),
        "{line} reads the value of a tensor with float().  " + _READ + _CHOOSE,
    ),
    "a condition": (
        InputError,
        lambda a: a if a.sum() > 0 else -a,
        "{line} needs the value of a tensor for a Python condition.  " + _READ + _CHOOSE,
    ),
    "bool": (
        InputError,
        lambda a: bool(a[0]),
        "{line} needs the value of a tensor for a Python condition.  " + _READ + _CHOOSE,
    ),
    "an index of a list": (
        InputError,
        lambda a: [1, 2, 3][a.argmax()],
        "{line} needs the value of a tensor for an index.  "
        + _READ
        + "Index a tensor, ad.tensor(values)[i] or "
        "ad.stack(tensors)[i].  For range(n), use ad.fori_loop.",
    ),
    "an array": (
        InputError,
        lambda a: np.array(a),
        "{line} needs the values of a tensor for conversion to a NumPy array.  "
        + _READ
        + "To index an array X "
        "by a tensor, write ad.tensor(X)[rows].  To join tensors, use ad.stack instead of np.array.  To draw "
        "random numbers, use ad.random.",
    ),
    "a mask": (IndexingError, lambda a: a[a > 0], _MASK),
    "a mask and other items": (IndexingError, lambda a: ad.ones((3, 2))[a > 0, 1:], _MASK),
    "a mask in at[]": (IndexingError, lambda a: a.at[a > 0].set(1.0), _MASK),
    "an assigned mask": (
        InPlaceError,
        lambda a: ad.zeros(3).__setitem__(a > 0, 1.0),
        "{line}: x[key] = value: inside ad.compile the key must not be a tensor that depends on the function's "
        "arguments.\n"
        "  Use x = x.at[key].set(value), or x = ad.where(mask, value, x) for a mask.",
    ),
    "floats as an index": (
        IndexingError,
        lambda a: a[a],
        "{line}: inside a transform, indices must be integers, but have dtype float64.\n"
        "  To use the values as integers, cast them: i.astype(int).",
    ),
    "a bound": (IndexingError, lambda a: a[: a.argmax()], _BOUND),
    "a bound that is a float": (IndexingError, lambda a: a[: a.sum()], _BOUND),
    "nonzero": (
        InputError,
        lambda a: ad.nonzero(a),
        "{line}: nonzero: the shape of the result depends on the values of x, which are unknown inside "
        "ad.compile.\n"
        "  Use ad.where(condition, x, y), or multiply by a mask.",
    ),
    "the learning rate": (
        TransformError,
        lambda a: setattr(optimizer, "lr", 0.2),
        "{line}: the learning rate cannot be set inside ad.compile.\n"
        "  Set it outside the compiled function, which reads it at each call.",
    ),
    "a hyper-parameter": (
        TransformError,
        lambda a: optimizer.groups[0].hyper.update(lr=0.2),
        "<lambda> ({line}) sets lr of an optimiser, which cannot be done inside ad.compile.\n"
        "  Set it outside of the compiled function, which reads it at each call.",
    ),
    "a new optimiser": (
        TransformError,
        lambda a: optim.Adam(model.parameters()),
        "{line}: an optimiser cannot be created inside ad.compile.\n"
        "  Create it outside the compiled function.",
    ),
    "a new average": (
        TransformError,
        lambda a: optim.EMA(model.parameters()),
        "{line}: an EMA cannot be created inside ad.compile.\n  Create it outside the compiled function.",
    ),
    "swapped": (
        TransformError,
        swap,
        "{line}: swapped() of an EMA cannot be used inside ad.compile.\n"
        "  Use it around the compiled function.",
    ),
    "micro_batch": (
        TransformError,
        micro_batch,
        "{line}: a GradientAccumulator cannot be used inside ad.compile.\n"
        "  Call its methods outside the compiled function.",
    ),
    "rows of sparse gradients": (
        TransformError,
        lambda a: (table(np.array([1])).sum().backward(), table.weight.grad.rows),
        "{line}: the rows of a sparse gradient cannot be read inside ad.compile.\n  Use grad.to_dense().",
    ),
    "sparse gradients of complex tensors": (
        TransformError,
        lambda a: ad.take(z, np.array([0]), axis=0, sparse_grad=True),
        "{line}: a sparse gradient of a complex tensor, or of one that was created inside, cannot be used inside "
        "ad.compile.\n  Pass sparse_grad=False, or sparse=False to an embedding.",
    ),
    "load_state_dict of a module": (
        TransformError,
        lambda a: model.load_state_dict(state),
        "{line}: load_state_dict() of a module cannot be used inside ad.compile.\n"
        "  Call it outside of the compiled function.",
    ),
    "state_dict of a module": (
        TransformError,
        lambda a: model.state_dict(),
        "{line}: state_dict() of a module cannot be used inside ad.compile.\n"
        "  Call it outside of the compiled function.",
    ),
    "backward of a loss from outside": (
        TransformError,
        lambda a: loss.backward(),
        "{line} calls backward() inside ad.compile on a tensor that was computed outside.\n"
        "  Compute the tensor inside the compiled function, or call backward() outside.",
    ),
    "an update of complex parameters": (
        TransformError,
        lambda a: (ad.abs(z).sum().backward(), complex_optimizer.step())[0],
        "{line}: complex parameters cannot be updated by native code of ad.compile.\n"
        '  Pass backend="replay", and make the update the last step of the compiled function.',
    ),
    "a loop without a limit": (
        TransformError,
        lambda a: ad.while_loop(lambda v: v < 9, lambda v: v * 2, a.sum()),
        "{line}: while_loop: inside ad.compile the condition is unknown, so the loop needs a limit.\n"
        "  Pass limit=, the largest number of steps, or call the loop outside of the compiled function.",
    ),
    "a recorded .grad": (
        TransformError,
        lambda a: setattr(w, "grad", w * a),
        "{line}: ad.compile: the function sets .grad to a tensor that "
        + _GRAPH
        + "Assign g.detach(), or compute g inside `with ad.no_grad():`.",
    ),
    "create_graph": (
        TransformError,
        lambda a: (w * w * a).sum().backward(create_graph=True),
        "{line}: ad.compile: backward(create_graph=True) stores a .grad that "
        + _GRAPH
        + "Call ad.gradients(loss, params, create_graph=True) instead, or set .grad to None before the function "
        "returns.",
    ),
    "a product with a number": (
        ShapeError,
        lambda a: a @ 2.0,
        "matmul: both tensors must have at least one axis, but have shapes (3,) and ().  Use x * y.",
    ),
    "a method of another library": (
        AbsentNameError,
        lambda a: a.view(3),
        "a tensor has no 'view'.  Use x.reshape(shape).",
    ),
    "requires_grad": (
        TransformError,
        lambda a: w.requires_grad_(False),
        "{line}: ad.compile: the function changes requires_grad of a tensor that was created outside of it.\n"
        "  Call requires_grad_() before the compiled function, which is then traced again.",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_inside_names_the_line_and_the_cure(name: str) -> None:
    kind, f, text = MISTAKES[name]
    code = f.__code__
    line = f"{code.co_filename}:{code.co_firstlineno + (not code.co_name.startswith('<'))}"
    with pytest.raises(kind) as found:
        ad.compile(f)(x)
    assert str(found.value) == text.replace("{line}", line)
    assert type(w) is ad.Tensor and w.requires_grad and optimizer.lr == 0.1


def test_complex_parameters_are_updated_by_replay_at_the_end() -> None:
    def step(again: bool) -> Any:
        (ad.abs(z) ** 2).sum().backward()
        complex_optimizer.step()
        return z * 2 if again else None

    f, before = ad.compile(step, backend="replay"), z.tolist()
    with pytest.raises(TransformError) as found:
        f(True)
    assert str(found.value) == (
        f"{step.__code__.co_filename}:{step.__code__.co_firstlineno + 3}: complex parameters cannot be read after "
        "their update inside ad.compile.\n"
        "  Make the update the last step of the compiled function."
    )
    assert z.tolist() == before and z.grad is None
    f(False)
    assert z.tolist() != before


ESCAPED: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "bool": bool,
    "round": lambda r: round(r, 2),
    "hash": hash,
    "a format": lambda r: f"{r:.2f}",
    "an array": np.asarray,
    "arithmetic": lambda r: r + 1,
    "an array operand": lambda r: np.ones(3) * r,
    "a tensor operand": lambda r: r * w,
    "a tensor operand before it": lambda r: w * r,
}


@pytest.mark.parametrize("name", ESCAPED)
def test_a_number_that_escapes_says_where_it_was_computed(name: str) -> None:
    kept: list[Any] = []

    def f(a: Any, r: float) -> Any:
        kept.append(deque([r * 2, r]))
        return a

    ad.compile(f)(x, 0.5)
    computed = f"computed at {f.__code__.co_filename}:{f.__code__.co_firstlineno + 1}"
    for number, was in zip(kept[0], (computed, "an argument"), strict=True):
        with pytest.raises(TransformError) as found:
            ESCAPED[name](number)
        assert str(found.value) == (
            f"this number was {was} while ad.compile traced a function, and has no value outside of it.\n"
            "  Return it from the compiled function; values that the function stores elsewhere are not kept.\n"
            "  For a cache, compute the value once before the first compiled call."
        )
    assert type(w) is ad.Tensor and w.tolist() == [0.0, 1.0, 2.0]


def test_a_recorded_gradient_may_be_removed_again() -> None:
    @ad.compile
    def f(a: Any) -> Any:
        w.grad = None
        (w * w * a).sum().backward(create_graph=True)
        g, w.grad = w.grad, None
        return ad.gradients([(g * g).sum()], [w])[0]

    for _ in range(2):
        assert f(x).tolist() == (8 * x * x * w.numpy()).tolist() and w.grad is None
