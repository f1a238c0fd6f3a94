"""Random programs that read arrays by ops and by Python: a compiled function follows each change of an element."""

from __future__ import annotations

import collections
import functools
import random
import types
from typing import Any

import numpy as np
import pytest
from program_texts import run_text

import adjoint as ad

HELPERS = """
def look(w, c): return w[0] > c
def look_by_name(*, w): return w[1]
def wrap(g):
    @functools.wraps(g)
    def call(*a, **k): return g(*a, **k)
    return call
@wrap
def total(w): return w.sum()
def mul(x, w): return x * w
def deep(x, w):
    v = w
    def inner(q): return q + v
    return inner(x)
class Mul:
    def __call__(self, x, w): return ad.multiply(x, w)
def mixed(x, w):
    s = x * w
    if w[2] > 0.3: s = s + 1
    return s
part = functools.partial(lambda k, w: w[k], 2)
"""
# where an array is (#: a name, $: the array), how the code reads it, and how the test changes it
HOLDERS = [
    ("# = $", "#", "#"),
    ("d# = {'a': $, 'k': 1.0}", "d#['a']", "d#['a']"),
    ("d# = {'s': {'a': $}}", "d#['s']['a']", "d#['s']['a']"),
    ("l# = [np.zeros(3), $]", "l#[-1]", "l#[1]"),
    ("t# = ($, 3.0)", "t#[0]", "t#[0]"),
    ("o# = types.SimpleNamespace(a=$)", "o#.a", "o#.a"),
    ("o# = types.SimpleNamespace(b=types.SimpleNamespace(a#=$))", "o#.b.a#", "o#.b.a#"),
    ("o# = types.SimpleNamespace(d={'a': $})", "o#.d['a']", "o#.d['a']"),
    ("p# = collections.namedtuple('P', 'a b')($, 2.0)", "p#.a", "p#.a"),
    ("class C#:\n  def __init__(self): self._a = $\n  @property\n  def a(self): return self._a\nc# = C#()", "c#.a", "c#._a"),
    ("class C#:\n  w = $\nc# = C#()", "c#.w", "C#.w"),
    ("class C#:\n  def __init__(self): self.s = $\n  def __getitem__(self, k): return self.s\nc# = C#()", "c#[1]", "c#.s"),
    ("b# = $\ndef g#(): return b#", "g#()", "b#"),
    ("key# = 'a'\nd# = {'a': $, 'b': np.ones(3)}", "d#[key#]", "d#['a']"),
    ("name# = 'a'\no# = types.SimpleNamespace(a=$)", "getattr(o#, name#)", "o#.a"),
    ("def m#():\n  b = $\n  return lambda: b\nm# = m#()", "m#()", "m#()"),
    ("a# = np.array([None, None], dtype=object); a#[0] = $", "a#[0]", "a#[0]"),
    ("r# = collections.deque([$])", "r#[0]", "r#[0]"),
    ("d# = {'a': $}", "d#.get('a')", "d#['a']"),
    ("d# = {'a': $}", "[*d#.values()][0]", "d#['a']"),
]  # fmt: skip
# conditions that read an array E; C is a number
READS = [
    "E[0] > C", "E.max() > C", "np.sum(E) > C", "float(E[1]) > C", "any(v > C for v in E)", "(E > C).any()",
    "look(E, C)", "E.tolist()[0] > C", "sorted(E)[1] > C", "(E * 2)[0] > C", "min(E) > C", "E.T[2] > C", "C in E",
    "E.reshape(-1)[0] > C", "E.item(0) > C", "(lambda u: u[1])(E) > C", "look_by_name(w=E) > C", "total(E) > C",
    "next(iter(E)) > C", "(-E)[0] > C", "[E][0][0] > C", "(E, 1)[0][2] > C", "{'q': E}['q'][0] > C", "part(E) > C",
    "str(E[0]) > 'C'", "np.array_equal(E, [C] * 3)", "not E.all()", "(E if x.ndim else None)[0] > C",
    "E[[0, 1]].sum() > C", "np.asarray(E)[0] > C", "max(*E) > C", "np.dot(E, E) > C", "len((E > C).nonzero()[0]) > 1",
]  # fmt: skip
OPS = [
    "y * E", "y + E", "E - y", "ad.add(y, E)", "mul(y, E)", "mul(w=E, x=y)", "y - E.T", "np.maximum(y, E)",
    "ad.where(y > 0, y, E)", "ad.tanh(y * E.reshape(3))", "deep(y, E)", "Mul()(y, E)", "(lambda u: u + E)(y)",
    "ad.tensor(E) * y", "ad.stack([y, E]).sum(0)", "sum(y * E for _ in range(2))", "mixed(y, E)",
]  # fmt: skip
LOOPS = [
    "for k, q in enumerate(ALL):", "for q in ALL:", "for q in reversed(ALL):", "for q in MAP.values():",
    "for k, q in MAP.items():", "for s, q in zip(ALL, ALL):\n    y = y + s", "for q, s in PAIRS:", "q, s = PAIRS[0]\n  if s:",
    "q = MAP.get('k0')\n  if True:", "(q, s), *_ = PAIRS\n  if s:", "for (q, s), w in zip(PAIRS, ALL):\n    y = y + w",
    "for k in MAP:\n    q = MAP[k]", "for q in [*ALL]:", "for q in (ALL[0], ALL[-1]):",
]  # fmt: skip


def _program(rng: random.Random) -> tuple[str, list[str]]:
    """Return the text of a random program, and changes of its arrays."""
    text, arrays, places = HELPERS, [], []
    number = lambda: round(rng.uniform(-1, 1), 2)
    for name in "uvw"[: rng.randint(1, 3)]:
        array = f"np.array({[number() for _ in range(3)]})"
        setup, read, place = [s.replace("#", name) for s in rng.choice(HOLDERS)]
        text += setup.replace("$", array) + "\n"
        arrays.append(read)
        places.append(place)
    text += f"ALL = [{', '.join(arrays)}]\nPAIRS = [(v, 2.0) for v in ALL]\n"
    text += "MAP = {f'k{k}': v for k, v in enumerate(ALL)}\ndef f(x):\n  y = x\n"
    for k in range(rng.randint(2, 5)):
        array, kind = rng.choice(arrays), rng.random()
        op = rng.choice(OPS).replace("E", array)
        if kind < 0.4:
            text += f"  z{k} = {array}\n  y = {rng.choice(OPS).replace('E', rng.choice([f'z{k}', array]))}\n"
        elif kind < 0.75:
            condition = rng.choice(READS).replace("E", rng.choice(arrays)).replace("C", str(number()))
            text += f"  y = {op} if {condition} else y + {k}\n"
        else:
            look = rng.choice(["", "\n    if q[0] > 0.1: y = y - 1"])
            text += f"  {rng.choice(LOOPS)}\n    y = y {rng.choice('+*')} q{look}\n"
    return text + "  return y\n", [f"{rng.choice(places)}[{rng.randrange(3)}] = {number()}" for _ in range(3)]


@pytest.mark.parametrize("block", range(4))
def test_random_reads_of_arrays(block: int) -> None:
    x = ad.tensor([0.5, -0.4, 0.9])
    for seed in range(60 * block, 60 * (block + 1)):
        text, changes = _program(random.Random(seed))
        space: dict[str, Any] = {"np": np, "ad": ad, "__name__": "program"}
        space |= {"types": types, "collections": collections, "functools": functools}
        run_text(text, space)
        f = space["f"]
        compiled = ad.compile(f, backend="replay")
        for change in ("", *changes):
            run_text(change, space)
            np.testing.assert_array_equal(compiled(x).numpy(), f(x).numpy(), f"{seed}: {change}\n{text}")
