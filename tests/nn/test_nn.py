"""Modules: names, modes, state, messages, and modules under transforms."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import adjoint as ad
from adjoint import errors, nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        self.linear1 = nn.Linear(4, width, rng=1)
        self.linear2 = nn.Linear(8, 4, rng=2)

    def forward(self, x: Any) -> Any:
        return x + self.linear2(self.linear1(x).tanh())


class Net(nn.Module):
    def __init__(self, width: int = 8) -> None:
        self.layers = nn.ModuleList([Block(8), Block(width)])
        self.norm = nn.LayerNorm(4)
        self.register_buffer("calls", np.zeros((), np.int64))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


def test_parameters_and_buffers_have_paths() -> None:
    net = Net()
    names = [name for name, _ in net.named_parameters()]
    assert names[:2] == ["layers.0.linear1.weight", "layers.0.linear1.bias"] and names[-1] == "norm.bias"
    assert [name for name, _ in net.named_buffers()] == ["calls"]
    assert len(net.parameters()) == 10 and all(p.dtype == np.float32 for p in net.parameters())
    assert dict(net.named_modules())["layers.1.linear2"] is net.layers[1].linear2


def test_a_shared_parameter_is_counted_once_and_saved_under_both_names() -> None:
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    net[1].weight = net[0].weight
    assert len(net.parameters()) == 1
    assert set(net.state_dict()) == {"0.weight", "1.weight"}


def test_train_and_eval_reach_all_modules() -> None:
    net = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5)))
    assert net.training and not net.eval()[1][0].training
    x = ad.ones((2, 100))
    assert (net(x).numpy() == 1).all()
    assert (net.train()(x).numpy() == 0).any()


def test_freezing_keeps_a_parameter_a_parameter() -> None:
    net = nn.Linear(2, 2)
    net.requires_grad_(False)
    assert len(net.parameters()) == 2 and not net(ad.ones(2, dtype=np.float32)).requires_grad
    assert set(net.state_dict()) == {"weight", "bias"}


def test_repr_counts_parameters() -> None:
    text = repr(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1, bias=False)))
    assert text.splitlines() == [
        "Sequential()  # 20 parameters",
        "  0: Linear(3, 4)  # 16 parameters",
        "  1: ReLU()",
        "  2: Linear(4, 1, bias=False)  # 4 parameters",
    ]


def test_state_round_trips_and_is_a_copy() -> None:
    one, two = Net(), Net()
    for p in two.parameters():
        with ad.no_grad():
            p.copy_(0.0)
    state = one.state_dict()
    two.load_state_dict(state)
    x = ad.ones((3, 4), dtype=np.float32)
    assert one(x).numpy().tobytes() == two(x).numpy().tobytes()
    state["norm.bias"][...] = 7.0
    assert not one.norm.bias.numpy().any()
    assert copy.deepcopy(one)(x).numpy().tobytes() == one(x).numpy().tobytes()


def test_a_state_that_does_not_fit_lists_everything_and_loads_nothing() -> None:
    net = nn.Linear(2, 3)
    before = net.weight.tolist()
    with pytest.raises(errors.ShapeError) as info:
        net.load_state_dict({"weight": np.zeros((3, 3)), "other": np.zeros(1)})
    assert str(info.value) == (
        "load_state_dict: 3 entries of the state do not match Linear, so nothing was loaded.\n"
        "  weight: has shape (3, 3), needs (3, 2)\n"
        "  bias: missing from the state\n"
        "  other: not in this module"
    )
    assert net.weight.tolist() == before
    passed_over = net.load_state_dict({"bias": np.ones(3), "other": 1}, strict=False)
    assert net.bias.tolist() == [1.0, 1.0, 1.0]
    assert passed_over == (["weight"], ["other"])
    assert (passed_over.missing_keys, passed_over.unexpected_keys) == (["weight"], ["other"])
    assert net.load_state_dict(net.state_dict()) == ([], [])
    assert net.load_state_dict({}, strict=False).missing_keys == ["weight", "bias"]


def test_names_with_something_in_front_say_so() -> None:
    net = nn.Sequential(nn.Linear(2, 2, rng=0), nn.Linear(2, 1, rng=0))
    state = {f"module.{k}": v for k, v in net.state_dict().items()}
    for strict in (True, False):  # False loaded nothing at all, and did not say so
        with pytest.raises(errors.ShapeError) as info:
            net.load_state_dict(state, strict=strict)
        assert str(info.value).startswith(
            "load_state_dict: 8 entries of the state do not match Sequential, so nothing was loaded.\n"
        )
        assert str(info.value).endswith(
            "  module.1.bias: not in this module\n  The names in the state begin with 'module.': load "
            "{k.removeprefix('module.'): v for k, v in state.items()}."
        )
    net.load_state_dict({k.removeprefix("module."): v for k, v in state.items()})
    whole = nn.Sequential(nn.Sequential(net), nn.Linear(1, 1))
    with pytest.raises(errors.ShapeError) as info:
        whole.load_state_dict(net.state_dict())
    assert str(info.value).endswith("\n  The names are those of the submodule '0.0': load the state there.")


def test_a_shape_mismatch_names_the_path_and_both_shapes() -> None:
    net = nn.Sequential(Net(width=9))
    with pytest.raises(errors.ShapeError) as info:
        net(ad.ones((2, 4), dtype=np.float32))
    text = str(info.value)
    assert "'0.layers.1.linear2'" in text and "(2, 9)" in text and "(4, 8)" in text


def test_functional_call_leaves_the_module_as_it_is() -> None:
    net = Net()
    x = ad.ones((2, 4), dtype=np.float32)
    before = net(x).numpy(copy=True)
    values = {name: p * 0.0 for name, p in net.named_parameters()}
    assert not nn.functional_call(net, values, x).numpy().any()
    assert (net(x).numpy() == before).all()
    with pytest.raises(errors.ArgumentError, match=r"no parameters or buffers wrong\.  It has layers"):
        nn.functional_call(net, {"wrong": x}, x)


def test_functional_call_leaves_the_buffers_as_they_are_and_takes_others() -> None:
    norm = nn.Sequential(nn.BatchNorm1d(2, dtype=np.float64))
    before = norm.state_dict()
    x = ad.tensor([[1.0, 2.0], [3.0, 6.0]])
    out = nn.functional_call(norm, {}, x)
    mean = ad.zeros(2)
    again = nn.functional_call(norm, {"0.running_mean": mean}, x)
    assert out.tolist() == again.tolist() == norm.eval().train()(x).tolist()
    assert mean.tolist() == [0.2, 0.4]  # a tensor that is given moves
    assert norm[0].running_mean.tolist() == [0.2, 0.4]  # by the plain call alone
    norm.load_state_dict(before)
    ad.grad(lambda w: nn.functional_call(norm, {"0.weight": w}, x).sum())(ad.ones(2))
    array = np.zeros(2)
    nn.functional_call(norm, {"0.running_mean": array}, x)
    assert array.tolist() == [0.0, 0.0]
    assert all((norm.state_dict()[k] == v).all() for k, v in before.items())
    norm.eval()
    shifted = nn.functional_call(norm, {"0.running_mean": np.ones(2)}, x)
    np.testing.assert_allclose(shifted.numpy(), (x.numpy() - 1) / np.sqrt(1 + 1e-5))


def test_a_gradient_of_a_module_in_training_moves_its_running_statistics() -> None:
    norm = nn.BatchNorm1d(2, dtype=np.float64)
    x = ad.tensor([[1.0, 2.0], [3.0, 6.0]])
    ad.grad(lambda m: (m(x) ** 2).sum())(norm)
    assert norm.running_mean.tolist() == [0.2, 0.4] and norm.num_batches_tracked.item() == 1


def test_functional_call_by_another_name_of_what_is_shared() -> None:
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    net[1].weight = net[0].weight
    x, two = ad.tensor([1.0, 2.0]), ad.tensor(2 * np.eye(2))
    assert nn.functional_call(net, {"1.weight": two}, x).tolist() == [4.0, 8.0]
    with pytest.raises(errors.ArgumentError) as info:
        nn.functional_call(net, {"1.weight": two, "0.weight": two + 1}, x)
    assert str(info.value) == (
        "functional_call: 0.weight and another name in params are the same tensor in the module, but have "
        "different values in params.  Pass one of the two names."
    )
    with pytest.raises(errors.InputError, match="params must be a mapping of names to values, not a Tensor"):
        nn.functional_call(net, x)


def test_a_frozen_parameter_is_a_parameter() -> None:
    net = nn.Module()
    net.frozen = nn.Parameter([1.0], requires_grad=False)
    late = nn.Parameter([2.0]).requires_grad_(False)
    net.late = late
    net.constant = ad.tensor([3.0])
    assert list(net.state_dict()) == ["frozen", "late"] == [n for n, _ in net.named_parameters()]
    assert not net.frozen.requires_grad


def test_what_is_assigned_to_a_name_of_the_module() -> None:
    net = nn.BatchNorm1d(2)
    net.running_mean = np.array([1.0, 2.0])
    assert net.state_dict()["running_mean"].tolist() == [1.0, 2.0]
    with pytest.raises(errors.InputError) as info:
        net.weight = np.ones(2)
    assert str(info.value) == (
        "BatchNorm1d.weight is a parameter, so an ndarray cannot be assigned to it.\n"
        "  Assign nn.Parameter(value), or copy the value into the parameter: "
        "`with ad.no_grad(): weight.copy_(value)`."
    )
    net.weight = None
    net.bias = nn.Linear(1, 1)
    net.running_var = nn.Parameter(np.ones(2))
    assert list(net.state_dict()) == [
        "running_var",
        "bias.weight",
        "bias.bias",
        "running_mean",
        "num_batches_tracked",
    ]


class Twice(nn.Module):
    def __init__(self) -> None:
        self.a = self.b = nn.Linear(2, 2, rng=0)


def test_a_shared_module_is_saved_and_loaded_under_both_names() -> None:
    net = Twice()
    assert list(net.state_dict()) == ["a.weight", "a.bias", "b.weight", "b.bias"]
    assert len(net.parameters()) == 2
    new = {"weight": np.eye(2), "bias": np.array([np.nan, 1.0])}
    net.load_state_dict({f"{m}.{k}": v for m in "ab" for k, v in new.items()})
    assert net.b.weight.tolist() == [[1.0, 0.0], [0.0, 1.0]] and net.a is net.b
    net.load_state_dict({"b.weight": 2 * np.eye(2), "a.bias": np.zeros(2)})
    assert net.a.weight.tolist() == [[2.0, 0.0], [0.0, 2.0]]
    with pytest.raises(errors.ShapeError) as info:
        net.load_state_dict({"a.weight": np.eye(2), "b.weight": np.ones((2, 2)), "a.bias": np.zeros(2)})
    assert str(info.value) == (
        "load_state_dict: 1 entries of the state do not match Twice, so nothing was loaded.\n"
        "  b.weight: is the same tensor as a.weight in this module, but has different values in the state"
    )
    net.own = net
    assert len(net.state_dict()) == 4


def test_transforms_take_modules() -> None:
    net = nn.Linear(3, 1, rng=0).astype(np.float64)
    xs, ys = ad.tensor(np.random.default_rng(0).normal(size=(5, 3))), ad.tensor(np.arange(5.0))

    def loss(model: Any, x: Any, y: Any) -> Any:
        return ((model(x)[..., 0] - y) ** 2).sum()

    grads = ad.grad(loss)(net, xs, ys)
    assert isinstance(grads, nn.Linear)
    loss(net, xs, ys).backward()
    np.testing.assert_allclose(grads.weight.numpy(), net.weight.grad.numpy())
    rows = ad.vmap(ad.grad(loss), in_axes=(None, 0, 0))(net, xs, ys)
    np.testing.assert_allclose(rows.weight.numpy().sum(0), net.weight.grad.numpy(), rtol=1e-12)


def test_batch_statistics_move_only_in_training() -> None:
    norm = nn.BatchNorm1d(2)
    x = ad.tensor(np.array([[1.0, 2.0], [3.0, 6.0]], np.float32))
    norm(x)
    assert np.allclose(norm.running_mean.numpy(), [0.2, 0.4]) and norm.num_batches_tracked.item() == 1
    norm.eval()(x)
    assert norm.num_batches_tracked.item() == 1


def test_initial_values_are_seeded() -> None:
    assert nn.Linear(3, 3, rng=5).weight.tolist() == nn.Linear(3, 3, rng=5).weight.tolist()
    nn.init.seed(7)
    first = nn.Linear(3, 3).weight.tolist()
    nn.init.seed(7)
    assert nn.Linear(3, 3).weight.tolist() == first != nn.Linear(3, 3).weight.tolist()
    q = nn.init.orthogonal((6, 4), rng=0, dtype=np.float64).numpy()
    np.testing.assert_allclose(q.T @ q, np.eye(4), atol=1e-12)
    for draw in (
        nn.init.xavier_normal,
        nn.init.kaiming_normal,
        nn.init.xavier_uniform,
        nn.init.kaiming_uniform,
    ):
        values = draw((400, 300), rng=0).numpy()
        expected = 2 / 700 if "xavier" in draw.__name__ else 2 / 300
        assert values.var() == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        (lambda: nn.Conv2d(3, 4, 3, groups=2), "must be multiples of groups=2"),
        (lambda: nn.MultiHeadAttention(7, 2), "7 is not a multiple of 2"),
        (lambda: nn.Dropout(1.5), "Dropout: p must be from 0 to 1"),
        (lambda: nn.GroupNorm(2, 3), "3 is not a multiple of 2"),
        (lambda: nn.TransformerEncoderLayer(4, 2, activation="tanh"), "activation must be 'relu' or 'gelu'"),
        (lambda: nn.LSTM(3, 2)(ad.ones((2, 4))), r"\(batch, length, 3\)"),
        (lambda: nn.Sequential(3), "layer 0 is 3"),
        (lambda: nn.ModuleList([3]), "but one is an int"),  # type: ignore[list-item]
        (lambda: nn.init.xavier_normal((3,)), "at least two axes"),
        (lambda: nn.init.kaiming_normal(3), "at least two axes"),
        (lambda: nn.init.orthogonal(3), "at least two axes"),
        (lambda: nn.Linear(2, 2).register_buffer("a b", 1), "Python identifier"),
    ],
)
def test_mistakes(mistake: Any, text: str) -> None:
    with pytest.raises(errors.AdjointError, match=text):
        mistake()


@pytest.mark.parametrize("kind", ["SGD", "Adagrad"])
def test_an_embedding_with_sparse_gradients_trains_like_a_dense_one(kind: str) -> None:
    text = np.array([[0, 3, 3], [5, 0, 1]])
    tables = []
    for sparse in (False, True):
        layer = nn.Embedding(20_000, 4, padding_idx=1, sparse=sparse, rng=0)
        optimiser = getattr(ad.optim, kind)(layer.parameters(), lr=0.1)
        for _ in range(3):
            optimiser.zero_grad()
            (layer(text) ** 2).sum().backward()
            assert isinstance(layer.weight.grad, ad.SparseGradient) == sparse
            optimiser.step()
        tables.append(layer.weight.numpy())
    np.testing.assert_array_equal(tables[0], tables[1])


# Edges -----------------------------------------------------------------------------------------


def test_astype_keeps_shared_parameters_shared() -> None:
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    b.weight = a.weight
    model = nn.Sequential(a, b).astype(np.float64)
    assert a.weight is b.weight
    assert a.weight.dtype == np.float64
    assert len(model.parameters()) == 3


def test_astype_takes_bfloat16_back() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    layer = nn.Linear(2, 2).astype(bfloat16)
    assert layer.weight.dtype == bfloat16
    assert layer.astype(np.float32).weight.dtype == np.float32


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_take_sequences_of_length_zero(kind: Any) -> None:
    model = kind(3, 5, num_layers=2)
    out, _ = model(ad.zeros((4, 0, 3), dtype=np.float32))
    assert (out.shape, out.dtype) == ((4, 0, 5), np.float32)


def test_flatten_takes_arrays_and_empty_batches() -> None:
    assert nn.Flatten()(np.zeros((0, 2, 3))).shape == (0, 6)
    assert type(nn.Flatten()(np.zeros((2, 3, 4)))) is ad.Tensor
    assert nn.Flatten()(ad.zeros(3)).shape == (3, 1)
    with pytest.raises(errors.ShapeError, match="0-d"):
        nn.Flatten()(ad.tensor(1.0))


def test_batch_norm_takes_lists() -> None:
    assert nn.BatchNorm1d(2)([[1.0, 2.0], [3.0, 5.0]]).shape == (2, 2)


def test_layers_by_number_and_by_slice() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    assert model[-1] is model[2] and len(model[1:]) == 2 and model[:1][0] is model[0]
    assert isinstance(nn.ModuleList([nn.ReLU(), nn.Tanh()])[::-1], nn.ModuleList)
    with pytest.raises(errors.IndexingError, match="the indices 0 … 2, but the index is 3"):
        model[3]
    with pytest.raises(IndexError, match="ModuleList has no layers"):
        nn.ModuleList()[0]


def test_a_hessian_with_respect_to_a_module_is_a_module_of_modules() -> None:
    model = nn.Linear(2, 1, rng=0)
    second = ad.hessian(lambda m: (m(ad.ones((3, 2), dtype=np.float32)) ** 2).mean())(model)
    assert second.weight.bias.shape == (1, 2, 1) and "weight: Linear(2, 1)" in repr(second)


# Modules of gradients ----------------------------------------------------------------------------


class TwoBiases(nn.Module):
    def __init__(self) -> None:
        self.a, self.b = nn.Parameter([1.0, 2.0]), nn.Parameter([3.0, 4.0])

    def forward(self) -> ad.Tensor:
        return ((self.a + self.b) ** 2).sum()


def test_parameters_with_one_gradient_keep_their_places() -> None:
    model = TwoBiases()
    grads = ad.grad(lambda m: m())(model)
    assert [name for name, _ in grads.named_parameters()] == ["a", "b"]
    assert grads.a is not grads.b and grads.a.tolist() == grads.b.tolist() == [8.0, 12.0]
    stepped = ad.tree.map(lambda p, g: p - 0.5 * g, model, grads)
    assert (stepped.a.tolist(), stepped.b.tolist()) == ([-3.0, -4.0], [-1.0, -2.0])
    (grads.a.sum() + 2 * grads.b.sum()).backward()  # both still belong to the graph
    assert model.a.grad is not None and model.a.grad.tolist() == [6.0, 6.0]
    assert ad.hvp(lambda m: m(), model, model).b.tolist() == [8.0, 12.0]


def test_a_leaf_that_is_given_twice_ties_parameters() -> None:
    w = ad.tensor([1.0, 1.0], requires_grad=True)
    nn.functional_call(TwoBiases(), {"a": w, "b": w}).backward()
    assert w.grad is not None and w.grad.tolist() == [8.0, 8.0]


def test_the_module_of_an_error_is_named_without_an_article() -> None:
    with pytest.raises(errors.IndexingError, match=r"\n  In the module Embedding\.$"):
        nn.Embedding(3, 2)([3])


@pytest.mark.parametrize(
    "layer",
    [
        nn.MultiHeadAttention(4, 2, rng=0, dtype=float),
        nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, rng=0, dtype=float),
    ],
    ids=["attention", "encoder"],
)
def test_attention_runs_inside_vmap(layer: Any) -> None:
    x = np.random.default_rng(0).standard_normal((3, 5, 4))
    loss = lambda s: (layer(s) ** 2).sum()
    np.testing.assert_allclose(ad.vmap(layer)(x).numpy(), [layer(s).numpy() for s in x], atol=1e-12)
    each = [ad.grad(loss)(s).numpy() for s in x]
    np.testing.assert_allclose(ad.vmap(ad.grad(loss))(x).numpy(), each, atol=1e-12)


def test_attention_takes_lists_and_arrays_as_keys() -> None:
    layer = nn.MultiHeadAttention(2, 1, rng=0, dtype=float)
    q, k = [[1.0, 2.0]], np.array([[0.5, 1.0], [2.0, -1.0]])
    assert layer(q).tolist() == layer(np.array(q)).tolist()
    np.testing.assert_allclose(layer(q, k).numpy(), layer(ad.tensor(q), ad.tensor(k), ad.tensor(k)).numpy())


def test_modules_and_children_come_as_in_pytorch() -> None:
    net = nn.Sequential(nn.Linear(2, 2, rng=0), nn.Sequential(nn.Tanh()), nn.Linear(2, 1, rng=0))
    assert list(net.children()) == [net[0], net[1], net[2]]
    assert list(net.named_children()) == [("0", net[0]), ("1", net[1]), ("2", net[2])]
    assert list(net.modules()) == [net, net[0], net[1], net[1][0], net[2]]
    body = nn.Sequential(*list(net.children())[:-1])
    assert body(np.ones((1, 2), np.float32)).shape == (1, 2)


def test_weights_without_numbers_are_drawn() -> None:
    for shape in ((3, 0), (0, 0), (0, 3)):
        for draw in (
            nn.init.xavier_normal,
            nn.init.xavier_uniform,
            nn.init.kaiming_normal,
            nn.init.kaiming_uniform,
        ):
            assert draw(shape).shape == shape
