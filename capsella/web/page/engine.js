// ONNX Runtime runs a decoder of convolutions, and the network itself.

function openGraph(ort, wasm, graph) {
  ort.env.wasm.numThreads = 1; // more need an isolated page, which a file from a disk is not
  ort.env.wasm.wasmBinary = wasm;
  return ort.InferenceSession.create(graph, { executionProviders: ["wasm"] });
}

/**
 * A function `(target, pose)` that promises what the capsule of class `target` draws, all others masked: pixels in
 * [0, 1], channel by channel. `ort`: the library. `wasm`, `graph`: bytes. `classes`: how many.
 */
export async function openDecoder(ort, { wasm, graph, classes }) {
  const session = await openGraph(ort, wasm, graph);
  return async (target, pose) => {
    const poses = new Float32Array(classes * pose.length);
    poses.set(pose, target * pose.length);
    const { drawing } = await session.run({ poses: new ort.Tensor("float32", poses, [1, 1, 1, classes, pose.length]) });
    return drawing.data;
  };
}

/** A function that promises `{ activations, poses }` of an image: pixels in [0, 1], of the `shape` [c h w]. */
export async function openEncoder(ort, { wasm, graph, shape }) {
  const session = await openGraph(ort, wasm, graph);
  return async (pixels) => {
    const { activations, poses } = await session.run({ images: new ort.Tensor("float32", pixels, [1, ...shape]) });
    return { activations: activations.data, poses: poses.data };
  };
}
