// Who draws for a run: the page itself where it holds the decoder, the server where one is there, else nobody.

import { decode } from "./decoder.js";

const MOST_KEPT = 300; // drawings of the server
const ONLY_KEPT = "no drawing: the page holds those of the classes that the network says";

/** Drawings of the server that need not be asked for again; the oldest go first. */
function makeShelf() {
  const kept = new Map();
  const key = (target, pose) => `${target}:${pose.join()}`;
  return {
    get: (target, pose) => kept.get(key(target, pose)) ?? null,
    put(target, pose, picture) {
      kept.set(key(target, pose), picture);
      if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
    },
  };
}

/** What the predicted capsule of an image draws as it was found: PyTorch drew it beforehand. */
export function keptDrawing(run, image) {
  return Float32Array.from(run.its(image, "drawn").row(), (value) => value / 255);
}

/**
 * `now(image, target, pose, turned)` is a drawing or null; `later(target, poses)` a promise of drawings.
 * turned: whether the pose is another than the network found. `mayTurn`: whether there can be dials.
 */
export function makeArtist(run, server) {
  if (!run.decoder) return null;
  if (run.layers) {
    const draw = (target, pose) => decode(run.layers, target, pose);
    const later = async (target, poses) => poses.map((pose) => draw(target, pose));
    return { mayTurn: true, quick: true, now: (image, target, pose) => draw(target, pose), later };
  }
  const kept = (image, target, turned) => (!turned && target === run.images[image].predicted ? keptDrawing(run, image) : null);
  if (!server) {
    const later = () => Promise.reject(new Error(ONLY_KEPT));
    return { mayTurn: false, quick: true, now: (image, target, pose, turned) => kept(image, target, turned), later };
  }
  const shelf = makeShelf();
  return {
    mayTurn: true,
    quick: false,
    now: (image, target, pose, turned) => kept(image, target, turned) ?? shelf.get(target, pose),
    async later(target, poses) {
      const known = poses.map((pose) => shelf.get(target, pose));
      if (known.every(Boolean)) return known;
      const pictures = await server.drawings(run.number, target, poses);
      pictures.forEach((picture, k) => shelf.put(target, poses[k], picture));
      return pictures;
    },
  };
}

/**
 * Keeps one picture up to date. The function returned takes { image, target, pose, turned }, and shows the drawing at
 * once or when it has come; the last wish wins. `wait()`: a drawing is awaited. `fail(sentence)`: none will come.
 */
export function makeEasel(artist, { show, wait, fail }) {
  let wish = null;
  let asking = false;

  async function ask() {
    const mine = wish;
    asking = true;
    try {
      const [picture] = await artist.later(mine.target, [mine.pose]);
      if (wish.image === mine.image && wish.target === mine.target) show(picture, wish === mine);
    } catch (error) {
      if (wish === mine) fail(error.message);
    }
    asking = false;
    if (wish !== mine) draw(wish);
  }

  function draw(wished) {
    wish = wished;
    const picture = artist.now(wished.image, wished.target, wished.pose, wished.turned);
    if (picture) return show(picture, true);
    wait();
    if (!asking) ask();
  }
  return draw;
}
