// What computes the reconstructions ("drawings") of a run: the page if it contains the decoder, else the server, if any.

import { decode } from "./decoder.js";
import { makeDraughtsman } from "./draughtsman.js";

const MOST_KEPT = 300; // maximum number of cached drawings

/** A cache of drawings as 0..255; the oldest are dropped first. */
function makeShelf() {
  const kept = new Map();
  const key = (target, pose) => `${target}:${pose.join()}`;
  return {
    get: (target, pose) => kept.get(key(target, pose)) ?? null,
    put(target, pose, picture) {
      kept.set(key(target, pose), Uint8ClampedArray.from(picture, (value) => 255 * value));
      if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
    },
  };
}

const inUnits = (levels) => levels && Float32Array.from(levels, (value) => value / 255);

/** The drawing from the predicted capsule of an image with its original pose, which PyTorch computed beforehand. */
export function keptDrawing(run, image) {
  return inUnits(run.its(image, "drawn").row());
}

/**
 * `now(wish)` returns a drawing, or null if it takes longer; a wish is { image, target, pose, found }, where `found` is
 * the network's original pose. `later(target, poses, urgent)` promises drawings, urgent ones first. `quick`: whether
 * `now` always returns a drawing.
 */
export function makeArtist(run) {
  if (!run.decoder) return null;
  if (run.layers) {
    const draw = (target, pose) => decode(run.layers, target, pose);
    const later = async (target, poses) => poses.map((pose) => draw(target, pose));
    return { quick: true, now: ({ target, pose }) => draw(target, pose), later };
  }
  const asked = run.server ? run.server.drawings : makeDraughtsman(run).drawings;
  const shelf = makeShelf();
  return {
    quick: false,
    now({ image, target, pose, found }) {
      const asFound = target === run.images[image].predicted && pose.join() === found.join();
      return asFound ? keptDrawing(run, image) : inUnits(shelf.get(target, pose));
    },
    async later(target, poses, urgent) {
      const before = poses.map((pose) => shelf.get(target, pose));
      if (before.every(Boolean)) return before.map(inUnits);
      const pictures = await asked(target, poses, urgent);
      pictures.forEach((picture, k) => shelf.put(target, poses[k], picture));
      return pictures;
    },
  };
}

/** The pose with an offset added to one element. */
export function moved(pose, dial, offset) {
  return Float32Array.from(pose, (value, k) => value + (k === dial ? offset : 0));
}

/**
 * Keeps one picture up to date. Returns a function that takes a wish (see `makeArtist`) and shows its drawing as soon as
 * possible; the last wish wins. `show(picture, how)`: how is "" for the wanted drawing, "late" for that of an earlier
 * wish. `wait()` is called when a drawing is not ready, `fail(sentence)` when there will be none.
 */
export function makeEasel(artist, { show, wait, fail }) {
  let wish = null;
  let asking = false;

  async function ask() {
    const mine = wish;
    asking = true;
    try {
      const [picture] = await artist.later(mine.target, [mine.pose], true);
      if (wish === mine) show(picture, "");
      else if (wish.image === mine.image && wish.target === mine.target) show(picture, "late");
    } catch (error) {
      if (wish === mine) fail(error.message);
    }
    asking = false;
    if (wish !== mine) draw(wish);
  }

  function draw(wished) {
    wish = wished;
    const picture = artist.now(wished);
    if (picture) return show(picture, "");
    wait();
    if (!asking) ask();
  }
  return draw;
}
