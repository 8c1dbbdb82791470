// Runs convolutional decoders, and the encoder of the network, with ONNX Runtime.

function openGraph(ort, wasm, graph) {
  ort.env.wasm.numThreads = 1; // more threads need cross-origin isolation, which a file on a disk does not have
  ort.env.wasm.wasmBinary = wasm;
  return ort.InferenceSession.create(graph, { executionProviders: ["wasm"] });
}

/**
 * A function `(target, pose)` that promises the reconstruction from the capsule of class `target`, others masked: pixels
 * in [0, 1], channel by channel. `ort`: the library. `wasm`, `graph`: bytes. `classes`: number of classes.
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

/** A function that promises `{ activations, poses }` for the pixels, in [0, 1], of an image of the `shape` [c h w]. */
export async function openEncoder(ort, { wasm, graph, shape }) {
  const session = await openGraph(ort, wasm, graph);
  return async (pixels) => {
    const { activations, poses } = await session.run({ images: new ort.Tensor("float32", pixels, [1, ...shape]) });
    return { activations: activations.data, poses: poses.data };
  };
}
