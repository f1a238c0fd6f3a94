"""What users of compilers complain of, tried one by one: right, or an error in words."""

from __future__ import annotations

import collections
import copy
import functools
import math
import pickle
from collections import deque
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from steps import bits

import adjoint as ad
from adjoint import nn, optim
from adjoint.errors import TransformError

mse = nn.functional.mse_loss
X = np.random.default_rng(0).normal(size=(4, 3)).astype("f")


def test_a_changed_learning_rate_is_used_without_another_trace() -> None:
    w = ad.tensor([1.0], requires_grad=True)
    o = optim.SGD([w], lr=1.0)

    @ad.compile
    def step() -> None:
        o.zero_grad()
        (w * 2).sum().backward()
        o.step()

    step()
    assert w.item() == -1.0
    o.lr = 0.5
    step()
    assert w.item() == -2.0
    assert step.stats()["traces"] == 1


class _Learner:
    """An object with an optimiser, which a method changes."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def halve(self) -> None:
        for g in self.optimizer.groups:
            g.hyper["lr"] *= 0.5


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda o: o.groups[0].hyper.update(lr=0.5), "lr"),
        (lambda o: [g.hyper.__setitem__("betas", (0.5, 0.5)) for g in o.groups], "betas"),
        (lambda o: setattr(o.groups[0], "hyper", {**o.groups[0].hyper, "lr": 0.5, "eps": 0.1}), "lr, eps"),
        (lambda o: _Learner(o).halve(), "lr"),
    ],
)
def test_hyper_parameters_that_are_set_inside_are_an_error(change: Any, names: str) -> None:
    w = ad.tensor([1.0], requires_grad=True)
    o = optim.Adam([w], lr=1.0)
    o.groups[0].hyper["betas"] = [0.8, 0.9]  # accepted: it is set outside
    before = dict(o.groups[0].hyper)

    def update(set_inside: bool) -> None:
        o.zero_grad()
        (w * 2).sum().backward()
        if set_inside:
            change(o)
        o.step()

    step = ad.compile(update)
    for _ in range(2):
        with pytest.raises(TransformError, match=rf"^update \(.*\) sets {names} of an optimiser, which"):
            step(True)
        assert {**o.groups[0].hyper, "betas": [*o.groups[0].hyper["betas"]]} == before
    step(False)
    assert w.item() != 1.0


def test_hyper_parameters_of_an_argument_or_attribute_that_are_set_inside_are_an_error() -> None:
    o = optim.SGD([ad.tensor([1.0], requires_grad=True)], lr=1.0)
    learner = _Learner(o)

    def assign() -> None:
        o.groups[0].hyper["lr"] = 0.5

    for f, args in (
        (lambda o: _Learner(o).halve(), (o,)),
        (learner.halve, ()),
        (_Learner.halve, (learner,)),
        (assign, ()),
    ):
        with pytest.raises(TransformError, match="sets lr of an optimiser, which cannot be done inside"):
            ad.compile(f)(*args)
        assert o.lr == 1.0


def test_optimisers_are_created_outside() -> None:
    w = ad.tensor([1.0], requires_grad=True)
    other = ad.tensor([1.0], requires_grad=True)
    o = optim.Adam([w])
    state = o.state_dict()
    for f, what in (
        (lambda: optim.SGD([w], lr=0.1), "an optimiser cannot be created"),
        (
            lambda: ((w * 2).sum().backward(), optim.SGD([w], lr=0.1).step()),
            "an optimiser cannot be created",
        ),
        (lambda: optim.EMA([w]), "an EMA cannot be created"),
        (lambda: o.add_group({"params": [other]}), "add_group() of an optimiser cannot be used"),
        (lambda: o.load_state_dict(state), "load_state_dict() of an optimiser cannot be used"),
    ):
        with pytest.raises(TransformError) as found:
            ad.compile(f)()
        line = f"{f.__code__.co_filename}:{f.__code__.co_firstlineno}"
        assert str(found.value).startswith(f"{line}: {what} inside ad.compile.\n")
        assert "outside the compiled function." in str(found.value)
    # as a function of its state it can be created anywhere
    x = ad.ones(2)
    pure = lambda x: optim.Pure(optim.SGD, lr=0.5).update(x, x, optim.Pure(optim.SGD, lr=0.5).init(x))[0]
    assert ad.compile(pure)(x).tolist() == pure(x).tolist() == [0.5, 0.5]


def test_earlier_results_are_not_overwritten() -> None:
    f = ad.compile(lambda x: x + 1)
    kept = [f(np.full(2, k, float)) for k in range(3)]
    assert [t.tolist() for t in kept] == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]


@pytest.mark.parametrize("backend", ["replay", "native"])
def test_one_tensor_that_is_returned_twice_is_one_tensor(backend: str) -> None:
    p = ad.ones(2, requires_grad=True)
    f = ad.compile(lambda x: (lambda y, z: (y, [y, z], {"z": z}))(x * 2, (p * x).sum()), backend=backend)
    for x in (ad.ones(2), ad.ones(2), ad.ones(2), ad.tensor([1.0, 1.0], requires_grad=True)):
        y, (again, loss), named = f(x)
        assert again is y and named["z"] is loss
        (grad,) = ad.gradients(loss, [p], create_graph=x.requires_grad)
        assert grad.tolist() == [1.0, 1.0]
    y, (again, _), _ = f(ad.ones(2))
    if not y.requires_grad:
        y[0] = 5.0
        assert again.tolist() == [5.0, 2.0]


def test_results_that_the_caller_changes_are_new_at_each_call() -> None:
    f = ad.compile(lambda x: ([x], {1, 2}, collections.deque([3]), bytearray(b"a"), {"n": [4]}))
    for _ in range(3):
        found = f(ad.ones(1))
        assert found[1:] == ({1, 2}, collections.deque([3]), bytearray(b"a"), {"n": [4]})
        for each, change in zip(found, ("append", "add", "append", "append"), strict=False):
            getattr(each, change)(7)
        found[4]["n"].append(7)

    f = ad.compile(lambda x: (x, deque([[1], {"a": {2}}, deque([np.zeros(1)])], maxlen=4)))
    for _ in range(3):
        _, found = f(ad.ones(1))
        assert repr(found) == "deque([[1], {'a': {2}}, deque([array([0.])])], maxlen=4)"
        found[0].append(7)
        found[1]["a"].add(7)
        found[2][0] += 7


def test_results_that_are_no_trees_and_have_tensors_are_an_error() -> None:
    w = ad.ones(2)
    for f, what in (
        (lambda x: {x * 2, x * 3}, "a set with tensors in it"),
        (lambda x: {"n": frozenset([x])}, "a frozenset with tensors in it"),
        (lambda x: [deque([(x + w, 1)])], "a deque with tensors in it"),
        (lambda x: {"y": x * 2}.values(), "a dict_values with tensors in it"),
        (lambda x: map(ad.tanh, [x]), "a map"),
        (lambda x: (x * n for n in range(3)), "a generator"),
    ):
        with pytest.raises(TransformError) as found:
            ad.compile(f)(ad.ones(2))
        assert str(found.value) == (
            f"ad.compile: <lambda> ({__file__}:{f.__code__.co_firstlineno}) returns {what}, which compiled functions do not support.\n"
            "  Return a list, a tuple or a dictionary."
        )
    (same,) = ad.compile(lambda x: (w + x, {w})[1])(ad.ones(2))
    assert same is w


def test_generator_functions_and_async_functions_are_an_error() -> None:
    def generate(x: Any) -> Any:
        yield x

    async def wait(x: Any) -> Any:
        return x

    async def generate_later(x: Any) -> Any:
        yield x

    class Layer(nn.Module):
        def forward(self, x: Any) -> Any:
            yield x

    class Function:
        __call__ = generate

    for f in (generate, wait, generate_later, Layer(), Function(), functools.partial(generate, 1)):
        with pytest.raises(ad.errors.InputError, match="is a generator function or an async function"):
            ad.compile(f)


def test_leaves_are_those_of_eager_mode() -> None:
    w = ad.ones(2, requires_grad=True)
    later = w * 2

    def f(x: Any) -> Any:
        return x.is_leaf, w.is_leaf, later.is_leaf, (x * 1).is_leaf, (w * x).is_leaf, (w * x + later).sum()

    compiled = ad.compile(f, backend="replay")
    for x in (ad.ones(2), w, w * 3, ad.ones(2)):
        for _ in range(2):
            assert compiled(x)[:5] == f(x)[:5]


@pytest.mark.parametrize("backend", ["replay", "native"])
def test_a_result_that_is_recorded_inside_of_no_grad(backend: str) -> None:
    p = ad.ones(2, requires_grad=True)

    @ad.compile(backend=backend)
    def f(x: Any) -> Any:
        with ad.enable_grad():
            loss = (p * x).sum()
        return loss, p * 2

    for _ in range(3):
        with ad.no_grad():
            loss, doubled = f(ad.tensor([3.0, 4.0]))
        assert loss.requires_grad and not doubled.requires_grad
        p.grad = None
        loss.backward()
        assert p.grad is not None and p.grad.tolist() == [3.0, 4.0]


def test_gradients_of_earlier_calls_are_not_overwritten() -> None:
    w = ad.tensor([1.0, 2.0], requires_grad=True)

    @ad.compile
    def f(x: Any) -> None:
        w.grad = None
        (w * x).sum().backward()

    f(ad.tensor([1.0, 1.0]))
    first = w.grad
    f(ad.tensor([5.0, 5.0]))
    assert first.tolist() == [1.0, 1.0]
    assert w.grad.tolist() == [5.0, 5.0]


def test_a_function_inside_another_one_is_part_of_it() -> None:
    inner = ad.compile(lambda x: x * 2)
    outer = ad.compile(lambda x: inner(x) + inner(x * 3))
    assert outer(ad.tensor([1.0])).tolist() == [8.0]
    assert inner.stats()["traces"] == 0


@ad.compile(limit=3)
def _doubled(x: Any) -> Any:
    return x * 2


def _tripled(x: Any) -> Any:
    return x * 3


class _Holder(nn.Module):
    """A module with a compiled method, one that is made in the constructor, and itself compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(ad.ones(2))
        self.fast = ad.compile(self.scale)
        self.itself = ad.compile(self)
        self.kept = self.method

    def forward(self, x: Any) -> Any:
        return self.weight * x

    def scale(self, x: Any) -> Any:
        return self.weight * x

    @ad.compile
    def method(self, x: Any) -> Any:
        return self.weight * x


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_of_compiled_functions(copied: Any) -> None:
    x = ad.ones(2)
    own, other = ad.compile(_tripled, backend="replay", limit=2), _Holder()
    calls = (other.fast, other.itself, other.method, other.kept)
    for f in (_doubled, own, *calls):
        f(x)
    assert copied(_doubled)(x).tolist() == [2.0, 2.0]
    twin = copied(own)
    assert type(twin) is type(own) and twin is not own and twin.stats()["traces"] == 0
    assert twin(x).tolist() == [3.0, 3.0]
    assert (twin._backend, twin._limit) == ("replay", 2)
    holder = copied(other)
    assert holder.fast is not other.fast
    with ad.no_grad():
        holder.weight.copy_([5.0, 5.0])
    for _ in range(3):
        for f in (holder.fast, holder.itself, holder.method, holder.kept):
            assert f(x).tolist() == [5.0, 5.0]
        for f in calls:
            assert f(x).tolist() == [1.0, 1.0]
    method = copied(other.fast)  # the copy of its instance has it
    assert method is not other.fast and method(x).tolist() == [1.0, 1.0]
    assert method._f.__self__ is not other


def test_a_copied_method_is_that_of_the_copied_instance() -> None:
    holder = _Holder()
    fast = copy.deepcopy(holder.fast)
    assert fast is fast._f.__self__.fast
    assert copy.copy(holder.fast)._f == holder.scale
    assert pickle.loads(pickle.dumps(_doubled)) is _doubled
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(ad.compile(lambda x: x))


def test_instances_do_not_share_state() -> None:
    class Counter:
        def __init__(self) -> None:
            self.total = ad.zeros(2)
            self.add = ad.compile(self._add)

        def _add(self, x: Any) -> Any:
            self.total += x
            return self.total * 1

    a, b = Counter(), Counter()
    for _ in range(3):
        a.add(ad.tensor([1.0, 2.0]))
    b.add(ad.tensor([1.0, 2.0]))
    assert a.total.tolist() == [3.0, 6.0]
    assert b.total.tolist() == [1.0, 2.0]


def test_a_tensor_that_is_replaced_is_noticed() -> None:
    class Holder:
        value = ad.tensor([1.0])

    holder = Holder()
    f = ad.compile(lambda x: x * holder.value)
    assert f(ad.tensor([2.0])).item() == 2.0
    holder.value = ad.tensor([5.0])
    assert f(ad.tensor([2.0])).item() == 10.0


def test_a_model_that_is_switched_to_evaluation_is_noticed() -> None:
    m = nn.Sequential(nn.Linear(3, 3, rng=0), nn.Dropout(0.5, rng=ad.random.default_rng(0)))
    f = ad.compile(lambda x: m(x))
    with ad.no_grad():
        f(X)
        m.eval()
        assert f(X).numpy().tobytes() == m(X).numpy().tobytes()


def test_a_model_that_is_an_argument() -> None:
    m = nn.Sequential(nn.Linear(3, 3, rng=0), nn.Dropout(0.5, rng=ad.random.default_rng(0)))
    f = ad.compile(lambda model, x: model(x).sum())
    with ad.no_grad():
        f(m, X)
        m.eval()
        assert f(m, X).numpy().tobytes() == m(X).sum().numpy().tobytes()
        m[0].weight.copy_(np.ones((3, 3), "f"))
        assert f(m, X).numpy().tobytes() == m(X).sum().numpy().tobytes()


def test_state_made_inside_is_an_error_when_it_is_used() -> None:
    class Model:
        cache: Any = None

        def __call__(self, x: Any) -> Any:
            if self.cache is None:
                self.cache = ad.zeros(2)
            self.cache = self.cache + x
            return self.cache * 1

    m = Model()
    f = ad.compile(m)
    assert f(ad.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]
    with pytest.raises(TransformError, match="Return it from the compiled function"):
        f(ad.tensor([1.0, 2.0]))


def scipy(name: str) -> Any:
    return pytest.importorskip(f"adjoint.scipy.{name}")


# What only a trace cannot do.  Eager code does it, so its except branch does not run there.
CAUGHT = {
    "float": lambda x: float(x[0]),
    "a float that requires grad": lambda x: float((x[0] * W).sum()),
    "item": lambda x: x[0].item(),
    "a condition": lambda x: 1.0 if x[0] > 0 else 0.0,
    "an array": lambda x: np.asarray(x)[0],
    "a mask": lambda x: x[x > 0].sum(),
    "an index": lambda x: [1.0, 2.0][x.astype(int)[0]],
    "freezing": lambda x: W.requires_grad_(False).sum() * 0,
    "a new optimiser": lambda x: optim.SGD([W], lr=0.5).lr,
    "a learning rate": lambda x: setattr(OPTIMIZER, "lr", 0.5) or 1.0,
    "a loop of unknown length": lambda x: ad.fori_loop(0, x.astype(int).sum(), lambda i, c: c + 1, 0),
    "a value of an earlier trace": lambda x: KEPT[0] * 2,
    "a shape that depends on values": lambda x: ad.nonzero(x)[0].sum(),
    "an update at other axes": lambda x: ad.ones((2, 2)).at[:, x.astype(int)[0]].set(2.0).sum(),
    "adding to part of a graph": lambda x: GRAPH.__iadd__(x).sum(),
    "a window of unknown size": lambda x: scipy("ndimage").gaussian_filter1d(x, x[0]).sum(),
    "a branch that is not taken": lambda x: ad.cond(x[0] > 0, lambda: x.sum(), lambda: x[7]),
    "branches with different shapes": lambda x: ad.cond(x[0] > 0, lambda: x.sum(), lambda: x),
    "a body that does not run": lambda x: ad.while_loop(
        lambda c: c > 9, lambda c: x @ ad.ones(9), x[0], limit=9
    ),
    "a float in an integral": lambda x: scipy("integrate").quad(lambda t: t * float(x[0]), 0.0, 1.0)[0],
}
W = ad.tensor([1.0, 2.0], requires_grad=True)
GRAPH = W * 2
OPTIMIZER = optim.SGD([W], lr=0.1)
KEPT: list[Any] = []


@pytest.mark.parametrize("what", CAUGHT)
def test_errors_of_a_trace_that_the_function_catches_are_raised(what: str) -> None:
    def f(x: Any) -> Any:
        try:
            value = CAUGHT[what](x)
        except Exception:
            value = 0.0
        return x * value

    ad.compile(lambda x: KEPT.append(x + 1))(ad.ones(1))
    before = W.tolist(), W.requires_grad, OPTIMIZER.lr
    with pytest.raises(ad.errors.AdjointError) as found:
        ad.compile(f)(ad.tensor([1.0, 2.0]))
    assert found.value.__notes__ == [
        "  The function caught this error, so the program would take its except branch at each call."
    ]
    KEPT.clear()
    assert (W.tolist(), W.requires_grad, OPTIMIZER.lr) == before


def test_errors_that_eager_code_raises_too_can_be_caught_inside() -> None:
    @ad.compile
    def f(x: Any) -> Any:
        try:
            return x @ ad.ones(3)
        except ad.errors.ShapeError:
            return x * 2

    assert f(ad.tensor([1.0, 2.0])).tolist() == [2.0, 4.0]
    assert f(ad.ones(3)).item() == 3.0


def test_an_error_in_a_loop_that_the_function_catches_is_raised() -> None:
    def step(carry: Any, row: Any) -> Any:
        try:
            carry = carry * float(row)
        except Exception:
            carry = carry + 1
        return carry, carry

    with pytest.raises(ad.errors.AdjointError, match="float"):
        ad.compile(lambda x: ad.scan(step, x[0], x))(ad.tensor(np.ones(12)))


def test_a_mutable_default_and_a_list_that_grows_are_noticed() -> None:
    layers = [2.0]
    f = ad.compile(lambda x: sum((x * k for k in layers), 0 * x))
    assert f(ad.tensor([1.0])).item() == 2.0
    layers.append(3.0)
    assert f(ad.tensor([1.0])).item() == 5.0


def test_functions_that_are_replaced_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    f = ad.compile(lambda x: activation(x))
    assert f(ad.tensor([-1.0])).item() == 0.0
    monkeypatch.setitem(globals(), "activation", lambda x: x * 10)
    assert f(ad.tensor([-1.0])).item() == -10.0


def activation(x: Any) -> Any:
    return ad.relu(x)


def test_writes_into_what_was_handed_out_do_not_show() -> None:
    w = ad.tensor([1.0, 2.0])

    @ad.compile
    def f(x: Any) -> Any:
        w.copy_(w + x)
        return w * 1

    view = w.numpy()
    f(ad.tensor(1.0))
    assert view.tolist() == [1.0, 2.0]
    assert w.tolist() == [2.0, 3.0]


def test_a_saved_value_that_is_written_to_inside_raises_outside() -> None:
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    loss = (w * w).sum()

    @ad.compile
    def f() -> None:
        with ad.no_grad():
            w.copy_(w * 2)

    f()
    with pytest.raises(ad.errors.ModifiedError):
        loss.backward()


def test_the_same_tensor_as_argument_and_from_outside() -> None:
    w = ad.tensor([1.0, 2.0], requires_grad=True)

    @ad.compile
    def f(v: Any) -> None:
        (v * w).sum().backward()

    with pytest.raises(TransformError, match="both an argument and a global or closure variable"):
        f(w)
    f(ad.tensor([3.0, 4.0], requires_grad=True))
    assert w.grad.tolist() == [3.0, 4.0]
    with pytest.raises(TransformError, match="both an argument and a global or closure variable"):
        f(w)
    assert w.grad.tolist() == [3.0, 4.0]


def test_one_tensor_given_twice() -> None:
    @ad.compile
    def f(a: Any, b: Any) -> None:
        (a * b * 3).sum().backward()

    w = ad.tensor([1.0, 2.0], requires_grad=True)
    f(w, w)
    assert w.grad.tolist() == [6.0, 12.0]
    u, v = (ad.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    f(u, v)
    assert u.grad.tolist() == [3.0, 6.0]


def test_conditions_on_shapes_and_on_whole_numbers() -> None:
    @ad.compile
    def f(x: Any, depth: int) -> Any:
        for _ in range(depth):
            x = x * 2 if len(x) > 2 else x + 1
        return x

    assert f(np.ones(3), 2).tolist() == [4.0] * 3
    assert f(np.ones(2), 3).tolist() == [4.0] * 2


def test_printing_inside_shows_no_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    f = ad.compile(lambda x: (print(x), x)[1])
    f(ad.tensor([1.0]))
    assert "value of ad.compile" in capsys.readouterr().out


def test_a_write_into_a_view_is_an_error_as_in_eager_mode() -> None:
    def f(x: Any) -> Any:
        y = ad.zeros(3)
        y[0:2][0] = x
        return y

    with pytest.raises(ad.errors.InPlaceError):
        f(1.0)
    with pytest.raises(ad.errors.InPlaceError):
        ad.compile(f)(np.ones(()))


@pytest.mark.parametrize("backend", ["replay", "native"])
def test_a_write_into_an_argument_that_is_a_view_is_an_error_as_in_eager_mode(backend: str) -> None:
    def assign(a: Any, b: Any) -> Any:
        a[0] = 10.0
        return b.sum()

    def add(a: Any, b: Any) -> Any:
        a += 1.0
        return b.sum()

    for f in (assign, add):
        whole = ad.tensor(np.arange(4.0))
        view = whole[:2]
        with pytest.raises(ad.errors.InPlaceError) as eager:
            f(view, whole)
        compiled = ad.compile(f, backend=backend)
        for _ in range(2):
            with pytest.raises(ad.errors.InPlaceError) as found:
                compiled(view, whole)
            assert str(found.value) == str(eager.value)
            for _ in range(3):  # later calls with a view are noticed too
                own = ad.tensor([1.0, 2.0])
                assert compiled(own, whole).item() == 6.0
                assert own.tolist() == ([10.0, 2.0] if f is assign else [2.0, 3.0])
        assert compiled.stats()["traces"] == 1
        lone = ad.tensor(np.arange(4.0))[:2]  # nothing else has its memory
        assert compiled(lone, whole).item() == 6.0
        assert whole.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_write_into_the_result_of_a_recorded_op_is_an_error_as_in_eager_mode() -> None:
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    made = w * 2

    @ad.no_grad()
    def f(a: Any) -> Any:
        a[0] = 10.0

    @ad.no_grad()
    def g() -> Any:
        made[0] = 10.0

    for call in (lambda: f(made), lambda: ad.compile(f)(made), g, ad.compile(g)):
        with pytest.raises(ad.errors.InPlaceError, match="result of 'multiply' and part of a graph"):
            call()
    assert made.tolist() == [2.0, 4.0]


def test_plain_data_behind_a_local_variable_is_noticed() -> None:
    class Options:
        rate = 2.0

    class Holder:
        def __init__(self) -> None:
            self.scale, self.options, self.calls = 0.5, Options(), 0
            self.options.rate = 2.0

    def scaled(x: Any, owner: Any) -> Any:
        return x * owner.scale

    def f(x: Any) -> Any:
        options = holder.options
        return scaled(x, holder) * options.rate

    holder = Holder()
    g = ad.compile(f)
    assert g(np.ones(2)).tolist() == [1.0, 1.0]
    holder.scale = 1.0
    assert g(np.ones(2)).tolist() == [2.0, 2.0]
    holder.options.rate = 3.0
    assert g(np.ones(2)).tolist() == [3.0, 3.0]
    holder.calls += 1  # nothing that the function calls reads it
    g(np.ones(2))
    assert [r.rpartition(": ")[2] for r in g.stats()["reasons"][1:]] == [
        "holder.scale changed", "holder.options.rate changed",
    ]  # fmt: skip


@pytest.mark.parametrize("backend", ["replay", "auto"])
def test_hooks_of_a_tensor_run_once_where_the_gradient_is_computed_outside(backend: str) -> None:
    w, seen = ad.tensor([1.0, 2.0], requires_grad=True), []
    w.register_hook(lambda g: (seen.append(1), g * 0.5)[1])
    f = ad.compile(lambda x: (w * x).sum(), backend=backend)
    for k in range(3):
        w.grad = None
        f(np.ones(2)).backward()
        assert w.grad.tolist() == [0.5, 0.5]
        assert len(seen) == k + 1


def test_a_parameter_that_is_only_written_to() -> None:
    w = ad.tensor([1.0, 2.0], requires_grad=True)

    @ad.compile
    def f(x: Any) -> None:
        with ad.no_grad():
            w.__isub__(x)

    for _ in range(3):
        f(ad.ones(2))
    assert w.tolist() == [-2.0, -1.0]
    assert w.requires_grad


def test_a_loss_that_was_differentiated_inside_has_no_other_gradient() -> None:
    w = ad.tensor([1.0, 2.0], requires_grad=True)

    @ad.compile
    def f() -> Any:
        loss = (w * w).sum()
        loss.backward()
        return loss

    for _ in range(3):
        with pytest.raises(ad.errors.GraphReleasedError):
            ad.gradients(f(), [w], create_graph=True, allow_unused=True)


def test_a_branch_on_requires_grad_is_noticed() -> None:
    w = ad.tensor([1.0, 2.0])

    @ad.compile
    def f(x: Any) -> Any:
        return x * 2 if w.requires_grad else x * 3

    for frozen in (True, False, True, False):
        w.requires_grad_(not frozen)
        assert f(np.ones(2)).tolist() == ([3.0, 3.0] if frozen else [2.0, 2.0])


def test_freezing_inside_is_an_error() -> None:
    m = nn.Linear(3, 3, rng=0)

    @ad.compile
    def f(x: Any) -> Any:
        made = ad.zeros(3).requires_grad_()  # a tensor of its own may be a leaf
        m.weight.requires_grad_(False)
        return m(x) + made

    with pytest.raises(TransformError, match="changes requires_grad of a tensor that was created outside"):
        f(X)
    assert m.weight.requires_grad


class Scaled:
    """An object whose attribute is read without being named in the function."""

    def __init__(self) -> None:
        self.scale = 1.0

    def __call__(self, x: Any) -> Any:
        return x * self.scale

    def __getitem__(self, key: int) -> float:
        return self.scale + key


def multiplied(x: Any, factors: list[float]) -> Any:
    return x * factors[0]


def test_plain_data_behind_containers_defaults_and_implicit_methods_is_noticed() -> None:
    scaled, factors, queue = Scaled(), [1.0], deque([1.0])
    objects, named = [scaled], {"a": scaled}

    def default(x: Any, factors: list[float] = factors) -> Any:
        return x * factors[0]

    functions = [
        lambda x: x * objects[0].scale, lambda x: x * named["a"].scale, lambda x: scaled(x), lambda x: x * scaled[1],
        default, functools.partial(multiplied, factors=factors), lambda x: x * queue[0],
    ]  # fmt: skip
    compiled = [ad.compile(f) for f in functions]
    for _ in range(3):
        for f, g in zip(functions, compiled, strict=True):
            assert g(ad.ones(2)).tolist() == f(ad.ones(2)).tolist()
        scaled.scale += 1
        factors[0] += 1
        queue.appendleft(queue[0] + 1)


FACTOR = 1.0


def by_factor(x: Any) -> Any:
    return x * FACTOR


class ByFactor:
    """An object whose methods read a global variable."""

    def __call__(self, x: Any) -> Any:
        return x * FACTOR

    __add__ = __call__

    def scaled(self, x: Any) -> Any:
        return x * FACTOR

    @staticmethod
    def statically(x: Any) -> Any:
        return x * FACTOR

    @property
    def factor(self) -> float:
        return FACTOR


class FactorLayer(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * FACTOR


class Outer:
    def __init__(self) -> None:
        self.inner, self.listed, self.function = ByFactor(), [ByFactor()], by_factor


OUTER, FUNCTIONS = Outer(), {"a": [by_factor]}


def by_local_variables(x: Any) -> Any:
    for each in OUTER.listed:
        x = each.scaled(x)
    outer = OUTER
    return outer.function(x)


CODE = {
    "a function in a container": lambda x: FUNCTIONS["a"][0](x),
    "a default": lambda x, f=by_factor: f(x),
    "a compiled function": (lambda f: lambda x: f(x))(ad.compile(by_factor)),
    "a function in partial": functools.partial(lambda f, x: f(x), by_factor),
    "a function of a transform": lambda x: ad.vmap(by_factor)(x),
    "an object in a container": lambda x: OUTER.listed[0](x),
    "an operator": lambda x: OUTER.inner + x,
    "a property": lambda x: x * OUTER.inner.factor,
    "a static method": lambda x: ByFactor.statically(x),
    "an object that is created": lambda x: ByFactor().scaled(x),
    "local variables": by_local_variables,
    "a layer in a model": nn.Sequential(nn.Identity(), FactorLayer()),
    "a model in a function": (lambda m: lambda x: m(x))(nn.Sequential(nn.Sequential(FactorLayer()))),
}


@pytest.mark.parametrize("backend", ["replay", "auto"])
@pytest.mark.parametrize("name", CODE)
def test_a_global_is_noticed_in_all_code_that_runs(
    name: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = ad.compile(CODE[name], backend=backend)
    for factor in (2.0, 2.0, 2.0, 3.0, 5.0):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        assert compiled(np.ones(1)) == CODE[name](ad.ones(1)).numpy()
    assert compiled.stats()["traces"] == 3


class Counting(nn.Module):
    """A layer that counts its calls in plain data."""

    def __init__(self) -> None:
        self.calls, self.log = 0, [[1]]

    def forward(self, x: Any) -> Any:
        self.calls += 1
        self.log[0].append(self.calls)
        return x * self.calls + len(self.log[0])


def counting() -> Any:
    total, seen = 0, {"n": 0}

    def f(x: Any) -> Any:
        nonlocal total
        total += 2
        seen["n"] += 1
        return x * total + seen["n"]

    return f


@pytest.mark.parametrize("mode", [True, False, "check"])
@pytest.mark.parametrize("make", [Counting, lambda: nn.Sequential(Counting()), counting])
def test_functions_that_count_their_calls_in_plain_data(make: Any, mode: Any) -> None:
    eager, compiled = make(), ad.compile(make())
    with ad.config.compiling(mode):
        for k in range(4):
            assert compiled(np.full(2, k, float)).tolist() == eager(ad.full(2, float(k))).tolist()


def test_values_that_a_layer_stores_and_does_not_read_back_need_no_other_trace() -> None:
    class Net(nn.Module):
        def forward(self, x: Any) -> Any:
            self.last = x * 2
            return self.last + 1

    net = Net()
    for f in (ad.compile(net), ad.compile(nn.Sequential(net))):
        found = [f(np.full(1 + k % 2, k)).tolist() for k in range(6)]
        assert found == [[1 + 2 * k] * (1 + k % 2) for k in range(6)]
        assert f.stats()["traces"] <= 3  # two shapes, and one trace without the attribute
    with pytest.raises(TransformError, match="Return it from the compiled function"):
        net.last + 1


class Holder:
    def __init__(self) -> None:
        self.value = ad.tensor([1.0, 2.0])


@pytest.mark.parametrize("mode", [True, False, "check"])
@pytest.mark.parametrize(
    ("f", "args", "kind"),
    [
        (lambda h: h.value * 2, (Holder(),), ad.Tensor),
        (lambda n: ad.ones(2) * n, (3,), ad.Tensor),
        (lambda r: ad.ones(2) * r, (3.0,), np.ndarray),
        (lambda h, x: h.value * x, (Holder(), np.ones(2)), np.ndarray),
    ],
)
def test_types_of_results_are_the_same_in_every_mode(f: Any, args: Any, kind: type, mode: Any) -> None:
    with ad.config.compiling(mode):
        assert type(ad.compile(f)(*args)) is kind


WATCHING = {
    "a tape": ad.Tape,
    "anomaly detection": ad.detect_anomaly,
    "hooks of saved tensors": lambda: ad.saved_tensors_hooks(lambda t: t, lambda t: t),
}


@pytest.mark.parametrize("name", WATCHING)
def test_modes_that_watch_ops_run_the_function_itself(name: str) -> None:
    w, seen = ad.tensor([1.0, 2.0], requires_grad=True), []

    @ad.compile
    def f(x: Any) -> Any:
        seen.append(type(x))
        return (w * x).sum()

    for k in range(2):
        with WATCHING[name]():
            f(np.ones(2)).backward()
        assert len(seen) == k + 1
        assert w.grad.tolist() == [k + 1.0, k + 1.0]
    assert f.stats()["traces"] == 0
    f(np.ones(2))
    assert f.stats()["traces"] == 1


NUMBERS = [
    0.0,
    -0.0,
    0,
    False,
    1.0,
    np.float64(1),
    True,
    1j,
    complex(-0.0, 1),
    np.float32(0),
    np.float32(-0.0),
]
number: Any = None


@pytest.mark.parametrize("backend", ["replay", "native"])
def test_equal_numbers_with_other_results_are_distinguished(backend: str) -> None:
    """Signs of zero, and types that promote differently."""
    if backend == "native":
        pytest.importorskip("llvmlite")

    def by_argument(x: Any, c: Any) -> Any:
        return x * c

    static = ad.compile(by_argument, static="c", backend=backend, limit=20)
    read = ad.compile(lambda x: x * number, backend=backend, limit=20)
    x = ad.tensor(np.ones(2, np.float32))
    for value in NUMBERS:
        globals()["number"] = value
        wanted = bits(x * value)
        assert bits(static(x, value)) == wanted
        assert bits(read(x)) == wanted


ALIKE: list[list[Any]] = [
    [0.0, -0.0, math.nan, 0, False, 1, True, 1.0],
    [(0.0,), (-0.0,), [-0.0], (0,), (False,)],
    [{"a": (0.0, 1)}, {"a": (-0.0, 1)}, {"a": (0.0, True)}],
    [{1: 0.0}, {True: 0.0}, {1.0: 0.0}],
    [frozenset({0.0}), frozenset({-0.0}), frozenset({0}), frozenset({False})],
    [Decimal("1.0"), Decimal("1.00"), Fraction(1)],
    [range(0), range(1, 1)],
]


@pytest.mark.parametrize("values", ALIKE)
def test_equal_values_with_other_texts_are_distinguished(values: list[Any]) -> None:
    static = ad.compile(lambda x, c: (x, repr(c)), static="c", backend="replay", limit=20)
    read = ad.compile(lambda x: (x, repr(number)), backend="replay", limit=20)
    for value in (*values, *values):
        globals()["number"] = value
        assert static(X, value)[1] == static(X, c=value)[1] == read(X)[1] == repr(value)
    assert (
        len(values) <= read.stats()["traces"] <= len(values) + 2
    )  # a variable that changes is traced once more


@pytest.mark.parametrize("backend", ["replay", "native"])
def test_zeros_of_both_signs_around_an_array(backend: str) -> None:
    if backend == "native":
        pytest.importorskip("llvmlite")

    def f(x: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            return carry + row, ad.pad(carry, (1, 1), constant_values=-0.0)

        rows = ad.scan(step, x, x.reshape(3, 1) * ad.ones((3, 3)))[1]
        return ad.pad(x, (2, 1)), ad.pad(x, (2, 1), constant_values=-0.0), rows

    x = ad.tensor([1.0, 2.0, 3.0])
    assert bits(ad.compile(f, backend=backend)(x)) == bits(f(x))
    given = ad.compile(lambda x, c: ad.pad(x, (1, 1), constant_values=c), backend=backend)
    for c in (0.0, -0.0, float("nan"), float("nan"), 0.0):
        assert bits(given(x, c)) == bits(ad.pad(x, (1, 1), constant_values=c))
    assert given.stats()["traces"] == 3


def test_a_loop_is_unrolled_although_the_function_catches_everything() -> None:
    def loop(x: Any) -> Any:
        rng = ad.random.default_rng(0)
        return ad.scan(lambda c, row: (c * row + rng.normal(), c), x.sum(), ad.concatenate([x] * 4))[0]

    def f(x: Any) -> Any:
        try:
            return ad.jvp(loop, (x,), (x,))[1]
        except:  # noqa: E722  also catches errors of the trace that are not an Exception
            return x.sum()

    x = ad.tensor([0.3, 0.5, 0.9])
    assert bits(ad.compile(f, backend="replay")(x)) == bits(f(x))


def test_a_compiled_module_names_the_module_for_its_attributes() -> None:
    model = nn.Linear(3, 2, rng=0)
    f = ad.compile(model)
    for name in ("parameters", "eval", "weight"):
        with pytest.raises(
            AttributeError, match="A compiled Linear is only a function: use the Linear itself"
        ):
            getattr(f, name)
        assert not hasattr(f, name) and getattr(f, name, 3) == 3
    with pytest.raises(AttributeError, match=r"^'Compiled' object has no attribute 'eval'$"):
        ad.compile(lambda x: x).eval  # noqa: B018  the access raises
    want = model(ad.tensor(X)).numpy()
    for made in (f, copy.copy(f), copy.deepcopy(f), pickle.loads(pickle.dumps(f))):
        assert bits(made(ad.tensor(X)).numpy()) == bits(want)
    with pytest.raises(AttributeError, match=r"^'Compiled' object has no attribute 'x'$"):
        object.__new__(type(f)).x  # noqa: B018  an object that is not complete, as inside pickle


def test_a_cache_is_filled_before_the_first_compiled_call() -> None:
    cache: dict[int, Any] = {}

    def f(x: Any) -> Any:
        if 0 not in cache:
            cache[0] = ad.sin(ad.arange(3.0))
        return x.sum() * cache[0].sum()

    compiled = ad.compile(f)
    compiled(X)
    line = f.__code__.co_firstlineno + 2
    with pytest.raises(TransformError, match=f"computed at .*test_footguns.py:{line} while") as caught:
        compiled(X[:2])
    assert "For a cache, compute the value once before the first compiled call." in str(caught.value)
    cache.clear()
    want = f(ad.tensor(X[:2])).item()
    compiled.clear()
    compiled(X)
    assert compiled(X[:2]).item() == want


def test_a_bound_of_a_slice_is_an_integer() -> None:
    x, n = np.arange(5.0), np.array(2)
    for f in (ad.compile(lambda n: ad.tensor(x)[:n]), lambda n: ad.vmap(lambda k: ad.tensor(x)[:k])(n[None])):
        with pytest.raises(
            IndexError, match=r"the shape of the result would depend on it.\n  Pass the bound as"
        ):
            f(n)
    for one in (2.0, np.array([2]), ad.tensor(2.0)):
        with pytest.raises(IndexError, match=r"or None, but one is .*\n  Convert it: int\(n\)\."):
            ad.tensor(x)[:one]
    with pytest.raises(IndexError, match="Convert it: int"):
        ad.compile(lambda x, n: x[:n])(x, 2.0)
    for f in (ad.compile(lambda x, n: x[:n]), lambda x, n: ad.vmap(lambda k: x[:k])(n[None])):
        with pytest.raises(IndexError, match=r"would depend on it\.\n  Pass the bound as"):
            f(ad.tensor(x), np.array(2.0))  # int(n) would be an error, too
    assert ad.compile(lambda x, n: x[: int(n)])(x, 2.0).tolist() == [0, 1]
    assert ad.compile(lambda x, n: x[:n])(x, 2).tolist() == [0, 1]
    assert ad.compile(lambda x, n: x[n + ad.arange(2)])(x, n).tolist() == [2, 3]
    assert ad.compile(lambda x, n: ad.where(ad.arange(len(x)) < n, x, 0))(x, n).tolist() == [0, 1, 0, 0, 0]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_of_the_optimiser_inside_a_micro_batch_finds_no_gradients(compiled: bool) -> None:
    w = ad.tensor([1.0], requires_grad=True)
    o, acc = optim.SGD([w], lr=0.25), ad.GradientAccumulator([w], accumulation_steps=1)

    def step() -> None:
        o.zero_grad()
        (w * w).sum().backward()
        o.step()

    with acc.micro_batch():
        (ad.compile(step) if compiled else step)()
    assert w.item() == 1.0 and w.grad is None
    assert acc.apply(o) and w.item() == 0.5


class _Rows(nn.Module):
    def __init__(self) -> None:
        self.table = nn.Parameter(ad.tensor(np.eye(4, dtype="f")))

    def forward(self, i: Any) -> Any:
        return self.table[i]


@pytest.mark.parametrize("backend", ["auto", "replay"])
@pytest.mark.parametrize(
    "layer",
    [lambda: nn.Embedding(4, 2, rng=0), _Rows, lambda: nn.Sequential(_Rows())],
    ids=["", "rows", "deep"],
)
def test_an_index_out_of_range_names_the_module(layer: Any, backend: str) -> None:
    model = nn.Sequential(nn.Identity(), layer())
    f = ad.compile(model, backend=backend)
    for _ in range(3):
        f(np.array([1, 2]))
    messages = []
    for each in (model, f):
        with pytest.raises(IndexError, match="In the module Sequential, at '1") as caught:
            each(np.array([1, 9]))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert f.stats()["traces"] == 1
