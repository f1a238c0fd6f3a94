"""The ES module of a WebAssembly library, and its TypeScript types."""

from __future__ import annotations

import json
from typing import Any

from adjoint.exports.interface import FOREIGN_FILE
from adjoint.exports.library import Library
from adjoint.exports.templates import filled

__all__ = ["ARRAYS", "forms", "module_text", "types_text"]

ARRAYS = {
    "float32": "Float32Array", "float64": "Float64Array", "bool": "Uint8Array",
    "int8": "Int8Array", "uint8": "Uint8Array",
    "int16": "Int16Array", "uint16": "Uint16Array", "int32": "Int32Array", "uint32": "Uint32Array",
    "int64": "BigInt64Array", "uint64": "BigUint64Array", "float16": "Uint16Array",
    "bfloat16": "Uint16Array",
}  # fmt: skip


def _form(dtype: Any, shape: Any, offset: int | None = None) -> dict[str, Any]:
    found = {"array": ARRAYS[dtype.name], "dtype": dtype.name, "shape": list(shape)}
    return found if offset is None else found | {"offset": offset}


def forms(library: Any) -> dict[str, dict[str, Any]]:
    """Return the arrays of arguments, results and parts, by their names."""
    made = library.collected
    return {
        "INPUTS": {i.name: _form(i.dtype, i.shape) for i in made.arguments},
        "OUTPUTS": {i.name: _form(i.dtype, i.shape) for i in made.results},
        "PARTS": {p.name: _form(p.value.dtype, p.value.shape, p.offset) for p in library.calling.order},
    }


def module_text(library: Library) -> str:
    """Return the text of the ES module."""
    made = forms(library)
    kinds = sorted({f["array"] for form in made.values() for f in form.values()})
    return filled(
        "module.mjs", NAME=library.name, ARRAYS=", ".join(kinds), FOREIGN=str(FOREIGN_FILE),
        RESULTS=", ".join(made["OUTPUTS"]), ARGUMENTS=", ".join(made["INPUTS"]),
        **{field: json.dumps(form) for field, form in made.items()},
    )  # fmt: skip


def _shape(item: Any) -> str:
    return f"  /** {' x '.join(map(str, item.shape)) or 'one number'} */\n"


def types_text(library: Library) -> str:
    """Return the TypeScript types of the module."""
    made = library.collected

    def one(dtype: Any) -> str:
        return "bigint" if ARRAYS[dtype.name].startswith("Big") else "number"

    def given(item: Any) -> str:
        array, number = ARRAYS[item.dtype.name], one(item.dtype)
        if item.dtype.name.endswith("float16"):  # as bits
            return array
        if item.dtype == bool:
            number = "(boolean | number)"
        return f"{array} | {number}[]{'' if item.shape else f' | {number}'}"

    arguments = "".join(f"{_shape(i)}  {i.name}: {given(i)};\n" for i in made.arguments)
    results = "".join(
        f"{_shape(i)}  {i.name}: {ARRAYS[i.dtype.name] if i.shape else one(i.dtype)};\n" for i in made.results
    )
    parts = "".join(f"  {json.dumps(p.name)}: {ARRAYS[p.value.dtype.name]};\n" for p in library.calling.order)
    return f"""/** {library.name}: a function without Python, written by adjoint. */

export interface Inputs {{
{arguments}}}

export interface Outputs {{
{results}}}

export interface Parts {{
{parts}}}

export interface Form {{ array: string; dtype: string; shape: number[]; offset?: number; }}
export const inputs: Record<keyof Inputs, Form>;
export const outputs: Record<keyof Outputs, Form>;
export const parts: Record<keyof Parts, Form>;

/** The parameters and all else that calls change, in a memory of its own. */
export class State {{
  private constructor(instance: WebAssembly.Instance);
  /** Run the function on an object with its arguments; return an object with its results. */
  run(given: Inputs): Outputs;
  /** A copy of a part of the state. */
  get<K extends keyof Parts>(name: K): Parts[K];
  /** Set a part of the state. */
  set<K extends keyof Parts>(name: K, value: Parts[K]): void;
  /** The state as the bytes of a safetensors file. */
  save(): Uint8Array;
  /** Set the state from bytes that `save` returned, here or in another program. */
  load(bytes: Uint8Array | ArrayBuffer): void;
}}

/** Make a state; `source` is the module or its bytes, by default the file beside this one. */
export function create(source?: WebAssembly.Module | BufferSource): Promise<State>;
"""
