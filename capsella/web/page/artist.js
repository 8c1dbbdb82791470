// Who draws for a run: the page itself where it holds the decoder, the server where one is there, else nobody.

import { decode } from "./decoder.js";
import { makeDraughtsman } from "./draughtsman.js";

const MOST_KEPT = 300; // drawings that took long

/** Drawings that need not be asked for again, as 0..255; the oldest go first. */
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

/** What the predicted capsule of an image draws as it was found: PyTorch drew it beforehand. */
export function keptDrawing(run, image) {
  return inUnits(run.its(image, "drawn").row());
}

/**
 * `now(wish)` is a drawing or null; a wish is { image, target, pose, found }, of which `found` is the pose as the network
 * gave it. `later(target, poses, urgent)` is a promise of drawings; what is urgent goes first. `quick`: whether every
 * drawing is there at once.
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

/** A pose of which one number is another. */
export function moved(pose, dial, offset) {
  return Float32Array.from(pose, (value, k) => value + (k === dial ? offset : 0));
}

/**
 * Keeps one picture up to date. The function returned takes a wish, as `makeArtist` says, and shows the drawing at once
 * or when it has come; the last wish wins. `show(picture, how)`: how is "" for the drawing itself, or "late" for that of
 * an earlier wish. `wait()`: a drawing is awaited. `fail(sentence)`: none will come.
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
