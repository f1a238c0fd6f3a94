// @NAME@: a function without Python, written by adjoint.  For browsers and Node.
//
//   import { create } from "./@NAME@.mjs";
//   const state = await create();
//   const { @RESULTS@ } = state.run({ @ARGUMENTS@ });

/** The arguments, the results and the parts of the state: the array, the dtype, the shape, and the offset of a part. */
export const inputs = @INPUTS@;
export const outputs = @OUTPUTS@;
export const parts = @PARTS@;

const arrays = { @ARRAYS@ };
const elements = (shape) => shape.reduce((a, b) => a * b, 1);
const aligned = (size) => Math.ceil(size / 64) * 64;

let compiled = null;

async function moduleOf(source) {
  if (source instanceof WebAssembly.Module) return source;
  if (source !== undefined) return WebAssembly.compile(source);
  compiled ??= (async () => {
    const url = new URL("./@NAME@.wasm", import.meta.url);
    if (url.protocol === "file:" && typeof process !== "undefined") {
      const { readFile } = await import("node:fs/promises");
      return WebAssembly.compile(await readFile(url));
    }
    const answer = await fetch(url);
    if (!answer.ok) throw new Error(`@NAME@: ${url} cannot be read: ${answer.status}`);
    return WebAssembly.compile(await answer.arrayBuffer());
  })().catch((error) => { compiled = null; throw error; });
  return compiled;
}

/** Make a state; `source` is the module or its bytes, by default the file beside this one. */
export async function create(source) {
  return new State(await WebAssembly.instantiate(await moduleOf(source), {}));
}

/** The parameters and all else that calls change, in a memory of its own. */
export class State {
  #wasm; #memory; #at;

  constructor(instance) {
    const wasm = this.#wasm = instance.exports;
    this.#memory = wasm.memory;
    let next = aligned(wasm.__heap_base.value);
    const take = (size) => { const at = next; next += aligned(Math.max(size, 1)); return at; };
    const places = (items) => Object.fromEntries(Object.entries(items).map(
      ([name, { array, shape }]) => [name, take(elements(shape) * arrays[array].BYTES_PER_ELEMENT)]));
    const size = wasm.@NAME@_state_size() >>> 0;
    this.#at = { state: take(size), inputs: places(inputs), outputs: places(outputs), saved: take(wasm.@NAME@_saved_size() >>> 0) };
    const tables = [this.#at.inputs, this.#at.outputs].map((places) => [take(4 * Object.keys(places).length), places]);
    const missing = next - this.#memory.buffer.byteLength;
    if (missing > 0) this.#memory.grow(Math.ceil(missing / 65536));
    for (const [at, places] of tables) new Uint32Array(this.#memory.buffer, at, Object.keys(places).length).set(Object.values(places));
    this.#at.tables = tables.map(([at]) => at);
    this.#check(wasm.@NAME@_init(this.#at.state, size));
  }

  #check(code) {
    if (code === 0) return;
    const start = this.#wasm.@NAME@_error(code) >>> 0;
    const bytes = new Uint8Array(this.#memory.buffer, start);
    const error = new Error(`@NAME@: ${new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0)))} (code ${code})`);
    error.code = code;
    throw error;
  }

  #view(at, { array, shape }) {
    return new arrays[array](this.#memory.buffer, at, elements(shape));
  }

  /** Run the function on an object with its arguments; return an object with its results. */
  run(given = {}) {
    for (const name of Object.keys(given)) if (!Object.hasOwn(inputs, name)) throw new TypeError(`@NAME@ has no argument ${name}; the arguments are ${Object.keys(inputs).join(", ")}`);
    const values = Object.entries(inputs).map(([name, form]) => [name, form, checked(name, Object.hasOwn(given, name) ? given[name] : undefined, form)]);
    for (const [name, form, value] of values) this.#view(this.#at.inputs[name], form).set(value);
    this.#check(this.#wasm.@NAME@(this.#at.state, ...this.#at.tables));
    return Object.fromEntries(Object.entries(outputs).map(([name, form]) => {
      const view = this.#view(this.#at.outputs[name], form);
      return [name, form.shape.length ? view.slice() : view[0]];
    }));
  }

  #part(name) {
    if (!Object.hasOwn(parts, name)) throw new RangeError(`@NAME@ has no part ${name}; the parts are ${Object.keys(parts).join(", ")}`);
    return this.#view(this.#at.state + parts[name].offset, parts[name]);
  }

  /** A copy of a part of the state. */
  get(name) {
    return this.#part(name).slice();
  }

  /** Set a part of the state. */
  set(name, value) {
    this.#part(name).set(checked(name, value, parts[name]));
  }

  /** The state as the bytes of a safetensors file. */
  save() {
    const size = this.#wasm.@NAME@_saved_size() >>> 0;
    this.#check(this.#wasm.@NAME@_save(this.#at.state, this.#at.saved, size));
    return new Uint8Array(this.#memory.buffer, this.#at.saved, size).slice();
  }

  /** Set the state from bytes that `save` returned, here or in another program. */
  load(bytes) {
    const size = this.#wasm.@NAME@_saved_size() >>> 0;
    const given = bytes instanceof Uint8Array ? bytes : new Uint8Array(bytes);
    if (given.length > size) this.#check(@FOREIGN@);
    new Uint8Array(this.#memory.buffer, this.#at.saved, size).set(given);
    this.#check(this.#wasm.@NAME@_load(this.#at.state, this.#at.saved, given.length));
  }
}

function listed(name, values, { array, dtype }) {
  if (dtype.endsWith("float16")) throw new TypeError(`@NAME@: ${name} must be a Uint16Array with the bits of ${dtype}`);
  const big = array.startsWith("Big"), float = array.startsWith("Float");
  const found = arrays[array].from(values, (x) => big ? BigInt(typeof x === "bigint" || Number.isInteger(x) ? x : 0) : Number(x));
  const wrong = values.findIndex((x, i) => typeof x !== "number" && (float || !["bigint", "boolean"].includes(typeof x)) || !float && x != found[i]);
  if (wrong >= 0) throw new TypeError(`@NAME@: ${name} must have elements of ${dtype}, but element ${wrong} is ${values[wrong]}`);
  return found;
}

function checked(name, value, form) {
  const { array, shape } = form, kind = arrays[array], size = elements(shape);
  if (value === undefined) throw new TypeError(`@NAME@: ${name} is missing`);
  if (["number", "bigint", "boolean"].includes(typeof value)) value = [value];
  if (Array.isArray(value)) value = listed(name, value.flat(Infinity), form);
  if (!(value instanceof kind)) throw new TypeError(`@NAME@: ${name} must be a ${array}`);
  if (value.length !== size) throw new RangeError(`@NAME@: ${name} must have ${size} elements (${shape.join(" x ") || "one number"}), but has ${value.length}`);
  return value;
}
