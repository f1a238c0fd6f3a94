"""The processor mode in which subnormal numbers are treated as 0."""

from __future__ import annotations

from collections.abc import Sequence

from adjoint.compiler.emit.machine import architecture

__all__ = ["flushing"]

# The mode is set by bits 15 (results) and 6 (operands) of the MXCSR register on x86, bit 24 of FPCR on ARM.
_MODES = {
    "x86": """declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define void @kernel(GIVEN) {
  %before = alloca i32, align 4
  %within = alloca i32, align 4
  call void @llvm.x86.sse.stmxcsr(ptr %before)
  %old = load i32, ptr %before
  %new = or i32 %old, 32832
  store i32 %new, ptr %within
  call void @llvm.x86.sse.ldmxcsr(ptr %within)
  call void @body(GIVEN)
  call void @llvm.x86.sse.ldmxcsr(ptr %before)
  ret void
}""",
    "arm": """declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)
define void @kernel(GIVEN) {
  %old = call i64 @llvm.aarch64.get.fpcr()
  %new = or i64 %old, 16777216
  call void @llvm.aarch64.set.fpcr(i64 %new)
  call void @body(GIVEN)
  call void @llvm.aarch64.set.fpcr(i64 %old)
  ret void
}""",
}


def flushing(parameters: Sequence[tuple[str, str]]) -> str | None:
    """Return a function ``@kernel`` that calls ``@body`` in this mode; None if there is no such mode."""
    mode = _MODES.get(architecture())
    return None if mode is None else mode.replace("GIVEN", ", ".join(f"{t} %{n}" for t, n in parameters))
