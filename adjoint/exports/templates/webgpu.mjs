// @NAME@: a function for WebGPU, written by adjoint.  For browsers.
//
//   import { create } from "./@NAME@.mjs";
//   const state = await create();
//   const { @RESULTS@ } = await state.run({ @ARGUMENTS@ });

/** The arguments, the results and the parts of the state: the array, the dtype and the shape. */
export const inputs = @INPUTS@;
export const outputs = @OUTPUTS@;
export const parts = @PARTS@;

const arrays = { Float32Array, Float64Array, Uint8Array, Int8Array, Uint16Array, Int16Array, Uint32Array, Int32Array, BigInt64Array, BigUint64Array };
const elements = (shape) => shape.reduce((a, b) => a * b, 1);
const bytesOf = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const WINDOW = 4096; // bytes of the positions that a kernel can read
const plan = @PLAN@;

/** The learning rate of a call, if a schedule sets it. */
function rateOf(name, host) {
  const [counter, ahead, table] = plan.rates[name];
  return table[Math.min(Math.max(Number(host[counter][0]) + ahead, 0), table.length - 1)];
}

/** The numbers that kernels read, and the results that are numbers. */
function numbers(given, host) {
  const rate = (name) => rateOf(name, host);
  @LINES@
  return [[@SMALL@], [@NUMBERS@]];
}

// Elements have at least 32 bits on the device; smaller integers have signs.
function toWords(value) {
  const size = value.BYTES_PER_ELEMENT;
  if (size >= 4) return value;
  return Int32Array.from(new (size === 1 ? Int8Array : Int16Array)(value.buffer, value.byteOffset, value.length));
}

const sizeOf = ({ array, shape }) => elements(shape) * Math.max(4, arrays[array].BYTES_PER_ELEMENT);

function fromWords(buffer, at, form) {
  const kind = arrays[form.array], bytes = buffer.slice(at, at + sizeOf(form));
  return kind.BYTES_PER_ELEMENT >= 4 ? new kind(bytes) : kind.from(new Int32Array(bytes));
}

/** The sum of the data of a saved state, in base 16: its words of 32 bits, then the bytes that are left. */
function checksum(bytes) {
  const words = new Uint32Array(bytes.slice(0, bytes.length & -4).buffer);
  let found = 0xcbf29ce484222325n;
  for (const part of [words, bytes.subarray(bytes.length & -4)])
    for (const word of part) found = BigInt.asUintN(64, found * 0x100000001b3n + BigInt(word));
  return found.toString(16).padStart(16, "0");
}

async function deviceHere() {
  const adapter = await globalThis.navigator?.gpu?.requestAdapter();
  if (!adapter) throw new Error("@NAME@ needs WebGPU, and this browser has none; target=\"wasm\" runs everywhere");
  const limits = {};
  for (const name of ["maxBufferSize", "maxStorageBufferBindingSize"]) {
    if (plan.size > adapter.limits[name]) throw new Error(`@NAME@ needs ${plan.size} bytes, but this GPU allows ${adapter.limits[name]}`);
    if (plan.size > 134217728) limits[name] = plan.size;
  }
  return adapter.requestDevice({ requiredLimits: limits });
}

/** Make a state; by default on a device of its own. */
export async function create(device) {
  device ??= await deviceHere();
  const buffer = (type, more) => ({ visibility: GPUShaderStage.COMPUTE, buffer: { type, ...more } });
  device.pushErrorScope("validation");
  device.pushErrorScope("out-of-memory");
  const layout = device.createBindGroupLayout({ entries: [
    { binding: 0, ...buffer("storage") }, { binding: 1, ...buffer("read-only-storage", { hasDynamicOffset: true }) }] });
  const whole = device.createPipelineLayout({ bindGroupLayouts: [layout] });
  const pipelines = await Promise.all(plan.texts.map((code) => device.createComputePipelineAsync({
    layout: whole, compute: { module: device.createShaderModule({ code }), entryPoint: "main" } })));
  const state = new State(device, pipelines, layout);
  for (const error of [await device.popErrorScope(), await device.popErrorScope()]) if (error) throw new Error(`@NAME@: ${error.message}`);
  return state;
}

/** The parameters and all else that calls change, in the memory of a GPU. Calls run one after the other. */
export class State {
  #device; #pipelines; #heap; #positions; #bound; #back; #offsets; #host = {}; #turn = 0; #lost = ""; #last = Promise.resolve();

  constructor(device, pipelines, layout) {
    this.#device = device;
    this.#pipelines = pipelines;
    device.lost.then(({ message }) => { this.#lost = message || "destroyed"; });
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
    this.#heap = device.createBuffer({ size: Math.max(plan.size, 256), usage });
    let at = 0;
    this.#offsets = plan.steps.map((launches) => launches.map(([, words]) => { const start = at; at += Math.ceil((words.length + 1) / 64) * 256; return start; }));
    const positions = new Uint32Array((at + WINDOW) / 4); // the first word is a zero that compilers do not know
    plan.steps.forEach((launches, turn) => launches.forEach(([, words], k) => positions.set(words, this.#offsets[turn][k] / 4 + 1)));
    this.#positions = device.createBuffer({ size: positions.byteLength, usage });
    device.queue.writeBuffer(this.#positions, 0, positions);
    this.#bound = device.createBindGroup({ layout, entries: [
      { binding: 0, resource: { buffer: this.#heap } }, { binding: 1, resource: { buffer: this.#positions, size: WINDOW } }] });
    for (const [place, text] of plan.uploads) device.queue.writeBuffer(this.#heap, place, bytesOf(text));
    for (const [name, form] of Object.entries(parts)) {
      const bytes = plan.values[name] ? bytesOf(plan.values[name]).buffer : new ArrayBuffer(elements(form.shape) * arrays[form.array].BYTES_PER_ELEMENT);
      this.#put(name, new arrays[form.array](bytes));
    }
    const size = Object.values(outputs).reduce((sum, form) => sum + sizeOf(form), 4 * plan.flags.length);
    this.#back = size ? this.#reader(size) : null;
  }

  #reader(size) {
    return this.#device.createBuffer({ size, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
  }

  #put(name, value) {
    if (name in plan.homes) { if (value.length) this.#device.queue.writeBuffer(this.#heap, plan.homes[name][this.#turn], toWords(value)); } else this.#host[name] = value.slice();
  }

  #after(action) { // when the calls before it have ended
    const next = this.#last.then(() => {
      if (this.#lost) throw new Error(`@NAME@: the GPU is lost (${this.#lost}); make a new state, and load what was saved`);
      return action();
    });
    this.#last = next.catch(() => {});
    return next;
  }

  async #read(buffer) {
    await buffer.mapAsync(GPUMapMode.READ);
    const found = buffer.getMappedRange().slice(0);
    buffer.unmap();
    return found;
  }

  /** Run the function on an object with its arguments; the promise has an object with its results. */
  async run(given = {}) {
    for (const name of Object.keys(given)) if (!Object.hasOwn(inputs, name)) throw new TypeError(`@NAME@ has no argument ${name}; the arguments are ${Object.keys(inputs).join(", ")}`);
    const values = Object.fromEntries(Object.entries(inputs).map(([name, form]) => [name, checked(name, Object.hasOwn(given, name) ? given[name] : undefined, form).slice()]));
    return this.#after(() => this.#call(values));
  }

  async #call(values) {
    const device = this.#device, turn = this.#turn, [small, made] = numbers(values, this.#host);
    Object.values(values).forEach((value, k) => { if (value.length) device.queue.writeBuffer(this.#heap, plan.arguments[k], toWords(value)); });
    plan.small.forEach(([at, array], k) => {
      const big = array.startsWith("Big");
      device.queue.writeBuffer(this.#heap, at, arrays[array].from(small[k], (x) => big ? BigInt(x) : Number(x)));
    });
    const encoder = device.createCommandEncoder(), pass = encoder.beginComputePass();
    plan.steps[turn].forEach(([text, , groups], k) => {
      pass.setPipeline(this.#pipelines[text]);
      pass.setBindGroup(0, this.#bound, [this.#offsets[turn][k]]);
      pass.dispatchWorkgroups(...groups);
    });
    pass.end();
    let at = 0;
    const places = Object.values(outputs).map((form, k) => {
      const from = plan.results[turn][k], size = sizeOf(form), start = at;
      if (from >= 0 && size) encoder.copyBufferToBuffer(this.#heap, from, this.#back, at, size);
      at += size;
      return start;
    });
    const flagged = at;
    for (const flag of plan.flags) { encoder.copyBufferToBuffer(this.#heap, flag, this.#back, at, 4); at += 4; }
    device.queue.submit([encoder.finish()]);
    if (!this.#back) await device.queue.onSubmittedWorkDone();
    const bytes = this.#back ? await this.#read(this.#back) : new ArrayBuffer(0);
    if (new Uint32Array(bytes, flagged).some((word) => word)) throw new Error(`@NAME@: ${plan.error}`);
    this.#turn = 1 - turn;
    for (const name of Object.keys(plan.rates)) this.#host[name][0] = rateOf(name, this.#host);
    for (const [name, times] of plan.counts) this.#host[name][0] += BigInt(times);
    const own = new Map(made);
    return Object.fromEntries(Object.entries(outputs).map(([name, form], k) => {
      const kind = arrays[form.array], big = form.array.startsWith("Big");
      const found = own.has(k) ? kind.from(own.get(k), (x) => big ? BigInt(Math.trunc(x)) : Number(x)) : fromWords(bytes, places[k], form);
      return [name, form.shape.length ? found : found[0]];
    }));
  }

  async #fetch(names) { // the values of parts, read together
    const encoder = this.#device.createCommandEncoder(), there = names.filter((name) => name in plan.homes);
    const size = there.reduce((sum, name) => sum + sizeOf(parts[name]), 0), places = {};
    let at = 0, bytes = null;
    if (size) {
      const buffer = this.#reader(size);
      for (const name of there) {
        const length = sizeOf(parts[name]);
        if (length) encoder.copyBufferToBuffer(this.#heap, plan.homes[name][this.#turn], buffer, at, length);
        places[name] = at;
        at += length;
      }
      this.#device.queue.submit([encoder.finish()]);
      bytes = await this.#read(buffer);
      buffer.destroy();
    }
    return names.map((name) => (name in plan.homes ? (bytes ? fromWords(bytes, places[name], parts[name]) : new arrays[parts[name].array](0)) : this.#host[name].slice()));
  }

  #named(name) {
    if (!Object.hasOwn(parts, name)) throw new RangeError(`@NAME@ has no part ${name}; the parts are ${Object.keys(parts).join(", ")}`);
  }

  /** A copy of a part of the state. */
  async get(name) {
    this.#named(name);
    return (await this.#after(() => this.#fetch([name])))[0];
  }

  /** Set a part of the state. */
  async set(name, value) {
    this.#named(name);
    const given = checked(name, value, parts[name]).slice();
    return this.#after(() => this.#put(name, given));
  }

  /** The state as the bytes of a safetensors file. */
  async save() {
    const values = await this.#after(() => this.#fetch(plan.order)), header = bytesOf(plan.header);
    const found = new Uint8Array(values.reduce((sum, v) => sum + v.byteLength, header.length));
    let at = header.length;
    for (const v of values) { found.set(new Uint8Array(v.buffer, v.byteOffset, v.byteLength), at); at += v.byteLength; }
    found.set(header);
    found.set(new TextEncoder().encode(checksum(found.subarray(header.length))), plan.digits);
    return found;
  }

  /** Set the state from bytes that `save` returned, here or in another program. */
  async load(bytes) {
    const given = bytes instanceof Uint8Array ? bytes.slice() : new Uint8Array(bytes).slice(), header = bytesOf(plan.header);
    const forms = plan.order.map((name) => parts[name]), size = ({ array, shape }) => elements(shape) * arrays[array].BYTES_PER_ELEMENT;
    const inside = (k) => k >= plan.digits && k < plan.digits + 16;
    const foreign = given.length !== forms.reduce((sum, form) => sum + size(form), header.length) || header.some((byte, k) => !inside(k) && byte !== given[k]);
    if (foreign) throw new Error("@NAME@: these bytes are not a saved state of @NAME@, or not all of it");
    const sum = new TextDecoder().decode(given.subarray(plan.digits, plan.digits + 16));
    if (sum !== checksum(given.subarray(header.length))) throw new Error("@NAME@: the saved state is damaged: its data does not match its checksum");
    return this.#after(() => {
      let at = header.length;
      plan.order.forEach((name, k) => {
        const part = given.slice(at, at + size(forms[k]));
        this.#put(name, new arrays[forms[k].array](part.buffer));
        at += part.length;
      });
    });
  }

  /** Give the memory of the GPU back. */
  destroy() {
    for (const buffer of [this.#heap, this.#positions, this.#back]) buffer?.destroy();
    this.#lost = "destroyed";
  }
}

