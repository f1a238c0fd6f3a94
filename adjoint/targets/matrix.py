"""Kernels of linear algebra on small matrices, one thread per matrix, by the methods of the CPU's kernels."""

from __future__ import annotations

import math
import re

import numpy as np

from adjoint.compiler.emit.values import element_of
from adjoint.compiler.schedule.fuse import Fusion
from adjoint.targets.body import Body, Launch
from adjoint.targets.dialect import OpenCL

__all__ = ["matrix_kernel"]

# A small language: ``let`` and ``var`` define numbers, ``index`` an integer, and ``each`` is a loop.
# The operands are ``a`` and ``y``, the result is ``z``.  N are the rows of the matrix, M the columns of the
# right-hand side, W those of the array ``m``.
_ELIMINATE = """var sign = 1;
each(k, 0, N)
  index best = k;
  var size = -1;
  each(i, k, N) if (fabs(m[i * W + k]) > size) { size = fabs(m[i * W + k]); best = i; } }
  if (best != k) {
    sign = -sign;
    each(c, 0, W) let x = m[k * W + c]; m[k * W + c] = m[best * W + c]; m[best * W + c] = x; }
  }
  var head = m[k * W + k];
  if (head == 0) { head = INF; }
  each(i, k + 1, N)
    let factor = -(m[i * W + k] / head);
    each(c, 0, W) m[i * W + c] = fma(factor, m[k * W + c], m[i * W + c]); }
  }
}"""
_PIVOT = """var top = 0;
each(i, 0, k) if (fabs(m[i * W + k]) > top) { top = fabs(m[i * W + k]); } }
var pivot = m[k * W + k];
if (fabs(pivot) < top * DOUBTFUL) { pivot = NAN; }"""
_SOLVE = f"""each(r, 0, N)
  each(c, 0, N) m[r * W + c] = a[r * N + c]; }}
  each(c, 0, M) m[r * W + N + c] = y[r * M + c]; }}
}}
{_ELIMINATE}
each(s, 0, N)
  index k = N - 1 - s;
  {_PIVOT}
  if (pivot == 0) {{ pivot = NAN; }}
  each(c, N, W) m[k * W + c] = m[k * W + c] / pivot; }}
  each(i, 0, k)
    let factor = -m[i * W + k];
    each(c, N, W) m[i * W + c] = fma(factor, m[k * W + c], m[i * W + c]); }}
  }}
  each(c, 0, M) z[k * M + c] = m[k * W + N + c]; }}
}}"""
_PIVOTS = f"""each(i, 0, N * N) m[i] = a[i]; }}
{_ELIMINATE}
each(k, 0, N)
  {_PIVOT}
  if (k == 0) {{ pivot = pivot * sign; }}
  z[k] = pivot;
}}"""
_CHOLESKY = """each(r, 0, N) each(c, 0, N) m[r * N + c] = a[AT]; } }
each(k, 0, N)
  let pivot = m[k * N + k];
  var root = NAN;
  if (pivot > a[k * N + k] * DOUBTFUL) { root = sqrt(pivot); }
  each(c, 0, N) m[k * N + c] = m[k * N + c] / root; if (root == 0) { m[k * N + c] = NAN; } }
  m[k * N + k] = root;
  each(i, k + 1, N)
    let factor = -m[k * N + i];
    each(c, 0, N) m[i * N + c] = fma(factor, m[k * N + c], m[i * N + c]); }
  }
}
each(r, 0, N) each(c, 0, N) var found = 0; if (r <= c) { found = m[r * N + c]; } z[AT] = found; } }"""
_TRIANGULAR = """each(i, 0, N * M) m[i] = y[i]; }
each(s, 0, N)
  index k = ROW;
  if (SCALED) {
    var pivot = a[k * N + k];
    if (pivot == 0) { pivot = NAN; }
    each(c, 0, M) m[k * M + c] = m[k * M + c] / pivot; }
  }
  each(i, FROM, TO)
    let factor = -a[i * N + k];
    each(c, 0, M) m[i * M + c] = fma(factor, m[k * M + c], m[i * M + c]); }
  }
}
each(i, 0, N * M) z[i] = m[i]; }"""
_TEXTS = {"solve": _SOLVE, "pivots": _PIVOTS, "cholesky": _CHOLESKY, "triangular": _TRIANGULAR}


def matrix_kernel(d: OpenCL, group: Fusion) -> Launch:
    """Return the kernel of a "matrix" node."""
    node = group.nodes[0]
    routine, *options = node.params
    b, element = Body(d, group), element_of(node.dtype)
    n, columns = node.args[0].shape[-1], node.shape[-1]
    wide = {"solve": n + columns, "triangular": columns}.get(routine, n)
    batch = math.prod(node.shape[: -1 if routine == "pivots" else -2])
    b.line(d.index("item", "GID(0)"))
    b.line(f"if (item < {batch}) {{")
    arrays = {}  # slot, and elements of one matrix
    for name, a in zip("ay", node.args, strict=False):
        arrays[name] = b.slot(a.node, a.offset), math.prod(a.shape[-2:])
    arrays["z"] = b.slot(node), node.size // batch
    b.line(d.private_memory("m", element, n * wide))
    numbers = {"DOUBTFUL": 16.0 * n * float(np.finfo(node.dtype).eps), "INF": math.inf, "NAN": math.nan}
    names: dict[str, object] = {k: b.w.const(v, element).text for k, v in numbers.items()}
    names |= {"N": n, "M": columns, "W": wide}
    if routine == "cholesky":
        names["AT"] = f"r * {n} + c" if options[0] else f"c * {n} + r"
    elif routine == "triangular":
        lower, unit = options[:2]
        names |= dict(
            zip(("ROW", "FROM", "TO"), ("s", "k + 1", n) if lower else (f"{n - 1} - s", 0, "k"), strict=True)
        )
        names["SCALED"] = "false" if unit else "true"
    text = re.sub(r"\b[A-Z]+\b", lambda word: str(names.get(word[0], word[0])), _TEXTS[routine])
    b.line(_translated(d, element, arrays, text))
    b.line("}")
    return b.launch((-(-batch // d.flat),), (d.flat,))


def _translated(d: OpenCL, element: str, arrays: dict[str, tuple[str, int]], text: str) -> str:
    """Return a text of the small language in that of a device."""

    def place(found: re.Match[str]) -> tuple[str, str]:
        slot, size = arrays[found[1]]
        return slot, f"item * {size} + {found[2]}"

    def stored(found: re.Match[str]) -> str:
        slot, at = place(found)
        return d.store(slot, element, at, found[3])

    def loaded(found: re.Match[str]) -> str:
        slot, at = place(found)
        return d.load(slot, element, at)

    text = re.sub(r"\b(z)\[([^]]*)\] = ([^;]*);", stored, text)
    text = re.sub(r"\b([ay])\[([^]]*)\]", loaded, text)
    text = re.sub(r"each\((\w+), ([^,()]+), ([^,()]+)\)", lambda f: d.each(f[1], f[2], f[3]), text)
    text = re.sub(r"\blet (\w+) = ([^;]*);", lambda f: d.value(f[1], element, f[2]), text)
    text = re.sub(r"\bvar (\w+) = ([^;]*);", lambda f: d.variable(f[1], element, f[2]), text)
    return re.sub(r"\bindex (\w+) = ([^;]*);", lambda f: d.variable(f[1], "i32", f[2]), text)
