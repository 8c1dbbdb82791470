// A dense decoder: products of matrices, ReLUs and a sigmoid.

const AFTER = {
  none: (x) => x,
  relu: (x) => (x > 0 ? x : 0),
  sigmoid: (x) => 1 / (1 + Math.exp(-x)),
};

/** One layer: `weight` [in out] row by row, `bias` [out]. Inputs that are zero cost nothing; four rows go at once. */
function apply({ weight, bias, after }, inputs) {
  const count = bias.length;
  const outputs = Float32Array.from(bias);
  const heard = Array.from(inputs.keys()).filter((i) => inputs[i] !== 0);
  for (let k = 0; k < heard.length; k += 4) {
    const [p, q, r, s] = [0, 1, 2, 3].map((more) => heard[k + more] ?? heard[k]);
    const [a, b, c, d] = [p, q, r, s].map((i, more) => (k + more < heard.length ? inputs[i] : 0));
    const [wp, wq, wr, ws] = [p, q, r, s].map((i) => i * count);
    for (let j = 0; j < count; j++) {
      outputs[j] += a * weight[wp + j] + b * weight[wq + j] + c * weight[wr + j] + d * weight[ws + j];
    }
  }
  const f = AFTER[after];
  for (let j = 0; j < count; j++) outputs[j] = f(outputs[j]);
  return outputs;
}

/** The reconstruction from the capsule of class `target`, others masked: pixels in [0, 1], channel by channel. */
export function decode(layers, target, pose) {
  let values = new Float32Array(layers[0].weight.length / layers[0].bias.length);
  values.set(pose, target * pose.length);
  for (const layer of layers) values = apply(layer, values);
  return values;
}
