"""The ES module of a function for WebGPU, and its TypeScript types."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np

from adjoint.exports.library import Library
from adjoint.exports.templates import filled
from adjoint.exports.wasm_files import ARRAYS, forms, types_text
from adjoint.exports.webgpu import WebGpuLibrary

__all__ = ["webgpu_module", "webgpu_types"]

_CLASS = "/** The parameters and all else"  # where the types of states start
_TYPES = """/** The parameters and all else that calls change, in the memory of a GPU.  Calls run in turn. */
export class State {
  private constructor(device: GPUDevice, pipelines: GPUComputePipeline[], layout: GPUBindGroupLayout);
  /** Run the function on an object with its arguments; the promise has an object with its results. */
  run(given: Inputs): Promise<Outputs>;
  /** A copy of a part of the state. */
  get<K extends keyof Parts>(name: K): Promise<Parts[K]>;
  /** Set a part of the state. */
  set<K extends keyof Parts>(name: K, value: Parts[K]): Promise<void>;
  /** The state as the bytes of a safetensors file. */
  save(): Promise<Uint8Array>;
  /** Set the state from bytes that `save` returned, here or in another program. */
  load(bytes: Uint8Array | ArrayBuffer): Promise<void>;
  /** Give the memory of the GPU back. */
  destroy(): void;
}

/** Make a state; by default on a device of its own. */
export function create(device?: GPUDevice): Promise<State>;
"""


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _plan(library: WebGpuLibrary) -> dict[str, Any]:
    """Return what the module knows of the program, except the texts of numbers."""
    made, device = library.collected, library.device
    names = [p.name for p in made.parts]
    values = {
        p.name: _encoded(p.value.tobytes())
        for k, p in enumerate(made.parts)
        if p.value.tobytes().strip(b"\0")
    }
    return {
        "size": device.size, "texts": list(device.texts), "steps": library.steps,
        "uploads": [(at, _encoded(data)) for at, data in device.uploads if data.strip(b"\0")],
        "arguments": library.arguments,
        "results": [[at if isinstance(at, int) else -1 for at in turn] for turn in library.results],
        "homes": {names[k]: places for k, places in library.homes.items()}, "values": values,
        "flags": library.flags, "small": [(at, ARRAYS[_stored(dtype)]) for at, dtype, _ in library.small],
        "counts": [(names[k], times) for k, times in made.counts],
        "rates": {names[k]: (names[c], ahead, table) for k, (c, ahead, table) in made.rates.items()},
        "header": _encoded(library.saved.header), "digits": library.saved.digits, "error": library.error,
        "order": [p.name for p in library.calling.order],
    }  # fmt: skip


def _stored(dtype: Any) -> str:
    return np.dtype(dtype).name if np.dtype(dtype).itemsize >= 4 else "int32"


def webgpu_module(library: WebGpuLibrary) -> str:
    """Return the text of the ES module."""
    made = forms(library)
    lists = [f"[{', '.join(texts)}]" for _, _, texts in library.small]
    results = {i: texts for i, texts in enumerate(library.results[0]) if isinstance(texts, list)}
    module = filled(
        "webgpu.mjs", NAME=library.name, RESULTS=", ".join(made["OUTPUTS"]),
        ARGUMENTS=", ".join(made["INPUTS"]),
        PLAN=json.dumps(_plan(library), separators=(",", ":")).replace("</", "<\\/"),
        LINES="\n  ".join(library.lines), SMALL=", ".join(lists),
        NUMBERS=", ".join(f"[{i}, [{', '.join(texts)}]]" for i, texts in results.items()),
        **{field: json.dumps(form) for field, form in made.items()},
    )  # fmt: skip
    kinds = ", ".join(sorted(set(ARRAYS.values())))
    checks = filled(
        "module.mjs", NAME=library.name, ARRAYS=kinds, FOREIGN="", RESULTS="", ARGUMENTS="", INPUTS="",
        OUTPUTS="", PARTS="",
    )  # fmt: skip
    return module + checks[checks.index("function listed(") :]


def webgpu_types(library: WebGpuLibrary) -> str:
    """Return the TypeScript types of the module."""
    given: Library = library  # type: ignore[assignment]
    return types_text(given).partition(_CLASS)[0] + _TYPES
