// Run the libraries of one WebAssembly module by their C functions: node exported_driver.mjs folder
import { readFileSync, writeFileSync } from "node:fs";

const folder = process.argv[2];
const file = (name) => readFileSync(`${folder}/${name}`);
const tables = JSON.parse(file("tables.json"));
const given = file("inputs");
const { exports: wasm } = new WebAssembly.Instance(new WebAssembly.Module(file("all.wasm")), {});
let next = Math.ceil(wasm.__heap_base.value / 64) * 64, at = 0;
const made = [];

function take(size) {
  const place = next;
  next += Math.ceil(Math.max(size, 1) / 64) * 64;
  const missing = next - wasm.memory.buffer.byteLength;
  if (missing > 0) wasm.memory.grow(Math.ceil(missing / 65536));
  return place;
}

function check(name, code) {
  if (code) throw new Error(`${name} returned ${code}`);
}

for (const { name, inputs, outputs, calls } of tables) {
  const size = wasm[`${name}_state_size`](), saved = wasm[`${name}_saved_size`](), state = take(size), bytes = take(saved);
  check(name, wasm[`${name}_init`](state, size));
  const places = [inputs, outputs].map((sizes) => sizes.map(take));
  const [first, second] = places.map((row) => {
    const table = take(4 * row.length);
    new Uint32Array(wasm.memory.buffer, table, row.length).set(row);
    return table;
  });
  const piece = (place, length) => new Uint8Array(wasm.memory.buffer, place, length);
  for (let k = 0; k < calls; k++) {
    inputs.forEach((length, i) => { piece(places[0][i], length).set(given.subarray(at, at + length)); at += length; });
    check(name, wasm[name](state, first, second));
    outputs.forEach((length, i) => made.push(piece(places[1][i], length).slice()));
  }
  check(name, wasm[`${name}_save`](state, bytes, saved));
  check(name, wasm[`${name}_load`](state, bytes, saved));
  made.push(piece(bytes, saved).slice());
}
writeFileSync(`${folder}/outputs`, Buffer.concat(made));
