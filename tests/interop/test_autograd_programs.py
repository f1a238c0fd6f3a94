"""Programs of HIPS autograd with other imports: each gives the numbers that autograd 1.9.1 gives.

Where autograd is installed, it runs them, too.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy
import pytest

LOGISTIC = """
import autograd.numpy as np
from autograd import grad

inputs = np.array([[0.52, 1.12, 0.77], [0.88, -1.08, 0.15], [0.52, 0.06, -1.30], [0.74, -2.49, 1.39]])
targets = np.array([True, True, False, True])

def training_loss(weights):
    predictions = 0.5 * (np.tanh(np.dot(inputs, weights) / 2.0) + 1)
    label_probabilities = predictions * targets + (1 - predictions) * (1 - targets)
    return -np.sum(np.log(label_probabilities))

weights = np.array([0.0, 0.0, 0.0])
for i in range(100):
    weights = weights - grad(training_loss)(weights) * 0.1
result = [training_loss(weights), *weights]
"""

NEURAL_NET = """
import autograd.numpy as np
import autograd.numpy.random as npr
from autograd import grad
from autograd.scipy.special import logsumexp

rs = npr.RandomState(0)
sizes = [4, 8, 3]
params = [(0.1 * rs.randn(m, n), 0.1 * rs.randn(n)) for m, n in zip(sizes[:-1], sizes[1:])]
inputs, targets = rs.randn(20, 4), np.eye(3)[rs.randint(0, 3, 20)]

def predict(params, inputs):
    for W, b in params:
        outputs = np.dot(inputs, W) + b
        inputs = np.tanh(outputs)
    return outputs - logsumexp(outputs, axis=1, keepdims=True)

def objective(params):
    return -np.mean(np.sum(predict(params, inputs) * targets, axis=1))

for i in range(30):
    gradient = grad(objective)(params)
    params = [(W - 0.5 * dW, b - 0.5 * db) for (W, b), (dW, db) in zip(params, gradient)]
result = [objective(params), np.sum(params[0][0] ** 2)]
"""

MIXTURE = """
import autograd.numpy as np
import autograd.numpy.random as npr
from autograd import grad, hessian
from autograd.scipy.special import logsumexp
from autograd.scipy.stats import norm

data = np.concatenate([npr.RandomState(1).randn(20) - 2, 0.5 * npr.RandomState(2).randn(20) + 1.5])

def log_likelihood(p):
    weights = p[:2] - logsumexp(p[:2])
    parts = [w + norm.logpdf(data, m, np.exp(s)) for w, m, s in zip(weights, p[2:4], p[4:])]
    return np.sum(logsumexp(np.stack(parts), axis=0))

p = np.array([0.0, 0.0, -1.0, 1.0, 0.0, 0.0])
for i in range(50):
    p = p + 0.01 * grad(log_likelihood)(p)
result = [log_likelihood(p), *p, *np.diag(hessian(log_likelihood)(p))]
"""

GAUSSIAN_PROCESS = """
import autograd.numpy as np
import autograd.numpy.random as npr
from autograd import value_and_grad
from autograd.scipy.stats import multivariate_normal

x = np.linspace(-3, 3, 12)
y = np.sin(x) + 0.1 * npr.RandomState(0).randn(12)

def objective(log_params):
    scale, width, noise = np.exp(log_params)
    apart = (x[:, None] - x[None, :]) / width
    cov = scale * np.exp(-0.5 * apart**2) + noise * np.eye(len(x))
    return -multivariate_normal.logpdf(y, np.zeros(len(x)), cov)

value, gradient = value_and_grad(objective)(np.array([0.1, 0.2, -1.5]))
result = [value, *gradient]
"""

KALMAN = """
import autograd.numpy as np
from autograd import grad

observed = np.array([0.3, 0.9, 1.2, 2.1, 2.4])

def filtered(theta):
    decay, q, r = theta
    F = np.array([[1.0, 1.0], [0.0, decay]])
    H = np.array([[1.0, 0.0]])
    mean, cov, total = np.zeros(2), np.eye(2), 0.0
    for z in observed:
        mean, cov = np.dot(F, mean), np.dot(np.dot(F, cov), F.T) + q * np.eye(2)
        s = np.dot(np.dot(H, cov), H.T) + r
        gain = np.dot(cov, H.T) / s
        away = z - np.dot(H, mean)
        mean, cov = mean + np.dot(gain, away), np.dot(np.eye(2) - np.dot(gain, H), cov)
        total = total - 0.5 * np.sum(away**2 / s[0] + np.log(2 * np.pi * s[0]))
    return total

theta = np.array([0.9, 0.1, 0.2])
result = [filtered(theta), *grad(filtered)(theta)]
"""

TANH = """
import autograd.numpy as np
from autograd import elementwise_grad as egrad

def tanh(x):
    return (1.0 - np.exp(-2 * x)) / (1.0 + np.exp(-2 * x))

x = np.linspace(-3, 3, 5)
result = [*tanh(x), *egrad(tanh)(x), *egrad(egrad(tanh))(x), *egrad(egrad(egrad(tanh)))(x)]
"""

FLUID = """
import autograd.numpy as np
from autograd import grad

def project(vx, vy):
    div = -0.5 * (np.roll(vx, -1, axis=1) - np.roll(vx, 1, axis=1) + np.roll(vy, -1, axis=0) - np.roll(vy, 1, axis=0))
    p = np.zeros(vx.shape)
    for k in range(5):
        p = (div + np.roll(p, 1, axis=1) + np.roll(p, -1, axis=1) + np.roll(p, 1, axis=0) + np.roll(p, -1, axis=0)) / 4.0
    return vx - 0.5 * (np.roll(p, -1, axis=1) - np.roll(p, 1, axis=1)), vy - 0.5 * (np.roll(p, -1, axis=0) - np.roll(p, 1, axis=0))

def advect(f, vx, vy):
    rows, cols = f.shape
    cell_xs, cell_ys = np.meshgrid(np.arange(rows), np.arange(cols))
    center_xs, center_ys = (cell_xs - vx).ravel(), (cell_ys - vy).ravel()
    left, top = np.floor(center_xs).astype(int), np.floor(center_ys).astype(int)
    rw, bw = center_xs - left, center_ys - top
    left, right, top, bottom = np.mod(left, rows), np.mod(left + 1, rows), np.mod(top, cols), np.mod(top + 1, cols)
    flat = (1 - rw) * ((1 - bw) * f[left, top] + bw * f[left, bottom]) + rw * ((1 - bw) * f[right, top] + bw * f[right, bottom])
    return np.reshape(flat, (rows, cols))

smoke = np.outer(np.sin(np.arange(6)), np.cos(np.arange(6)))

def loss(v):
    vx, vy = project(v[0], v[1])
    return np.mean((advect(advect(smoke, vx, vy), vx, vy) - smoke.T) ** 2)

v = 0.3 * np.sin(np.arange(72.0)).reshape(2, 6, 6) + 0.1
g = grad(loss)(v)
result = [loss(v), *g[0, 1], *g[1, :, 2]]
"""

PENDULUM = """
import autograd.numpy as np
from autograd import grad, jacobian

def motion(y, length, friction):
    return np.array([y[1], -9.81 / length * np.sin(y[0]) - friction * y[1]])

def end(p, steps=20, h=0.05):
    y = p[:2]
    for i in range(steps):
        a = motion(y, p[2], p[3])
        b = motion(y + h / 2 * a, p[2], p[3])
        c = motion(y + h / 2 * b, p[2], p[3])
        d = motion(y + h * c, p[2], p[3])
        y = y + h / 6 * (a + 2 * b + 2 * c + d)
    return y

p = np.array([0.5, 0.1, 1.2, 0.3])
result = [*end(p), *jacobian(end)(p).ravel(), *grad(lambda p: np.sum(grad(lambda q: end(q)[0])(p) ** 2))(p)]
"""

PRIMITIVE = """
import autograd.numpy as np
from autograd import grad
from autograd.extend import defvjp, primitive

@primitive
def logsumexp(x):
    top = np.max(x)
    return top + np.log(np.sum(np.exp(x - top)))

defvjp(logsumexp, lambda ans, x: lambda g: np.full(x.shape, g) * np.exp(x - np.full(x.shape, ans)))

def example(y):
    return logsumexp(y**2)

y = np.array([1.5, 6.7, 1e-10])
second = grad(lambda y: np.sum(np.sin(grad(example)(y))))(y)
result = [example(y), *grad(example)(y), *second]
"""

PROGRAMS = {
    "logistic regression": LOGISTIC, "neural net": NEURAL_NET, "mixture": MIXTURE,
    "gaussian process": GAUSSIAN_PROCESS, "kalman": KALMAN, "tanh": TANH, "fluid": FLUID, "pendulum": PENDULUM,
    "primitive": PRIMITIVE,
}  # fmt: skip


def numbers(program: str) -> list[float]:
    names: dict[str, Any] = {}
    exec(compile(program, "a program of autograd", "exec", dont_inherit=True), names)
    return [float(v) for v in names["result"]]


@pytest.mark.parametrize("name", PROGRAMS)
def test_with_other_imports(name):
    found = numbers(PROGRAMS[name].replace("autograd", "adjoint"))
    numpy.testing.assert_allclose(found, EXPECTED[name], rtol=1e-9, atol=1e-9)


@pytest.mark.oracle
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_numbers_are_those_of_autograd(name):
    if importlib.util.find_spec("autograd") is None:
        pytest.skip("autograd is not installed")
    numpy.testing.assert_allclose(numbers(PROGRAMS[name]), EXPECTED[name], rtol=1e-7, atol=1e-9)


EXPECTED: dict[str, list[float]] = {
    "logistic regression": [0.167410830358, 1.7703072743, -0.53771178748, 3.21046651712],
    "neural net": [0.770442010796, 2.21375037004],
    "mixture": [
        -73.7064228308,
        0.0197860658979,
        -0.0197860658979,
        -2.06549787761,
        1.4014673949,
        0.154395760218,
        -0.597201867918,
        -9.48345875783,
        -9.48345875783,
        -12.9695505075,
        -59.0474174613,
        -28.8401361869,
        -30.2796868559,
    ],
    "gaussian process": [8.9935246014, 1.64027518073, -2.44649222673, 3.33293021361],
    "kalman": [-5.16244988128, -0.849170558327, -5.33648144849, -5.11956666066],
    "tanh": [
        -0.995054753687,
        -0.905148253645,
        0.0,
        0.905148253645,
        0.995054753687,
        0.00986603716544,
        0.180706638924,
        1.0,
        0.180706638924,
        0.00986603716544,
        0.019634494363,
        0.327132597288,
        0.0,
        -0.327132597288,
        -0.019634494363,
        0.0388801165257,
        0.526897219588,
        -2.0,
        0.526897219588,
        0.0388801165257,
    ],
    "fluid": [
        0.411405054151,
        0.00902376212252,
        0.00885839976221,
        -0.0179297396913,
        0.0169258537939,
        0.00289890343632,
        0.0129973789205,
        -0.0199445138756,
        0.00728097821337,
        0.00313804557846,
        -0.0220556257507,
        0.0242196874564,
        0.00441651311188,
    ],
    "pendulum": [
        -0.389907898569,
        -0.471035226434,
        -0.766405154722,
        0.0998644156422,
        0.228438012582,
        0.224118702673,
        -0.925489209425,
        -0.846023479502,
        -1.16694987339,
        0.204961349524,
        0.130994729106,
        0.0730307885485,
        -0.464747881174,
        -0.753455772843,
    ],
    "primitive": [
        44.89,
        9.09503859549e-19,
        13.4,
        6.3907334355e-30,
        -4.85740604663e-18,
        1.34438616711,
        6.39073342974e-20,
    ],
}
