"""Programs that read Python values which change between calls: a compiled function returns what the function does.

Each program is the text of a module with a function ``f``, followed by changes.  The number of traces is checked,
too: one for the first call, and one for each change, except where only ops read what changes.
"""

from __future__ import annotations

import pathlib
import sys
import types
from typing import Any

import numpy as np
import pytest
from program_texts import run_text

import adjoint as ad

X = np.array([1.0, -2.0, 3.0])

# Arrays that an op uses, and that Python reads, too: a change of an element is a change of the program.
READ = {
    "an element of an array in a dictionary": (
        """
st = {"std": np.ones(3), "mean": np.zeros(3)}
def f(x):
    y = x - st["mean"]
    return y / st["std"] if st["std"][0] > 0.5 else y
""",
        'st["std"][0] = 0.1', 'st["std"][:] = 2.0',
    ),
    "the maximum of an array": (
        'd = {"a": np.array([1.0, 2.0, 3.0])}\ndef f(x): return x * d["a"] / d["a"].max()',
        'd["a"][1] = 8.0', 'd["a"] *= 2.0',
    ),
    "a parameter of a helper": (
        """
w = np.ones(3)
def scaled(x, w):
    return x * w * 2 if w[0] > 0.5 else x * w
def f(x):
    return scaled(x, w)
""",
        "w[0] = 0.1", "w[0] = 0.7",
    ),
    "a keyword parameter of a method": (
        """
class Scale:
    def __call__(self, x, *, by):
        return x * by if by.sum() > 2 else x + by
scale, w = Scale(), np.ones(3)
def f(x): return scale(x, by=w)
""",
        "w[:] = 0.1",
    ),
    "a helper that only looks": (
        "w = np.ones(3)\ndef is_on(w): return w[0] > 0.5\ndef f(x): return x * w if is_on(w) else x + w",
        "w[0] = 0.1",
    ),
    "a default argument": (
        "def f(x, w=np.ones(3)): return x * w if w[0] > 0.5 else x + w",
        "f.__defaults__[0][0] = 0.1",
    ),
    "a default of a keyword": (
        "def f(x, *, w=np.ones(3)): return x * w if w.min() > 0.5 else x + w",
        'f.__kwdefaults__["w"][0] = 0.1',
    ),
    "a default of an inner helper": (
        "w = np.ones(3)\ndef h(x, w=w): return x * w if w[0] > 0.5 else x + w\ndef f(x): return h(x)",
        "w[0] = 0.1",
    ),
    "a loop over values": (
        """
d = {"a": np.ones(3), "b": np.full(3, 2.0)}
def f(x):
    for v in d.values():
        x = x * v if v[0] > 0.5 else x + v
    return x
""",
        'd["a"][0] = 0.1', 'd["b"][0] = 0.2',
    ),
    "a loop over items": (
        """
d = {"a": np.ones(3), "b": np.full(3, 2.0)}
def f(x):
    for name, v in d.items():
        x = x * v if v.any() else x
    return x
""",
        'd["a"][:] = 0.0',
    ),
    "a loop over pairs": (
        """
ws, bs = [np.ones(3), np.full(3, 2.0)], [np.zeros(3), np.ones(3)]
def f(x):
    for w, b in zip(ws, bs):
        x = x * w + b if b[0] == 0 else x * w
    return x
""",
        "bs[0][0] = 1.0", "bs[1][0] = 0.0",
    ),
    "a generator expression": (
        'd = {"a": np.ones(3)}\ndef f(x): return x * d["a"] if any(v[0] > 0.5 for v in d.values()) else x + d["a"]',
        'd["a"][0] = 0.1',
    ),
    "arithmetic of arrays beside an op": ("a = np.ones(3)\ndef f(x): return x * a + (a * 2)", "a[0] = 5.0"),
    "a comparison of arrays beside an op": ("a = np.ones(3)\ndef f(x): return ad.where(a > 0, x, a)", "a[0] = -5.0"),
    "a local variable": (
        "a = np.ones(3)\ndef f(x):\n    b = a\n    c = b\n    return x * b if c[0] > 0.5 else x + b", "a[0] = 0.1"
    ),
    "an unpacked pair": (
        "pair = (np.ones(3), 2.0)\ndef f(x):\n    a, k = pair\n    return x * a * k if a[0] > 0.5 else x + a",
        "pair[0][0] = 0.1",
    ),
    "a view": ("a = np.ones(3)\ndef f(x): return x * a if a.T.ravel()[0] > 0.5 else x + a", "a[0] = 0.1"),
    "a slice": ("a = np.ones(6)\ndef f(x): return x * a[:3] + a[3:].sum()", "a[3] = 2.0", "a[5] = 3.0"),
    "a function of NumPy": ("a = np.ones(3)\ndef f(x): return x * a / np.linalg.norm(a)", "a[0] = 2.0"),
    "a number from an array": ("a = np.ones(3)\ndef f(x): return x * a * float(a[1])", "a[1] = 2.0"),
    "the number of elements that hold": ("a = np.ones(3)\ndef f(x): return x * a * len(a.nonzero()[0])", "a[1] = 0.0"),
    "a condition": (
        "a = np.ones((1, 1))\ndef f(x): return x * a[0] if a else x", "a[0] = 0.0", "a[0] = 2.0"
    ),
    "membership": ("a = np.ones(3)\ndef f(x): return x * a if 7.0 in a else x + a", "a[1] = 7.0"),
    "formatted text": ("a = np.ones(3)\ndef f(x): return x * a * len(f'{a[0]}')", "a[0] = 0.125"),
    "an attribute": (
        """
class Stats:
    def __init__(self): self.mean, self.std = np.zeros(3), np.ones(3)
    def normalise(self, x):
        x = x - self.mean
        return x / self.std if (self.std > 0).all() else x
stats = Stats()
def f(x): return stats.normalise(x)
""",
        "stats.std[0] = 0.0", "stats.std[1] = 0.0",
    ),
    "an attribute of a parameter": (
        """
class Batch:
    def __init__(self): self.w = np.ones(3)
batch = Batch()
def weighted(x, batch): return x * batch.w if batch.w.sum() > 2 else x
def f(x): return weighted(x, batch) + batch.w
""",
        "batch.w[:] = 0.1",
    ),
    "an attribute by its name": (
        """
class Batch:
    def __init__(self): self.w = np.ones(3)
batch = Batch()
def f(x): return x * batch.w if getattr(batch, "w")[0] > 0.5 else x + batch.w
""",
        "batch.w[0] = 0.1",
    ),
    "a property": (
        """
class Batch:
    def __init__(self): self._w = np.ones(3)
    @property
    def w(self): return self._w
batch = Batch()
def f(x): return x * batch.w if batch.w[0] > 0.5 else x + batch.w
""",
        "batch._w[0] = 0.1",
    ),
    "a getter": (
        "a = np.ones(3)\ndef get(): return a\ndef f(x): return x * a if get()[0] > 0.5 else x + a", "a[0] = 0.1"
    ),
    "a field of a data class": (
        """
@dataclasses.dataclass
class State:
    ema: np.ndarray
    warm: bool = False
state = State(np.ones(3))
def f(x): return x / state.ema if state.ema[0] > 0.5 else x
""",
        "state.ema[0] = 0.1", "state.ema[0], state.warm = 0.9, True",
    ),
    "a field of a named tuple": (
        """
State = collections.namedtuple("State", "mean std")
state = State(np.zeros(3), np.ones(3))
def f(x): return (x - state.mean) / state.std if state.std[0] > 0.5 else x - state.mean
""",
        "state.std[0] = 0.1",
    ),
    "a closure": (
        """
def make(a):
    def f(x):
        def inner(y): return y * a if a[0] > 0.5 else y + a
        return inner(x)
    return f
w = np.ones(3)
f = make(w)
""",
        "w[0] = 0.1",
    ),
    "a partial function": (
        """
w = np.ones(3)
def scaled(x, w): return x * w if w[0] > 0.5 else x + w
f = functools.partial(scaled, w=w)
""",
        "w[0] = 0.1",
    ),
    "a cached array": (
        """
@functools.cache
def table(n): return np.ones(n)
def f(x): return x * table(3) if table(3)[0] > 0.5 else x + table(3)
table(3)
""",
        "table(3)[0] = 0.1",
    ),
    "arguments of a wrapper": (
        """
w = np.ones(3)
def logged(g):
    @functools.wraps(g)
    def call(*args): return g(*args) if args[1][0] > 0.5 else args[0]
    return call
@logged
def scaled(x, w): return x * w
def f(x): return scaled(x, w)
""",
        "w[0] = 0.1",
    ),
    "a mask in a loop": (
        """
mask, out = np.array([True, False, True]), np.zeros(3)
def f(x):
    y = x * mask
    for k, on in enumerate(mask):
        if on:
            y = y + x[k]
    return y
""",
        "mask[1] = True",
    ),
    "an early stop": (
        """
history = np.full(3, np.inf)
def f(x):
    y = x * np.where(np.isinf(history), 1.0, history)
    return y if np.isinf(history[-1]) else ad.tanh(y)
""",
        "history[0] = 0.5", "history[-1] = 0.25",
    ),
}  # fmt: skip

# Arrays that only ops read: the program reads the elements at each call.
REFILLED = {
    "a buffer": ("a = np.ones(3)\ndef f(x): return (x * a).sum()", "a[:] = 2.0", "a[0] = 7.0"),
    "a buffer in a dictionary": (
        'd = {"x": np.ones(3), "t": np.zeros(3)}\ndef f(x): return ((x * d["x"] - d["t"]) ** 2).mean()',
        'd["x"][:] = 2.0', 'd["t"][:] = 3.0',
    ),
    "a buffer of an object": (
        """
class Data:
    def __init__(self): self.x, self.t = np.ones(3), np.zeros(3)
data = Data()
def loss(x, data): return ((x - data.t) ** 2).mean()
def f(x): return loss(x * data.x, data)
""",
        "data.x[:] = 2.0", "data.t[:] = 3.0",
    ),
    "a buffer of the object itself": (
        """
class Model:
    def __init__(self): self.w = np.ones(3)
    def __call__(self, x): return ad.tanh(x * self.w)
f = Model()
""",
        "f.w[:] = 2.0",
    ),
    "a parameter of a helper": (
        "a = np.ones(3)\ndef loss(x, t): return ((x - t) ** 2).mean()\ndef f(x): return loss(x, a) + loss(x, t=a)",
        "a[:] = 2.0",
    ),
    "a default argument": ("a = np.ones(3)\ndef f(x, w=a): return x * w", "a[:] = 2.0"),
    "a closure": ("a = np.ones(3)\ndef make(b):\n    return lambda x: (lambda y: y * b)(x)\nf = make(a)", "a[:] = 2.0"),
    "a local variable": ("a = np.ones(3)\ndef f(x):\n    b = a\n    return x * b + b", "a[:] = 2.0"),
    "a loop over a list": (
        "l = [np.ones(3), np.ones(3)]\ndef f(x):\n    for w in l:\n        x = ad.tanh(x * w)\n    return x",
        "l[0][:] = 2.0", "l[1][:] = 3.0",
    ),
    "a loop over pairs": (
        """
ws, bs = [np.ones(3), np.full(3, 2.0)], [np.zeros(3), np.ones(3)]
def f(x):
    for w, b in zip(ws, bs):
        x = x * w + b
    return x
""",
        "ws[0][:] = 2.0", "bs[1][:] = 3.0",
    ),
    "a loop over layers": (
        """
layers = [(np.ones(3), np.zeros(3)), (np.full(3, 2.0), np.ones(3))]
def f(x):
    for w, b in layers:
        x = x * w + b
    return x
""",
        "layers[0][0][:] = 2.0", "layers[1][1][:] = 3.0",
    ),
    "a loop over items": (
        """
d = {"a": np.ones(3), "b": np.full(3, 2.0)}
def f(x):
    for name, v in d.items():
        x = x * v
    for v in d.values():
        x = x * v
    return x
""",
        'd["a"][:] = 2.0', 'd["b"][:] = 3.0',
    ),
    "an unpacked pair": (
        "pair = (np.ones(3), np.zeros(3))\ndef f(x):\n    w, b = pair\n    return x * w + b",
        "pair[0][:] = 2.0", "pair[1][:] = 3.0",
    ),
    "a property": (
        """
class Data:
    def __init__(self): self._t = np.zeros(3)
    @property
    def t(self): return self._t
data = Data()
def f(x): return ((x - data.t) ** 2).mean()
""",
        "data._t[:] = 2.0",
    ),
    "an item by get": ('d = {"a": np.ones(3)}\ndef f(x): return x * d.get("a")', 'd["a"][:] = 2.0'),
    "the shape of a buffer": (
        "a = np.ones(3)\ndef f(x): return (x * a / a.shape[0] / len(a)) if a.ndim == 1 and a is not None else x",
        "a[:] = 2.0",
    ),
    "a view of a buffer": ("a = np.ones((3, 1))\ndef f(x): return x * a.reshape(3) + a.T", "a[:] = 2.0"),
    "functions of NumPy on tensors": ("a = np.ones(3)\ndef f(x): return np.maximum(x, a) + np.add(a, x)", "a[:] = 2.0"),
}  # fmt: skip

# Values that are not arrays.
VALUES = {
    "a nested configuration": (
        """
cfg = {"model": {"act": "tanh", "widths": [2, 3]}, "scale": 1.0}
def f(x):
    for w in cfg["model"]["widths"]:
        x = getattr(ad, cfg["model"]["act"])(x) * w
    return x * cfg["scale"]
""",
        'cfg["model"]["act"] = "sin"', 'cfg["model"]["widths"].append(4)', 'cfg["scale"] = 2.0',
        'cfg["model"] = {"act": "cos", "widths": [5]}',
    ),
    "a configuration by attributes": (
        """
cfg = types.SimpleNamespace(opt=types.SimpleNamespace(lr=0.1, clip=None))
def f(x):
    y = x * cfg.opt.lr
    return y if cfg.opt.clip is None else ad.clip(y, -cfg.opt.clip, cfg.opt.clip)
""",
        "cfg.opt.lr = 0.2", "cfg.opt.clip = 0.1", "cfg.opt = types.SimpleNamespace(lr=1.0, clip=None)",
    ),
    "a frozen data class that is replaced": (
        """
@dataclasses.dataclass(frozen=True)
class Config:
    rate: float = 1.0
    power: int = 2
cfg = Config()
def f(x): return cfg.rate * x ** cfg.power
""",
        "cfg = dataclasses.replace(cfg, rate=2.0)", "cfg = dataclasses.replace(cfg, power=3)",
    ),
    "a data class with slots": (
        """
@dataclasses.dataclass(slots=True)
class Config:
    rate: float = 1.0
cfg = Config()
def f(x): return cfg.rate * x
""",
        "cfg.rate = 2.0",
    ),
    "fields of a data class by their names": (
        """
@dataclasses.dataclass
class Terms:
    square: float = 1.0
    linear: float = 2.0
terms = Terms()
def f(x): return sum(getattr(terms, t.name) * x ** (k + 1) for k, t in enumerate(dataclasses.fields(terms)))
""",
        "terms.square = 3.0", "terms.linear = 4.0",
    ),
    "a registry of functions": (
        """
registry = {}
def register(g):
    registry[g.__name__] = g
    return g
@register
def double(x): return 2 * x
@register
def square(x): return x * x
def f(x): return sum(g(x) for g in registry.values())
""",
        "registry['double'] = lambda x: 3 * x", "register(lambda x: -x)", "del registry['square']",
    ),
    "a registry of classes": (
        """
class Base:
    kinds, gain = {}, 1.0
    def __init_subclass__(cls): Base.kinds[cls.__name__] = cls
class A(Base):
    def __call__(self, x): return x * self.gain
class B(Base):
    def __call__(self, x): return x + self.gain
name = "A"
def f(x): return Base.kinds[name]()(x)
""",
        "name = 'B'", "Base.gain = 2.0", "B.gain = 3.0",
    ),
    "a schedule": (
        """
class Schedule:
    def __init__(self, base): self.base, self.step = base, 0
    def value(self): return self.base * (0.5 if self.step >= 2 else 1.0)
lr = Schedule(1.0)
def f(x): return x * lr.value()
""",
        "lr.step = 2", "lr.base = 3.0",
    ),
    "a table of milestones": (
        """
milestones, epoch = [(0, 1.0), (2, 0.1)], 0
def rate(): return [r for e, r in milestones if e <= epoch][-1]
def f(x): return x * rate()
""",
        "epoch = 2", "milestones[1] = (2, 0.5)",
    ),
    "a counter in a closure": (
        """
def make():
    k = 1.0
    def set_k(v):
        nonlocal k
        k = v
    return (lambda x: x * k), set_k
f, set_k = make()
""",
        "set_k(2.0)", "set_k(3.0)",
    ),
    "a closure over a closure": (
        """
factor = [1.0]
def outer():
    def middle():
        def inner(x): return x * factor[0]
        return inner
    return middle()
f = outer()
""",
        "factor[0] = 2.0", "factor.insert(0, 5.0)",
    ),
    "a cache that is cleared": (
        """
k = 1.0
@functools.lru_cache
def coefficient(): return k * 2
def f(x): return x * coefficient()
""",
        "k = 3.0; coefficient.cache_clear()",
    ),
    "a computed attribute": (
        """
class Weights:
    w0, w1 = 1.0, 2.0
weights = Weights()
def pick(o, k): return getattr(o, f"w{k}")
def f(x): return x * pick(weights, 0) + pick(weights, 1)
""",
        "weights.w0 = 3.0", "Weights.w1 = 4.0",
    ),
    "a computed attribute of a module": (
        "settings = types.ModuleType('settings')\nsettings.a_gain = 1.0\nname = 'a'\n"
        "def f(x): return x * getattr(settings, name + '_gain')",
        "settings.a_gain = 2.0", "settings.b_gain = 5.0; name = 'b'",
    ),
    "attributes with defaults": (
        "class O: pass\no = O()\ndef f(x): return x * getattr(o, 'gain', 1.0) + vars(o).get('shift', 0.0)",
        "o.gain = 2.0", "o.shift = 3.0", "del o.gain",
    ),
    "a switch by environment": (
        "def f(x): return x * 2 if os.environ.get('ADJOINT_TEST_SWITCH') else x",
        "monkeypatch.setenv('ADJOINT_TEST_SWITCH', '1')",
    ),
    "an enumeration": (
        """
class Mode(enum.Enum):
    TRAIN, EVAL = 1, 2
mode = Mode.TRAIN
def f(x): return x * 2 if mode is Mode.TRAIN else x
""",
        "mode = Mode.EVAL",
    ),
    "a context variable": (
        "scale = contextvars.ContextVar('scale', default=1.0)\ndef f(x): return x * scale.get()",
        "scale.set(2.0)",
    ),
    "a method that is replaced": (
        "class M:\n    def act(self, x): return x * 2\nm = M()\ndef f(x): return m.act(x)",
        "m.act = lambda x: x * 3", "m.act = lambda x: x * 4",
    ),
    "a helper that is redefined": (
        "def h(x): return x * 2\ndef f(x): return h(x)", "def h(x): return x * 3", "h.__code__ = (lambda x: x - 1).__code__"
    ),
    "a chain of maps": (
        "defaults, given = {'k': 1.0}, {}\ncfg = collections.ChainMap(given, defaults)\ndef f(x): return x * cfg['k']",
        "given['k'] = 2.0", "del given['k']; defaults['k'] = 3.0",
    ),
    "a decorator with the name of a library function": (
        """
gain = 1.0
def with_gain(g):
    @functools.wraps(g)
    def call(x): return g(x) * gain
    return call
tanh = with_gain(np.tanh)
def f(x): return tanh(x)
""",
        "gain = 2.0",
    ),
    "a list of callbacks": (
        "callbacks = []\ndef f(x):\n    for c in callbacks:\n        x = c(x)\n    return x",
        "callbacks.append(lambda x: x * 2)", "callbacks.append(ad.tanh)", "callbacks[0] = ad.sin",
    ),
    "objects in an array": (
        """
class Layer:
    def __init__(self, k): self.k = k
layers = np.array([Layer(1.0), Layer(2.0)], dtype=object)
def f(x): return sum(x * layer.k for layer in layers)
""",
        "layers[0].k = 3.0", "layers[1].k = 4.0", "layers[1] = Layer(5.0)",
    ),
    "methods of objects in an array": (
        """
bias = 0.0
class Layer:
    def __init__(self, k): self.k = k
    def __call__(self, x): return x * self.k + bias
layers = np.array([[Layer(1.0)], [Layer(2.0)]], dtype=object)
def f(x): return layers[1, 0](layers[0, 0](x))
""",
        "layers[0, 0].k = 3.0", "bias = 1.0",
    ),
    "dictionaries in an array": (
        "rows = np.array([{'k': 1.0}, None], dtype=object)\ndef f(x): return x * rows[0]['k']",
        "rows[0]['k'] = 2.0", "rows[0] = {'k': 3.0}",
    ),
    "arrays in an array": (
        "a = np.array([None, None], dtype=object)\na[0] = np.ones(3)\ndef f(x): return x * a[0] if a[0][0] > 0.5 else x",
        "a[0][0] = 0.1",
    ),
    "functions in an array": (
        "k = 1.0\ndef g(x): return x * k\nfs = np.array([g, ad.tanh], dtype=object)\ndef f(x): return fs[1](fs[0](x))",
        "k = 2.0", "fs[1] = ad.sin",
    ),
    "a class that changes its attribute": (
        "class C:\n    gain = 1.0\n    @classmethod\n    def apply(cls, x): return x * cls.gain\ndef f(x): return C.apply(x)",
        "C.gain = 2.0",
    ),
    "a set of names": (
        "on = {'square'}\ndef f(x):\n    y = x * x if 'square' in on else x\n    return -y if 'negate' in on else y",
        "on.add('negate')", "on.discard('square')",
    ),
    "a match statement": (
        """
cfg = {"kind": "scale", "by": 2.0}
def f(x):
    match cfg:
        case {"kind": "scale", "by": k}: return x * k
        case {"kind": "shift", "by": k}: return x + k
    return x
""",
        'cfg["by"] = 3.0', 'cfg["kind"] = "shift"', 'cfg["kind"] = "none"',
    ),
}  # fmt: skip

# Programs as people write them: configurations, registries, schedules, closures, caches and helpers.
NATURAL = {
    "a nested configuration": (
        "cfg = {'model': {'scale': 2.0, 'act': 'tanh'}, 'seed': 1}\n"
        "def f(x):\n    m = cfg['model']\n    return getattr(ad, m['act'])(x) * m['scale']",
        "cfg['model']['scale'] = 3.0", "cfg['model']['act'] = 'sin'", "cfg['model'] = {'scale': 1.0, 'act': 'cos'}",
    ),
    "a configuration with defaults": (
        "defaults, own = {'rate': 0.1, 'power': 2}, {}\n"
        "def f(x):\n    cfg = {**defaults, **own}\n    return cfg['rate'] * x ** cfg['power']",
        "own['rate'] = 0.5", "defaults['power'] = 3", "own.clear()",
    ),
    "a chain of configurations": (
        "user, base = {}, {'k': 2.0}\ndef pick(name):\n    for space in (user, base):\n"
        "        if name in space: return space[name]\ndef f(x): return x * pick('k')",
        "user['k'] = 5.0", "user['k'] = 6.0",
    ),
    "a frozen data class": (
        "@dataclasses.dataclass(frozen=True)\nclass Cfg:\n    k: float = 1.0\n    on: bool = True\ncfg = Cfg()\n"
        "def f(x): return x * cfg.k if cfg.on else x",
        "cfg = dataclasses.replace(cfg, k=2.0)", "cfg = Cfg(3.0, False)",
    ),
    "a data class in a data class": (
        "@dataclasses.dataclass\nclass Opt:\n    rate: float = 0.1\n@dataclasses.dataclass\nclass Cfg:\n"
        "    opt: Opt = dataclasses.field(default_factory=Opt)\ncfg = Cfg()\ndef f(x): return x * cfg.opt.rate",
        "cfg.opt.rate = 0.2", "cfg.opt = Opt(0.3)", "cfg = Cfg(Opt(0.4))",
    ),
    "a registry of functions": (
        "acts = {}\ndef register(g):\n    acts[g.__name__] = g\n    return g\n@register\ndef half(x): return x / 2\n"
        "def f(x): return acts['half'](x)",
        "acts['half'] = lambda x: x / 4", "@register\ndef half(x): return x * 8",
    ),
    "all functions of a registry": (
        "steps = [lambda x: x * 2]\ndef f(x):\n    for step in steps: x = step(x)\n    return x",
        "steps.append(ad.tanh)", "steps.insert(0, ad.sin)", "steps.pop()",
    ),
    "a registry of classes": (
        "class Scale:\n    def __init__(self, k): self.k = k\n    def __call__(self, x): return x * self.k\n"
        "kinds, kind = {'scale': Scale}, ('scale', 2.0)\ndef f(x): return kinds[kind[0]](kind[1])(x)",
        "kind = ('scale', 3.0)", "kinds['scale'] = type('Shift', (Scale,), {'__call__': lambda s, x: x + s.k})",
    ),
    "a schedule of a step": (
        "step, warm = 0, 10\ndef rate(): return 0.1 * min(1.0, (step + 1) / warm)\ndef f(x): return x * rate()",
        "step = 3", "step = 8", "warm = 20",
    ),
    "a schedule with milestones": (
        "class Steps:\n    def __init__(self): self.at, self.epoch = [2, 4], 0\n"
        "    @property\n    def rate(self): return 0.1 ** sum(self.epoch >= m for m in self.at)\n"
        "steps = Steps()\ndef f(x): return x * steps.rate",
        "steps.epoch = 2", "steps.epoch = 5", "steps.at[1] = 9",
    ),
    "a schedule in a closure": (
        "def make(start):\n    state = {'k': start}\n    def rate(): return state['k']\n"
        "    def advance(): state['k'] *= 0.5\n    return rate, advance\nrate, advance = make(1.0)\n"
        "def f(x): return x * rate()",
        "advance()", "advance()",
    ),
    "a variable of a closure": (
        "def make():\n    k = 1.0\n    def f(x): return x * k\n    def put(v):\n        nonlocal k\n        k = v\n"
        "    return f, put\nf, put = make()",
        "put(2.0)", "put(3.0)",
    ),
    "closures in a loop": (
        "ks = [1.0, 2.0]\nfs = [lambda x, k=k: x * k * scale for k in ks]\nscale = 1.0\n"
        "def f(x): return sum(g(x) for g in fs)",
        "scale = 2.0", "fs[0] = ad.exp",
    ),
    "a helper with a computed name": (
        "class W:\n    w0, w1, count = 1.0, 2.0, 0\nw = W()\ndef nth(n): return getattr(w, f'w{n}')\n"
        "def f(x): return x * nth(0) + nth(1)",
        "w.w0 = 3.0", "W.w1 = 4.0",
    ),
    "a helper with a path": (
        "model = types.SimpleNamespace(a=types.SimpleNamespace(k=1.0))\n"
        "def get(o, path):\n    for part in path.split('.'): o = getattr(o, part)\n    return o\n"
        "def f(x): return x * get(model, 'a.k')",
        "model.a.k = 2.0", "model.a = types.SimpleNamespace(k=3.0)",
    ),
    "a name with a default": (
        "o = types.SimpleNamespace()\ndef f(x): return x * getattr(o, 'k', 1.0)",
        "o.k = 2.0", "o.k = 3.0",
    ),
    "vars of an object": (
        "o = types.SimpleNamespace(a=1.0, b=2.0)\ndef f(x):\n    for name, v in o.__dict__.items(): x = x * v\n    return x",
        "o.a = 3.0", "o.c = 2.0",
    ),
    "a cache of results": (
        "cache = {}\ndef table(n):\n    if n not in cache: cache[n] = float(n)\n    return cache[n]\ntable(3)\n"
        "def f(x): return x * table(3)",
        "cache[3] = 4.0", "cache[3] = 5.0",
    ),
    "a cached property": (
        "class C:\n    k = 2.0\n    @functools.cached_property\n    def twice(self): return self.k * 2\nc = C()\nc.twice\n"
        "def f(x): return x * c.twice",
        "c.twice = 7.0", "c.__dict__['twice'] = 8.0",
    ),
    "a mode": (
        "class Mode(enum.Enum):\n    A = 1\n    B = 2\nmode = Mode.A\n"
        "def f(x): return x * 2 if mode is Mode.A else x * mode.value * 5",
        "mode = Mode.B",
    ),
    "a cell of a notebook": (
        "def loss(x): return x * 2\ndef f(x): return loss(x)",
        "def loss(x): return x * 3", "def loss(x, k=4): return x * k",
    ),
    "a class that is defined again": (
        "class Net:\n    def __call__(self, x): return x * 2\nnet = Net()\ndef f(x): return net(x)",
        "class Net:\n    def __call__(self, x): return x * 3\nnet = Net()", "Net.__call__ = lambda self, x: x * 4",
    ),
    "a method of a base class": (
        "class A:\n    k = 1.0\n    def scale(self, x): return x * self.k\n"
        "class B(A):\n    def scale(self, x): return super().scale(x) + 1\nb = B()\ndef f(x): return b.scale(x)",
        "A.k = 2.0", "b.k = 3.0", "A.scale = lambda self, x: x - self.k",
    ),
    "a switch for logging": (
        "verbose, lines = False, []\ndef log(*what):\n    if verbose: lines.append(what)\n"
        "def f(x):\n    log('f', x.shape)\n    return x * 2",
        "verbose = True",
    ),
    "a list of pairs": (
        "table = [('mul', 2.0), ('add', 1.0)]\ndef f(x):\n    for op, k in table:\n"
        "        x = x * k if op == 'mul' else x + k\n    return x",
        "table[0] = ('mul', 3.0)", "table.append(('add', 2.0))", "table.reverse()",
    ),
    "sorted names": (
        "ws = {'b': 2.0, 'a': 1.0}\ndef f(x):\n    for name in sorted(ws): x = x * 2 + ws[name]\n    return x",
        "ws['a'] = 5.0", "ws['c'] = 3.0",
    ),
    "a depth": (
        "depth = 2\ndef block(x, n): return x if n == 0 else block(ad.tanh(x), n - 1)\ndef f(x): return block(x, depth)",
        "depth = 3", "depth = 0",
    ),
    "a slice of a schedule": (
        "betas, t = [0.1, 0.2, 0.4], 2\ndef f(x): return x * sum(betas[:t]) + betas[t]",
        "betas[1] = 0.3", "t = 1",
    ),
    "a variable of the environment": (
        "def f(x): return x * float(os.environ.get('SCALE_OF_TEST', '1.0'))",
        "monkeypatch.setenv('SCALE_OF_TEST', '2.0')", "monkeypatch.setenv('SCALE_OF_TEST', '3.0')",
    ),
    "an object with items": (
        "class Params:\n    def __init__(self, **kw): self.kw = kw\n    def __getitem__(self, k): return self.kw[k]\n"
        "    def __contains__(self, k): return k in self.kw\np = Params(a=2.0)\n"
        "def f(x): return x * p['a'] + (p['b'] if 'b' in p else 0.0)",
        "p.kw['a'] = 3.0", "p.kw['b'] = 1.0",
    ),
    "an object with arithmetic": (
        "class Unit:\n    def __init__(self, k): self.k = k\n    def __mul__(self, x): return x * self.k\n"
        "    def __bool__(self): return self.k > 0\nunit = Unit(2.0)\ndef f(x): return unit * x if unit else x",
        "unit.k = 3.0", "unit.k = -1.0",
    ),
    "a context manager": (
        "class Scale:\n    k = 2.0\n    def __enter__(self): return self.k\n    def __exit__(self, *e): return None\n"
        "scale = Scale()\ndef f(x):\n    with scale as k: return x * k",
        "scale.k = 3.0", "Scale.__enter__ = lambda self: 5.0",
    ),
    "single dispatch": (
        "@functools.singledispatch\ndef scale(k, x): return x\n@scale.register\ndef _(k: float, x): return x * k\nk = 2.0\n"
        "def f(x): return scale(k, x)",
        "k = 3.0", "k = 'none'",
    ),
    "a partial function with changing settings": (
        "def scaled(x, *, by): return x * by['k']\nby = {'k': 2.0}\nf = functools.partial(scaled, by=by)",
        "by['k'] = 3.0", "by['k'] = 4.0",
    ),
    "a walrus and a comprehension": (
        "ks = [1.0, -2.0, 3.0]\ndef f(x): return x * sum(p for k in ks if (p := k * 2) > 0)",
        "ks[1] = 2.0", "ks.append(1.0)",
    ),
}  # fmt: skip

NAMES = [*"collections contextvars dataclasses enum functools os types".split()]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs the text of a module, which has a name or not; it returns the namespace."""

    def run(text: str, named: bool = True) -> dict[str, Any]:
        module = types.ModuleType("program_of_test")
        space = vars(module)
        if named:
            monkeypatch.setitem(sys.modules, "program_of_test", module)
        else:
            del space["__name__"]
        space |= {"np": np, "ad": ad, "monkeypatch": monkeypatch, **{n: __import__(n) for n in NAMES}}
        run_text(text, space)
        return space

    return run


def _check(space: dict[str, Any], changes: tuple[str, ...], each: int, backend: str = "replay") -> Any:
    """Compare the compiled function with the function after each change, which causes ``each`` more traces."""
    compiled = ad.compile(space["f"], backend=backend)
    x = ad.tensor(X)
    for k, change in enumerate(("", *changes)):
        run_text(change, space)
        assert compiled.__wrapped__ is space["f"]
        for _ in range(3):
            np.testing.assert_allclose(compiled(x).numpy(), space["f"](x).numpy(), 1e-13, err_msg=change)
        # numbers that have changed before need no new trace
        assert min(1, each) * min(1, k) < compiled.stats()["traces"] <= 1 + each * k, change
    return compiled


@pytest.mark.parametrize("backend", ["replay", "auto"])
@pytest.mark.parametrize("name", READ)
def test_arrays_that_ops_and_python_read(name: str, backend: str, run: Any) -> None:
    text, *changes = READ[name]
    _check(run(text), tuple(changes), 1, backend)


@pytest.mark.parametrize("backend", ["replay", "auto"])
@pytest.mark.parametrize("name", REFILLED)
def test_arrays_that_only_ops_read(name: str, backend: str, run: Any) -> None:
    text, *changes = REFILLED[name]
    _check(run(text), tuple(changes), 0, backend)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("name", [*VALUES, *NATURAL])
def test_values(name: str, named: bool, run: Any) -> None:
    """Without ``__name__``, classes have the ``__module__`` of the built-in ones."""
    text, *changes = (VALUES | NATURAL)[name]
    _check(run(text, named), tuple(changes), 1)


# Branches that are never taken, until ``debug`` is set.
DEBUGGING = {
    "plt": "    plt.figure()\n    plt.plot(X)\n    plt.close('all')",
    "axes": "    fig, ax = plt.subplots()\n    ax.plot(X)\n    plt.close(fig)",
    "a known figure": "    figure.gca().plot(X)",
    "imported inside": "    import matplotlib.pyplot as p\n    p.plot(X)\n    p.close('all')",
}


@pytest.mark.parametrize("name", DEBUGGING)
def test_plots_that_are_never_made(name: str, run: Any) -> None:
    """The plotting library is not searched: it reads thousands of variables, and some change at each call."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.figure
    import matplotlib.pyplot as plt

    space = run(f"debug, k = False, 2.0\ndef f(x):\n  if debug:\n{DEBUGGING[name]}\n  return x * k")
    space |= {"plt": plt, "figure": matplotlib.figure.Figure(), "X": X}
    taken = () if "figure." in DEBUGGING[name] else ("debug = True",)  # a figure outside is changed
    compiled = _check(space, ("k = 3.0", "k = 4.0", *taken), 1)
    assert len(compiled.stats()["programs"][0]["guards"]) < 50


CHARTS = """
class Part:
    def __init__(self, k): self.k = k
class Axes:
    def __init__(self, n=60): self.parts, self.title = [Part(k) for k in range(n)], None
    def plot(self, x): return [self.title, *x]
def subplots(): return Axes(), Axes()
"""


@pytest.mark.parametrize("made", ["_, ax = charts.subplots()", "ax = charts.Axes()"])
def test_objects_of_another_package_that_are_made_inside(
    made: str, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their parts are not guarded, also if no code of the package changes them; what they are given is."""
    package = types.ModuleType("charts_of_test")
    package.__file__ = "/site-packages/charts_of_test.py"
    exec(compile(CHARTS, package.__file__, "exec"), vars(package))
    monkeypatch.setitem(sys.modules, "charts_of_test", package)
    text = f"debug, k, title = False, 2.0, [1.0]\ndef f(x):\n  if debug:\n    {made}\n    ax.title = title\n"
    space = run(text + "    return x * len(ax.plot(X)) * title[0]\n  return x * k")
    space |= {"charts": package, "X": X}
    compiled = _check(space, ("k = 3.0", "debug = True", "title[0] = 3.0", "title.append(1.0)"), 1)
    assert len(compiled.stats()["programs"][0]["guards"]) < 20


def test_other_packages_that_are_never_used(run: Any) -> None:
    pandas = pytest.importorskip("pandas")
    text = "debug, k = False, 2.0\ndef f(x):\n    if debug: print(frame.describe(), pd.DataFrame(X).corr())\n    return x * k"
    space = run(text)
    space |= {"pd": pandas, "frame": pandas.DataFrame({"a": X}), "X": X}
    compiled = _check(space, ("k = 3.0",), 1)
    assert len(compiled.stats()["programs"][0]["guards"]) < 50


def test_computed_names_beside_a_figure(run: Any) -> None:
    """Computed names of attributes do not make guards of all attributes of the figure and its parts."""
    pytest.importorskip("matplotlib")
    import matplotlib.figure

    text = "debug, cfg = False, types.SimpleNamespace(w0=1.0, w1=2.0)\ndef pick(o, k): return getattr(o, f'w{k}')\n"
    text += "def f(x):\n    if debug: figure.clear()\n    return x * pick(cfg, 0) + pick(cfg, 1)"
    space = run(text)
    space["figure"] = matplotlib.figure.Figure()
    compiled = _check(space, ("cfg.w0 = 3.0", "cfg.w1 = 4.0"), 1)
    assert len(compiled.stats()["programs"][0]["guards"]) < 100


def test_an_installed_package_that_uses_adjoint(
    run: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its functions are searched, as the user's are."""
    place = tmp_path / "site-packages" / "layers_of_test"
    place.mkdir(parents=True)
    (place / "__init__.py").write_text("from layers_of_test import act\n")
    (place / "act.py").write_text("import layers_of_test.rates as rates\ndef scaled(x): return x * rates.k\n")
    (place / "rates.py").write_text("from adjoint import tanh\nk = 1.0\n")
    monkeypatch.syspath_prepend(str(place.parent))
    import layers_of_test  # type: ignore[import-not-found]  # made above

    space = run("def f(x): return layers.act.scaled(x)")
    space["layers"] = layers_of_test
    _check(space, ("layers.rates.k = 2.0", "layers.rates.k = 3.0"), 1)
    for name in ("layers_of_test", "layers_of_test.act", "layers_of_test.rates"):
        monkeypatch.delitem(sys.modules, name)


def test_a_variable_of_an_installed_package(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    package = types.ModuleType("settings_of_test")
    package.__file__ = "/site-packages/settings_of_test.py"
    package.k = 1.0  # type: ignore[attr-defined]  # the variable
    space = run("def f(x): return x * settings.k")
    space["settings"] = package
    _check(space, ("settings.k = 2.0", "settings = types.SimpleNamespace(k=5.0)"), 1)


def test_a_function_that_an_installed_decorator_wraps(run: Any) -> None:
    text = "def wrap(g):\n    def call(*args): return g(*args)\n    return call\n"
    other: dict[str, Any] = {"__name__": "decorators_of_test"}
    exec(compile(text, "/site-packages/decorators_of_test.py", "exec"), other)
    space = run("k = 1.0\ndef make(wrap):\n    return wrap(lambda x: x * k)")
    space["f"] = space["make"](other["wrap"])
    _check(space, ("k = 2.0",), 1)
