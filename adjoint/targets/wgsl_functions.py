"""Functions that WGSL does not have: integers of 64 bits (two words, the lower one first), and ``fmod``."""

from __future__ import annotations

import re

__all__ = ["needed"]

_TEXTS = """fn load64(at: u32) -> vec2<u32> { return vec2<u32>(H[at], H[at + 1u]); }
fn store64(at: u32, a: vec2<u32>) { H[at] = a.x; H[at + 1u] = a.y; }
fn add64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = a.x + b.x;
  return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}
fn sub64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}
fn wide64(a: u32, b: u32) -> vec2<u32> {
  let a0 = a & 0xffffu; let a1 = a >> 16u; let b0 = b & 0xffffu; let b1 = b >> 16u;
  let m = a1 * b0 + ((a0 * b0) >> 16u);
  let n = a0 * b1 + (m & 0xffffu);
  return vec2<u32>(a * b, a1 * b1 + (m >> 16u) + (n >> 16u));
}
fn mul64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let p = wide64(a.x, b.x);
  return vec2<u32>(p.x, p.y + a.x * b.y + a.y * b.x);
}
fn ult64(a: vec2<u32>, b: vec2<u32>) -> bool { return a.y < b.y || (a.y == b.y && a.x < b.x); }
fn slt64(a: vec2<u32>, b: vec2<u32>) -> bool {
  return bitcast<i32>(a.y) < bitcast<i32>(b.y) || (a.y == b.y && a.x < b.x);
}
fn shl64(a: vec2<u32>, n: vec2<u32>) -> vec2<u32> {
  let k = n.x & 63u;
  if (k == 0u) { return a; }
  if (k >= 32u) { return vec2<u32>(0u, a.x << (k - 32u)); }
  return vec2<u32>(a.x << k, (a.y << k) | (a.x >> (32u - k)));
}
fn lshr64(a: vec2<u32>, n: vec2<u32>) -> vec2<u32> {
  let k = n.x & 63u;
  if (k == 0u) { return a; }
  if (k >= 32u) { return vec2<u32>(a.y >> (k - 32u), 0u); }
  return vec2<u32>((a.x >> k) | (a.y << (32u - k)), a.y >> k);
}
fn ashr64(a: vec2<u32>, n: vec2<u32>) -> vec2<u32> {
  let k = n.x & 63u;
  let high = bitcast<i32>(a.y);
  if (k == 0u) { return a; }
  if (k >= 32u) { return vec2<u32>(bitcast<u32>(high >> (k - 32u)), bitcast<u32>(high >> 31u)); }
  return vec2<u32>((a.x >> k) | (a.y << (32u - k)), bitcast<u32>(high >> k));
}
fn neg64(a: vec2<u32>) -> vec2<u32> { return sub64(vec2<u32>(0u, 0u), a); }
fn udiv64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  if (a.y == 0u && b.y == 0u) { return vec2<u32>(a.x / b.x, 0u); }
  var q = vec2<u32>(0u, 0u);
  var r = vec2<u32>(0u, 0u);
  for (var i: i32 = 63; i >= 0; i -= 1) {
    let over = r.y >> 31u;
    let bit = select(a.x >> u32(i & 31), a.y >> u32(i & 31), i >= 32) & 1u;
    r = vec2<u32>((r.x << 1u) | bit, (r.y << 1u) | (r.x >> 31u));
    q = vec2<u32>(q.x << 1u, (q.y << 1u) | (q.x >> 31u));
    if (over == 1u || !ult64(r, b)) { r = sub64(r, b); q.x = q.x | 1u; }
  }
  return q;
}
fn sdiv64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let x = bitcast<i32>(a.y) < 0;
  let y = bitcast<i32>(b.y) < 0;
  let q = udiv64(select(a, neg64(a), x), select(b, neg64(b), y));
  return select(q, neg64(q), x != y);
}
fn f32_u64(a: vec2<u32>) -> f32 {
  if (a.y == 0u) { return f32(a.x); }
  let k = countLeadingZeros(a.y);
  let s = shl64(a, vec2<u32>(k, 0u));
  return f32(s.y | select(0u, 1u, s.x != 0u)) * bitcast<f32>((159u - k) << 23u);
}
fn f32_i64(a: vec2<u32>) -> f32 {
  if (bitcast<i32>(a.y) < 0) { return -f32_u64(neg64(a)); }
  return f32_u64(a);
}
fn i64_f32(x: f32) -> vec2<u32> {
  let bits = bitcast<u32>(x);
  let e = i32((bits >> 23u) & 0xffu) - 150;
  let m = vec2<u32>((bits & 0x7fffffu) | 0x800000u, 0u);
  if (e < -23) { return vec2<u32>(0u, 0u); }
  var a = shl64(m, vec2<u32>(u32(max(e, 0)), 0u));
  if (e < 0) { a = vec2<u32>(m.x >> u32(-e), 0u); }
  return select(a, neg64(a), (bits >> 31u) == 1u);
}
fn fmod32(x: f32, y: f32) -> f32 {
  let a = bitcast<u32>(x) & 0x7fffffffu;
  let b = bitcast<u32>(y) & 0x7fffffffu;
  let sign = bitcast<u32>(x) & 0x80000000u;
  if (b == 0u || a >= 0x7f800000u || b > 0x7f800000u) { return bitcast<f32>(0x7fc00000u | P[0]); }
  if (a < b) { return x; }
  var e = i32(a >> 23u);
  var f = i32(b >> 23u);
  var m = (a & 0x7fffffu) | 0x800000u;
  var n = (b & 0x7fffffu) | 0x800000u;
  if (e == 0) { e = 1; m = a; }
  if (f == 0) { f = 1; n = b; }
  while (n < 0x800000u) { n = n << 1u; f -= 1; }
  while (m < 0x800000u) { m = m << 1u; e -= 1; }
  for (; e > f; e -= 1) {
    if (m >= n) { m -= n; }
    m = m << 1u;
  }
  if (m >= n) { m -= n; }
  if (m == 0u) { return bitcast<f32>(sign); }
  while (m < 0x800000u) { m = m << 1u; f -= 1; }
  if (f < 1) { return bitcast<f32>(sign | (m >> u32(1 - f))); }
  return bitcast<f32>(sign | (u32(f) << 23u) | (m & 0x7fffffu));
}
fn fabs(x: f32) -> f32 { return abs(x); }
"""
_FUNCTIONS = {t[3 : t.index("(")]: t.rstrip() for t in re.split(r"^(?=fn )", _TEXTS, flags=re.M) if t}
_CALLED = re.compile(r"\b(" + "|".join(_FUNCTIONS) + r")\(")


def needed(text: str) -> list[str]:
    """Return the texts of the functions that a text calls, and of those that they call."""
    found: dict[str, str] = {}
    waiting = _CALLED.findall(text)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = _FUNCTIONS[name]
            waiting += _CALLED.findall(found[name])
    return [t for name, t in _FUNCTIONS.items() if name in found]
