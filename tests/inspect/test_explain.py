"""``explain`` names the cause and the line of made mistakes, and says nothing of healthy steps."""

from __future__ import annotations

import linecache

import numpy as np
import pytest
from table import CASES, OP_NAMES

import adjoint as ad
from adjoint import errors, nn, optim, train
from adjoint.inspect import explain

F = nn.functional
RNG = np.random.default_rng(0)
X = ad.tensor(RNG.normal(size=(16, 4)).astype(np.float32))
Y = ad.tensor(RNG.integers(0, 3, size=16))


def net(activation=nn.ReLU):
    return nn.Sequential(nn.Linear(4, 8, rng=0), activation(), nn.Linear(8, 3, rng=1))


def detached():
    model = net()

    def loss():
        hidden = model[1](model[0](X))
        return F.cross_entropy(model[2](hidden.detach()), Y)  # here

    return loss, "detached", ["0.weight", "0.bias"]


def under_no_grad():
    model = net()

    def loss():
        with ad.no_grad():
            hidden = model[0](X)  # here
        return F.cross_entropy(model[2](ad.tanh(hidden)), Y)

    return loss, "no_grad", ["0.weight", "0.bias"]


def integer_cast():
    w = ad.tensor([1.5, 2.5], requires_grad=True)
    v = ad.tensor([1.0, 2.0], requires_grad=True)

    def loss():
        whole = w.astype(int)  # here
        return (whole * v).sum()

    return loss, "cast", ["w"]


def op_without_derivative():
    scores = ad.tensor(RNG.normal(size=(5, 3)), requires_grad=True)
    weights = ad.tensor([1.0, 2.0, 3.0], requires_grad=True)

    def loss():
        best = scores.argmax(1)  # here
        return (weights * best.astype(float).sum()).sum()

    return loss, "no_derivative", ["scores"]


def rounding():
    w = ad.tensor([1.4, 2.6], requires_grad=True)

    def loss():
        return (ad.round(w) ** 2).sum()  # here

    return loss, "no_derivative", ["w"]


def numbers():
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    v = ad.tensor([1.0, 2.0], requires_grad=True)

    def loss():
        scale = (w * w).sum().item()  # here
        return (v * scale).sum()

    return loss, "numbers", ["w"]


def through_numpy():
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    v = ad.tensor([1.0, 2.0], requires_grad=True)

    def loss():
        values = np.log1p(w.numpy())  # here
        return (v * values).sum()

    return loss, "numbers", ["w"]


def unused():
    model = net()
    extra = nn.Linear(4, 3, rng=5)

    def loss():
        assert extra is not None
        return F.cross_entropy(model(X), Y)

    return loss, "unused", ["extra.weight", "extra.bias"]


def computed_for_nothing():
    model = net()
    other = ad.tensor([1.0, 2.0], requires_grad=True)

    def loss():
        other * 2.0  # here
        return F.cross_entropy(model(X), Y)

    return loss, "unused", ["other"]


def dead_relu():
    model = net()
    with ad.no_grad():
        model[0].bias[...] = -100.0

    def loss():
        return F.cross_entropy(model(X), Y)  # here

    return loss, "dead", ["0.weight", "0.bias", "2.weight"]


def mostly_dead_relu():
    model = nn.Sequential(nn.Linear(4, 50, rng=0), nn.ReLU(), nn.Linear(50, 3, rng=1))
    with ad.no_grad():
        model[0].bias[1:] = -100.0

    def loss():
        return F.cross_entropy(model(X), Y)  # here

    return loss, "dead", []


def saturated():
    model = net(nn.Sigmoid)
    with ad.no_grad():
        model[0].weight *= 1000.0

    def loss():
        return F.cross_entropy(model(X), Y)  # here

    return loss, "saturated", []


def saturated_tanh():
    w = ad.tensor(np.full(9, 400.0), requires_grad=True)  # where the derivative is 0 in float64

    def loss():
        return ad.tanh(w).sum()  # here

    return loss, "saturated", ["w"]


def log_of_zero():
    w = ad.tensor([0.0, 1.0, 2.0], requires_grad=True)

    def loss():
        return (ad.log(w) * w).sum()  # here

    return loss, "not_finite", []


def infinite_slope():
    w = ad.tensor([0.0, 1.0], requires_grad=True)

    def loss():
        return ad.sqrt(w).sum()  # here

    return loss, "not_finite", ["w"]


def invalid_data():
    model = net()
    x = ad.tensor(np.where(np.arange(64).reshape(16, 4) == 5, np.nan, 1.0).astype(np.float32))

    def loss():
        return F.cross_entropy(model(x), Y)  # here

    return loss, "not_finite", ["x"]


def frozen():
    model = net()
    model[0].requires_grad_(False)

    def loss():
        return F.cross_entropy(model(X), Y)

    return loss, "frozen", ["0.weight", "0.bias"]


def wrong_parameters_in_the_optimizer():
    model, other = net(), net()
    optimizer = optim.SGD(other.parameters(), lr=0.1)

    def loss():
        optimizer.zero_grad()
        return F.cross_entropy(model(X), Y)

    return loss, "replaced", ["0.weight", "0.bias", "2.weight", "2.bias"]


def forgotten_in_the_optimizer():
    model = net()
    optimizer = optim.SGD(model[0].parameters(), lr=0.1)

    def loss():
        optimizer.zero_grad()
        return F.cross_entropy(model(X), Y)

    return loss, "not_in_optimizer", ["2.weight", "2.bias"]


def replaced():
    model = net()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    model[2].weight = nn.Parameter(np.ones((3, 8), np.float32))

    def loss():
        optimizer.zero_grad()
        return F.cross_entropy(model(X), Y)

    return loss, "replaced", ["2.weight"]


def no_longer_a_leaf():
    w = ad.tensor([1.0, 2.0], requires_grad=True)
    w = w - 0.1 * w

    def loss():
        return (w * w).sum()

    return loss, "not_a_leaf", ["w"]


def exploding():
    a = ad.tensor(np.full((4, 4), 5.0), requires_grad=True)

    def loss():
        x = ad.ones((4, 4))
        for _ in range(12):
            x = x @ a  # here
        return x.sum()

    return loss, "exploding", ["a"]


def vanishing():
    model = nn.Sequential(*(m for k in range(9) for m in (nn.Linear(4, 4, rng=k), nn.Sigmoid())))
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            with ad.no_grad():
                layer.weight *= 0.05

    def loss():
        return model(X).sum()  # here

    return loss, "vanishing", None


def loss_without_history():
    w = ad.tensor([1.0, 2.0], requires_grad=True)

    def loss():
        return (w > 1.5).sum().astype(float)  # here

    return loss, "no_derivative", ["w"]


MISTAKES = [
    detached, under_no_grad, integer_cast, op_without_derivative, rounding, numbers, through_numpy, unused,
    computed_for_nothing, dead_relu, mostly_dead_relu, saturated, saturated_tanh, log_of_zero, infinite_slope,
    invalid_data, frozen, wrong_parameters_in_the_optimizer, forgotten_in_the_optimizer, replaced, no_longer_a_leaf,
    exploding, vanishing, loss_without_history,
]  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.__name__)
def test_a_mistake_is_explained(mistake):
    loss, kind, names = mistake()
    why = explain(loss)
    found = why.findings[0]
    assert found.kind == kind, str(why)
    assert names is None or found.parameters == names, str(why)
    assert all(name in found.sentence for name in found.parameters[:3])
    code = loss.__code__
    marked = {
        n
        for n in range(code.co_firstlineno, code.co_firstlineno + 8)
        if "# here" in linecache.getline(code.co_filename, n)
    }
    if marked:
        assert found.file == code.co_filename and found.line == min(marked)
        assert f"test_explain.py:{found.line}" in found.sentence
        assert "# here" in str(why)
    assert len(why) <= 2, str(why)


def healthy_classifier():
    model = net()
    optimizer = optim.Adam(model.parameters(), lr=1e-3)

    def loss():
        optimizer.zero_grad()
        out = model(X)
        (out.argmax(-1) == Y).astype(float).mean().item()
        return F.cross_entropy(out, Y)

    return loss


def healthy_transformer():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, rng=0)
    x = ad.tensor(RNG.normal(size=(2, 5, 8)).astype(np.float32))
    return lambda: layer(x).square().mean()


def healthy_mask():
    w = ad.tensor(RNG.normal(size=(4, 4)), requires_grad=True)
    mask = np.tril(np.ones((4, 4), bool))
    return lambda: F.softmax(ad.where(mask, w, -np.inf), axis=-1).square().sum()


def healthy_target_network():
    model, target = net(), net()
    target.requires_grad_(False)

    optimizer = optim.SGD(model.parameters(), lr=0.1)

    def loss():
        optimizer.zero_grad()
        return F.mse_loss(model(X), target(X) + 0.1 * model(X).detach())

    return loss


def healthy_discriminator():
    generator, discriminator = nn.Linear(4, 4, rng=0), nn.Linear(4, 1, rng=1)
    optimizer = optim.SGD(discriminator.parameters(), lr=0.1)

    def loss():
        optimizer.zero_grad()
        return discriminator(generator(X).detach()).square().mean()

    return loss


@pytest.mark.parametrize(
    "make",
    [healthy_classifier, healthy_transformer, healthy_mask, healthy_target_network, healthy_discriminator],
    ids=lambda m: m.__name__,
)
def test_nothing_is_said_of_a_healthy_step(make):
    why = explain(make())
    assert not why and str(why) == "no problems found" and len(why) == 0, str(why)
    assert repr(why) == "<Explanation: no problems found>"


def test_a_block_explains_a_whole_step():
    model = net()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with explain() as why:
        optimizer.zero_grad()
        F.cross_entropy(model(X), Y).backward()
        optimizer.step()
    assert not why, str(why)
    with explain() as why:
        optimizer.zero_grad()
        hidden = model[1](model[0](X)).detach()
        F.cross_entropy(model[2](hidden), Y).backward()
        optimizer.step()
    assert [f.kind for f in why] == ["detached"]
    assert "hidden = " in str(why)


def test_a_block_is_about_what_it_names():
    model, other = net(), net()
    theirs = optim.SGD(other.parameters(), lr=0.1)
    with explain() as why:
        F.cross_entropy(model(X), Y).backward()
    assert not why, str(why)
    with explain() as why:
        theirs.zero_grad()
        F.cross_entropy(model(X), Y).backward()
    assert [f.kind for f in why] == ["replaced"]
    with explain() as outer:
        with explain() as inner:
            F.cross_entropy(model(X), Y).backward()
        F.cross_entropy(model[2](model[1](model[0](X)).detach()), Y).backward()
    assert not inner and [f.kind for f in outer] == ["detached"]


def test_the_step_of_a_trainer_is_explained():
    model = net()
    with ad.no_grad():
        model[0].bias[...] = -100.0
    trainer = train.Trainer(model, F.cross_entropy, optim.SGD(model.parameters(), lr=0.0), progress=False)
    why = explain(trainer.train_step, (X.numpy(), Y.numpy()))
    assert why.findings[0].kind == "dead" and why.findings[0].parameters == ["0.weight", "0.bias", "2.weight"]


def test_an_error_in_a_block_gets_the_sentences_as_a_note():
    w = ad.tensor([1.0, 2.0], requires_grad=True)

    def step():
        (w.detach() * 2.0).sum().backward()

    why = explain(parameters={"w": w})
    with pytest.raises(errors.NoGradientError) as caught, why:
        step()
    assert "w gets no gradient: detach() at" in "".join(caught.value.__notes__)
    assert why.findings[0].kind == "detached"


def test_a_call_leaves_no_trace():
    model = nn.Sequential(
        nn.Linear(4, 8, rng=0), nn.BatchNorm1d(8), nn.Dropout(0.5, rng=3), nn.Linear(8, 3, rng=1)
    )
    before = {k: v.copy() for k, v in model.state_dict().items()}
    draws = model[2].rng.state
    assert not explain(lambda: F.cross_entropy(model(X), Y))
    assert all((model.state_dict()[k] == v).all() for k, v in before.items())
    assert all(p.grad is None for p in model.parameters())
    assert model[2].rng.state == draws


def test_modules_can_be_called_with_inputs_and_parameters_chosen():
    model = net()
    assert not explain(model, X)
    assert not explain(model[2], ad.ones((2, 8), dtype=np.float32), parameters=model[2])
    other = ad.tensor([1.0], requires_grad=True)
    assert explain(model, X, parameters={"other": other}).findings[0].parameters == ["other"]


def test_a_compiled_step_is_explained_by_its_python_function():
    w = ad.tensor([1.0, 2.0], requires_grad=True)

    @ad.compile
    def loss(x):
        return (w.detach() * x).sum()

    loss(np.ones(2))
    assert explain(loss, np.ones(2)).findings[0].kind == "detached"


def test_bad_calls_say_what_to_do():
    with pytest.raises(errors.InputError, match="must be a function that returns a loss, not a Tensor"):
        explain(X)
    with pytest.raises(errors.InputError, match="must return a loss"):
        explain(lambda: None)
    with pytest.raises(errors.InputError, match="got arguments, but no function"):
        explain(None, 3)


def test_sparse_half_and_complex_gradients_are_measured():
    table = ad.tensor(np.ones((5, 3)), requires_grad=True)
    assert not explain(lambda: ad.take(table, np.array([1, 2]), axis=0, sparse_grad=True).sum())
    half = ad.tensor(np.ones(3, np.float16), requires_grad=True)
    assert not explain(lambda: (half * half).sum())
    z = ad.tensor(np.array([1 + 1j, 2.0]), requires_grad=True)
    assert not explain(lambda: ad.abs(z).sum())
    empty = ad.tensor(np.ones((0, 3)), requires_grad=True)
    assert not explain(lambda: (empty * 2).sum())


def test_every_op_can_be_observed():
    """One case per op: nothing raises, and only ops with zero derivatives are reported."""
    first = {name: CASES[name][0] for name in OP_NAMES}
    told = {}
    for name, case in first.items():
        args = [
            ad.tensor(a, requires_grad=True) if isinstance(a, np.ndarray) and a.dtype.kind in "fc" else a
            for a in case.args
        ]

        def loss(*args, name=name, case=case):
            outs = ad.tree.leaves(ad.OPS[name].eager(*args, **case.params))
            floats = [ad.real(o) for o in outs if isinstance(o, ad.Tensor) and o.dtype.kind in "fc"]
            return sum((o * np.cos(np.arange(o.size)).reshape(o.shape)).sum() for o in floats)

        with ad.inspect.profile() as p:
            result = loss(*args)
        assert not isinstance(result, ad.Tensor) or name in {row.name for row in p.rows()}
        if isinstance(result, ad.Tensor):
            told[name] = {f.kind for f in explain(loss, *args)}
    assert len(told) > 150
    assert set().union(*told.values()) <= {"no_derivative", "zero"}
    assert all(told[name] == {"no_derivative"} for name in ("round", "sign", "floor", "zeros_like"))
    assert not any(told[name] for name in ("exp", "matmul", "linear", "softmax", "conv", "sum", "index"))


class Listed(nn.Module):
    """A model whose layers are in a plain list and a dictionary, which it does not see."""

    def __init__(self):
        self.layers = [nn.Linear(4, 4, rng=0), nn.Linear(4, 4, rng=1)]
        self.heads = {"main": nn.Linear(4, 3, rng=2)}
        self.scale = nn.Parameter(np.ones(3, np.float32))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.heads["main"](x) * self.scale


def test_modules_in_plain_containers_of_a_module_are_found():
    model = Listed()
    why = explain(lambda: F.cross_entropy(model(X), Y))
    assert [(f.kind, f.parameters) for f in why] == [
        ("not_registered", ["layers"]),
        ("not_registered", ["heads"]),
    ]
    assert str(why).splitlines()[0] == (
        "self.layers of Listed is a plain list, tuple or dictionary, so parameters() does not have the parameters in it,"
    )
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with explain() as why:
        optimizer.zero_grad()
        F.cross_entropy(model(X), Y).backward()
    assert [f.kind for f in why] == ["not_registered", "not_registered"]


def test_modules_in_plain_variables_are_parameters():
    layers, heads = [nn.Linear(4, 4, rng=0)], {"main": nn.Linear(4, 3, rng=1)}
    why = explain(lambda: F.cross_entropy(heads["main"](layers[0](X).detach()), Y))
    assert [(f.kind, f.parameters) for f in why] == [("detached", ["layers[0].weight", "layers[0].bias"])]


@pytest.mark.parametrize(
    "use",
    [
        lambda best: ad.ones((3, 2))[best],
        lambda best: ad.tensor(best.numpy().astype(np.float32)),
        lambda best: ad.tensor(float(best.sum().item())),
        lambda best: F.one_hot(best, 3).astype(np.float32),
        lambda best: best == Y,
        lambda best: best,
    ],
)
def test_argmax_is_named_where_its_result_is_used(use):
    model = net()
    why = explain(lambda: use(model(X).argmax(1)))
    assert [f.sentence.partition(" at ")[0] for f in why] == [
        "0.weight, 0.bias, 2.weight and 2.bias get no gradient: 'argmax'"
    ]
    assert "stops the gradient: it is piecewise constant" in str(why)


def test_a_model_after_the_function_is_explained():
    model = nn.Linear(2, 1, rng=0)

    def loss():
        return model(ad.ones((3, 2), dtype=np.float32)).mean()

    with pytest.raises(ad.errors.InputError) as caught:
        explain(loss, model)
    assert str(caught.value) == (
        "explain: loss does not take the arguments that follow it: too many positional arguments.\n"
        "  To choose the parameters that are explained, pass parameters=model."
    )
    assert not explain(loss, parameters=model)
