// Times of an exported network beside TensorFlow.js with its CPU backend, in interleaved rounds.
//
//   node benchmarks/beside_tensorflow.mjs FOLDER ROUNDS     FOLDER has the exports train and read, and node_modules
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import path from "node:path";

const [folder, rounds] = [path.resolve(process.argv[2]), Number(process.argv[3])];
const tf = createRequire(path.join(folder, "package.json"))("@tensorflow/tfjs");
await tf.setBackend("cpu");

const opened = async (name) => {
  const module = await import(pathToFileURL(path.join(folder, name, `${name}.mjs`)));
  return { module, state: await module.create(await readFile(path.join(folder, name, `${name}.wasm`))) };
};
const train = await opened("train"), read = await opened("read");
const parameters = Object.keys(read.module.parts); // weights are stored as (outputs, inputs)
const layers = [0, 1].map((k) => parameters.slice(2 * k, 2 * k + 2)).map(([weight, bias]) => {
  const [outputs, inputs] = read.module.parts[weight].shape;
  return {
    w: tf.variable(tf.tensor2d(read.state.get(weight), [outputs, inputs]).transpose()),
    b: tf.variable(tf.tensor1d(read.state.get(bias))), outputs, inputs,
  };
});
const forward = (x) => x.matMul(layers[0].w).add(layers[0].b).relu().matMul(layers[1].w).add(layers[1].b);
const optimizer = tf.train.adam(3e-3);

const [batch, features] = train.module.inputs.x.shape;
const classes = layers[1].outputs;
const x = Float32Array.from({ length: batch * features }, (_, k) => Math.sin(k));
const y = Int32Array.from({ length: batch }, (_, k) => k % classes);
const one = x.slice(0, features);

const steps = {
  train: {
    adjoint: () => train.state.run({ x, y }).loss,
    tensorflow: () => tf.tidy(() => {
      const inputs = tf.tensor2d(x, [batch, features]), labels = tf.oneHot(tf.tensor1d(y, "int32"), classes);
      return optimizer.minimize(() => tf.losses.softmaxCrossEntropy(labels, forward(inputs)), true).dataSync()[0];
    }),
  },
  read: {
    adjoint: () => read.state.run({ x: one }).probabilities,
    tensorflow: () => tf.tidy(() => forward(tf.tensor2d(one, [1, features])).softmax().dataSync()),
  },
};

const agree = (a, b) => a.every((v, k) => Math.abs(v - b[k]) < 1e-4);
const first = [steps.read.adjoint(), steps.read.tensorflow()], losses = [steps.train.adjoint(), steps.train.tensorflow()];
if (!agree(...first) || !agree(...losses.map((loss) => [loss]))) throw new Error(`different results: ${first} ${losses}`);

const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];
const found = {};
for (const [name, engines] of Object.entries(steps)) {
  const taken = { adjoint: [], tensorflow: [] };
  for (let round = -3; round < rounds; round++) // the first rounds warm up
    for (const [engine, step] of Object.entries(engines)) {
      const count = 20, start = performance.now();
      for (let k = 0; k < count; k++) step();
      if (round >= 0) taken[engine].push((1000 * (performance.now() - start)) / count);
    }
  const ratio = median(taken.adjoint.map((t, k) => t / taken.tensorflow[k]));
  found[name] = { ratio, adjoint: median(taken.adjoint), tensorflow: median(taken.tensorflow) };
}
console.log(JSON.stringify(found));
