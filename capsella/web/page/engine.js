// Runs the encoder of the network with ONNX Runtime.

/**
 * A function that promises `{ activations, poses }` for the pixels, in [0, 1], of an image of the `shape` [c h w].
 * `ort`: the library. `wasm`, `graph`: bytes.
 */
export async function openEncoder(ort, { wasm, graph, shape }) {
  ort.env.wasm.numThreads = 1; // more threads need cross-origin isolation, which a file on a disk does not have
  ort.env.wasm.wasmBinary = wasm;
  const session = await ort.InferenceSession.create(graph, { executionProviders: ["wasm"] });
  return async (pixels) => {
    const { activations, poses } = await session.run({ images: new ort.Tensor("float32", pixels, [1, ...shape]) });
    return { activations: activations.data, poses: poses.data };
  };
}
