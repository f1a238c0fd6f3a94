"""Small programs whose values are changed between calls: the compiled function returns what the plain one does."""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

import numpy as np
import pytest
from program_texts import run_text

import adjoint as ad
from adjoint import nn

IMPORTS = """
import abc, argparse, collections, contextlib, copy, dataclasses, enum, fractions, functools, itertools, math
import operator, os, statistics, threading, types, typing
from dataclasses import dataclass, field
from functools import partial
import numpy as np
import adjoint as ad
from adjoint import nn, optim
x = ad.tensor(np.array([1.0, 2.0, 3.0]))
args, kwargs = (x,), {}
"""
OBJECT = "class A: k = 2.0\na = A()\n"
DATA = "@dataclass\nclass Config:\n    rate: float = 2.0\n    tags: list = field(default_factory=lambda: [1.0])\ncfg = Config()\n"

OBJECTS = {
    "class attribute in a base": (
        "class A: k = 2.0\nclass B(A): pass\nb = B()\ndef f(x):\n    c = b\n    return x * c.k",
        "A.k = 3.0", "B.k = 4.0", "b.k = 5.0", "del b.k", "del B.k",
    ),
    "type(self)": (
        "class A:\n    k = 2.0\n    def go(self, x): return x * type(self).k\na = A()\ndef f(x): return a.go(x)",
        "A.k = 3.0",
    ),
    "__class__": (
        "class A:\n    k = 2.0\n    def go(self, x): return x * self.__class__.k\na = A()\ndef f(x): return a.go(x)",
        "A.k = 3.0",
    ),
    "method assigned to an instance": (
        "class A:\n    def rate(self): return 2.0\na = A()\ndef f(x):\n    b = a\n    return x * b.rate()",
        "a.rate = lambda: 3.0", "del a.rate",
    ),
    "forward assigned to a module": (
        "class M(nn.Module):\n    def forward(self, x): return x * 2\nm = M()\ndef f(x): return m(x)",
        "m.forward = lambda x: x * 3", "del m.forward",
    ),
    "method assigned to a module": (
        "class M(nn.Module):\n    def act(self, x): return x * 2\n    def enc(self, x): return self.act(x)\n"
        "m = M()\ndef f(x): return m.enc(x)",
        "m.act = lambda x: x * 3",
    ),
    "code of a function": (
        "def g(x): return x * 2\ndef h(x): return x * 3\ndef f(x): return g(x)",
        "g.__code__ = h.__code__",
    ),
    "decorator that is a class": (
        "class Scale:\n    def __init__(self, g):\n        functools.update_wrapper(self, g)\n        self.g, self.k = g, 2.0\n"
        "    def __call__(self, x): return self.k * self.g(x)\n@Scale\ndef h(x): return x + 1\ndef f(x): return h(x)",
        "h.k = 3.0",
    ),
    "__getattr__ that returns None": (
        "class A:\n    def __init__(self, **all): self.__dict__['all'] = all\n"
        "    def __getattr__(self, name): return self.all.get(name)\n"
        "a = A(rate=2.0)\ndef g(x, c): return x * c.rate\ndef f(x): return g(x, a)",
        "a.all['rate'] = 3.0",
    ),
    "__getattribute__": (
        "K = 1.0\nclass A:\n    def __init__(self): self.d = 2.0\n    def __getattribute__(self, name):\n"
        "        v = object.__getattribute__(self, name)\n        return v * K if name == 'd' else v\n"
        "a = A()\ndef f(x):\n    b = a\n    return x * b.d",
        "a.d = 3.0", "K = 2.0",
    ),
    "descriptor": (
        "K = 1.0\nclass D:\n    def __set_name__(self, owner, name): self.name = '_' + name\n"
        "    def __get__(self, o, t=None): return o.__dict__[self.name] * K\n"
        "    def __set__(self, o, v): o.__dict__[self.name] = v\n"
        "class A: k = D()\na = A()\na.k = 2.0\ndef g(x, c): return x * c.k\ndef f(x): return g(x, a)",
        "a.k = 3.0", "K = 2.0",
    ),
    "descriptor with a table": (
        "class D:\n    def __init__(self): self.all = {}\n    def __get__(self, o, t=None): return self.all[id(o)]\n"
        "    def __set__(self, o, v): self.all[id(o)] = v\n"
        "class A: k = D()\na = A()\na.k = 2.0\ndef f(x): return x * a.k",
        "a.k = 3.0",
    ),
    "cached property": (
        "class A:\n    k = 2.0\n    @functools.cached_property\n    def v(self): return self.k * 2\n"
        "a = A()\ndef f(x): return x * a.v",
        "a.k = 5.0", "del a.v",
    ),
    "property that raises": (
        "class A:\n    on = False\n    @property\n    def k(self):\n        if not self.on: raise ValueError\n        return 2.0\n"
        "a = A()\ndef f(x):\n    try: return x * a.k\n    except ValueError: return x",
        "a.on = True", "a.on = False",
    ),
    "attribute that is missing": (
        "class A: pass\na = A()\ndef f(x):\n    try: return x * a.k\n    except AttributeError: return x",
        "a.k = 3.0", "del a.k",
    ),
    "private attribute": (
        "class A:\n    def __init__(self): self.__k = 2.0\n    def set(self, v): self.__k = v\n"
        "    def go(self, x): return x * self.__k\na = A()\ndef f(x):\n    b = a\n    return b.go(x)",
        "a.set(3.0)",
    ),
    "mixin": (
        "class M:\n    s = 2.0\n    def go(self, x): return super().go(x) * self.s\n"
        "class B:\n    k = 1.0\n    def go(self, x): return x * self.k\nclass A(M, B): pass\na = A()\ndef f(x): return a.go(x)",
        "M.s = 3.0", "B.k = 4.0", "a.k = 5.0",
    ),
    "abstract method": (
        "class B(abc.ABC):\n    @abc.abstractmethod\n    def k(self): ...\n    def go(self, x): return x * self.k()\n"
        "class A(B):\n    v = 2.0\n    def k(self): return self.v\na = A()\ndef f(x): return a.go(x)",
        "a.v = 3.0",
    ),
    "class method": (
        "class A:\n    k = 2.0\n    @classmethod\n    def go(cls, x): return x * cls.k\nclass B(A): pass\ndef f(x): return B.go(x)",
        "A.k = 3.0", "B.k = 4.0",
    ),
    "registry of classes": (
        "class Base:\n    all = {}\n    def __init_subclass__(cls, name): Base.all[name] = cls\n"
        "class A(Base, name='a'): k = 2.0\nclass B(Base, name='b'): k = 3.0\nkind = 'a'\n"
        "def f(x): return x * Base.all[kind].k",
        "kind = 'b'", "B.k = 5.0", "Base.all['b'] = A",
    ),
    "metaclass": (
        "class Meta(type):\n    items = {'a': 2.0}\n    def __getitem__(cls, k): return cls.items[k]\n"
        "    def __iter__(cls): return iter(cls.numbers)\n"
        "class A(metaclass=Meta): numbers = [1.0, 2.0]\ndef f(x): return x * A['a'] + sum(A)",
        "Meta.items['a'] = 3.0", "A.numbers.append(5.0)",
    ),
    "metaclass that creates": (
        "K = 2.0\nclass Meta(type):\n    def __call__(cls):\n        o = super().__call__()\n        o.k = K\n        return o\n"
        "class A(metaclass=Meta): pass\ndef f(x): return x * A().k",
        "K = 3.0",
    ),
    "singleton": (
        "class A:\n    one = None\n    def __init__(self): self.rate = 2.0\n    @classmethod\n    def get(cls):\n"
        "        if cls.one is None: cls.one = cls()\n        return cls.one\nA.get()\ndef f(x): return x * A.get().rate",
        "A.get().rate = 3.0", "A.one = A()",
    ),
    "shared state": (
        "class A:\n    all = {'rate': 2.0}\n    def __init__(self): self.__dict__ = self.all\ndef f(x): return x * A().rate",
        "A().rate = 3.0",
    ),
    "special methods": (
        "class A:\n    k = 2.0\n    def __float__(self): return self.k\n    def __bool__(self): return self.k > 2\n"
        "    def __contains__(self, v): return v == self.k\n    def __len__(self): return int(self.k)\n"
        "    def __format__(self, spec): return 'a' * len(self)\na = A()\n"
        "def f(x): return x * float(a) * (2 if a else 1) + (3.0 in a) + len(f'{a}')",
        "a.k = 3.0", "a.k = 4.0",
    ),
    "operators of an object": (
        "class V:\n    def __init__(self, k): self.k = k\n    def __add__(self, o): return V(self.k + o.k)\n"
        "    def __rmul__(self, x): return x * self.k\na, b = V(1.0), V(2.0)\ndef f(x): return 3 * (a + b) * x",
        "b.k = 5.0",
    ),
    "order of objects": (
        "@dataclass(order=True)\nclass T:\n    p: int\n    k: float\nall = [T(1, 2.0), T(2, 3.0)]\ndef f(x): return x * max(all).k",
        "all[0].p = 5",
    ),
    "iterator of an object": (
        "class S:\n    s = 1.0\n    def __init__(self): self.all = [1.0, 2.0]\n    def __iter__(self):\n"
        "        for v in self.all: yield v * self.s\na = S()\ndef f(x): return sum(x * v for v in a)",
        "a.s = 2.0", "a.all.append(3.0)",
    ),
    "array of an object": (
        "class V:\n    def __init__(self): self.a = np.ones(3)\n    def __array__(self, dtype=None, copy=None): return self.a\n"
        "v = V()\ndef f(x): return x * np.asarray(v)",
        "v.a = np.zeros(3)", "v.a[0] = 4.0",
    ),
    "context manager": (
        "K = 2.0\nclass C:\n    k = 2.0\n    def __enter__(self): return self.k\n    def __exit__(self, *a): pass\nc = C()\n"
        "@contextlib.contextmanager\ndef manager(): yield K\ndef f(x):\n    with c as k, manager() as m: return x * k * m",
        "c.k = 3.0", "K = 4.0",
    ),
    "data of a thread": ("t = threading.local()\nt.k = 2.0\ndef f(x):\n    q = t\n    return x * q.k", "t.k = 3.0"),
    "float with an attribute": ("class R(float): pass\nr = R(2.0)\nr.u = 3.0\ndef f(x): return x * r * r.u", "r.u = 4.0"),
}  # fmt: skip

CODE = {
    "asdict": (DATA + "def f(x): return x * dataclasses.asdict(cfg)['rate']", "cfg.rate = 3.0"),
    "astuple": (DATA + "def f(x): return x * dataclasses.astuple(cfg)[0]", "cfg.rate = 3.0"),
    "replace": (DATA + "def f(x): return x * dataclasses.replace(cfg, tags=[]).rate", "cfg.rate = 3.0"),
    "fields": (DATA + "def f(x): return x * sum(getattr(cfg, q.name) for q in dataclasses.fields(cfg)[:1])", "cfg.rate = 3.0"),
    "equal data": (DATA + "other = Config()\ndef f(x): return x * 2 if cfg == other else x", "other.rate = 5.0", "cfg.rate = 5.0"),
    "text of data": (DATA + "def f(x): return x * len(repr(cfg)) + len(f'{cfg}')", "cfg.rate = 3.12345"),
    "default factory": (
        "G = 2.0\n@dataclass\nclass C:\n    r: float = field(default_factory=lambda: G)\n"
        "    def __post_init__(self): self.r *= G\ndef f(x): return x * C().r",
        "G = 3.0",
    ),
    "copy": (DATA + "def f(x): return x * copy.copy(cfg).rate * copy.deepcopy(cfg).tags[0]", "cfg.rate = 3.0", "cfg.tags[0] = 3.0"),
    "path of names": (
        "c = types.SimpleNamespace(a=types.SimpleNamespace(k=2.0))\npath = 'a.k'\n"
        "def f(x): return x * functools.reduce(getattr, path.split('.'), c)",
        "c.a.k = 3.0",
    ),
    "computed name of an element": (OBJECT + "all, n = [a], 'k'\ndef f(x): return x * getattr(all[0], n)", "a.k = 3.0"),
    "computed name of a result": (OBJECT + "n = 'k'\ndef get(): return a\ndef f(x): return x * getattr(get(), n)", "a.k = 3.0"),
    "computed names in a comprehension": (
        "G = 2.0\nclass A:\n    names = ['p', 'q']\n    def p(self, x): return x * G\n    def q(self, x): return x\n"
        "    def __call__(self, x): return sum([getattr(self, n)(x) for n in self.names])\nf = A()",
        "G = 5.0", "f.names = ['q']",
    ),
    "computed name of a method": (
        "G = 2.0\nclass M(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.kind = 'a'\n"
        "    def go_a(self, x): return x * G\n    def go_b(self, x): return x + G\n"
        "    def forward(self, x): return getattr(self, f'go_{self.kind}')(x)\nf = M()",
        "G = 3.0", "f.kind = 'b'", "G = 4.0",
    ),
    "all attributes": ("c = types.SimpleNamespace(k=2.0)\ndef f(x): return x * sum(vars(c).values())", "c.j = 5.0", "c.k = 3.0", "del c.k"),
    "__dict__": ("c = types.SimpleNamespace(k=2.0)\ndef f(x): return x * sum(c.__dict__.values())", "c.j = 5.0", "c.k = 3.0"),
    "name in vars": ("c = types.SimpleNamespace(k=2.0)\ndef f(x): return x * (2 if 'j' in vars(c) else 1)", "c.j = 1", "del c.j"),
    "environment": (
        "os.environ.pop('READ_BY_A_TEST', None)\ndef f(x): return x * 2 if os.environ.get('READ_BY_A_TEST') else x * len(os.getenv('READ_BY_A_TEST', 'abc'))",
        "os.environ['READ_BY_A_TEST'] = '1'", "os.environ.pop('READ_BY_A_TEST')",
    ),
    "chain map": (
        "a, b = {'k': 2.0}, {'k': 1.0, 'j': 4.0}\nd = collections.ChainMap(a, b)\ndef g(x, d): return x * d['k'] * d['j']\ndef f(x): return g(x, d)",
        "b['j'] = 3.0", "del a['k']", "a['j'] = 7.0", "d.maps.insert(0, {'k': 100.0})",
    ),
    "counter": ("d = collections.Counter('aab')\ndef f(x): return x * d.most_common(1)[0][1]", "d['b'] += 5"),
    "order of a dictionary": ("d = collections.OrderedDict(a=1.0, b=2.0)\ndef f(x): return x * list(d.values())[0]", "d.move_to_end('a')"),
    "default dictionary": ("d = collections.defaultdict(lambda: 2.0)\ndef f(x): return x * d['k']", "d['k'] = 3.0"),
    "dictionary with attributes": (
        "class D(dict):\n    __getattr__ = dict.__getitem__\n    __setattr__ = dict.__setitem__\nc = D(rate=2.0, sub=D(k=1.0))\n"
        "def g(x, c): return x * c.rate * c.sub.k\ndef f(x): return g(x, c)",
        "c.rate = 3.0", "c.sub.k = 4.0", "c.sub = D(k=9.0)",
    ),
    "named tuple": (
        "class P(typing.NamedTuple):\n    a: float\n    b: list\np = P(2.0, [1.0])\ndef f(x):\n    a, b = p\n    return x * a * b[0] + p.a",
        "p.b[0] = 3.0", "p = p._replace(a=5.0)",
    ),
    "objects that are keys": (
        "class T:\n    def __init__(self, w): self.w = w\na, b = T(1.0), T(2.0)\nd = {a: 2.0, b: 3.0}\n"
        "def f(x): return sum(k.w * v * x for k, v in d.items())",
        "a.w = 7.0", "d[b] = 4.0",
    ),
    "objects in a set": ("class T: k = 1.0\nt = T()\ns = {t}\ndef f(x): return x * sum(t.k for t in s)", "t.k = 2.0"),
    "long list": ("l = [1.0] * 300\ndef f(x): return x * sum(l)", "l[250] = 9.0"),
    "missing key": ("d = {}\ndef f(x):\n    try: return x * d['k']\n    except KeyError: return x", "d['k'] = 3.0", "del d['k']"),
    "match": (
        "cfg = {'kind': 'a', 'k': 2.0}\ndef f(x):\n    match cfg:\n        case {'kind': 'a', 'k': k}: return x * k\n        case _: return x",
        "cfg['k'] = 3.0", "cfg['kind'] = 'b'",
    ),
    "sorted by a method": (
        "class T:\n    def __init__(self, r, k): self.r, self.k = r, k\n    def rank(self): return self.r\nl = [T(1, 2.0), T(2, 3.0)]\n"
        "def f(x): return x * sorted(l, key=operator.methodcaller('rank'))[0].k + sorted(l, key=operator.attrgetter('r'))[0].k",
        "l[0].r = 9",
    ),
    "method of a class in map": (
        "class T:\n    def __init__(self, r): self.r = r\n    def rank(self): return self.r\nl = [T(1), T(2)]\ndef f(x): return x * sum(map(T.rank, l))",
        "l[0].r = 9",
    ),
    "comparison by a function": (
        "K = 1\nl = [1.0, 3.0]\ndef f(x): return x * sorted(l, key=functools.cmp_to_key(lambda a, b: K * (a - b)))[0]", "K = -1",
    ),
    "modules of the standard library": (
        "h = [1.0, 2.0, 4.0]\ndef f(x): return x * statistics.mean(h) + sum(itertools.islice(h, 2))", "h.insert(0, 0.5)",
    ),
    "single dispatch": (
        "G, q = 2.0, 3\n@functools.singledispatch\ndef go(v, x): return x * G\n@go.register\ndef _(v: int, x): return x + G * v\n"
        "def f(x): return go(q, x)",
        "G = 3.0", "q = 's'",
    ),
    "nested decorators": (
        "K, J = 2.0, 1.0\ndef d(g):\n    @functools.wraps(g)\n    def w(*a): return g(*a) * K\n    return w\n@d\ndef h(x): return x + J\ndef f(x): return h(x)",
        "K = 3.0", "J = 2.0",
    ),
    "mutual recursion": (
        "N = 3\ndef a(x, n): return x if n == 0 else b(x * 2, n - 1)\ndef b(x, n): return x if n == 0 else a(x + N, n - 1)\ndef f(x): return a(x, N)",
        "N = 4",
    ),
    "None and a function": (
        "class S: pass\nc = S()\nc.m = None\ndef g(x, c): return x if c.m is None else c.m(x) if callable(c.m) else x * c.m\ndef f(x): return g(x, c)",
        "c.m = ad.tanh", "c.m = ad.sin", "c.m = 2.0", "c.m = ad.ones(3)", "c.m = None",
    ),
    "module": (
        "lib = math\ndef f(x): return x * lib.sqrt(4.0)", "lib = types.SimpleNamespace(sqrt=lambda v: 5.0)", "lib = math",
    ),
    "1, True and 1.0": ("k = 1\ndef f(x): return x * 2 if k is True else x * k", "k = True", "k = 1", "k = 1.0"),
    "nan": ("k = float('nan')\ndef f(x): return x * 2 if k != k else x", "k = 1.0", "k = float('nan')"),
    "np.vectorize": ("K = 2.0\nh = np.vectorize(lambda v: v * K)\ndef f(x): return x * h(np.arange(3.0))", "K = 3.0"),
}  # fmt: skip

ARGUMENTS = {
    "object": (OBJECT + "args = (x, a)\ndef f(x, c): return x * c.k", "a.k = 3.0", "A.k = 7.0", "del a.k"),
    "object with slots": (
        "@dataclass(slots=True, eq=False)\nclass C:\n    k: float = 2.0\nc = C()\nargs = (x, c)\ndef f(x, c): return x * c.k",
        "c.k = 3.0",
    ),
    "objects in a list": (OBJECT + "args = (x, [a])\ndef f(x, all): return x * all[0].k", "a.k = 3.0"),
    "objects in a tuple of a dictionary": (OBJECT + "args = ({'x': x, 'c': (a,)},)\ndef f(d): return d['x'] * d['c'][0].k", "a.k = 3.0"),
    "object in a data class": (
        OBJECT + "@dataclass\nclass P:\n    x: object\n    c: object\nargs = (P(x, a),)\ndef f(p): return p.x * p.c.k", "a.k = 3.0",
    ),
    "*args": (OBJECT + "args = (x, a)\ndef f(x, *all): return x * all[0].k", "a.k = 3.0"),
    "**kwargs": (OBJECT + "kwargs = {'c': a}\ndef f(x, **all): return x * all['c'].k", "a.k = 3.0"),
    "keyword-only": (OBJECT + "kwargs = {'c': a}\ndef f(x, *, c): return x * c.k", "a.k = 3.0"),
    "function with an attribute": ("def h(x): return x\nh.k = 2.0\nargs = (x, h)\ndef f(x, g): return g(x) * g.k", "h.k = 3.0"),
    "functions that read a global": (
        "K = 2.0\nargs = ({'x': x, 'g': lambda x: x * K}, (lambda x: x + K,))\ndef f(d, g): return d['g'](d['x']) + g[0](d['x'])",
        "K = 3.0",
    ),
    "class": ("K = 2.0\nclass A:\n    j = 1.0\n    def __init__(self): self.k = K\nargs = (x, A)\ndef f(x, c): return x * c().k * c.j", "K = 3.0", "A.j = 4.0"),
    "modules in a list": (
        "class M(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.k = 2.0\n    def enc(self, x): return x * self.k\n"
        "all = [M(), nn.Tanh()]\nargs = (x, all)\ndef f(x, ms): return ms[1](ms[0].enc(x))",
        "all[0].k = 3.0", "all[1] = nn.ReLU()",
    ),
    "kinds of a value": (
        "args = (x, None)\ndef f(x, m): return x if m is None else x * m", "args = (x, x)", "args = (x, 2.0)", "args = (x, 3)", "args = (x, None)",
    ),
    "keys in another order": ("args = ({'a': x, 'b': x * 3},)\ndef f(d): return list(d.values())[0]", "args = ({'b': x * 3, 'a': x},)"),
    "default that is an object": (OBJECT + "def f(x, c=a): return x * c.k", "a.k = 3.0"),
    "default or value": ("def f(x, r=2.0): return x * r", "args = (x, 3.0)", "args = (x,)", "kwargs = {'r': 4.0}"),
}  # fmt: skip

LAYERS = {
    "module with all kinds of attributes": (
        "class M(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.k, self.l, self.on = 2.0, [1.0], False\n"
        "        self.cfg, self.act, self.cls = types.SimpleNamespace(z=1.0), ad.tanh, list\n"
        "    def forward(self, x): return self.act(x * self.k + self.l[0]) * self.cfg.z * (2 if self.on else 1) + (self.cls is tuple)\n"
        "m = M()\ndef f(x): return m(x)",
        "m.k = 3.0", "m.l[0] = 4.0", "m.on = True", "m.cfg.z = 2.0", "m.act = ad.sin", "m.cls = tuple",
    ),
    "tied weights": (
        "class M(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.a, self.b = [nn.Linear(3, 3, rng=n, dtype=float) for n in (0, 1)]\n"
        "    def forward(self, x): return self.b(self.a(x))\nm = M()\ndef f(x): return m(x)",
        "m.b.weight = m.a.weight", "m.a.weight = nn.Parameter(np.ones((3, 3)))",
    ),
    "hooks": (
        "G = 2.0\nm = nn.Linear(3, 3, rng=0, dtype=float)\nm.register_forward_hook(lambda m, i, o: o * G)\ndef f(x): return m(x)",
        "G = 3.0", "handle = m.register_forward_pre_hook(lambda m, i: (i[0] * 2,))", "handle.remove()",
    ),
    "custom rule": (
        "class A: k = 2.0\na = A()\n@ad.custom_vjp\ndef h(x): return x * 1\nh.defvjp(lambda x: (x * 1, None), lambda r, g: (g * a.k,))\n"
        "def f(x): return ad.grad(lambda x: h(x).sum())(x)",
        "a.k = 3.0",
    ),
    "custom forward rule": (
        "K = 2.0\n@ad.custom_jvp\ndef h(x): return x * K\n@h.defjvp\ndef _(p, t): return p[0] * K, t[0] * K * 10\n"
        "def f(x): return ad.jvp(h, (x,), (x,))[1]",
        "K = 3.0",
    ),
    "transforms": (
        "c = types.SimpleNamespace(k=2.0, n=2)\ndef loss(x): return (x * x * c.k).sum()\ng = ad.grad(loss)\n"
        "def f(x): return g(x) + ad.vmap(lambda v: v * c.k)(x) + ad.fori_loop(0, c.n, lambda i, v: v * c.k, x)",
        "c.k = 3.0", "c.n = 3",
    ),
    "compiled method": (
        "class A:\n    k = 2.0\n    @ad.compile\n    def go(self, x): return x * self.k\na = A()\ndef f(x): return a.go(x)",
        "a.k = 3.0", "A.k = 5.0", "del a.k",
    ),
    "requires_grad": ("w = nn.Parameter(np.ones(3))\ndef f(x): return x * 2 if w.requires_grad else x", "w.requires_grad_(False)"),
    "frozen parameters": (
        "m = nn.Linear(3, 3, rng=0, dtype=float)\nfrozen = ['weight']\n"
        "def f(x): return x + sum((p * p).sum() for n, p in m.named_parameters() if n not in frozen)",
        "frozen.clear()", "frozen.append('bias')",
    ),
}  # fmt: skip

MATRIX = "args = (ad.tensor(np.arange(12.0).reshape(3, 4) / 7),)\nF = nn.functional\n"
ARRAYS = {  # how to make arrays, what reads them, and changes
    "element in a condition": ("a = np.array([2.0, 3.0])", "x * 2 if a[0] > 1 else x", "a[0] = 0.0"),
    "sum": ("a = np.array([2.0, 3.0])", "x * float(a.sum())", "a[0] = 5.0"),
    "np.mean": ("a = np.array([2.0, 3.0])", "x * np.mean(a)", "a[0] = 5.0"),
    "loop": ("a = np.array([2.0, 3.0])", "sum(x * v for v in a)", "a[0] = 5.0"),
    "view": ("a = np.ones(6)", "x * a[:4]", "a[0] = 5.0"),
    "transposed": ("a = np.arange(8.0).reshape(2, 4)", "x @ a.T", "a[0] = 5.0"),
    "structured": ("a = np.zeros(1, [('k', 'f8')])", "x * a['k'][0]", "a['k'] = 5.0"),
    "op and index": ("a = np.ones(4)", "x * a * a[0]", "a[0] = 5.0", "a[1] = 7.0"),
    "op and method": ("a = np.ones(4)", "x * a * a.max()", "a[0] = 5.0", "a[1] = 7.0"),
    "mask": ("a = np.array([True, False, True])", "x[a]", "a[:] = [True, True, False]", "a[2] = True"),
    "index": ("a = np.array([0, 1])", "x[a]", "a[0] = 2"),
    "repeats": ("a = np.array([1, 2, 1])", "ad.repeat(x, a, axis=0)", "a[:] = [2, 1, 1]", "a[:] = 2"),
    "pad": ("a = np.array([[1, 0], [0, 1]])", "ad.pad(x, a)", "a[:] = [[0, 1], [1, 0]]"),
    "roll": ("a = np.array(1)", "ad.roll(x, a)", "a[...] = 2"),
    "split": ("a = np.array([1, 2])", "ad.concatenate([s.sum(axis=1) for s in ad.split(x, a, axis=1)])", "a[:] = [2, 3]"),
    "axis": ("a = np.array(0)", "x.sum(axis=a)", "a[...] = 1"),
    "quantile": ("a = np.array([0.2, 0.5])", "ad.quantile(x, a)", "a[0] = 0.7"),
    "weights": ("w, t = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0, 1, 2])", "F.cross_entropy(x, t, weight=w)", "w[0] = 9.0", "t[0] = 3"),
    "slope": ("a = np.array(0.2)", "F.leaky_relu(x - 0.5, a)", "a[...] = 0.7"),
    "list of arrays": ("a = np.ones(4)", "ad.tensor([a, a]) @ x.T", "a[0] = 5.0"),
    "geomspace": ("a, b = np.array([1.0, 2.0]), np.array([3.0, 4.0])", "ad.geomspace(a, b, 3).sum() * x", "a[0] = 2.0", "b[0] = 5.0"),
    "array in place": ("a = np.ones((1, 4))", "x * a", "a.shape = (4,)", "a = a.astype('f')", "a = 2.0"),
    "array_equal": ("a = np.ones(2)", "x * 2 if np.array_equal(a, [1.0, 1.0]) else x", "a[1] = 5.0"),
    "argsort": ("a = np.array([3.0, 1.0, 2.0, 0.0])", "x[:, ad.argsort(a)]", "a[3] = 5.0"),
    "poly1d": ("a = np.poly1d([1.0, 2.0])", "a(x)", "a.coeffs[0] = 5.0", "a = np.poly1d([3.0, 2.0])"),
}  # fmt: skip
CASES: dict[str, tuple[str, ...]] = {
    **{f"object: {k}": v for k, v in OBJECTS.items()},
    **{f"code: {k}": v for k, v in CODE.items()},
    **{f"argument: {k}": v for k, v in ARGUMENTS.items()},
    **{f"layer: {k}": v for k, v in LAYERS.items()},
    **{f"array: {k}": (f"{MATRIX}{v[0]}\ndef f(x): return {v[1]}", *v[2:]) for k, v in ARRAYS.items()},
}


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The variables of a module, in which programs run."""
    module = types.ModuleType("program_of_a_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(IMPORTS, vars(module))
    return vars(module)


def numbers(f: Any, space: dict[str, Any]) -> Any:
    found = f(*space["args"], **space["kwargs"])
    found = found.detach().numpy() if isinstance(found, ad.Tensor) else np.asarray(found)
    return found.dtype, found.shape, found.tolist()


@pytest.mark.filterwarnings(
    "ignore:Setting the shape on a NumPy array:DeprecationWarning"
)  # from NumPy 2.5 on
@pytest.mark.parametrize("calls", [1, 1100], ids=["", "native checks"])
@pytest.mark.parametrize("name", CASES)
def test_a_changed_value_is_used(name: str, calls: int, space: dict[str, Any]) -> None:
    text, *changes = CASES[name]
    run_text(text, space)
    f = space["f"]
    compiled = ad.compile(f, backend="replay")
    for change in ("", *changes):
        run_text(change, space)
        assert numbers(compiled, space) == numbers(f, space), change
        for _ in range(calls - 1):
            compiled(*space["args"], **space["kwargs"])
    traces = compiled.stats()["traces"]
    for _ in range(2):
        assert numbers(compiled, space) == numbers(f, space)
    assert compiled.stats()["traces"] <= traces + 1  # a default dictionary has changed in the last call
    numbers(compiled, space)
    assert compiled.stats()["traces"] <= traces + 1


class Fresh:
    """Attributes that are new objects at each access, made from ``k``."""

    def __init__(self) -> None:
        self.k = 2.0
        self.w = ad.ones(3, requires_grad=True)

    @property
    def tensor(self) -> Any:
        return self.w * self.k

    @property
    def array(self) -> Any:
        return np.linspace(0, self.k, 3)

    @property
    def table(self) -> dict[str, Any]:
        return {"w": np.full(3, self.k), "k": self.k}

    @property
    def function(self) -> Any:
        return lambda x: x * self.k

    @property
    def part(self) -> Any:
        return functools.partial(ad.multiply, self.k)

    @property
    def namespace(self) -> Any:
        return types.SimpleNamespace(k=self.k)

    @property
    def generator(self) -> Any:
        return (k for k in (self.k, 1.0))

    @ad.compile
    def compiled(self, x: Any) -> Any:
        return x * self.k

    def power(self, x: Any, p: int) -> Any:
        return x * self.k**p

    squared = functools.partialmethod(power, p=2)

    @functools.singledispatchmethod
    def shifted(self, v: Any, x: Any) -> Any:
        return x * self.k

    @shifted.register
    def _(self, v: int, x: Any) -> Any:
        return x + self.k * v


class FreshLayer(nn.Module):
    def __init__(self) -> None:
        self.v, self.g, self.k = nn.Parameter(np.ones((3, 3))), nn.Parameter(np.ones(3)), 2.0

    @property
    def weight(self) -> Any:
        return self.v * self.g * self.k

    def forward(self, x: Any) -> Any:
        return x @ self.weight


class CompiledLayer(FreshLayer):
    forward = ad.compile(FreshLayer.forward)


RETRACED: dict[str, Any] = {
    "tensor": (Fresh, lambda a, x: x * a.tensor),
    "array": (Fresh, lambda a, x: x * a.array),
    "dictionary": (Fresh, lambda a, x: x * a.table["w"] * a.table["k"]),
    "function": (Fresh, lambda a, x: a.function(x)),
    "partial function": (Fresh, lambda a, x: a.part(x)),
    "object": (Fresh, lambda a, x: x * a.namespace.k),
    "generator": (Fresh, lambda a, x: sum(x * k for k in a.generator)),
    "compiled method": (Fresh, lambda a, x: a.compiled(x)),
    "partial method": (Fresh, lambda a, x: a.squared(x)),
    "layer": (FreshLayer, lambda a, x: a(x)),
    "compiled layer": (CompiledLayer, lambda a, x: a(x)),
}


@pytest.mark.parametrize("where", ["closure", "local variable", "argument"])
@pytest.mark.parametrize("name", RETRACED)
def test_attributes_that_are_new_at_each_access_need_no_other_trace(name: str, where: str) -> None:
    make, read = RETRACED[name]
    a, x = make(), np.arange(1.0, 4.0)

    def of_local(x: Any) -> Any:
        b = a
        return read(b, x)

    f = {"closure": lambda x: read(a, x), "local variable": of_local, "argument": lambda x, a: read(a, x)}[
        where
    ]
    given = (a,) if where == "argument" else ()
    compiled = ad.compile(f, backend="replay")
    for traces, k in enumerate((2.0, 3.0), 1):
        a.k = k
        wanted = f(ad.tensor(x), *given).detach().tolist()
        for _ in range(5):
            assert np.asarray(ad.asarray(compiled(x, *given)).detach()).tolist() == wanted
        assert compiled.stats()["traces"] == traces, compiled.stats()["reasons"]


def test_methods_that_are_chosen_by_type_need_no_other_trace() -> None:
    a, x = Fresh(), np.arange(1.0, 4.0)
    plain = lambda x: a.shifted(3, x) + a.shifted("s", x)
    plain(x)  # functools keeps which method it found for each type
    f = ad.compile(plain, backend="replay")
    for traces, a.k in enumerate((2.0, 3.0), 1):
        assert [f(x).tolist() for _ in range(5)] == [(x + 3 * a.k + x * a.k).tolist()] * 5
        assert f.stats()["traces"] == traces


class OnlyOfInstances:
    """A descriptor that cannot be read from the class."""

    def __get__(self, o: Any, cls: Any = None) -> float:
        if o is None:
            raise TypeError("read it from an instance")
        return float(o._k)


class WithDescriptor:
    k = OnlyOfInstances()

    def __init__(self) -> None:
        self._k = 2.0

    def __repr__(self) -> str:
        raise RuntimeError("no text")


class WithoutEquality(WithDescriptor):
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")


HOSTILE: dict[str, Any] = {
    "variable": lambda a: lambda x: x * a.k,
    "class": lambda a: lambda x: x * a.k if isinstance(a, WithDescriptor) else x,
    "set": lambda a: (lambda s: lambda x: sum(x * each.k for each in s))({a}),
    "key": lambda a: (lambda d: lambda x: sum(x * each.k for each in d))({a: 1}),
    "dictionary": lambda a: (lambda d: lambda x: x * d["a"].k)({"a": a}),
    "list in a tuple": lambda a: (lambda t: lambda x: x * t[0][0].k)(([a],)),
    "computed name": lambda a: (lambda name: lambda x: x * getattr(a, name))("k"),
    "new object": lambda a: lambda x: x * a.k + type(a)().k,
}


@pytest.mark.parametrize("cls", [WithDescriptor, WithoutEquality])
@pytest.mark.parametrize("calls", [1, 1100], ids=["", "native checks"])
@pytest.mark.parametrize("name", HOSTILE)
def test_objects_whose_own_methods_raise(name: str, calls: int, cls: Any) -> None:
    a, x = cls(), np.arange(1.0, 4.0)
    f = HOSTILE[name](a)
    compiled = ad.compile(f, backend="replay")
    for a._k in (2.0, 3.0):
        for _ in range(calls):
            found = compiled(x)
        assert found.tolist() == f(x).tolist()
    assert compiled.stats()["traces"] == 2


def test_an_argument_whose_own_methods_raise() -> None:
    a, x = WithoutEquality(), np.arange(1.0, 4.0)
    f = ad.compile(lambda x, a, all: x * a.k * all[0].k, backend="replay")
    for a._k in (2.0, 3.0):
        assert [f(x, a, [a]).tolist() for _ in range(2)] == [(x * a.k**2).tolist()] * 2


def test_constant_arrays_beside_an_optimiser_and_beside_ops() -> None:
    """An index array is a constant of the program; so is the argument of ``repeat``, also if an op reads it."""
    index, p = np.array([0, 1]), ad.tensor(np.arange(4.0), requires_grad=True)
    optimizer = ad.optim.SGD([p], lr=0.1)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = (p * x).sum()
        loss.backward()
        optimizer.step()
        return loss + x[index].sum()

    assert ad.compile(step)(np.arange(1.0, 5.0)).item() == 23.0
    repeats, x = np.array([1, 1, 1, 1]), np.arange(1.0, 5.0)
    repeated = ad.compile(lambda x: ad.repeat(x, repeats) + (x * repeats).sum() * 0, backend="replay")
    assert repeated(x).tolist() == [1.0, 2.0, 3.0, 4.0]
    repeats[:] = [1, 1, 0, 2]
    assert repeated(x).tolist() == [1.0, 2.0, 4.0, 4.0]


def test_the_search_ends_if_a_property_returns_a_new_object_of_its_class() -> None:
    class Complex:
        def __init__(self, k: float) -> None:
            self.k = k

        @property
        def conj(self) -> Complex:
            return Complex(-self.k)

        def __invert__(self) -> Complex:
            return self.conj

        def scale(self, x: Any) -> Any:
            return x * self.k

    z = Complex(2.0)
    scaled = ad.compile(lambda x: z.scale(x), backend="replay")
    assert scaled(np.ones(1)) == 2.0
    z.k = 3.0
    assert scaled(np.ones(1)) == 3.0


def test_elements_of_many_arrays_are_not_compared() -> None:
    data = [np.ones(1 << 14) for _ in range(100)]
    scaled = ad.compile(lambda x: x * len(data), backend="replay")
    scaled(np.ones(1))
    assert sum(g.contents is not None for g in scaled._variants[0].guards if hasattr(g, "contents")) <= 8
