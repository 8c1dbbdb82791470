// Who draws for a run: the page itself where it holds the decoder, the server where one is there, else nobody.

import { decode } from "./decoder.js";
import { makeDraughtsman } from "./draughtsman.js";
import { guess } from "./guess.js";

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
 * `now(wish)` is a drawing or null, `guess(wish)` what it is likely to be, or null; a wish is { image, target, pose,
 * found, mayGuess }, of which `found` is the pose as the network gave it.
 * `later(target, poses, urgent)` is a promise of drawings; `urgent` is the wish of a reader who waits for one of them,
 * or nothing. `quick`: whether every drawing is there at once.
 */
export function makeArtist(run) {
  if (!run.decoder) return null;
  if (run.layers) {
    const draw = (target, pose) => decode(run.layers, target, pose);
    const later = async (target, poses) => poses.map((pose) => draw(target, pose));
    return { quick: true, now: ({ target, pose }) => draw(target, pose), guess: () => null, later };
  }
  const asked = run.server ? run.server.drawings : makeDraughtsman(run).drawings;
  return makeSlowArtist(run, asked);
}

function makeSlowArtist(run, asked) {
  const shelf = makeShelf();
  const { most } = run.dials;
  let last = null; // the wish that was drawn last for a reader

  /** Levels of a drawing that was made before, or null. */
  function known(image, target, pose, turned) {
    if (!turned && target === run.images[image].predicted) return run.its(image, "drawn").row();
    return shelf.get(target, pose);
  }
  /** The ends towards which dials go, each with its part of the way; null where one is unknown, or none is turned. */
  function endsOf(target, found, offsets, sign) {
    const turned = offsets.map((offset, dial) => ({ offset, dial })).filter(({ offset }) => Math.abs(offset) > most / 1e4);
    const ends = turned.map(({ offset, dial }) => ({
      picture: shelf.get(target, moved(found, dial, offset > 0 ? most : -most)),
      part: (sign * Math.abs(offset)) / most,
    }));
    return ends.every(({ picture }) => picture) ? ends : null;
  }
  function guessed({ image, target, pose, found }) {
    const away = (from) => Array.from(from, (value, k) => value - found[k]);
    const start = known(image, target, found, false);
    const there = start && endsOf(target, found, away(pose), 1);
    if (!there) return null;
    const near = last && last.target === target && last.found.join() === found.join() ? last : null;
    const passed = near && endsOf(target, found, away(near.pose), -1);
    const drawn = passed && shelf.get(target, near.pose);
    return drawn ? guess(start, drawn, [...there, ...passed]) : guess(start, start, there);
  }
  return {
    quick: false,
    now: ({ image, target, pose, found }) => inUnits(known(image, target, pose, pose.join() !== found.join())),
    guess: (wish) => (wish.mayGuess ? guessed(wish) : null),
    async later(target, poses, urgent) {
      const before = poses.map((pose) => shelf.get(target, pose));
      if (before.every(Boolean)) return before.map(inUnits);
      const pictures = await asked(target, poses, urgent);
      pictures.forEach((picture, k) => shelf.put(target, poses[k], picture));
      if (urgent) last = { target, pose: poses[0], found: urgent.found ?? poses[0] };
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
 * or when it has come; the last wish wins. `show(picture, how)`: how is "" for the drawing itself, "guessed", or "late"
 * for that of an earlier wish. `wait()`: a drawing is awaited. `fail(sentence)`: none will come.
 */
export function makeEasel(artist, { show, wait, fail }) {
  let wish = null;
  let asking = false;

  async function ask() {
    const mine = wish;
    asking = true;
    try {
      const [picture] = await artist.later(mine.target, [mine.pose], mine);
      if (wish === mine) show(picture, "");
      else if (wish.image === mine.image && wish.target === mine.target && !artist.guess(wish)) show(picture, "late");
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
    const likely = artist.guess(wished);
    if (likely) show(likely, "guessed");
    else wait();
    if (!asking) ask();
  }
  return draw;
}
