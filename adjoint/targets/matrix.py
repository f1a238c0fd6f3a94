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

# T is the type, N the rows of the matrix, M the columns of the right-hand side, W the columns of ``m``.
_ELIMINATE = """T sign = 1;
for (int k = 0; k < N; k++) {
  int best = k;
  T size = -1;
  for (int i = k; i < N; i++) { if (fabs(m[i * W + k]) > size) { size = fabs(m[i * W + k]); best = i; } }
  if (best != k) {
    sign = -sign;
    for (int c = 0; c < W; c++) { T x = m[k * W + c]; m[k * W + c] = m[best * W + c]; m[best * W + c] = x; }
  }
  const T pivot = m[k * W + k] == 0 ? (T)INFINITY : m[k * W + k];
  for (int i = k + 1; i < N; i++) {
    const T factor = -(m[i * W + k] / pivot);
    for (int c = 0; c < W; c++) { m[i * W + c] = fma(factor, m[k * W + c], m[i * W + c]); }
  }
}"""
_PIVOT = """T top = 0;
for (int i = 0; i < k; i++) { top = fabs(m[i * W + k]) > top ? fabs(m[i * W + k]) : top; }
T pivot = m[k * W + k];
if (fabs(pivot) < top * DOUBTFUL) { pivot = (T)NAN; }"""
_SOLVE = f"""for (int r = 0; r < N; r++) {{
  for (int c = 0; c < N; c++) {{ m[r * W + c] = a[r * N + c]; }}
  for (int c = 0; c < M; c++) {{ m[r * W + N + c] = y[r * M + c]; }}
}}
{_ELIMINATE}
for (int k = N - 1; k >= 0; k--) {{
  {_PIVOT}
  if (pivot == 0) {{ pivot = (T)NAN; }}
  for (int c = N; c < W; c++) {{ m[k * W + c] /= pivot; }}
  for (int i = 0; i < k; i++) {{
    const T factor = -m[i * W + k];
    for (int c = N; c < W; c++) {{ m[i * W + c] = fma(factor, m[k * W + c], m[i * W + c]); }}
  }}
  for (int c = 0; c < M; c++) {{ z[k * M + c] = m[k * W + N + c]; }}
}}"""
_PIVOTS = f"""for (int i = 0; i < N * N; i++) {{ m[i] = a[i]; }}
{_ELIMINATE}
for (int k = 0; k < N; k++) {{
  {_PIVOT}
  z[k] = k == 0 ? pivot * sign : pivot;
}}"""
_CHOLESKY = """for (int r = 0; r < N; r++) { for (int c = 0; c < N; c++) { m[r * N + c] = a[AT(r, c)]; } }
for (int k = 0; k < N; k++) {
  const T pivot = m[k * N + k];
  const T root = pivot > a[k * N + k] * DOUBTFUL ? sqrt(pivot) : (T)NAN;
  for (int c = 0; c < N; c++) { m[k * N + c] = root == 0 ? (T)NAN : m[k * N + c] / root; }
  m[k * N + k] = root;
  for (int i = k + 1; i < N; i++) {
    const T factor = -m[k * N + i];
    for (int c = 0; c < N; c++) { m[i * N + c] = fma(factor, m[k * N + c], m[i * N + c]); }
  }
}
for (int r = 0; r < N; r++) { for (int c = 0; c < N; c++) { z[AT(r, c)] = r <= c ? m[r * N + c] : 0; } }"""
_TRIANGULAR = """for (int i = 0; i < N * M; i++) { m[i] = y[i]; }
for (int s = 0; s < N; s++) {
  const int k = LOWER ? s : N - 1 - s;
  if (!UNIT) {
    const T pivot = a[k * N + k] == 0 ? (T)NAN : a[k * N + k];
    for (int c = 0; c < M; c++) { m[k * M + c] /= pivot; }
  }
  for (int i = LOWER ? k + 1 : 0; i < (LOWER ? N : k); i++) {
    const T factor = -a[i * N + k];
    for (int c = 0; c < M; c++) { m[i * M + c] = fma(factor, m[k * M + c], m[i * M + c]); }
  }
}
for (int i = 0; i < N * M; i++) { z[i] = m[i]; }"""
_TEXTS = {"solve": _SOLVE, "pivots": _PIVOTS, "cholesky": _CHOLESKY, "triangular": _TRIANGULAR}


def matrix_kernel(d: OpenCL, group: Fusion) -> Launch:
    """Return the kernel of a "matrix" node."""
    node = group.nodes[0]
    routine, *options = node.params
    b = Body(d, group)
    n, columns = node.args[0].shape[-1], node.shape[-1]
    wide = {"solve": n + columns, "triangular": columns}.get(routine, n)
    batch = math.prod(node.shape[: -1 if routine == "pivots" else -2])
    kind = d.stored[element_of(node.dtype)]
    doubtful = b.w.const(16.0 * n * float(np.finfo(node.dtype).eps), element_of(node.dtype))
    b.line(d.index("item", "GID(0)"))
    b.line(f"if (item < {batch}) {{")
    for name, a in zip("ay", node.args, strict=False):
        size = math.prod(a.shape[-2:])
        b.line(f"__global const {kind}* {name} = {b.slot(a.node, a.offset)} + item * {size};")
    b.line(f"__global {kind}* z = {b.slot(node)} + item * {node.size // batch};")
    b.line(f"{kind} m[{n * wide}];")
    text = _TEXTS[routine]
    names: dict[str, object] = {"T": kind, "N": n, "M": columns, "W": wide, "DOUBTFUL": doubtful.text}
    if routine == "cholesky":
        text = text.replace("AT(r, c)", "r * N + c" if options[0] else "c * N + r")
    elif routine == "triangular":
        names |= {"LOWER": int(options[0]), "UNIT": int(options[1])}
    b.line(re.sub(r"\b[A-Z]+\b", lambda word: str(names.get(word[0], word[0])), text))
    b.line("}")
    return b.launch((-(-batch // d.flat),), (d.flat,))
