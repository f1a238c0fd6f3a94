"""Random draws: distributions, gradients through parameters, none through jumps, state, errors."""

from __future__ import annotations

import copy
import json
import pickle

import numpy as np
import pytest

import adjoint as ad
from adjoint.errors import ArgumentError, DTypeError, InputError, NoGradientError, ShapeError

SMOOTH = {
    "normal": (("loc", "scale"), (0.3, 1.7)),
    "lognormal": (("mean", "sigma"), (0.1, 0.4)),
    "uniform": (("low", "high"), (-1.0, 2.5)),
    "exponential": (("scale",), (1.5,)),
    "laplace": (("loc", "scale"), (0.3, 1.7)),
    "logistic": (("loc", "scale"), (0.3, 1.7)),
    "gumbel": (("loc", "scale"), (0.3, 1.7)),
}


@pytest.fixture
def rng():
    return ad.random.default_rng(1234)


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_are_those_of_the_same_noise(name):
    """The draw is a function of its parameters for fixed noise: compare with finite differences."""
    _, values = SMOOTH[name]

    def draw(*params):
        return getattr(ad.random.default_rng(5), name)(*params, size=(4, 3))

    ad.testing.gradcheck(draw, [np.array(v) for v in values])
    ad.testing.gradcheck(draw, [np.full(3, v) for v in values])


@pytest.mark.parametrize("name", SMOOTH)
def test_moments_are_those_of_numpys_distribution(name, rng):
    _, values = SMOOTH[name]
    ours = getattr(rng, name)(*values, size=200_000).numpy()
    theirs = getattr(np.random.default_rng(0), name)(*values, size=200_000)
    spread = theirs.std() / np.sqrt(200_000)
    assert abs(ours.mean() - theirs.mean()) < 8 * spread
    for q in (0.1, 0.5, 0.9):
        assert abs(np.quantile(ours, q) - np.quantile(theirs, q)) < 0.02 * theirs.std()


@pytest.mark.parametrize("name", [*SMOOTH, "random", "standard_normal"])
def test_shape_and_dtype(name, rng):
    draw = getattr(rng, name)
    assert draw().shape == () and draw().dtype == np.float64
    assert draw(size=3).shape == (3,)
    assert draw(size=(2, 0)).shape == (2, 0)
    for dtype in (np.float32, np.float16, np.float64):
        assert draw(size=2, dtype=dtype).dtype == dtype
    if name in SMOOTH:
        wide = [ad.tensor(np.full((2, 1), v, np.float32)) for v in SMOOTH[name][1]]
        assert draw(*wide, size=(2, 3)).dtype == np.float32
        assert draw(*wide).shape == (2, 1)
        assert draw(*wide, dtype=np.float64).dtype == np.float64


def test_default_dtype_is_used(rng):
    ad.set_default_dtype(np.float32)
    try:
        assert rng.normal(size=2).dtype == np.float32
    finally:
        ad.set_default_dtype(np.float64)


def test_gradients_have_the_dtype_of_their_parameters(rng):
    loc = ad.tensor(np.zeros(3, np.float32), requires_grad=True)
    scale = ad.tensor(np.ones((2, 1)), requires_grad=True)
    rng.normal(loc, scale).sum().backward()
    assert loc.grad.dtype == np.float32 and loc.grad.shape == (3,)
    assert scale.grad.dtype == np.float64 and scale.grad.shape == (2, 1)
    np.testing.assert_array_equal(loc.grad.numpy(), [2, 2, 2])


def test_gumbel_softmax_gradient():
    logits = np.array([[0.1, -0.4, 1.0], [2.0, 0.0, -1.0]])

    def soft(x, tau):
        return ad.random.default_rng(3).gumbel_softmax(x, tau)

    ad.testing.gradcheck(soft, [logits, np.array(0.7)], order=2)
    drawn = soft(logits, 0.7)
    np.testing.assert_allclose(drawn.sum(axis=-1).numpy(), 1)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_hard_gumbel_softmax_is_one_hot_with_the_soft_gradient(axis):
    w = ad.tensor(np.random.default_rng(0).normal(size=(3, 4)))
    grads = []
    for hard in (False, True):
        logits = ad.tensor(np.arange(12.0).reshape(3, 4) / 7, requires_grad=True)
        drawn = ad.random.default_rng(3).gumbel_softmax(logits, 0.5, hard=hard, axis=axis)
        (drawn * w).sum().backward()
        grads.append(logits.grad.numpy())
    np.testing.assert_allclose(drawn.detach().numpy().round(12) % 1, 0, atol=1e-12)
    np.testing.assert_allclose(drawn.detach().sum(axis=axis).numpy(), 1)
    np.testing.assert_array_equal(grads[0], grads[1])


def test_gumbel_softmax_draws_with_the_probabilities_of_softmax(rng):
    logits = np.log([0.2, 0.5, 0.3])
    drawn = rng.gumbel_softmax(np.broadcast_to(logits, (50_000, 3)), hard=True)
    np.testing.assert_allclose(drawn.mean(axis=0).numpy(), [0.2, 0.5, 0.3], atol=0.01)


# Draws without a gradient ----------------------------------------------------------------------


def test_jumps_do_not_require_grad(rng):
    p = ad.tensor([0.2, 0.9], requires_grad=True)
    for drawn in (rng.bernoulli(p), rng.categorical(p), rng.categorical(probs=p)):
        assert not drawn.requires_grad
    with pytest.raises(NoGradientError, match="does not require grad"):
        rng.bernoulli(p).sum().backward()
    loss = (rng.bernoulli(p) * ad.tensor([1.0, 2.0], requires_grad=True)).sum()
    with pytest.raises(NoGradientError, match="no output depends on"):
        ad.gradients(loss, [p])


def test_bernoulli(rng):
    p = ad.tensor(np.array([0.0, 0.3, 1.0], np.float32))
    drawn = rng.bernoulli(p, size=(20_000, 3))
    assert drawn.dtype == np.float32
    np.testing.assert_allclose(drawn.mean(axis=0).numpy(), [0, 0.3, 1], atol=0.02)
    assert rng.bernoulli(0.5, dtype=bool).dtype == bool
    with pytest.raises(ArgumentError) as error:
        rng.bernoulli([0.5, 1.5])
    assert str(error.value) == "bernoulli: probabilities are between 0 and 1, but one value is 1.5."


def test_categorical(rng):
    probs = np.array([[0.1, 0.9, 0.0], [0.5, 0.25, 0.25]])
    for drawn in (
        rng.categorical(probs=probs, size=(20_000, 2)),
        rng.categorical(np.log(probs + 1e-300), (20_000, 2)),
        rng.categorical(probs=probs.T * 7, axis=0, size=(20_000, 2)),
    ):
        assert drawn.dtype.kind == "i"
        for row in (0, 1):
            counts = np.bincount(drawn.numpy()[:, row], minlength=3) / 20_000
            np.testing.assert_allclose(counts, probs[row], atol=0.02)
    assert rng.categorical(probs).shape == (2,)
    assert rng.categorical([1, 2, 3]).shape == ()
    for bad in ({}, {"logits": [1.0], "probs": [1.0]}):
        with pytest.raises(ArgumentError, match="exactly one of logits and probs="):
            rng.categorical(**bad)
    with pytest.raises(ArgumentError, match=r"weights must not be negative, but one value is -1\.0"):
        rng.categorical(probs=[1.0, -1.0])
    with pytest.raises(ShapeError, match="at least one class"):
        rng.categorical(np.zeros((2, 0)))
    with pytest.raises(ShapeError, match="cannot be broadcast to size"):
        rng.categorical(np.zeros((2, 3)), size=3)


def test_integers(rng):
    drawn = rng.integers(-2, 3, size=1000)
    assert set(drawn.tolist()) == {-2, -1, 0, 1, 2} and drawn.dtype == np.int64
    assert set(rng.integers(2, size=100).tolist()) == {0, 1}
    assert set(rng.integers(0, 1, size=100, endpoint=True, dtype=np.uint8).tolist()) == {0, 1}
    assert rng.integers(ad.tensor([1, 5])).shape == (2,)
    with pytest.raises(ArgumentError, match="low >= high"):
        rng.integers(3, 2)


def test_permutation_and_choice_keep_the_gradients_of_values(rng):
    assert sorted(rng.permutation(5).tolist()) == [0, 1, 2, 3, 4]
    x = ad.tensor(np.arange(6.0).reshape(2, 3), requires_grad=True)
    shuffled = rng.permutation(x, axis=1)
    assert sorted(shuffled.detach().numpy()[0].tolist()) == [0, 1, 2]
    (shuffled * ad.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert sorted(x.grad.numpy()[0].tolist()) == [1, 2, 3]
    assert rng.choice(x, size=4, axis=-1).shape == (2, 4)
    assert rng.choice(5, size=(2, 2)).shape == (2, 2)
    assert set(rng.choice(3, size=50, p=[0, 0.5, 0.5]).tolist()) == {1, 2}
    with pytest.raises(ArgumentError, match="larger sample than population"):
        rng.choice(3, size=5, replace=False)


# Streams and state -----------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_draws():
    a, b = ad.random.default_rng(9), ad.random.default_rng(9)
    np.testing.assert_array_equal(a.normal(size=5).numpy(), b.normal(size=5).numpy())
    assert ad.random.default_rng(a) is a
    assert ad.random.default_rng([1, 2]).random().item() != ad.random.default_rng([1, 3]).random().item()
    assert ad.random.default_rng().random().item() != ad.random.default_rng().random().item()


def test_draws_are_numpys_philox():
    ours = ad.random.default_rng(9).standard_normal(5).numpy()
    theirs = np.random.Generator(np.random.Philox(np.random.SeedSequence(9))).standard_normal(5)
    np.testing.assert_array_equal(ours, theirs)


def everything(rng):
    return [
        rng.normal(size=3).tolist(),
        rng.integers(100, size=3, dtype=np.int16).tolist(),
        rng.spawn(1)[0].random().item(),
    ]


@pytest.mark.parametrize("way", ["state", "json", "pickle", "deepcopy"])
def test_state_can_be_kept_and_restored(way):
    rng = ad.random.default_rng(4)
    everything(rng)  # an odd place in the buffer, and one child spawned
    rng.integers(100, dtype=np.int16)
    if way == "pickle":
        kept = pickle.loads(pickle.dumps(rng))
    elif way == "deepcopy":
        kept = copy.deepcopy(rng)
    else:
        kept = ad.random.default_rng(99)
        kept.state = json.loads(json.dumps(rng.state)) if way == "json" else rng.state
    state = rng.state
    first = everything(rng)
    assert everything(kept) == first
    rng.state = state
    assert everything(rng) == first


def test_spawned_generators_differ():
    a, b = ad.random.default_rng(4).spawn(2)
    (c,) = ad.random.default_rng(4).spawn(1)
    assert a.random().item() == c.random().item()
    assert a.random().item() != b.random().item()


# Mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", ["x", -1, 1.5])
def test_bad_seeds(seed):
    with pytest.raises(InputError, match="the seed must be a non-negative integer"):
        ad.random.default_rng(seed)


def test_bad_parameters(rng):
    with pytest.raises(ArgumentError) as error:
        rng.normal(0, -1.0)
    assert str(error.value) == "normal: scale must not be negative, but one value is -1.0."
    with pytest.raises(ShapeError, match="cannot be broadcast to size"):
        rng.normal(np.zeros(3), size=2)
    with pytest.raises(ShapeError, match="do not broadcast"):
        rng.normal(np.zeros(3), np.ones(2))
    with pytest.raises(DTypeError, match="dtype must be a real float dtype"):
        rng.normal(dtype=int)
    with pytest.raises(DTypeError, match="parameters must be real numbers"):
        rng.normal(np.array(1j))
    with pytest.raises(ArgumentError, match="must not have negative lengths"):
        rng.random((2, -1))
    for bad in ({}, {"bit_generator": "PCG64"}, 3):
        with pytest.raises(InputError, match=r"read from Generator\.state"):
            rng.state = bad
    with pytest.raises(ArgumentError, match="incomplete or damaged"):
        rng.state = {"bit_generator": "Philox"}


def test_there_is_no_global_generator():
    for name in dir(ad.random.default_rng(0)):
        if name not in ("at", "gumbel_softmax", "spawn", "state") and not name.startswith("_"):
            with pytest.raises(
                AttributeError, match=rf"Use ad\.random\.default_rng\(seed\)\.{name}: there is no"
            ):
                getattr(ad.random, name)
    with pytest.raises(AttributeError, match=r"no attribute 'nonsense'$"):
        _ = ad.random.nonsense


# Half precision ----------------------------------------------------------------------------------


def halves():
    found = [np.dtype(np.float16)]
    try:
        import ml_dtypes
    except ImportError:
        return found
    return [*found, np.dtype(ml_dtypes.bfloat16)]


@pytest.mark.parametrize("dtype", halves())
def test_half_precision_draws_stay_inside_their_interval(dtype, rng):
    u = rng.random(200_000, dtype=dtype)
    assert u.dtype == dtype and u.numpy().min() >= 0 and u.numpy().max() < 1
    assert abs(u.numpy().astype(float).mean() - 0.5) < 0.005
    for low, high in ((0.0, 1.0), (1000.0, 1008.0), (8.0, -8.0), (-3.0, -1.0)):
        y = rng.uniform(low, high, 100_000, dtype=dtype).numpy()
        assert (y != np.array(high, dtype)).all()
        assert min(low, high) <= y.min() and y.max() <= max(low, high)
    assert (rng.uniform(2.0, 2.0, 10, dtype=dtype).numpy() == 2).all()


@pytest.mark.parametrize("dtype", halves())
def test_gradients_of_half_precision_bounds_are_those_of_the_noise(dtype, rng):
    low, high = (ad.tensor(np.array(v, dtype), requires_grad=True) for v in (1000.0, 1008.0))
    rng.uniform(low, high, 10_000).backward(ad.ones(10_000, dtype=dtype))
    assert low.grad.dtype == high.grad.dtype == dtype
    np.testing.assert_allclose(float(low.grad), 5000, rtol=0.05)
    np.testing.assert_allclose(float(high.grad), 5000, rtol=0.05)


@pytest.mark.parametrize("dtype", halves())
def test_half_precision_bernoulli_is_certain_at_the_ends(dtype, rng):
    for p in (0, 1):
        drawn = rng.bernoulli(ad.full(200_000, p, dtype=dtype))
        assert drawn.dtype == dtype and (drawn.numpy() == p).all()
    assert (
        abs(rng.bernoulli(ad.full(100_000, 0.125, dtype=dtype)).numpy().astype(float).mean() - 0.125) < 0.005
    )


@pytest.mark.parametrize("dtype", halves())
def test_half_precision_classes_are_drawn_without_bias(dtype, rng):
    # scores that are rounded have equal maxima, of which the first would be taken
    logits = np.full((100_000, 4), 100, dtype)
    for drawn in (rng.categorical(logits), rng.gumbel_softmax(logits, hard=True).argmax(axis=1)):
        np.testing.assert_allclose(np.bincount(drawn.numpy(), minlength=4) / 100_000, 0.25, atol=0.006)


@pytest.mark.parametrize("dtype", halves())
@pytest.mark.parametrize("name", [*(n for n in SMOOTH if n != "uniform"), "standard_normal"])
def test_half_precision_draws_are_those_of_float32_rounded(name, dtype):
    values = SMOOTH[name][1] if name in SMOOTH else ()
    narrow, wide = (
        getattr(ad.random.default_rng(2), name)(*values, size=200_000, dtype=d).numpy()
        for d in (dtype, np.float32)
    )
    assert narrow.dtype == dtype and np.isfinite(narrow.astype(float)).all()
    np.testing.assert_array_equal(narrow, wide.astype(dtype))


@pytest.mark.parametrize(
    "name", ["normal", "lognormal", "exponential", "laplace", "logistic", "gumbel", "bernoulli"]
)
def test_a_draw_that_raises_does_not_advance_the_generator(name):
    generator = ad.random.Generator(0)
    before = generator.random(3).tolist()
    generator = ad.random.Generator(0)
    draw = getattr(generator, name)
    bad = [0.5, -1.0]
    for call in (
        lambda: draw(bad) if name in ("exponential", "bernoulli") else draw(0.0, bad),
        lambda: ad.compile(draw)(*([bad] if name in ("exponential", "bernoulli") else [0.0, bad])),
    ):
        with pytest.raises(ArgumentError):
            call()
    assert generator.random(3).tolist() == before
