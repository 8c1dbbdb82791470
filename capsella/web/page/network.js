// The network inside the page, which encodes the reader's own images. They do not leave the page.

import { strongest } from "./capsules.js";
import { probabilityOf, unlike } from "./certainty.js";
import { gridOf } from "./content.js";
import { decode } from "./decoder.js";
import { readFile } from "./fit.js";
import { makeThread } from "./thread.js";
import { turned } from "./turned.js";

/** Encodes images, with the same functions as `server.js`; null if the page lacks the network. `start` is for tests. */
export function makeNetwork(run, start) {
  if (!run.encoder) return null;
  const shape = [run.channels, ...run.size];
  const thread = makeThread(run.engine, { graph: run.encoder, shape }, start);
  const seen = (pixels) => thread.ask(pixels);
  const inUnits = (values) => Float32Array.from(values, (value) => value / 255);

  async function image(values, title, said) {
    const { activations, poses } = await seen(inUnits(values));
    const predicted = strongest(activations);
    const d = poses.length / activations.length;
    const grids = {
      images: gridOf(values, [1, ...shape]),
      activations: gridOf(activations, [1, activations.length]),
      poses: gridOf(poses, [1, activations.length, d]),
    };
    let drawing = null;
    if (run.layers) {
      drawing = decode(run.layers, predicted, poses.slice(predicted * d, (predicted + 1) * d));
      const levels = Uint8Array.from(drawing, (value) => Math.round(255 * value));
      grids.drawn = gridOf(levels, [1, run.channels, ...run.decoder.size]);
    }
    const facts = { number: null, truth: [], taken: [predicted], predicted, title, said };
    if (run.certainty) {
      facts.probability = probabilityOf(activations, predicted, run.certainty);
      const pose = poses.slice(predicted * d, (predicted + 1) * d);
      if (run.certainty.threshold !== null) {
        facts.unlike = unlike(run, { pixels: inUnits(values), pose, drawing, predicted });
        facts.fewer = run.certainty.fewer;
      }
    }
    return { facts, grids };
  }
  /** Activations and poses of an image turned, shifted and scaled. */
  async function changes(values, predicted) {
    const pixels = inUnits(values);
    const grids = {};
    for (const [number, { name, amounts }] of run.changes.entries()) {
      const found = await Promise.all(amounts.map((amount) => seen(turned(pixels, shape, name, amount))));
      const d = found[0].poses.length / found[0].activations.length;
      const active = found.flatMap(({ activations }) => [...activations]);
      const poses = found.flatMap((one) => [...one.poses.slice(predicted * d, (predicted + 1) * d)]);
      grids[`changedActivations${number}`] = gridOf(Float32Array.from(active), [1, amounts.length, active.length / amounts.length]);
      grids[`changedPoses${number}`] = gridOf(Float32Array.from(poses), [1, amounts.length, d]);
    }
    return grids;
  }
  return {
    async file(file) {
      const { values, said } = await readFile(file, shape, run.fit);
      return image(values, file.name, said);
    },
    async sketch(blob) {
      const { values } = await readFile(blob, shape, run.fit);
      return image(values, "Your drawing", []);
    },
    changes,
  };
}
