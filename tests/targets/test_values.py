"""Values that stay on a device: they are read once, when they are used, by whatever uses them."""

from __future__ import annotations

import collections
import copy
import functools
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from opencl import DEVICE, on_opencl, program_of

import adjoint as ad
from adjoint import nn, optim
from adjoint.errors import ArgumentError, DeviceError


class Net:
    """A linear layer, its optimiser, and a compiled step."""

    def __init__(self, kind: str = "Adam", device: str = "opencl") -> None:
        self.layer = nn.Linear(3, 2, rng=ad.random.default_rng(0))
        self.opt = getattr(optim, kind)(self.layer.parameters(), lr=0.1)
        self.step = ad.compile(self.whole, device=device)
        self.x = ad.tensor(np.linspace(-1, 1, 12, dtype="f4").reshape(4, 3))

    def whole(self, x: Any) -> Any:
        self.opt.zero_grad()
        loss = (self.layer(x) ** 2).mean()
        loss.backward()
        self.opt.step()
        return loss


def down() -> int:
    return int(DEVICE.counts["down"])


READERS: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda t: t.numpy(), "item": lambda t: t.sum().item(), "eager op": lambda t: (t * 2).numpy(),
    "np.asarray": np.asarray, "repr": repr, "tolist": lambda t: t.tolist(), "copy": copy.copy,
    "deepcopy": copy.deepcopy, "pickle": lambda t: pickle.loads(pickle.dumps(t)), "detach": lambda t: t.detach(),
    "NumPy's function": np.exp, "iteration": list, "index": lambda t: t[0], "grad": lambda t: ad.grad(ad.sum)(t),
    "vmap": lambda t: ad.vmap(ad.sum)(t), "compiled": ad.compile(lambda t: t + 1), "stack": lambda t: ad.stack([t, t]),
    "augmented": lambda t: t.__iadd__(1) if not t.requires_grad else None, "isinstance": lambda t: np.array(t),
}  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
def test_every_way_to_read_a_result_gives_its_values(reader: str) -> None:
    f = on_opencl(lambda x: (x * 2, x + 1))
    x = ad.tensor(np.arange(6.0, dtype="f4").reshape(2, 3))
    found, other = f(x)
    assert found.device == other.device == "opencl:0" and found.shape == (2, 3) and found.dtype == np.float32
    before = down()
    assert (found.ndim, found.size, found.itemsize, found.nbytes, len(found)) == (2, 6, 4, 24, 2)
    assert down() == before  # shapes and dtypes are known
    wanted = READERS[reader](x * 2)
    value = READERS[reader](found)
    if isinstance(wanted, str):
        assert value == wanted
    elif wanted is not None:
        np.testing.assert_array_equal(np.asarray(value), np.asarray(wanted))
    assert down() == before + 24 and found.device == "cpu" and type(found) is ad.Tensor
    assert found.numpy() is not None and down() == before + 24  # it is read once
    assert other.device == "opencl:0"


def test_a_trace_captures_a_tensor_that_is_on_a_device() -> None:
    """It is an input of the program, not a constant."""
    w = ad.tensor([1.0, 2.0])
    grow = on_opencl(lambda x: w.copy_(w + x))
    use = ad.compile(lambda x: (w * x).sum())
    for k in range(1, 4):
        grow(ad.tensor([1.0, 1.0]))
        assert w.device == "opencl:0"
        assert use(ad.tensor([1.0, 1.0])).item() == 3.0 + 2 * k
    assert use.stats()["traces"] == 1


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_eager_and_compiled_steps_can_alternate(kind: str) -> None:
    nets = [Net(kind), Net(kind, "cpu")]
    for k in range(6):
        losses = [n.whole(n.x) if k % 3 == 2 else n.step(n.x) for n in nets]
        np.testing.assert_allclose(losses[0].item(), losses[1].item(), rtol=1e-5)
    for a, b in zip(*(n.layer.parameters() for n in nets), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5)
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-4)


def test_nothing_is_read_while_a_step_is_repeated() -> None:
    net = Net()
    net.step(net.x)
    before = down()
    losses = [net.step(net.x) for _ in range(5)]
    assert down() == before
    assert net.layer.weight.device == net.layer.weight.grad.device == "opencl:0"
    assert losses[0].item() > losses[-1].item() and down() == before + 8
    assert net.step.stats()["traces"] == 1


def test_states_are_saved_and_loaded() -> None:
    net, other = Net(), Net(device="cpu")
    for n in (net, other):
        for _ in range(3):
            n.step(n.x)
    for a, b in zip(net.layer.state_dict().values(), other.layer.state_dict().values(), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5)
    fresh = Net()
    fresh.layer.load_state_dict(net.layer.state_dict())
    fresh.opt.load_state_dict(net.opt.state_dict())
    for n in (fresh, net, other):
        n.step(n.x)
    np.testing.assert_array_equal(fresh.layer.weight.numpy(), net.layer.weight.numpy())
    np.testing.assert_allclose(net.layer.weight.numpy(), other.layer.weight.numpy(), rtol=1e-5)


def test_optimisers_with_a_state_on_a_device_are_copied() -> None:
    net = Net()
    net.step(net.x)
    twin = copy.deepcopy((net.layer, net.opt))
    again = pickle.loads(pickle.dumps(net.opt))
    for opt in (twin[1], again):
        (unit,) = opt.groups[0].units
        assert type(unit.state) is dict and all(type(v) is np.ndarray for v in unit.state.values())


STATE_READERS: dict[str, Callable[[Any], Any]] = {
    "index": lambda s: s["m"], "get": lambda s: s.get("m"), "pop": lambda s: s.pop("m"),
    "setdefault": lambda s: s.setdefault("m"), "values": lambda s: next(iter(s.values())),
    "items": lambda s: next(iter(s.items()))[1], "popitem": lambda s: s.popitem()[1], "dict": lambda s: dict(s)["m"],
    "unpacking": lambda s: {**s}["m"], "update": lambda s: collections.ChainMap({}, s)["m"], "or": lambda s: (s | {})["m"],
    "copy": lambda s: copy.copy(s)["m"], "deepcopy": lambda s: copy.deepcopy(s)["m"],
}  # fmt: skip


@pytest.mark.parametrize("reader", STATE_READERS)
def test_every_way_to_read_the_state_of_an_optimiser_gives_arrays(reader: str) -> None:
    net = Net()
    net.step(net.x)
    (unit,) = net.opt.groups[0].units
    assert type(STATE_READERS[reader](unit.state)) is np.ndarray


def test_the_state_of_an_optimiser_is_a_dictionary() -> None:
    nets = [Net(), Net()]
    for net in nets:
        net.step(net.x)
    a, b = (net.opt.groups[0].units[0].state for net in nets)
    assert repr(a).startswith("{'m': array([") and "object at" not in str(b)
    assert a.pop("none", 3) == 3 and a.setdefault("more", 4) == 4 and list(a) == ["m", "v", "more"]
    a, b = ({k: v.tobytes() for k, v in s.items()} for s in (a, b) if s.pop("more", 4) == 4)
    assert a == b


def test_arrays_are_made_beside_a_tensor_on_a_device() -> None:
    """As functions of the Array API standard do: they pass the device of a tensor on."""
    t = on_opencl(lambda x: x * 2)(ad.tensor([1.0, 2.0]))
    device = t.device
    assert device == "opencl:0" and ad.zeros(2, device=device).device == "cpu"
    assert ad.asarray(t, device=device).tolist() == t.to_device(device).tolist() == [2.0, 4.0]
    with pytest.raises(ArgumentError, match=r"ad\.compile\(step, device=\), with a name of ad\.devices\(\)"):
        ad.zeros(2, device="opencl:0")


def test_a_written_tensor_is_copied_again() -> None:
    net = Net()
    f = on_opencl(lambda x: net.layer(x))
    with ad.no_grad():
        a = f(net.x).numpy()
        net.layer.bias.copy_(np.array([5.0, 7.0], "f4"))
        b = f(net.x).numpy()
        net.layer.bias += 1
        c = f(net.x).numpy()
    assert (a != b).all()
    np.testing.assert_allclose(c - b, np.ones((4, 2)), rtol=1e-5)


def test_arrays_are_read_at_each_call() -> None:
    f = on_opencl(lambda x: ad.asarray(x) * 2)
    x = np.ones(3, "f4")
    first = f(x)
    x[:] = 3
    second = f(x)
    np.testing.assert_array_equal(np.asarray(first), [2, 2, 2])
    np.testing.assert_array_equal(np.asarray(second), [6, 6, 6])


def test_results_are_differentiated_outside() -> None:
    w = ad.tensor(np.array([1.0, 2.0, 3.0]), requires_grad=True)
    f = on_opencl(lambda x: ad.tanh(w * x).sum())
    x = ad.tensor([0.1, 0.2, 0.3])
    loss = f(x)
    loss.backward()
    wanted = ad.grad(lambda w: ad.tanh(w * x).sum())(w)
    np.testing.assert_allclose(w.grad.numpy(), wanted.numpy(), rtol=1e-12)


def test_arrays_give_arrays() -> None:
    f = on_opencl(lambda x, r: {"y": x * r, "z": (x.sum(), 3)})
    x = np.arange(3, dtype="f4")
    for r in (1.0, 2.0):
        found = f(x, r)
        assert type(found["y"]) is np.ndarray and type(found["z"][0]) is np.float32 and found["z"][1] == 3
        np.testing.assert_array_equal(found["y"], x * np.float32(r))


def test_sparse_gradients() -> None:
    """The rows of an embedding's gradient, and the clipping and the update that read them."""
    found = []
    for device in ("cpu", "opencl"):
        table = nn.Embedding(9, 3, sparse=True, rng=ad.random.default_rng(0))
        opt = optim.SGD(table.parameters(), lr=0.1)

        def step(i: Any, table: Any = table, opt: Any = opt) -> Any:
            opt.zero_grad()
            loss = (table(i) ** 2).sum()
            loss.backward()
            opt.step()
            return loss

        compiled = ad.compile(step, device=device)
        losses = [compiled(ad.tensor(np.array([0, 5, 5, 8]))).item() for _ in range(3)]
        found.append(
            [np.array(losses), table.weight.detach().numpy(), np.asarray(table.weight.grad.to_dense())]
        )
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


USES: dict[str, Callable[[Any, Any], Any]] = {
    "step": lambda net, params: net.opt.step(),
    "clip": lambda net, params: ad.clip_grad_norm(params, 0.1),
    "clip value": lambda net, params: ad.clip_grad_value(params, 0.1),
    "norm": lambda net, params: ad.global_norm([p.grad for p in params]),
    "backward again": lambda net, params: (net.layer(net.x) ** 2).mean().backward(),
    "zero": lambda net, params: [p.grad.zero_() if hasattr(p.grad, "zero_") else None for p in params],
    "tape": lambda net, params: ad.backward((net.layer(net.x) ** 2).mean()),
    "state": lambda net, params: net.layer.state_dict(),
    "native": lambda net, params: net.apart(),
}


@pytest.mark.parametrize("use", USES)
def test_gradients_that_are_on_a_device_are_used_by_eager_code(use: str) -> None:
    """The same numbers as with gradients that are on the CPU."""
    found = []
    for device in ("cpu", "opencl"):
        net: Any = Net("SGD")
        params = list(net.layer.parameters())

        def gradients(x: Any, net: Any = net) -> Any:
            net.opt.zero_grad()
            (net.layer(x) ** 2).mean().backward()

        net.apart = ad.compile(lambda net=net: net.opt.step(), backend="native")
        ad.compile(gradients, device=device)(net.x)
        assert (params[0].grad.device == "cpu") == (device == "cpu")
        result = USES[use](net, params)
        values = [*result.values()] if isinstance(result, dict) else [result]
        values = [v for v in values if isinstance(v, (np.ndarray, ad.Tensor))]
        found.append([*values, *params, *(p.grad for p in params)])
    for a, b in zip(*found, strict=True):
        a, b = (np.asarray(v.detach() if isinstance(v, ad.Tensor) else v) for v in (a, b))
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_random_numbers_are_those_of_the_cpu() -> None:
    def make(device: str) -> Any:
        rng = ad.random.default_rng(3)

        def f(x: Any) -> Any:
            rng.normal(size=3)  # nothing reads these numbers, but the generator advances
            return x * rng.normal(size=4)

        return ad.compile(f, device=device)

    x = ad.tensor(np.ones(4))
    for a, b in zip(*([f(x).numpy() for _ in range(3)] for f in map(make, ("cpu", "opencl"))), strict=True):
        np.testing.assert_array_equal(a, b)


class Counts:
    """Numbers that compiled functions read and change."""

    def __init__(self) -> None:
        self.n, self.s, self.last = 0, 1.0, 0


def _counted(c: Counts, t: Any, k: Any) -> Any:
    c.n += 1
    return t * c.n


def _decayed(c: Counts, t: Any, k: Any) -> Any:
    c.s = c.s * 0.9**k
    return t * c.s + k // 2, c.s, k * 2, k / 3


def _kept(c: Counts, t: Any, k: Any) -> Any:
    c.last = k
    return t * (10 // k)  # k is 0 in one call


def _at(c: Counts, t: Any, k: Any) -> Any:
    c.n += 1
    return t[k % 3], t[ad.asarray(k)]  # out of range in one call


def _array(c: Counts, t: Any, k: Any) -> Any:
    return ad.arange(5) * k + t[0], ad.full((2,), k)


def _loop(c: Counts, t: Any, k: Any) -> Any:
    return ad.scan(lambda carry, row: (carry * k + row, carry), t, ad.ones((4, 3)))


@pytest.mark.parametrize("f", [_counted, _decayed, _kept, _at, _array, _loop])
def test_numbers_that_change_do_not_trace_again(f: Any) -> None:
    """The host computes them before each call, as for the CPU; a call that fails changes none."""
    found = []
    for device in ("cpu", "opencl"):
        c, results = Counts(), []
        step = ad.compile(functools.partial(f, c), device=device)
        for k in (1, 2, 5, 0, 3, 2**60):
            try:
                values = [np.asarray(v) for v in ad.tree.leaves(step(ad.tensor([1.0, 2.0, 3.0]), k))]
            except (ZeroDivisionError, IndexError) as error:
                values = [type(error)]
            results.append((values, dict(vars(c))))
        found.append((results, step.stats()["traces"]))
    np.testing.assert_equal(found[1], found[0])


def test_numbers_and_empty_arrays() -> None:
    f = on_opencl(lambda x, r: (x[:0], x.sum() * r, r * 2, ad.zeros(3), x))
    x = ad.tensor(np.arange(3.0))
    for r in (0.5, 2.0):
        empty, total, number, zeros, same = f(x, r)
        assert empty.shape == (0,) and total.item() == 3 * r and number == 2 * r
        assert zeros.tolist() == [0, 0, 0] and same is x


def test_explain_lists_the_kernels() -> None:
    net = Net()
    net.step(net.x)
    lines = net.step.explain().splitlines()
    assert lines[0].startswith("opencl:0: ") and "kernels" in lines[0] and len(lines) > 3
    assert program_of(net.step).plan.count()["kernels"] == len(lines) - 1


def test_leaks() -> None:
    net = Net()
    for _ in range(3):
        net.step(net.x)
    before = DEVICE.counts["allocated"]
    for _ in range(1000):
        net.step(net.x)
    assert DEVICE.counts["allocated"] == before


def test_values_of_other_sizes_use_the_same_memory() -> None:
    f = on_opencl(lambda x: x * 2, limit=20)
    f(np.ones(9000))
    before = DEVICE.counts["allocated"]
    for n in range(8500, 9000, 50):
        assert f(np.ones(n)).sum() == 2 * n
    assert DEVICE.counts["allocated"] - before <= 10 * 1000  # without the values


# Errors ---------------------------------------------------------------------------------------------------


def test_an_op_without_a_native_form_is_named_before_anything_is_written() -> None:
    w = ad.tensor([1.0, 2.0])

    @on_opencl
    def f(x: Any) -> Any:
        w.copy_(w + x)
        return ad.special.digamma(w)

    with pytest.raises(DeviceError) as error:
        f(ad.tensor([2.0, 1.0]))
    text = str(error.value)
    assert "test_values.py" in text and "digamma cannot run on opencl:0" in text and 'device="cpu"' in text
    assert w.tolist() == [1.0, 2.0]


def test_arrays_with_too_many_elements() -> None:
    f = on_opencl(lambda x: (x[:, None] + x).sum())
    with pytest.raises(DeviceError, match="computes add with 2,147,488,281 elements, but kernels of devices"):
        f(ad.ones(46341))


@pytest.mark.parametrize("name", ["quantum", "opencl:x", "opencl:99", 3, None])
def test_unknown_devices(name: Any) -> None:
    with pytest.raises(ArgumentError, match="device"):
        ad.compile(lambda x: x, device=name)


def test_options_of_the_cpu() -> None:
    with pytest.raises(ArgumentError, match=r"backend= is for the CPU, but device='opencl'"):
        ad.compile(lambda x: x, device="opencl", backend="replay")


def test_an_index_out_of_range_raises_as_in_eager_mode_and_changes_nothing() -> None:
    table = ad.tensor(np.zeros((4, 2)))

    @on_opencl
    def add(i: Any) -> Any:
        table.copy_(table + 1)
        return table[i].sum()

    assert add(ad.tensor([0, 3])).item() == 4
    with pytest.raises(IndexError, match="4"):
        add(ad.tensor([0, 4]))
    assert table.tolist() == [[1, 1]] * 4
    assert add(ad.tensor([-4, 1])).item() == 8
