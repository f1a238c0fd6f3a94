// Run an exported ES module on the calls of a file: node exported_module.mjs folder module
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [folder, path] = process.argv.slice(2);
const { create, inputs, outputs, parts } = await import(pathToFileURL(path));
const bytesOf = (x, array) => {
  const kind = globalThis[array];
  const a = ArrayBuffer.isView(x) ? x : kind.of(x);
  return new Uint8Array(a.buffer, a.byteOffset, a.byteLength).slice();
};
const fail = (text) => { throw new Error(text); };
const refuses = (work, part) => {
  try { work(); } catch (error) { return error.message.includes(part) || fail(error.message); }
  return fail(`no error with ${part}`);
};

const state = await create(), other = await create(), made = [];
const first = state.save();
for (const call of JSON.parse(readFileSync(`${folder}/calls.json`))) {
  const given = Object.fromEntries(Object.entries(call).map(([name, values]) => {
    const kind = globalThis[inputs[name].array];
    return [name, kind.from(inputs[name].array.startsWith("Big") ? values.map(BigInt) : values)];
  }));
  const found = state.run(given);
  for (const [name, form] of Object.entries(outputs)) made.push(bytesOf(found[name], form.array));
  for (const name of Object.keys(given)) {
    refuses(() => state.run({ ...given, [name]: undefined }), `${name} is missing`);
    refuses(() => state.run({ ...given, [name]: new Uint8ClampedArray(1) }), "must be a");
  }
  refuses(() => state.run({ ...given, nonsense: 1 }), "no argument nonsense");
}
const saved = state.save();
const damaged = saved.slice();
damaged[damaged.length - 1] ^= 1;
if (saved.length > first.length - 1 && Object.keys(parts).length) refuses(() => other.load(damaged), "damaged");
refuses(() => other.load(saved.slice(1)), "not a saved state");
if (Buffer.compare(Buffer.from(other.save()), Buffer.from(first))) fail("another state has changed");
other.load(saved);
if (Buffer.compare(Buffer.from(other.save()), Buffer.from(saved))) fail("the state was not loaded");
for (const name of Object.keys(parts)) other.set(name, other.get(name));
refuses(() => other.get("nonsense"), "no part nonsense");
made.push(saved);
writeFileSync(`${folder}/outputs`, Buffer.concat(made));
