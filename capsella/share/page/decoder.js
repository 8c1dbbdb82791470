// A dense decoder: products of matrices, ReLUs and a sigmoid.

const AFTER = {
  none: (x) => x,
  relu: (x) => (x > 0 ? x : 0),
  sigmoid: (x) => 1 / (1 + Math.exp(-x)),
};

/** One layer: `weight` [in out] row by row, `bias` [out]. Inputs that are zero cost nothing. */
function apply({ weight, bias, after }, inputs) {
  const count = bias.length;
  const outputs = Float32Array.from(bias);
  for (let i = 0; i < inputs.length; i++) {
    const value = inputs[i];
    if (value === 0) continue;
    const start = i * count;
    for (let j = 0; j < count; j++) outputs[j] += value * weight[start + j];
  }
  const f = AFTER[after];
  for (let j = 0; j < count; j++) outputs[j] = f(outputs[j]);
  return outputs;
}

/** What the capsule of class `target` draws, all others masked: pixels in [0, 1], channel by channel. */
export function decode(layers, target, pose) {
  let values = new Float32Array(layers[0].weight.length / layers[0].bias.length);
  values.set(pose, target * pose.length);
  for (const layer of layers) values = apply(layer, values);
  return values;
}
