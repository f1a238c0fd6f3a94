"""Published problems: the objectives of ADBench and GradBench, on data generated here."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from benchmarks.engines import Kit, engines, lacking
from benchmarks.harness import Case, Step

# Gaussian mixture: the log-likelihood of points, with a Wishart prior ---------------------------


def gmm(kit: Kit, n: int = 1000, d: int = 10, k: int = 25) -> Step:
    """Gradient of Σᵢ log Σₖ exp(αₖ + Σ qₖ - ½‖Qₖ(xᵢ - μₖ)‖²) - n log Σ exp α + prior.

    Qₖ is lower triangular: its diagonal is exp(qₖ), below it stand the other entries of ``icf``.
    """
    rng = np.random.default_rng(0)
    alphas, means = rng.standard_normal(k), rng.random((k, d))
    icf = 0.3 * rng.standard_normal((k, d + d * (d - 1) // 2))
    x = kit.array(rng.standard_normal((n, d)))
    place = np.full((d, d), d * (d - 1) // 2)  # beyond the last: a column of zeros
    place[np.tril_indices(d, -1)] = np.arange(d * (d - 1) // 2)
    below = kit.array(place)
    none = kit.array(np.zeros((k, 1)))
    gamma, m, xp = 1.0, 0, kit.xp
    constant = -n * d * 0.5 * math.log(2 * math.pi) - k * _wishart_constant(d, gamma, d + m + 1)

    def objective(alphas: Any, means: Any, icf: Any) -> Any:
        q, lower = icf[:, :d], icf[:, d:]
        sums, diagonal = q.sum(-1), xp.exp(q)
        L = kit.concat([lower, none], 1)[:, below]
        centred = x[:, None, :] - means
        scaled = diagonal * centred + xp.einsum("kij,nkj->nki", L, centred)
        inner = alphas + sums - 0.5 * (scaled**2).sum(-1)
        prior = 0.5 * gamma**2 * ((diagonal**2).sum() + (lower**2).sum()) - m * sums.sum()
        return constant + kit.logsumexp(inner).sum() - n * kit.logsumexp(alphas) + prior

    return kit.gradient(objective, [alphas, means, icf])


def _wishart_constant(d: int, gamma: float, n: int) -> float:
    distribution = 0.25 * d * (d - 1) * math.log(math.pi)
    distribution += sum(math.lgamma(0.5 * n + 0.5 * (1 - j)) for j in range(1, d + 1))
    return n * d * (math.log(gamma) - 0.5 * math.log(2)) - distribution


# Bundle adjustment: the Jacobian's blocks, one 2×15 block per observation ------------------------


def rotated(kit: Kit, r: Any, x: Any) -> Any:
    """Turn each row of x by the angle-axis vector in the same row of r: Rodrigues' formula."""
    xp = kit.xp
    angle = xp.sqrt((r**2).sum(-1))[:, None]
    axis, c, s = r / angle, xp.cos(angle), xp.sin(angle)
    a0, a1, a2, x0, x1, x2 = (v[:, i] for v in (axis, x) for i in range(3))
    cross = xp.stack([a1 * x2 - a2 * x1, a2 * x0 - a0 * x2, a0 * x1 - a1 * x0], -1)
    return x * c + cross * s + axis * ((axis * x).sum(-1)[:, None] * (1 - c))


def bundle(kit: Kit, cameras: int = 49, points: int = 776, observations: int = 3184) -> Step:
    """The derivatives of every reprojection error by its camera, its point and its weight."""
    rng = np.random.default_rng(0)
    # rotation, centre, focal length, principal point, two radial distortions
    cams = rng.standard_normal((cameras, 11)) * 0.1 + [0.2, 0.2, 0.2, 0, 0, -5, 1, 0, 0, 0.1, 0.1]
    seen = rng.integers(0, cameras, observations), rng.integers(0, points, observations)
    x = rng.standard_normal((points, 3))
    w = rng.random(observations)
    feature = kit.array(rng.standard_normal((observations, 2)))

    def errors(cam: Any, x: Any, w: Any) -> Any:
        p = rotated(kit, cam[:, :3], x - cam[:, 3:6])
        flat = p[:, :2] / p[:, 2:]
        r2 = (flat**2).sum(-1)[:, None]
        distorted = flat * (1 + cam[:, 9:10] * r2 + cam[:, 10:] * r2**2)
        return w[:, None] * (distorted * cam[:, 6:7] + cam[:, 7:9] - feature)

    return kit.columns(errors, [cams[seen[0]], x[seen[1]], w], 2)


# k-means: gradient and Hessian's diagonal, which Newton's method needs ---------------------------


def kmeans(kit: Kit, n: int = 1000, d: int = 10, k: int = 25) -> Step:
    """The cost is Σᵢ minⱼ ‖xᵢ - cⱼ‖²; its Hessian is diagonal, so one product with ones gives all."""
    rng = np.random.default_rng(0)
    x = kit.array(rng.standard_normal((n, 1, d)))

    def cost(centres: Any) -> Any:
        return kit.least(((x - centres) ** 2).sum(-1)).sum()

    return kit.hvp(cost, rng.standard_normal((k, d)), np.ones((k, d)))


# LSTM: a small diagonal language model over one-hot characters -----------------------------------


def lstm(kit: Kit, layers: int = 2, length: int = 100, width: int = 14) -> Step:
    """Gradient of the mean log-loss of predicting each character from those before."""
    rng = np.random.default_rng(0)
    main = 0.5 * rng.standard_normal((2 * layers, 4 * width))
    extra = 0.5 * rng.standard_normal((3, width))
    start = [kit.array(v) for v in 0.5 * rng.standard_normal((2 * layers, width))]
    text = np.eye(width)[rng.integers(0, width, length)]
    xp = kit.xp

    def cell(weight: Any, bias: Any, h: Any, c: Any, x: Any) -> tuple[Any, Any]:
        gates = kit.concat([x, h, x, h], 0) * weight + bias
        forget, update, out = (kit.sigmoid(gates[i * width : (i + 1) * width]) for i in range(3))
        c = c * forget + update * xp.tanh(gates[3 * width :])
        return out * xp.tanh(c), c

    def advance(main: Any, extra: Any, state: list[Any], x: Any, gold: Any) -> tuple[list[Any], Any]:
        x, new = x * extra[0], []
        for i in range(layers):
            x, c = cell(main[2 * i], main[2 * i + 1], state[2 * i], state[2 * i + 1], x)
            new += [x, c]
        y = x * extra[1] + extra[2]
        return new, (gold * (y - xp.log(xp.exp(y).sum() + 2))).sum()

    def objective(main: Any, extra: Any) -> Any:
        def body(state: Any, x: Any, gold: Any) -> Any:
            return advance(main, extra, state, x, gold)

        total = kit.scan(body, start, length - 1, rows[:-1], rows[1:])[1]
        return -total / ((length - 1) * width)

    rows = kit.rows(text)
    return kit.gradient(objective, [main, extra])


# Hand tracking: the Jacobian of the distances of points to a skinned mesh ------------------------

FINGERS, JOINTS = 5, 4  # per finger, the last joint is the tip and does not turn
BONES = 2 + FINGERS * JOINTS


def hand(kit: Kit, vertices: int = 544, points: int = 100) -> Step:
    """26 parameters: a rotation, a shift, and per finger two angles at its root, one at two joints.

    A bone's transform is its parent's times its rest position times its rotation; a vertex is moved by the
    weighted transforms of the bones. Forward mode gives all columns together.
    """
    rng = np.random.default_rng(0)
    parents = [-1, 0] + [
        1 if j == 0 else 2 + f * JOINTS + j - 1 for f in range(FINGERS) for j in range(JOINTS)
    ]
    rest = np.tile(np.eye(4), (BONES, 1, 1))
    rest[:, :3, 3] = rng.standard_normal((BONES, 3))
    absolute: list[Any] = []
    for i, parent in enumerate(parents):
        absolute.append(rest[i] if parent < 0 else absolute[parent] @ rest[i])
    weights = rng.random((vertices, BONES)) ** 8
    weights /= weights.sum(1, keepdims=True)
    rest_position = np.concatenate([rng.standard_normal((vertices, 3)), np.ones((vertices, 1))], 1)
    # Σ_b w_vb T_b (B_b⁻¹ p_v): the constant factors are multiplied beforehand
    local = kit.array(np.einsum("vb,bij,vj->bvi", weights, np.linalg.inv(np.stack(absolute)), rest_position))
    base = [kit.array(m) for m in rest]
    target = kit.array(rng.standard_normal((points, 3)))
    chosen = kit.array(rng.integers(0, vertices, points))
    xp = kit.xp
    zero, one = kit.array(np.zeros(())), kit.array(np.ones(()))
    last = kit.array(np.eye(4)[3:])
    column = kit.array(np.zeros((3, 1)))

    def matrix(rows: list[list[Any]]) -> Any:
        return xp.stack([xp.stack(row) for row in rows])

    def turned(tx: Any, tz: Any) -> Any:
        """The 4×4 rotation about x, then about z."""
        c, s, cz, sz = xp.cos(tx), xp.sin(tx), xp.cos(tz), xp.sin(tz)
        about = matrix([[cz, -sz * c, sz * s], [sz, cz * c, -cz * s], [zero, s, c]])
        return kit.concat([kit.concat([about, column], 1), last], 0)

    def errors(theta: Any) -> Any:
        angles = {}
        for f in range(FINGERS):
            a = 6 + 4 * f
            angles |= {2 + f * JOINTS: (theta[a], theta[a + 1])}
            angles |= {2 + f * JOINTS + j: (theta[a + 1 + j], zero) for j in (1, 2)}
        found: list[Any] = []
        for i, parent in enumerate(parents):
            relative = base[i] @ turned(*angles[i]) if i in angles else base[i]
            found.append(relative if parent < 0 else found[parent] @ relative)
        position = xp.einsum("bij,bvj->vi", xp.stack(found), local)[:, :3]
        r = theta[:3] * one
        moved = rotated(kit, xp.stack([r] * vertices), position) + theta[3:6]
        return target - moved[chosen]

    return kit.jacobian(errors, 0.3 * rng.standard_normal(26))


# its graph is unrolled: thousands of ops, which took longer than 150 s to compile
UNROLLED = {"torch-compile": lacking("it does not compile within 150 s")}
UNENDING = {"tinygrad": lacking("its scheduler does not end within 150 s on 100 unrolled steps")}

CASES = [
    Case(
        "GMM, 1,000 points, 10 dimensions, 25 components: gradient", engines(gmm), blas=True, stateless=True
    ),
    Case("bundle adjustment, 3,184 observations: Jacobian", engines(bundle), stateless=True),
    Case("k-means, 1,000 points, 25 centres: gradient and Hessian", engines(kmeans), stateless=True),
    Case(
        "LSTM objective, 2 layers, 100 characters: gradient",
        engines(lstm) | UNROLLED | UNENDING,
        stateless=True,
    ),
    Case(
        "hand tracking, 26 parameters, 100 points: Jacobian",
        engines(hand) | UNROLLED,
        blas=True,
        stateless=True,
    ),
]
