// ONNX Runtime draws what a decoder of convolutions makes of a pose.

/**
 * A function `(target, pose)` that promises what the capsule of class `target` draws, all others masked: pixels in
 * [0, 1], channel by channel. `ort`: the library. `wasm`, `graph`: bytes. `classes`: how many.
 */
export async function openEngine(ort, { wasm, graph, classes }) {
  ort.env.wasm.numThreads = 1; // more need an isolated page, which a file from a disk is not
  ort.env.wasm.wasmBinary = wasm;
  const session = await ort.InferenceSession.create(graph, { executionProviders: ["wasm"] });
  return async (target, pose) => {
    const poses = new Float32Array(classes * pose.length);
    poses.set(pose, target * pose.length);
    const { drawing } = await session.run({ poses: new ort.Tensor("float32", poses, [1, 1, 1, classes, pose.length]) });
    return drawing.data;
  };
}
