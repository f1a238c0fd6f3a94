"""A function for WebGPU in a browser: what a call starts and where all values are, found without a device.

The plan is that of ``ad.compile(device="webgpu")``.  Its kernels are recorded instead of started, for two
kinds of calls that alternate: one reads the parts of the state where the other has written them.  So a call
whose check fails has changed nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from adjoint.compiler.lower.graph import Primitive
from adjoint.compiler.lower.lower import Lowered
from adjoint.errors import DeviceError, ExportError
from adjoint.exports.collect import Collected, Part, raise_problems
from adjoint.exports.interface import SavedForm, check_text
from adjoint.targets.body import Launch
from adjoint.targets.device import DeviceInfo, Memory, Place
from adjoint.targets.numbers import written
from adjoint.targets.program import plan_on, sources_of
from adjoint.targets.webgpu import CLEAR, COPY, Words, across
from adjoint.targets.wgsl import Wgsl, grid

__all__ = ["WebGpuLibrary"]

_SIGNS = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "less": "<", "less_equal": "<=",
    "greater": ">", "greater_equal": ">=", "equal": "===", "not_equal": "!==",
}  # fmt: skip
_CALLS = {
    "abs": "abs", "exp": "exp", "log": "log", "maximum": "max", "minimum": "min", "pow": "pow",
    "power": "pow", "sqrt": "sqrt", "tanh": "tanh", "log1p": "log1p", "expm1": "expm1",
}  # fmt: skip


class _Recorder(Words):
    """A device that records what is started, and gives each value memory of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.dialect, self.info = Wgsl(), DeviceInfo("webgpu", "a browser", 1 << 27, False, 256, 1 << 14)
        self.held: list[Memory] = []
        self.size = 0
        self.uploads: list[tuple[int, bytes]] = []
        self.texts: dict[str, int] = {}
        self.launches: list[tuple[int, list[int], tuple[int, ...]]] = []

    def alloc(self, size: int) -> Memory:
        """Return memory that is never used again."""
        self.held.append(super().alloc(size))
        return self.held[-1]

    def _new(self, size: int) -> Any:
        self.size += size
        return SimpleNamespace(start=self.size - size)

    def _free(self, memory: Any) -> None:
        pass

    def _read(self, memory: Any, offset: int, array: Any) -> None:
        raise NotImplementedError("values are computed in the browser")

    def _write(self, memory: Any, array: Any) -> None:
        self.uploads.append((memory.start, array.tobytes()))

    def _fill(self, memory: Any, offset: int, size: int) -> None:
        words = -(-size // 4)
        self.record(CLEAR, [(memory.start + offset) // 4, words], across(words))

    def _build(self, texts: Sequence[str]) -> None:
        pass

    def _classify(self, error: Exception) -> str | None:
        return None

    def record(self, text: str, positions: Sequence[int], groups: tuple[int, ...]) -> None:
        """Record the start of a kernel."""
        index = self.texts.setdefault(text, len(self.texts))
        self.launches.append((index, list(positions), groups))

    def prepare(self, kernel: Launch) -> Callable[[Sequence[Place]], None]:
        """Return a function that records a kernel."""
        groups = grid(kernel.groups)
        return lambda places: self.record(kernel.text, [_word(p) for p in places], groups)


def _word(place: Place) -> int:
    """Return the position of a place in 32-bit words."""
    return int((place[0].raw.start + place[1]) // 4)


def _literal(number: Any) -> str:
    x = float(number)
    if np.isfinite(x):
        return repr(x) if x >= 0 else f"({x!r})"
    return "NaN" if np.isnan(x) else f"({'-' if x < 0 else ''}Infinity)"


class _State:
    """The parts of a state as ``SavedForm`` reads them: in the order of the saved bytes."""

    def __init__(self, name: str, parts: list[Part]) -> None:
        self.name, self.order = name, parts
        at = 0
        for p in parts:
            p.offset, at = at, at + p.value.nbytes
        self.layout = SimpleNamespace(size=at)

    def fingerprint(self) -> int:
        """Return a number that differs for functions with other parts."""
        parts = [(p.name, str(p.value.dtype), p.value.shape) for p in self.order]
        text = repr((self.name, "webgpu", parts))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


class WebGpuLibrary:
    """A collected program as what a module for browsers needs; the parameters are those of ``Library``.

    Attributes
    ----------
    steps : list
        For each of the two kinds of calls: the starts of kernels (text, positions, work-groups).
    arguments, results : list
        The place of each argument; for each result and kind of call its place, or its numbers as texts.
    homes : dict
        For parts on the device: their place for each kind of call.
    flags : list of int
        The places of flags that are set if a check has failed.
    small : list
        Numbers that the host computes: their place, their dtype and a text for each.
    lines : list of str
        Definitions in JavaScript of what the texts of numbers use.
    """

    def __init__(self, name: str, collected: Collected, level: str) -> None:
        self.name, self.collected, self.level = name, collected, level
        self.device = _Recorder()
        self.lowered = Lowered(collected.program, self.device.dialect.sizes)
        self._refuse()
        try:
            given = self.device, collected.program, self.lowered, collected.name
            self.plan, self.given_numbers, self.hosted = plan_on(*given)
        except DeviceError as error:
            raise ExportError(f"export: {error}") from None
        self.calling = _State(name, collected.parts)
        self.saved = SavedForm(self.calling)  # type: ignore[arg-type]
        listed = dict.fromkeys(map(check_text, self.lowered.checked))
        self.error = "; ".join(listed) or "no error"
        self.lines: list[str] = []
        self.known: dict[Any, str] = {}
        self._place()
        self.steps = [self._record(turn) for turn in (0, 1)]

    def _refuse(self) -> None:
        """Raise ExportError if the function cannot be exported."""
        nodes = {n.id: n for n in self.lowered.graph.nodes}
        problems = list(self.collected.problems)
        for k, why in self.lowered.reasons.items():
            i = nodes[k].value
            problems.append(f"{i.line or 'the function'}: {i.op.name}: {why}")
        if self.collected.draws:
            problems.append('random numbers: target="webgpu" draws none; pass them as arguments')
        if problems:
            raise_problems(self.collected.name, problems)

    # Where values are ----------------------------------------------------------------------------------

    def _memory(self, shape: tuple[int, ...], dtype: Any) -> Memory:
        return self.device.alloc(int(np.prod(shape)) * self.device.stored(dtype).itemsize)

    def _place(self) -> None:
        """Choose the memory of arguments, parts, numbers and outputs."""
        made, read = self.collected, sources_of(self.plan)
        on_host = {k for source in made.inputs if source[0] == "numbers" for k in source[1]}
        on_host |= {k for k, _ in made.counts} | set(made.rates)
        on_host |= {made.inputs[k][1] for k in self.given_numbers if made.inputs[k][0] == "part"}
        changed = {part for _, part in made.writes}
        self.homes: dict[int, tuple[int, int]] = {}
        self.memories: dict[int, tuple[Memory, Memory]] = {}
        for k, part in enumerate(made.parts):
            if k in on_host:
                continue
            first = self._memory(part.value.shape, part.value.dtype)
            second = self._memory(part.value.shape, part.value.dtype) if k in changed else first
            self.memories[k] = first, second
            self.homes[k] = first.raw.start, second.raw.start
        self.inputs = [self._memory(i.shape, i.dtype) for i in made.arguments]
        self.arguments = [m.raw.start for m in self.inputs]
        self.numbers: dict[int, Memory] = {}
        self.small: list[tuple[int, Any, list[str]]] = []
        for k in read:
            if k in self.hosted or k in self.given_numbers:
                value = self.hosted[k][0] if k in self.hosted else made.program.sources[k].value
                dtype = np.dtype(np.float64) if value.weak else value.dtype
                self.numbers[k] = memory = self._memory(value.shape, dtype)
                self.small.append((memory.raw.start, dtype, self._texts(k, value)))
        self.fresh = [self._memory(v.shape, v.dtype) for v in self.plan.fresh]
        self.flags = [p.fail.raw.start for p in self.plan.checked()]
        self.results: list[list[Any]] = []

    def _record(self, turn: int) -> list[Any]:
        """Return the starts of kernels of one kind of calls."""
        made, plan, device = self.collected, self.plan, self.device
        device.launches = []
        outputs = {k: (memory, 0) for k, memory in enumerate(self.fresh)}
        copies, claimed = [], set()
        for output, part in made.writes:
            v, home = plan.results[output], (self.memories[part][1 - turn], 0)
            at = plan.made.get(v.node.id, -1)
            if at >= 0 and at not in claimed and not v.weak and v.is_whole():
                outputs[at] = home
                claimed.add(at)
            elif v.size:
                copies.append((v, home))
        given: dict[int, Place] = {k: (memory, 0) for k, memory in self.numbers.items()}
        for k in sources_of(plan):
            kind, *rest = made.inputs[k] if k < len(made.inputs) else ("number",)
            if k not in given and kind == "argument":
                given[k] = self.inputs[rest[0]], 0
            elif k not in given:
                given[k] = self.memories[rest[0]][turn], 0
        for p in plan.checked():
            device.fill((p.fail, 0), 4)
        plan.run(given, outputs)
        for v, home in copies:
            words = v.size * device.stored(v.dtype).itemsize // 4
            source = self._found(v, given, outputs)
            device.record(COPY, [_word(source), _word(home), words], across(words))
        self.results.append([self._result(plan.results[r.output], given, outputs) for r in made.results])
        return device.launches

    def _found(self, v: Any, given: dict[int, Place], outputs: dict[int, Place]) -> Place:
        """Return the place of an output."""
        if v.node.op == "constant":
            values = np.asarray(v.node.value).reshape(-1)[v.offset :][: v.size]
            return self.device.upload(values), 0
        if v.node.op == "source":
            memory, offset = given[v.node.params]
            return memory, offset + v.offset * v.node.width
        if v.node.op == "number":
            raise ExportError(
                f"export: {self.collected.name} sets a part of the state to a number of Python, which "
                'target="webgpu" does not do.\n  Use target="wasm".'
            )
        return self.plan.place_of(v, outputs)

    def _result(self, v: Any, given: dict[int, Place], outputs: dict[int, Place]) -> Any:
        """Return the place of a result, or texts of its numbers."""
        if v.node.op == "number":
            return self._texts(v.node.params, v)
        if not v.size:
            return []
        return 4 * _word(self._found(v, given, outputs))

    # Numbers of the host -------------------------------------------------------------------------------

    def _texts(self, k: int, value: Any) -> list[str]:
        """Return the texts in JavaScript of the numbers of an input."""
        if k in self.hosted:
            return [str(text) for text in np.ravel(written(self.hosted[k][1], self._write))]
        return [self._read(k, i) for i in range(max(value.size, 1))]

    def _write(self, n: Primitive, index: int | None, *args: str) -> str:
        """Return the text of a number of a node: see ``written``."""
        if index is not None:
            return _literal(n.value.reshape(-1)[index]) if n.op == "constant" else self._read(n.params, index)
        if n.op == "where":
            text = f"{args[0]} ? {args[1]} : {args[2]}"
        elif n.op in _SIGNS:
            text = f"{args[0]} {_SIGNS[n.op]} {args[1]}"
        elif n.op in _CALLS:
            text = f"Math.{_CALLS[n.op]}({', '.join(args)})"
        else:
            text = f"-{args[0]}" if n.op == "negative" else args[0]  # or copy and astype
        if n.dtype.kind == "b":
            text = f"Boolean({text})"
        elif n.dtype != np.float64:
            text = f"Math.fround({text})" if n.dtype == np.float32 else f"Math.trunc({text})"
        key = n.id, args
        if key not in self.known:
            self.known[key] = f"h{len(self.known)}"
            self.lines.append(f"const {self.known[key]} = {text};")
        return self.known[key]

    def _read(self, k: int, index: int) -> str:
        """Return the text of an element of an input that is a number."""
        made = self.collected
        kind, *rest = made.inputs[k]
        if kind == "argument":
            return f"Number(given[{json.dumps(made.arguments[rest[0]].name)}][{index}])"
        if kind == "part":
            return self._part(rest[0], 0)
        return self._part(rest[0][index], rest[1])

    def _part(self, part: int, ahead: int) -> str:
        """Return the text of a number in the state; ``ahead`` is added to counts of steps."""
        made = self.collected
        name = json.dumps(made.parts[part].name)
        if part in made.rates:
            return f"rate({name})"
        if made.parts[part].value.dtype.kind == "i":
            return f"(Number(host[{name}][0]) + {ahead})"
        return f"host[{name}][0]"

    def object_code(self, machine: Any) -> bytes:
        """Return nothing: the module has the kernels as texts."""
        return b""
