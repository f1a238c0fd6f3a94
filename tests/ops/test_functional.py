"""Activations, layers, norms and attention: tails, edges, ties, and what messages say."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from messages import message_of

import adjoint as ad
from adjoint.errors import ArgumentError, DTypeError, IndexingError, InputError, ShapeError
from adjoint.nn import attention
from adjoint.testing import gradcheck, gradgradcheck

F = ad.nn.functional


def slopes(f, x):
    """The gradient of a function of each element."""
    x = ad.tensor(x, requires_grad=True)
    f(x).sum().backward()
    return x.grad.numpy()


# Activations -----------------------------------------------------------------------------------

TAILS = np.array([-300.0, -40.0, -6.0, -1.0, 1.0, 6.0, 40.0, 300.0])
EXACT = {
    "elu": lambda x: mpmath.expm1(x) if x < 0 else x,
    "silu": lambda x: x / (1 + mpmath.exp(-x)),
    "mish": lambda x: x * mpmath.tanh(mpmath.log1p(mpmath.exp(x))),
    "softplus": lambda x: mpmath.log1p(mpmath.exp(x)),
    "gelu_tanh": lambda x: (
        x / (1 + mpmath.exp(-2 * mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf("0.044715") * x**3)))
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_values_and_gradients_are_exact_in_the_tails(name):
    f, exact = getattr(F, name, lambda x: F.gelu(x, "tanh")), EXACT[name]
    with mpmath.workdps(400):
        values = [float(exact(mpmath.mpf(x))) for x in TAILS]
        derivatives = [float(mpmath.diff(exact, mpmath.mpf(x), h=mpmath.mpf(10) ** -150)) for x in TAILS]
    np.testing.assert_allclose(f(TAILS).numpy(), values, rtol=1e-13 if name == "gelu_tanh" else 2e-15)
    tolerance = 1e-13 if name in ("mish", "gelu_tanh") else 5e-15
    np.testing.assert_allclose(slopes(f, TAILS), derivatives, rtol=tolerance, atol=1e-300)


@pytest.mark.parametrize(
    "name", ["elu", "selu", "silu", "mish", "softplus", "gelu", "leaky_relu", "relu6", "sigmoid"]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_extreme_arguments_give_finite_values_and_slopes(name, dtype):
    f = getattr(F, name)
    x = np.array([-1e4, -80, 0, 80, 1e4], dtype)
    y = f(ad.tensor(x))
    assert y.dtype == dtype
    assert np.isfinite(y.numpy()).all()
    assert np.isfinite(slopes(f, x)).all()


def test_gelu_is_the_normal_distribution_times_x():
    x = np.linspace(-5, 5, 1001)
    exact = [float(v * mpmath.ncdf(v)) for v in x]
    np.testing.assert_allclose(F.gelu(x).numpy(), exact, rtol=1e-13, atol=1e-15)


def test_softplus_of_many_is_softplus_of_each():
    x = np.concatenate([np.linspace(-700, 700, 2500), np.linspace(-3, 3, 2500)])
    with mpmath.workdps(40):
        exact = [float(mpmath.log1p(mpmath.exp(v))) for v in x]
    np.testing.assert_allclose(F.softplus(x).numpy(), exact, rtol=1e-15)
    single = F.softplus(x.astype(np.float32)[1200:1400].repeat(20)).numpy()[::20]
    np.testing.assert_allclose(
        single, F.softplus(x[1200:1400].astype(np.float32).astype(float)).numpy(), rtol=5e-7
    )


def test_gradients_at_the_corners():
    assert slopes(F.relu, [0.0]) == 0
    assert slopes(lambda x: F.leaky_relu(x, 0.25), [0.0]) == 0.25
    np.testing.assert_array_equal(slopes(F.relu6, [0.0, 6.0, 3.0]), [0, 0, 1])
    np.testing.assert_array_equal(slopes(F.hardtanh, [-1.0, 1.0, 0.5]), [0, 0, 1])
    assert slopes(F.elu, [0.0]) == 1


def test_leaky_relu_with_a_slope_above_one():
    np.testing.assert_array_equal(F.leaky_relu([-1.0, 2.0], 3.0).numpy(), [-3, 2])


def test_where_on_many_elements_is_numpys():
    rng = np.random.default_rng(0)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.5])
    for dtype in (np.float32, np.float64):
        c = rng.random((60, 100)) < 0.5
        x, y = (rng.choice(special, (60, 100)).astype(dtype) for _ in range(2))
        for a, b in (
            (x, y),
            (x, 0),
            (0, y),
            (x, 2.5),
            (1, y),
            (x[:1], y),
            (x, y[:, :1]),
            (x.T[:60, :].T[:60], y),
        ):
            if np.shape(a) not in ((), (1, 100), (60, 100)):
                continue
            ours = ad.where(c, a if np.isscalar(a) else ad.tensor(a), b if np.isscalar(b) else ad.tensor(b))
            expected = np.where(c, a, b)
            assert ours.dtype == expected.dtype
            np.testing.assert_array_equal(ours.numpy(), expected)


def test_softmax_of_large_numbers_and_of_one():
    np.testing.assert_array_equal(F.softmax([1e4, -1e4]).numpy(), [1, 0])
    np.testing.assert_array_equal(F.log_softmax([1e4, -1e4]).numpy(), [0, -2e4])
    np.testing.assert_array_equal(F.softmax([[5.0]]).numpy(), [[1]])
    assert F.softmax(np.zeros((0, 3))).shape == (0, 3)


def test_softmax_methods():
    x = ad.tensor([[1.0, 2.0], [3.0, 5.0]])
    np.testing.assert_array_equal(x.softmax(0).numpy(), F.softmax(x, 0).numpy())
    np.testing.assert_array_equal(x.log_softmax().numpy(), F.log_softmax(x, -1).numpy())


def test_whole_numbers_become_floats():
    for name in ("silu", "softmax", "elu", "softplus"):
        assert getattr(F, name)([1, 2]).dtype == np.float64


# Layers ----------------------------------------------------------------------------------------


def test_linear_is_matmul_and_add():
    rng = np.random.default_rng(0)
    x, w, b = rng.standard_normal((2, 5, 3)), rng.standard_normal((4, 3)), rng.standard_normal(4)
    np.testing.assert_allclose(F.linear(x, w, b).numpy(), x @ w.T + b, rtol=1e-14)


def test_lstm_cell_is_its_formula():
    rng = np.random.default_rng(0)
    gates, cell = rng.standard_normal((2, 12)), rng.standard_normal((2, 3))
    h, c = F.lstm_cell(gates, cell)
    s = lambda v: 1 / (1 + np.exp(-v))
    i, f, u, o = s(gates[:, :3]), s(gates[:, 3:6]), np.tanh(gates[:, 6:9]), s(gates[:, 9:])
    np.testing.assert_allclose(c.numpy(), f * cell + i * u, rtol=1e-14)
    np.testing.assert_allclose(h.numpy(), o * np.tanh(f * cell + i * u), rtol=1e-14)
    assert gradcheck(F.lstm_cell, (gates, cell))
    assert gradgradcheck(lambda g, c: F.lstm_cell(g, c)[1], (gates, cell))


def test_embedding_adds_up_repeated_rows_and_skips_padding():
    w = ad.tensor(np.arange(8.0).reshape(4, 2), requires_grad=True)
    y = F.embedding(np.array([[1, 1], [3, 0]]), w, padding_idx=-1)
    assert y.shape == (2, 2, 2)
    np.testing.assert_array_equal(y[1, 0].numpy(), [6, 7])
    y.sum().backward()
    np.testing.assert_array_equal(w.grad.numpy(), [[1, 1], [2, 2], [0, 0], [0, 0]])


def test_one_hot():
    assert F.one_hot([0, 2]).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert F.one_hot(np.zeros((0,), int), 3).shape == (0, 3)
    assert F.one_hot(1, 2, dtype=np.float32).dtype == np.float32


def test_dropout_draws_from_its_generator():
    x = ad.ones((1000,), requires_grad=True)
    a = F.dropout(x, 0.25, rng=np.random.default_rng(1))
    b = F.dropout(x, 0.25, rng=np.random.default_rng(1))
    np.testing.assert_array_equal(a.numpy(), b.numpy())
    np.testing.assert_allclose(np.unique(a.numpy()), [0, 4 / 3])
    assert 0.2 < (a.numpy() == 0).mean() < 0.3
    a.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), a.numpy())
    assert F.dropout(x, 0.5, training=False) is x
    np.testing.assert_array_equal(F.dropout(x, 1.0, rng=np.random.default_rng(1)).numpy(), 0)
    assert F.dropout(np.ones(9, np.float32), 0.5, rng=np.random.default_rng(0)).dtype == np.float32


# Norms -----------------------------------------------------------------------------------------


def test_batch_norm_returns_the_statistics_of_the_batch():
    x = np.random.default_rng(0).standard_normal((6, 3, 4))
    y, mean, var = F.batch_norm_with_statistics(x)
    np.testing.assert_allclose(mean.numpy(), x.mean((0, 2)), rtol=1e-13)
    np.testing.assert_allclose(var.numpy(), x.var((0, 2)), rtol=1e-13)
    np.testing.assert_allclose(y.numpy().mean((0, 2)), 0, atol=1e-13)
    assert gradcheck(lambda x: F.batch_norm_with_statistics(x)[1:], x)


def test_norms_of_constants_are_zero_with_finite_gradients():
    x = np.full((3, 4), 7.0)
    np.testing.assert_array_equal(F.layer_norm(x, 4).numpy(), 0)
    assert np.isfinite(slopes(lambda x: F.layer_norm(x, 4) ** 2, x)).all()
    np.testing.assert_array_equal(F.rms_norm(np.zeros((2, 3)), 3, eps=1e-6).numpy(), 0)


def test_norms_of_huge_and_tiny_float32():
    x = (np.array([[1.0, 2.0, 3.0, 4.0]]) * 1e15).astype(np.float32)
    np.testing.assert_allclose(
        F.layer_norm(x, 4).numpy(), F.layer_norm(x.astype(float), 4).numpy(), rtol=1e-5
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_normalised_in_float32(dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    x = (np.array([[1.0, 2.0, 3.0, 4.0], [4.0, 1.0, 0.0, 2.0]]) * 1000).astype(dtype)
    for f in (
        lambda x: F.layer_norm(x, 4),
        lambda x: F.rms_norm(x, 4),
        lambda x: F.group_norm(x, 2),
        lambda x: F.batch_norm(x, training=True),
    ):
        y = f(x)
        assert y.dtype == x.dtype
        np.testing.assert_allclose(y.numpy().astype(float), f(x.astype(float)).numpy(), atol=0.01)
        assert slopes(f, x).dtype == x.dtype


def test_zero_vectors_have_finite_gradients():
    x = np.zeros((2, 3))
    y = np.ones((2, 3))
    np.testing.assert_array_equal(F.cosine_similarity(x, y).numpy(), 0)
    assert np.isfinite(slopes(lambda v: F.cosine_similarity(v, y), x)).all()
    assert np.isfinite(slopes(F.normalize, x)).all()
    np.testing.assert_array_equal(F.normalize(x).numpy(), 0)


# Attention -------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
Q, K, V = RNG.standard_normal((2, 3, 4)), RNG.standard_normal((2, 5, 4)), RNG.standard_normal((2, 5, 6))


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_row_that_may_look_nowhere_gives_zero_and_no_nan(kind):
    mask = np.ones((3, 5), bool)
    mask[1] = False
    given = mask if kind == "bool" else np.where(mask, 0.0, -np.inf)
    tensors = [ad.tensor(a, requires_grad=True) for a in (Q, K, V)]
    y = F.scaled_dot_product_attention(*tensors, attn_mask=given)
    np.testing.assert_array_equal(y.numpy()[:, 1], 0)
    assert np.isfinite(y.numpy()).all()
    (y * y).sum().backward()
    for t in tensors:
        assert np.isfinite(t.grad.numpy()).all()
    np.testing.assert_array_equal(tensors[0].grad.numpy()[:, 1], 0)


def test_causal_attention_does_not_look_ahead():
    y = F.scaled_dot_product_attention(Q, K[:, :3], V[:, :3], is_causal=True)
    np.testing.assert_allclose(y.numpy()[:, 0], V[:, 0], rtol=1e-14)
    changed = V[:, :3].copy()
    changed[:, 2] += 100
    other = F.scaled_dot_product_attention(Q, K[:, :3], changed, is_causal=True)
    np.testing.assert_array_equal(y.numpy()[:, :2], other.numpy()[:, :2])


@pytest.mark.parametrize("how", ["all", "causal", "bool", "float"])
def test_attention_over_many_keys_keeps_no_weights_and_is_the_same(how, monkeypatch):
    mask = np.array([[True] * 3, [False, True, False], [False] * 3])
    given = {
        "all": {},
        "causal": {"is_causal": True},
        "bool": {"attn_mask": mask},
        "float": {"attn_mask": np.where(mask, 0.3, -np.inf)},
    }[how]
    results = []
    for most in (4, 0):
        monkeypatch.setattr(attention, "_MOST_WEIGHTS", most)
        tensors = [ad.tensor(a, requires_grad=True) for a in (Q, K[:, :3], V[0, :3])]
        y = F.scaled_dot_product_attention(*tensors, **given)
        (y * y).sum().backward()
        results.append([y.numpy(), *(t.grad.numpy() for t in tensors)])
        assert gradgradcheck(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **given), tensors)
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_mask_and_causal_hide_what_either_hides(width, kind):
    rng = np.random.default_rng(3)
    q, k, v = (ad.tensor(rng.normal(size=(2, 5, width)), requires_grad=True) for _ in range(3))
    seen = rng.random((2, 1, 5)) < 0.6
    seen[1, 0, 0] = False  # the first query of the second may look nowhere
    given = seen if kind == "bool" else np.where(seen, rng.normal(size=(2, 5, 5)), -np.inf)
    both = np.tri(5, dtype=bool) & seen if kind == "bool" else np.where(np.tri(5, dtype=bool), given, -np.inf)
    found, wanted = (
        F.scaled_dot_product_attention(q, k, v, given, is_causal=True),
        F.scaled_dot_product_attention(q, k, v, both),
    )
    np.testing.assert_array_equal(found.numpy(), wanted.numpy())
    assert not found.numpy()[1, 0].any()
    for a, b in zip(*(ad.gradients((y**2).sum(), [q, k, v]) for y in (found, wanted)), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert not np.array_equal(found.numpy(), F.scaled_dot_product_attention(q, k, v, given).numpy())


@pytest.mark.parametrize("width", [1, 4])
def test_what_causal_attention_may_not_see_may_be_nan(width):
    q, k, v = (ad.tensor(a[..., :width], requires_grad=True) for a in (Q[:, :2], K[:, :5], V[:, :5]))
    k = ad.where(np.arange(5)[:, None] < 2, k, np.nan)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert np.isfinite(y.numpy()).all()
    assert np.isfinite(ad.gradients(y.sum(), [v])[0].numpy()).all()


def test_attention_and_layer_norm_take_several_dtypes():
    q, k, v = Q.astype(np.float32), K.astype(np.float16), V.astype(np.float32)
    assert F.scaled_dot_product_attention(q, k, v).dtype == np.float32
    assert F.scaled_dot_product_attention(q, K, v).dtype == np.float64
    half = F.scaled_dot_product_attention(*(a.astype(np.float16) for a in (Q, K, V)))
    assert half.dtype == np.float16
    np.testing.assert_allclose(half.numpy(), F.scaled_dot_product_attention(Q, K, V).numpy(), atol=3e-3)
    assert F.layer_norm(q, (4,), np.ones(4)).dtype == np.float64
    np.testing.assert_allclose(
        F.layer_norm(Q, (3, 4), np.full((3, 4), 2.0), np.ones((3, 4))).numpy(),
        2 * F.layer_norm(Q.reshape(2, 12), (12,)).numpy().reshape(2, 3, 4) + 1,
        rtol=1e-12,
    )


def test_attention_with_dropout_draws_from_its_generator():
    draw = lambda seed: F.scaled_dot_product_attention(
        Q, K, V, dropout_p=0.5, rng=np.random.default_rng(seed)
    ).numpy()
    np.testing.assert_array_equal(draw(3), draw(3))
    assert (draw(3) != draw(4)).any()


def test_attention_over_nothing_is_zero():
    y = F.scaled_dot_product_attention(Q, K[:, :0], V[:, :0])
    np.testing.assert_array_equal(y.numpy(), np.zeros((2, 3, 6)))


def test_attention_to_second_order():
    f = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert gradgradcheck(f, (Q[:1, :2], K[:1, :2], V[:1, :2, :2]))


def test_attention_at_extreme_scores():
    y = F.scaled_dot_product_attention(Q.astype(np.float32) * 1e4, K.astype(np.float32), V.astype(np.float32))
    assert np.isfinite(y.numpy()).all()


# Messages --------------------------------------------------------------------------------------

X = np.ones((2, 3))


@pytest.mark.parametrize(
    ("call", "error", "parts"),
    [
        (lambda: F.gelu(X, "fast"), ArgumentError, ("'none' or 'tanh'", "'fast'")),
        (lambda: F.silu(X + 1j), DTypeError, ("silu", "complex128")),
        (lambda: F.softmax(X, 2), ShapeError, ("axis 2", "2-d")),
        (lambda: F.softmax(np.ones((2, 0))), ShapeError, ("(2, 0)",)),
        (lambda: F.softmax(1.0), ShapeError, ("no axes",)),
        (lambda: F.softplus(X, 0), ArgumentError, ("beta",)),
        (lambda: F.hardtanh(X, 1, -1), ArgumentError, ("min_val",)),
        (lambda: F.glu(X), ShapeError, ("(2, 3)", "even length")),
        (lambda: F.linear(X, np.ones((4, 2))), ShapeError, ("(2, 3)", "(4, 2)", "(out, in)")),
        (lambda: F.linear(X, np.ones((4, 3)), np.ones(3)), ShapeError, ("(3,)", "(4,)")),
        (lambda: F.lstm_cell(X, X), ShapeError, ("(2, 3)", "four times")),
        (lambda: F.embedding([5], X), IndexingError, ("index 5", "0 … 1")),
        (lambda: F.embedding([0.5], X), DTypeError, ("float64",)),
        (lambda: F.one_hot(np.zeros(0, int)), ArgumentError, ("num_classes",)),
        (lambda: F.one_hot([3], 3), IndexingError, ("class 3",)),
        (lambda: F.dropout(X, 1.5, rng=np.random.default_rng()), ArgumentError, ("probability", "1.5")),
        (lambda: F.dropout(X, 0.5), InputError, ("default_rng", "None")),
        (lambda: F.layer_norm(X, 2), ShapeError, ("(2,)", "(2, 3)")),
        (lambda: F.layer_norm(X, 3, np.ones(2)), ShapeError, ("weight", "(2,)", "(3,)")),
        (lambda: F.group_norm(X, 2), ShapeError, ("2 groups", "(2, 3)")),
        (lambda: F.batch_norm(X), InputError, ("running_mean",)),
        (lambda: F.batch_norm(X, np.ones(2), np.ones(3)), ShapeError, ("running_mean", "(2,)", "(2, 3)")),
        (lambda: F.batch_norm(X[:1], training=True), ShapeError, ("(1, 3)", "larger batch")),
        (lambda: F.batch_norm(np.ones(3), training=True), ShapeError, ("(N, C, …)", "(3,)")),
        (lambda: F.normalize(X, -1.0), ArgumentError, ("positive",)),
        (lambda: F.cosine_similarity(X, np.ones((2, 4))), ShapeError, ("(2, 3)", "(2, 4)")),
        (lambda: F.scaled_dot_product_attention(Q, K[..., :3], V), ShapeError, ("(2, 3, 4)", "(2, 5, 3)", "last axis")),
        (lambda: F.scaled_dot_product_attention(Q, K, V, np.ones((3, 5), int)), DTypeError, ("int64", "astype(bool)")),
        (lambda: F.scaled_dot_product_attention(Q, K, V, np.ones((4, 5), bool)), ShapeError, ("(4, 5)",)),
    ],
)  # fmt: skip
def test_messages_say_what_to_do(call, error, parts):
    message = message_of(error, call)
    for part in parts:
        assert part in message


# Under vmap ------------------------------------------------------------------------------------

RNG2 = np.random.default_rng(1)


def values(*shape):
    return RNG2.standard_normal(shape)


MAPPED = {
    "softmax": (lambda x: F.softmax(x, 0), (values(3, 4, 2),)),
    "log_softmax": (lambda x: F.log_softmax(x), (values(3, 4, 2),)),
    "gelu": (F.gelu, (values(3, 4),)),
    "elu": (F.elu, (values(3, 4),)),
    "linear": (F.linear, (values(3, 2, 4), values(3, 5, 4), values(3, 5))),
    "layer_norm": (lambda x, w: F.layer_norm(x, 4, w), (values(3, 2, 4), values(3, 4))),
    "rms_norm": (lambda x: F.rms_norm(x, 4), (values(3, 2, 4),)),
    "group_norm": (lambda x: F.group_norm(x, 2), (values(3, 2, 4, 2),)),
    "batch_norm": (lambda x: F.batch_norm(x, training=True), (values(3, 2, 4, 2),)),
    "lstm_cell": (lambda g, c: F.lstm_cell(g, c)[0], (values(3, 2, 8), values(3, 2, 2))),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        (values(3, 2, 4), values(3, 2, 4), values(3, 2, 5)),
    ),
    "cross_entropy": (lambda x: F.cross_entropy(x, np.array([0, 2])), (values(3, 2, 4),)),
    "bce": (F.binary_cross_entropy_with_logits, (values(3, 4), values(3, 4))),
    "conv2d": (F.conv2d, (values(3, 1, 2, 4, 4), values(3, 2, 2, 3, 3), values(3, 2))),
    "conv_transpose1d": (F.conv_transpose1d, (values(3, 2, 4), values(3, 2, 2, 3))),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), (values(3, 1, 2, 4, 4),)),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 2, padding=1), (values(3, 2, 4),)),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 3), (values(3, 2, 4, 4),)),
    "cosine_similarity": (lambda x, y: F.cosine_similarity(x, y, 0), (values(3, 4), values(3, 4))),
}


@pytest.mark.parametrize("name", MAPPED)
def test_vmap_is_a_loop_in_values_and_gradients(name):
    f, args = MAPPED[name]
    loop = np.stack([np.asarray(f(*(a[i] for a in args))) for i in range(3)])
    np.testing.assert_allclose(np.asarray(ad.vmap(f)(*args)), loop, rtol=1e-12, atol=1e-12)
    gradient = ad.grad(lambda *xs: (f(*xs) ** 2).sum(), argnums=tuple(range(len(args))))
    whole = ad.grad(lambda *xs: (ad.vmap(f)(*xs) ** 2).sum(), argnums=tuple(range(len(args))))
    per_element = ad.vmap(gradient)(*args)
    outside = whole(*map(ad.tensor, args))
    for k in range(len(args)):
        expected = np.stack([np.asarray(gradient(*(ad.tensor(a[i]) for a in args))[k]) for i in range(3)])
        np.testing.assert_allclose(np.asarray(per_element[k]), expected, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(np.asarray(outside[k]), expected, rtol=1e-10, atol=1e-10)


def test_classes_may_be_mapped_over():
    x, t = values(3, 2, 4), np.array([[0, 3], [1, -100], [2, 2]])
    loop = np.stack([np.asarray(F.cross_entropy(x[i], t[i])) for i in range(3)])
    np.testing.assert_allclose(np.asarray(ad.vmap(F.cross_entropy)(x, t)), loop, rtol=1e-12)
    weight = np.array([1.0, 2.0, 0.5, 3.0])
    f = lambda x, t: F.nll_loss(x, t, weight)
    np.testing.assert_allclose(
        np.asarray(ad.vmap(f)(x, t)), [F.nll_loss(x[i], t[i], weight).item() for i in range(3)], rtol=1e-12
    )
    w = values(5, 2)
    rows = ad.vmap(lambda i: F.embedding(i, w))(np.array([[0, 1], [4, 4]]))
    np.testing.assert_array_equal(np.asarray(rows), w[[[0, 1], [4, 4]]])


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("hidden", [np.nan, np.inf, -np.inf])
def test_gelu_of_what_where_leaves_out_has_no_gradient(approximate, hidden, workers):
    x = ad.tensor([hidden, 1.0], requires_grad=True)
    with np.errstate(all="ignore"):
        y = ad.where([False, True], F.gelu(x, approximate), 0.0)
    y.sum().backward(workers=workers)
    assert x.grad.numpy()[0] == 0
    np.testing.assert_allclose(x.grad.numpy()[1], 1.083, atol=1e-3)


@pytest.mark.parametrize("size", [1e5, 1e13, 1e18])
def test_the_slope_of_gelu_by_tanh_is_known_as_long_as_its_argument_has_a_square(size):
    found = slopes(lambda x: F.gelu(x, "tanh"), np.array([size, -size], np.float32))
    np.testing.assert_array_equal(found, [1, 0])


@pytest.mark.parametrize("length", [4, 64])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_attention_in_half_precision_is_as_exact_as_its_numbers(dtype, length):
    dtype = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    rng = np.random.default_rng(0)
    given = [3 * rng.standard_normal((2, length, 8)) for _ in range(3)]
    found = []
    for kind in (dtype, np.float64):
        tensors = [ad.tensor(a.astype(dtype).astype(kind), requires_grad=True) for a in given]
        y = F.scaled_dot_product_attention(*tensors)
        assert y.dtype == kind
        (y.astype(np.float64) ** 2).sum().backward()
        found.append(
            [y.detach().astype(np.float64).numpy()] + [t.grad.astype(np.float64).numpy() for t in tensors]
        )
    for half, exact in zip(*found, strict=True):
        error = np.abs(half - exact).max() / np.abs(exact).max()
        assert error < (0.03 if dtype != np.float16 else 0.004)
