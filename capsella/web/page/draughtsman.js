// Computes a run's drawings in a worker thread, with the decoder as an ONNX graph.

import { makeThread } from "./thread.js";

/** `drawings(target, poses, urgent)` promises pictures; urgent ones go first. `start` is for tests. */
export function makeDraughtsman(run, start) {
  const thread = makeThread(run.engine, "decoder", { graph: run.graph, classes: run.classes.length }, start);
  return { drawings: (target, poses, urgent) => Promise.all(poses.map((pose) => thread.ask([target, pose], urgent))) };
}
