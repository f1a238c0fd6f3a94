"""The functions of torch.nn.functional that the networks use, as users of other engines write them."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.harness import Lacking


class JaxFunctional:
    """On jax.numpy and jax.nn."""

    def __init__(self, jax: Any) -> None:
        self.jax, self.jnp = jax, jax.numpy
        self.relu = jax.nn.relu

    def conv2d(self, x: Any, w: Any, b: Any, padding: int = 0) -> Any:
        y = self.jax.lax.conv_general_dilated(x, w, (1, 1), [(padding, padding)] * 2)
        return y + b[:, None, None]

    def max_pool2d(self, x: Any, size: int) -> Any:
        window = (1, 1, size, size)
        return self.jax.lax.reduce_window(x, -self.jnp.inf, self.jax.lax.max, window, window, "VALID")

    def linear(self, x: Any, w: Any, b: Any = None) -> Any:
        return x @ w.T if b is None else x @ w.T + b

    def cross_entropy(self, x: Any, t: Any) -> Any:
        rows = self.jnp.arange(x.shape[0])
        return -self.jax.nn.log_softmax(x)[rows, t].mean()

    def layer_norm(self, x: Any, shape: tuple[int, ...], weight: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred * self.jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * weight

    def scaled_dot_product_attention(self, q: Any, k: Any, v: Any, is_causal: bool) -> Any:
        length = q.shape[-2]
        scores = q @ k.swapaxes(-1, -2) / np.float32(q.shape[-1] ** 0.5)
        if is_causal:
            past = self.jnp.tril(self.jnp.ones((length, length), bool))
            scores = self.jnp.where(past, scores, -self.jnp.inf)
        return self.jax.nn.softmax(scores) @ v

    def gelu(self, x: Any, approximate: str) -> Any:
        return self.jax.nn.gelu(x, approximate=approximate == "tanh")

    def mse_loss(self, x: Any, t: Any) -> Any:
        return ((x - t) ** 2).mean()


class AutogradFunctional:
    """On autograd.numpy, which has no convolution of images."""

    def __init__(self, np_: Any) -> None:
        self.np = np_

    def relu(self, x: Any) -> Any:
        return self.np.maximum(x, 0)

    def conv2d(self, *_: Any, **__: Any) -> Any:
        raise Lacking("no convolution of images")

    max_pool2d = conv2d

    def linear(self, x: Any, w: Any, b: Any = None) -> Any:
        y = self.np.dot(x, w.T)
        return y if b is None else y + b

    def layer_norm(self, x: Any, shape: tuple[int, ...], weight: Any) -> Any:
        centred = x - self.np.mean(x, -1, keepdims=True)
        return centred / self.np.sqrt(self.np.mean(centred**2, -1, keepdims=True) + np.float32(1e-5)) * weight

    def scaled_dot_product_attention(self, q: Any, k: Any, v: Any, is_causal: bool) -> Any:
        length = q.shape[-2]
        scores = self.np.matmul(q, self.np.swapaxes(k, -1, -2)) / np.float32(q.shape[-1] ** 0.5)
        scores = self.np.where(np.tril(np.ones((length, length), bool)), scores, np.float32(-1e30))
        scores = self.np.exp(scores - self.np.max(scores, -1, keepdims=True))
        return self.np.matmul(scores / self.np.sum(scores, -1, keepdims=True), v)

    def gelu(self, x: Any, approximate: str) -> Any:
        inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3)
        return np.float32(0.5) * x * (1 + self.np.tanh(inner))

    def mse_loss(self, x: Any, t: Any) -> Any:
        return self.np.mean((x - t) ** 2)


class MlxFunctional:
    """On MLX; its convolutions take channels last, so that images are transposed around them."""

    def __init__(self, mx: Any) -> None:
        import mlx.nn

        self.mx, self.relu, self.nn = mx, mlx.nn.relu, mlx.nn

    def conv2d(self, x: Any, w: Any, b: Any, padding: int = 0) -> Any:
        y = self.mx.conv2d(x.transpose(0, 2, 3, 1), w.transpose(0, 2, 3, 1), padding=padding) + b
        return y.transpose(0, 3, 1, 2)

    def max_pool2d(self, x: Any, size: int) -> Any:
        n, c, h, w = x.shape
        return x.reshape(n, c, h // size, size, w // size, size).max((3, 5))

    def linear(self, x: Any, w: Any, b: Any = None) -> Any:
        return x @ w.T if b is None else self.mx.addmm(b, x, w.T)

    def cross_entropy(self, x: Any, t: Any) -> Any:
        return self.nn.losses.cross_entropy(x, t, reduction="mean")

    def layer_norm(self, x: Any, shape: tuple[int, ...], weight: Any) -> Any:
        return self.mx.fast.layer_norm(x, weight, None, 1e-5)

    def scaled_dot_product_attention(self, q: Any, k: Any, v: Any, is_causal: bool) -> Any:
        scale = q.shape[-1] ** -0.5
        return self.mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask="causal")

    def gelu(self, x: Any, approximate: str) -> Any:
        return self.nn.gelu_approx(x)

    def mse_loss(self, x: Any, t: Any) -> Any:
        return ((x - t) ** 2).mean()


class TinygradFunctional:
    """On the methods of tinygrad's tensors."""

    def relu(self, x: Any) -> Any:
        return x.relu()

    def conv2d(self, x: Any, w: Any, b: Any, padding: int = 0) -> Any:
        return x.conv2d(w, b, padding=padding)

    def max_pool2d(self, x: Any, size: int) -> Any:
        return x.max_pool2d((size, size))

    def linear(self, x: Any, w: Any, b: Any = None) -> Any:
        return x.linear(w.T, b)

    def cross_entropy(self, x: Any, t: Any) -> Any:
        return x.sparse_categorical_crossentropy(t)

    def layer_norm(self, x: Any, shape: tuple[int, ...], weight: Any) -> Any:
        return x.layernorm(eps=1e-5) * weight

    def scaled_dot_product_attention(self, q: Any, k: Any, v: Any, is_causal: bool) -> Any:
        return q.scaled_dot_product_attention(k, v, is_causal=is_causal)

    def gelu(self, x: Any, approximate: str) -> Any:
        return x.gelu()  # the approximation by tanh

    def mse_loss(self, x: Any, t: Any) -> Any:
        return ((x - t) ** 2).mean()
