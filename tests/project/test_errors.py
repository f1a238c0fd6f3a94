"""Every user mistake has its class, and each message is read whole, as a user sees it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import errors


def message(error: type[BaseException], mistake: Callable[[], Any]) -> str:
    with pytest.raises(error) as info:
        mistake()
    assert isinstance(info.value, errors.AdjointError)
    return str(info.value)


def x(*shape: int, requires_grad: bool = True) -> ad.Tensor:
    return ad.ones(shape, requires_grad=requires_grad)


def deep() -> list[Any]:
    nested: list[Any] = [1.0]
    for _ in range(100):
        nested = [nested]
    return nested


MISTAKES: dict[str, tuple[type[BaseException], Callable[[], Any], str]] = {
    "gradients of many numbers": (
        ValueError,
        lambda: ad.gradients((w := x(3)) * 2, [w]),
        """\
        gradients() starts from one number, but this tensor has shape (3,).
          Reduce it first (loss.mean().backward()), or pass grad_outputs= with shape (3,).""",
    ),
    "an index that is text": (
        IndexError,
        lambda: x(3)["a"],
        "an index must consist of integers, slices and masks, but contains 'a'.",
    ),
    "backward from a complex number": (
        TypeError,
        lambda: ad.tensor(1.0 + 2.0j, requires_grad=True).backward(),
        """\
        backward() starts from a real number, but this tensor is complex128.
          Differentiate its real part (z.real.backward()) or abs(z), or pass gradient=.""",
    ),
    "a ragged list": (
        ValueError,
        lambda: ad.tensor([[1.0, 2.0], [3.0]]),
        """\
        the nested list is ragged: its rows differ in length, so it has no shape.
          Pad the rows to one length, or make one tensor per row.""",
    ),
    "strings": (
        TypeError,
        lambda: ad.tensor(["a", "b"]),
        """\
        a tensor must contain numbers, but this list contains strings.
          Convert them first, for example np.asarray(values, dtype=float).""",
    ),
    "objects": (
        TypeError,
        lambda: ad.tensor(np.array([object()])),
        """\
        a tensor must contain numbers, but this ndarray contains Python objects.
          Convert them first, for example np.asarray(values, dtype=float).""",
    ),
    "None as an operand": (
        TypeError,
        lambda: x(2) + None,
        "add: expected a tensor, an array or a number, but got None.",
    ),
    "a string as an operand": (
        TypeError,
        lambda: x(2) * "two",
        "multiply: expected a tensor, an array or a number, but got the text 'two'.",
    ),
    "a dtype that is none": (
        TypeError,
        lambda: ad.tensor([1.0], dtype="floaty"),
        "'floaty' is not a dtype.  Use a NumPy dtype, for example np.float32.",
    ),
    "integers that require grad": (
        TypeError,
        lambda: ad.tensor([1, 2], requires_grad=True),
        """\
        only float and complex tensors can require grad, but this one is int64.
          Make it a float first: x.astype(float).requires_grad_().""",
    ),
    "numbers that do not fit": (
        TypeError,
        lambda: ad.tensor([300], dtype=np.uint8),
        "cannot make a uint8 tensor from this value: Python integer 300 out of bounds for uint8",
    ),
    "complex numbers as real ones": (
        TypeError,
        lambda: ad.tensor(1 + 2j, dtype=float),
        "complex128 to float64 would drop the imaginary part.  Use x.real if that is meant.",
    ),
    "a tensor as objects": (
        TypeError,
        lambda: ad.tensor(x(2).detach(), dtype=object),
        "tensors must have a numeric dtype, but got object.",
    ),
    "a generator": (
        TypeError,
        lambda: ad.tensor(i for i in range(3)),
        """\
        cannot make a tensor from a generator: use numbers, arrays or nested lists.
          Put the numbers of an iterable into a list first: ad.tensor(list(values)).""",
    ),
    "a list that is too deep": (
        ValueError,
        lambda: ad.tensor(deep()),
        "the list has more than 64 levels of nesting, and an array cannot have so many axes.",
    ),
    "a huge number": (
        ValueError,
        lambda: x(2) + 10**400,
        "add: a number is out of range for float64: int too large to convert to float",
    ),
    "a format for one number": (
        ValueError,
        lambda: f"{x(3):.3f}",
        """\
        the format '.3f' is for one number, but this tensor has shape (3,).
          Format the elements one by one, or use np.array2string(x.numpy(), precision=3).""",
    ),
    "writing a value that has history": (
        RuntimeError,
        lambda: x(2, requires_grad=False).__setitem__(0, x(2)[0]),
        """\
        x[key] = value: the value requires grad, but no gradient flows through an assignment in place.
          Use x = x.at[key].set(value), or x = x.at[key].add(v) instead of x[key] += v.  If no gradient is needed, assign value.detach(), or use ad.no_grad().""",
    ),
    "the constructor": (
        TypeError,
        lambda: ad.Tensor([1.0]),
        "make tensors with ad.tensor(data) or ad.asarray(data), not Tensor(data).",
    ),
    "shapes that do not broadcast": (
        ValueError,
        lambda: x(3, 4) + x(3),
        """\
        add: shapes (3, 4) and (3,) do not broadcast: axis -1 has length 4 in one and 3 in another.
          The lengths of each axis, counted from the end, must be equal or 1.  Reshape or transpose one of the arguments.""",
    ),
    "matrices that do not fit": (
        ValueError,
        lambda: x(2, 3) @ x(2, 3),
        """\
        matmul: shapes (2, 3) and (2, 3) do not match: the last axis of the first tensor has length 3, but axis -2 of the second has length 2.
          The lengths must be equal: transpose one of the tensors, or check the layer's sizes.""",
    ),
    "an axis out of range": (
        ValueError,
        lambda: x(2, 3).sum(axis=2),
        "sum: axis 2 is out of range: a 2-d tensor has axes -2 to 1.",
    ),
    "an index out of range": (
        IndexError,
        lambda: x(2, 3)[2],
        "index 2 is out of range for axis 0 of length 2.",
    ),
    "too many indices": (
        IndexError,
        lambda: x(2, 3)[0, 0, 0],
        "too many indices: the index is for 3 axes, but the tensor of shape (2, 3) has 2.",
    ),
    "backward on a non-scalar": (
        ValueError,
        lambda: (x(64, 10) * 2).backward(),
        """\
        backward() starts from one number, but this tensor has shape (64, 10).
          Reduce it first (loss.mean().backward()), or pass gradient= with shape (64, 10).""",
    ),
    "backward on a constant": (
        RuntimeError,
        lambda: x(1, requires_grad=False).backward(),
        """\
        backward() was called on a tensor of shape (1,) that does not require grad.
          No input of the computation requires grad, or it was computed under no_grad() or only through ops without a gradient
          (comparisons, argmax, integers).  Set requires_grad=True on the inputs before computing it.
          ad.inspect.explain(function) names the line where the graph ends.""",
    ),
    "a gradient of the wrong shape": (
        ValueError,
        lambda: (x(2) * 2).backward(np.ones(3)),
        "backward(): gradient= must have the shape of the tensor, (2,), but has (3,).",
    ),
    "a gradient of the wrong dtype": (
        TypeError,
        lambda: (x(2) * 2).backward(np.ones(2, np.float32)),
        "backward(): gradient= must have the dtype of the tensor, float64, but has float32.",
    ),
    "gradients of what is no tensor": (
        TypeError,
        lambda: ad.gradients(3.0, [x(1)]),  # type: ignore[arg-type]
        "outputs must be tensors, but got float.",
    ),
    "an input that takes no part": (
        RuntimeError,
        lambda: ad.gradients(x(1) * 2, [x(2)]),
        """\
        gradients: no output depends on inputs[0] of shape (2,).
          Check whether it was used only through detach() or under no_grad().  Pass allow_unused=True to get None as its gradient.""",
    ),
    "the truth of many": (
        ValueError,
        lambda: bool(x(2)),
        """\
        the truth value of a tensor of shape (2,) is ambiguous.
          Use x.any() or x.all(); for a choice per element, ad.where(condition, a, b).""",
    ),
    "float of many": (
        ValueError,
        lambda: float(x(2)),
        """\
        float() needs one element, but this tensor has shape (2,).
          Choose one, float(x[0]), or use x.astype(float) for all.""",
    ),
    "a reshape that does not fit": (
        ValueError,
        lambda: x(2, 3).reshape(4, 2),
        """\
        reshape: a tensor of shape (2, 3) with 6 elements cannot be reshaped to (4, 2).
          The product of the lengths must be the number of elements; one length may be -1.""",
    ),
    "a number that does not fit": (
        ValueError,
        lambda: ad.tensor([1], dtype=np.int8) + 1000,
        "add: a number is out of range for int8, int: Python integer 1000 out of bounds for int8",
    ),
    "an unknown NumPy function": (
        TypeError,
        lambda: np.roots(x(3)),
        """\
        np.roots has no derivative in adjoint.
          Pass x.numpy() if no gradient is needed, or compute it with other functions of adjoint.""",
    ),
    "out= of a ufunc": (
        TypeError,
        lambda: np.add(x(2), 1.0, out=np.zeros(2)),
        """\
        np.add(…, out=…): an array cannot be part of the graph, so the gradient would be lost.
          The same happens in a += x if a is an array: write a = a + x, or create a with ad.zeros.""",
    ),
    "a hook that is none": (
        TypeError,
        lambda: x(2).register_hook(3),  # type: ignore[arg-type]
        "register_hook: a hook must be callable, not int.",
    ),
    "a grad of another shape": (
        ValueError,
        lambda: setattr(x(2), "grad", x(3)),
        "grad must have the shape of its tensor, (2,), not (3,).",
    ),
    "an op of a name that exists": (
        ValueError,
        lambda: ad.define("tanh", np.tanh, None),
        """\
        define 'tanh': an op of this name exists already.
          Choose another name; in a notebook, define the op in a cell of its own and run it once.""",
    ),
    "saves that the rule does not have": (
        ValueError,
        lambda: ad.define("oops", np.tanh, lambda xp, g, y, x: g, saves="w"),
        "define 'oops': saves contains w, but the names in the rules are x for the arguments and y for the output.",
    ),
    "complex to real": (
        TypeError,
        lambda: ad.tensor([1j]).astype(float),
        "astype: complex128 to float64 would drop the imaginary part.  Use x.real if that is meant.",
    ),
    "workers": (
        ValueError,
        lambda: ad.config.set_workers(0),
        "workers must be a positive integer or 'auto', but got 0.",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_message(name: str) -> None:
    error, mistake, expected = MISTAKES[name]
    assert message(error, mistake) == textwrap.dedent(expected)


def test_a_second_backward_names_the_op_and_the_cure() -> None:
    y = (x(2) ** 2).sum()
    y.backward()
    assert message(RuntimeError, y.backward) == (
        "'pow' (output shape (2,)) was already differentiated and its saved values are released.\n"
        "  Pass retain_graph=True to the first backward, or run the forward again."
    )


def test_a_second_backward_under_anomaly_names_the_line() -> None:
    with ad.detect_anomaly():
        y = (x(2) ** 2).sum()
    y.backward()
    assert "test_errors.py:" in message(RuntimeError, y.backward)


def test_a_value_that_was_overwritten() -> None:
    w = x(2)
    y = (w * w).sum()
    with ad.no_grad():
        w.copy_([3.0, 4.0])
    assert message(RuntimeError, y.backward) == (
        "the backward of 'multiply' needs the values that a tensor of shape (2,) and float64 had in the forward, but the tensor was written to since.\n"
        "  Run backward before the write, or pass x.clone() to the op."
    )
    assert w.grad is None


def test_hooks_that_return_the_wrong_thing() -> None:
    def returns_text(g: ad.Tensor) -> Any:
        return "no"

    w = x(2)
    w.register_hook(returns_text)
    text = message(RuntimeError, (w * 2).sum().backward)
    assert text.startswith("the hook ") and text.endswith(
        "on a leaf of shape (2,) returned str.\n"
        "  A hook must return None, which keeps the gradient, or a tensor, which replaces it."
    )
    w = x(2)
    y = w * 2
    y.register_hook(lambda g: ad.ones(3))
    assert message(RuntimeError, y.sum().backward).endswith(
        "on the result of 'multiply' returned a gradient of shape (3,) and float64, "
        "but the gradient that it replaces has shape (2,) and float64."
    )
    assert w.grad is None


BROKEN = {
    "returns a number": lambda xp, g, y, x: 1.0,
    "returns None": lambda xp, g, y, x: None,
    "returns another shape": lambda xp, g, y, x: xp.reshape(g, shape=(1, 1, 3))[..., :2],
}


@pytest.mark.parametrize("name", BROKEN)
def test_rules_that_break_their_contract(name: str) -> None:
    op_name = f"broken {name}"
    broken = ad.OPS.get(op_name)
    eager = broken.eager if broken else ad.define(op_name, np.sin, BROKEN[name])
    try:
        w = x(3)
        text = message(errors.RuleError, eager(w).sum().backward)
        assert op_name in text and "'x'" in text and w.grad is None
    finally:
        ad.OPS.pop(op_name, None)


def test_a_rule_of_forward_mode_that_returns_a_number() -> None:
    eager = ad.define("broken forward", np.sort, lambda xp, g, y, x: 1.0, kind="general")
    try:
        text = message(errors.RuleError, lambda: ad.jvp(eager, (np.ones(2),), (np.ones(2),)))
        assert "'broken forward' for argument 'x' returned float, not an array" in text
    finally:
        ad.OPS.pop("broken forward", None)


def test_a_joint_rule_with_the_wrong_number_of_gradients() -> None:
    eager = ad.define("broken joint", lambda x, y: x + y, joint=lambda xp, g, out, x, y, wanted: [g], arity=2)
    try:
        text = message(errors.RuleError, eager(x(2), x(2)).sum().backward)
        assert (
            text
            == "the rule of 'broken joint' must return one gradient per argument, 2 in all, but returned 1."
        )
    finally:
        ad.OPS.pop("broken joint", None)


def test_reading_what_was_not_saved() -> None:
    eager = ad.define("broken saves", np.sin, lambda xp, g, y, x: g * x)
    try:
        text = message(errors.NotSavedError, eager(x(2)).sum().backward)
        assert "not saved" in text and "saves=" in text
    finally:
        ad.OPS.pop("broken saves", None)


def test_tensors_of_other_libraries_are_refused() -> None:
    class Foreign:
        """Looks like a tensor of another library."""

    Foreign.__module__ = "torch"
    Foreign.__qualname__ = "Tensor"
    assert message(TypeError, lambda: x(2) + Foreign()) == (
        "got a torch.Tensor: adjoint does not accept tensors of other libraries,\n"
        "  because no gradient would flow between the libraries.  Convert it: ad.tensor(np.asarray(value)), "
        "or ad.from_dlpack(value)."
    )


def test_every_error_class_is_the_builtin_people_expect() -> None:
    """The site has a page with all of them, made from ``__all__`` and the docstrings."""
    assert {n for n, v in vars(errors).items() if isinstance(v, type)} <= set(errors.__all__) | {"Any"}
    for name in errors.__all__:
        cls = getattr(errors, name)
        assert issubclass(cls, errors.AdjointError) and cls.__doc__
        if cls is not errors.AdjointError:
            assert "Fix:" in cls.__doc__, name
            assert len([b for b in cls.__mro__ if b.__module__ == "builtins"]) > 3
            assert name in (errors.__doc__ or "")


def test_an_error_of_the_users_own_forward_stays_what_it_is() -> None:
    eager = ad.define("broken forward", lambda x: int("oops"), lambda xp, g, y, x: g)
    nothing = ad.define("returns nothing", lambda x: None, lambda xp, g, y, x: g)
    try:
        with pytest.raises(ValueError, match="invalid literal") as info:
            eager(x(2))
        assert info.value.__notes__ == ["This happened in the forward of the op 'broken forward'."]
        assert "returned NoneType" in message(errors.RuleError, lambda: nothing(x(2)))
    finally:
        ad.OPS.pop("broken forward", None)
        ad.OPS.pop("returns nothing", None)


def test_a_file_beside_the_package_is_the_users() -> None:
    beside = ad.__file__.replace("__init__.py", "")[:-1] + "_of_mine.py"
    forward = eval(compile("lambda x: int('oops')", beside, "eval"))
    eager = ad.define("broken beside", forward, lambda xp, g, y, x: g)
    try:
        with pytest.raises(ValueError, match="invalid literal") as info:
            eager(x(2))
        assert info.value.__notes__ == ["This happened in the forward of the op 'broken beside'."]
    finally:
        ad.OPS.pop("broken beside", None)


def test_an_op_of_a_user_does_not_take_numpys_function_away() -> None:
    ad.define("my sine", np.sin, lambda xp, g, y, x: g * 0.0)
    try:
        t = x(2)
        np.sin(t).sum().backward()
        assert t.grad is not None and t.grad.tolist() == pytest.approx([np.cos(1.0)] * 2)
    finally:
        ad.OPS.pop("my sine", None)
