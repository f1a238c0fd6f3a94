"""Exchange of memory with other objects: no write on one side is ever seen on the other."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import nn, optim, train
from adjoint.core.inplace import is_view
from adjoint.core.sparse import sparse_gradient
from adjoint.errors import InPlaceError

pytest.importorskip("safetensors")
ml_dtypes = pytest.importorskip("ml_dtypes")

DTYPES = [np.float64, np.float32, np.float16, np.complex128, np.int64, np.uint8, np.bool_, ml_dtypes.bfloat16]


def everything_behind(array: np.ndarray) -> list[np.ndarray]:
    """The array and every array in the chain of its bases."""
    found: list[Any] = []
    while isinstance(array, np.ndarray):
        found.append(array)
        array = array.base  # type: ignore[assignment]
    return found


def scribble(array: np.ndarray) -> None:
    """Write wherever NumPy lets one write, and try to make it."""
    for a in everything_behind(array):
        try:
            a.flags.writeable = True
        except ValueError:
            continue
        a[...] = 7


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize(
    "form",
    [
        lambda x: x,
        lambda x: x.T,
        lambda x: x[::-1, 1:],
        lambda x: x[0, 0],
        lambda x: x[:0],
        lambda x: ad.broadcast_to(x, (2, 2, 3)),
    ],
)
def test_numpy_cannot_make_what_is_handed_out_writable(form: Any, dtype: Any) -> None:
    whole = ad.tensor(np.arange(6).reshape(2, 3).astype(dtype))
    x = form(whole)
    before = x.tolist()
    for array in (x.numpy(), np.asarray(x, copy=False)):
        assert array.tolist() == before and (array.shape, array.dtype) == (x.shape, x.dtype)
        assert not x.size or np.shares_memory(array, x.numpy())
        for a in everything_behind(array):
            assert not a.flags.writeable
            with pytest.raises(ValueError, match="WRITEABLE"):
                a.flags.writeable = True


def test_implicit_conversions_give_arrays_of_their_own() -> None:
    pandas = pytest.importorskip("pandas")
    x = ad.tensor([[1.0, 2.0], [3.0, 4.0]])
    for kept in (x, x.T, ad.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True).detach()):
        before = kept.tolist()
        series, array = pandas.Series(kept[0]), np.asarray(kept)
        series[0] = array[0, 0] = 9.0
        assert kept.tolist() == before and series[0] == array[0, 0] == 9.0
        assert array.flags.writeable and not np.shares_memory(array, kept.numpy())


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("out_of_band", [True, False])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_share_nothing(protocol: int, out_of_band: bool, dtype: Any) -> None:
    x = ad.tensor(np.arange(6).reshape(2, 3).astype(dtype)).T
    g = sparse_gradient([1, 0], np.ones((2, 3), dtype), (4, 3))
    before = x.tolist(), g.values.tolist(), g.rows.tolist()
    kept: list[pickle.PickleBuffer] = []
    options = {"buffer_callback": kept.append} if out_of_band and protocol >= 5 else {}
    text = pickle.dumps((x, g), protocol, **options)  # type: ignore[arg-type]
    sent = [bytearray(b.raw()) for b in kept]
    twin, h = pickle.loads(text, buffers=sent)
    for buffer in (*sent, *(b.raw() for b in kept)):
        if not memoryview(buffer).readonly:
            memoryview(buffer)[:] = bytes(len(buffer))
    twins = twin.tolist(), h.values.tolist(), h.rows.tolist()
    assert (x.tolist(), g.values.tolist(), g.rows.tolist()) == twins == before


def test_the_state_of_an_optimiser_is_not_written_through_what_it_shows() -> None:
    p = ad.ones(3).requires_grad_()
    opt = optim.Adam([p], lr=0.1)
    p.grad = ad.ones(3)
    opt.step()
    before = opt.state_dict()
    for array in opt.groups[0].state_of(p, copy=False).values():
        scribble(array)
    for a, b in zip(before["state"][0], opt.state_dict()["state"][0], strict=True):
        for k in a:
            np.testing.assert_array_equal(a[k], b[k])


# Random sequences ------------------------------------------------------------------------------


class World:
    """Tensors and arrays, each with the values that it must have if no two of them share writes."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.rng = np.random.default_rng(seed)
        self.directory = directory
        self.things: list[tuple[Any, np.ndarray]] = []  # a tensor or an array, and a copy of its values
        self.done: list[str] = []

    def choose(self, kind: type) -> Any:
        found = [t for t, _ in self.things if isinstance(t, kind)]
        return found[self.rng.integers(len(found))]

    def keep(self, thing: Any) -> None:
        self.things.append((thing, np.array(thing)))

    def expect(self, thing: Any, values: Any) -> None:
        self.things = [(t, np.array(values) if t is thing else v) for t, v in self.things]

    def check(self) -> None:
        for thing, values in self.things:
            got = thing.numpy() if isinstance(thing, ad.Tensor) else thing
            assert got.tobytes() == values.tobytes(), f"{self.done}: {got} is not {values}"

    def fresh(self) -> np.ndarray:
        return self.rng.integers(1, 9, 4).astype(float)


def out_of_band(x: Any) -> Any:
    buffers: list[Any] = []
    text = pickle.dumps(x, 5, buffer_callback=buffers.append)
    return buffers, pickle.loads(text, buffers=[bytearray(b.raw()) for b in buffers])


def from_tensor_by(copied: Callable[[Any], Any]) -> Callable[[World], None]:
    return lambda world: world.keep(copied(world.choose(ad.Tensor)))


def from_array_by(copied: Callable[[Any], Any]) -> Callable[[World], None]:
    return lambda world: world.keep(copied(world.choose(np.ndarray)))


def read_only_view(a: np.ndarray) -> np.ndarray:
    view = a.view()
    view.flags.writeable = False
    return view


class Interface:
    """An array that is known by its ``__array_interface__`` alone."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.__array_interface__ = array.__array_interface__


def shared_dlpack(world: World) -> None:
    with suppress(BufferError):
        world.keep(ad.from_dlpack(read_only_view(world.choose(np.ndarray)), copy=False))


def pickled(world: World) -> None:
    buffers, twin = out_of_band(world.choose(ad.Tensor))
    world.keep(twin)
    for buffer in buffers:
        world.keep(np.frombuffer(buffer.raw(), np.float64))


def saved(world: World) -> None:
    path = world.directory / "state"
    ad.save(path, {"x": world.choose(ad.Tensor), "a": world.choose(np.ndarray)})
    for value in ad.load(path).values():
        world.keep(value)


def module(world: World) -> None:
    layer = nn.Linear(4, 1, bias=False, rng=0, dtype=np.float64)
    layer.load_state_dict({"weight": world.choose(np.ndarray).reshape(1, 4)})
    world.keep(layer.weight.detach().reshape(4))
    world.keep(layer.state_dict()["weight"].reshape(4))


def gradient(world: World) -> None:
    """A gradient that was set is added to by backward: other holders of its memory see nothing."""
    x, g = ad.tensor(np.ones(4), requires_grad=True), world.choose(ad.Tensor)
    x.grad = g.detach()
    world.keep(x.grad.numpy())
    (x * 2.0).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.add(g, 2.0))
    world.keep(x.grad)


def store(world: World) -> None:
    x, g = ad.tensor(np.ones(4), requires_grad=True), world.choose(ad.Tensor)
    grads = ad.backward((x * x).sum())
    grads.set(x, g.detach())
    for _ in range(2):
        grads.add(x, world.choose(np.ndarray))
        world.keep(grads[x].numpy())
    world.keep(grads[x])


def sparse(world: World) -> None:
    rows, values = np.array([2, 0, 3, 1]), world.choose(np.ndarray)
    g = sparse_gradient(rows, values, (4,))
    rows[:] = 3
    world.keep(g.values)
    world.keep(g.to_dense())
    assert g.rows.tolist() == [2, 0, 3, 1]


def step(world: World) -> None:
    """An optimiser writes into its parameters alone, also where it packs them into one array."""
    params = [ad.tensor(world.choose(np.ndarray), requires_grad=True) for _ in range(3)]
    opt = (optim.SGD, optim.Adam)[world.rng.integers(2)](params, lr=0.5)
    for _ in range(3):
        sum((p * p).sum() for p in params).backward()
        p = params[world.rng.integers(3)]
        for held in (p.detach(), p.numpy(), p.grad.detach(), p.grad.numpy()):
            world.keep(held)
        opt.step()
    world.keep(p.detach())


def batches(world: World) -> None:
    for batch in train.DataLoader(world.choose(object), 4, prefetch=int(world.rng.integers(2))):
        world.keep(batch)


def write_tensor(world: World) -> None:
    """Write into a tensor; a write into a view of another one is refused, and changes nothing."""
    t = world.choose(ad.Tensor)
    values = t.numpy(copy=True)
    values[:2] = world.rng.integers(10, 99)
    try:
        t[:2] = values[:2]
    except InPlaceError:
        assert is_view(t)
        return
    world.expect(t, values)


def write_array(world: World) -> None:
    """Write into an array; of one that is handed out, nobody may be able to."""
    a = world.choose(np.ndarray)
    values = a.copy()
    if not a.flags.writeable:
        try:
            a.flags.writeable = True
        except ValueError:
            return
    values[...] = world.rng.integers(10, 99)
    a[...] = values
    world.expect(a, values)


EXCHANGES: dict[str, Callable[[World], None]] = {
    "tensor": from_array_by(ad.tensor),
    "asarray": from_array_by(ad.asarray),
    "asarray of a view": from_array_by(lambda a: ad.asarray(read_only_view(a))),
    "tensor of a list": from_array_by(lambda a: ad.asarray(a.tolist())),
    "from_dlpack": from_array_by(ad.from_dlpack),
    "from_dlpack shared": shared_dlpack,
    "memoryview in": from_array_by(lambda a: ad.tensor(memoryview(a))),
    "numpy": from_tensor_by(lambda t: t.numpy()),
    "numpy copy": from_tensor_by(lambda t: t.numpy(copy=True)),
    "np.asarray": from_tensor_by(np.asarray),
    "np.array": from_tensor_by(np.array),
    "memoryview": from_tensor_by(lambda t: np.asarray(memoryview(t.numpy()))),
    "interface": from_tensor_by(lambda t: np.asarray(Interface(t.numpy()))),
    "np.from_dlpack": from_tensor_by(np.from_dlpack),
    "np.from_dlpack shared": from_tensor_by(lambda t: np.from_dlpack(t, copy=False)),
    "between tensors": from_tensor_by(lambda t: ad.from_dlpack(t, copy=False)),
    "same": from_tensor_by(lambda t: ad.asarray(t).detach()),
    "view": from_tensor_by(lambda t: t[::-1]),
    "copy": from_tensor_by(copy.copy),
    "deepcopy": from_tensor_by(copy.deepcopy),
    "pickle": from_tensor_by(lambda t: pickle.loads(pickle.dumps(t))),
    "pickle out of band": pickled,
    "file": saved,
    "module": module,
    "gradient": gradient,
    "store": store,
    "sparse": sparse,
    "step": step,
    "batches": batches,
}
WRITES = {"write a tensor": write_tensor, "write an array": write_array}


def run(seed: int, directory: Path, steps: int = 12) -> None:
    """Make random exchanges with random writes in between; after each, check everything."""
    world = World(seed, directory)
    world.keep(world.fresh())
    world.keep(ad.tensor(world.fresh()))
    for _ in range(steps):
        table = WRITES if world.rng.random() < 0.5 else EXCHANGES
        name = list(table)[world.rng.integers(len(table))]
        world.done.append(name)
        table[name](world)
        world.check()


@pytest.mark.parametrize("block", range(10))
def test_random_exchanges(block: int, tmp_path: Path) -> None:
    for seed in range(100 * block, 100 * (block + 1)):
        run(seed, tmp_path)


@pytest.mark.soak
def test_random_exchanges_for_long(tmp_path: Path) -> None:
    for seed in range(1000, 50_000):
        run(seed, tmp_path, steps=20)
