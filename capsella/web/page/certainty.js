// Calibration and OOD check of images that the page itself encodes, as in `capsella.uncertainty`.

const LEAST = 2 ** -126;
const MOST = 1 - 2 ** -24;
const TAIL = 10; // the largest tenth of the validation scores is the tail
const FLAT = 1e-3;
const OTHER = 60; // an image counts as inverted if its border, inverted, is this many grey levels nearer to the test images'

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const root = (square) => Math.sqrt(square + 1e-12);

/** The calibrated probability of class `target`. */
export function probabilityOf(activations, target, { logits, temperature, prior }) {
  const z = Array.from(activations, (a, k) => {
    const log = Math.log(Math.max(a, LEAST));
    return ((logits === "log" ? log : log - Math.log1p(-Math.min(a, MOST))) + (prior?.[k] ?? 0)) / temperature;
  });
  return 1 / z.reduce((sum, value) => sum + Math.exp(value - z[target]), 0);
}

/** −ln of the proportion of validation `scores`, ascending, that are at least `score`; exponential in the tail. */
export function normalized(score, scores) {
  const n = scores.length;
  const tail = Math.max(1, Math.floor(n / TAIL));
  const start = scores[Math.max(0, n - tail - 1)];
  const middle = mean(scores);
  const spread = Math.sqrt(mean(scores.map((value) => (value - middle) ** 2)));
  const excess = Math.max(mean(scores.slice(-tail)) - start, 1e-3 * spread + 1e-9);
  if (score > start) return Math.log((n + 1) / (tail + 1)) + (score - start) / excess;
  return Math.log(n + 1) - Math.log(1 + scores.filter((value) => value >= score).length);
}

/** The Mahalanobis distance to a mean, divided by √d; `whitening` is [d d] row by row. */
export function distance(features, centre, whitening) {
  const away = features.map((value, k) => value - centre[k]);
  return root(mean(away.map((_, j) => away.reduce((sum, value, i) => sum + value * whitening[i * away.length + j], 0) ** 2)));
}

/** Mean, deviation and three sharpnesses of each channel of pixels [c h w] in [0, 1]. */
export function lowLevel(pixels, [channels, height, width]) {
  const planes = Array.from({ length: channels }, (_, c) => Array.from(pixels.slice(c * height * width, (c + 1) * height * width)));
  const right = (plane, w) => plane.map((value, k) => plane[k + 1] - value).filter((_, k) => k % w < w - 1);
  const down = (plane) => plane.slice(width).map((value, k) => value - plane[k]);
  const sharp = (values) => Math.log(mean(values.map(Math.abs)) + FLAT);
  const kinds = [mean, (plane) => root(mean(plane.map((value) => (value - mean(plane)) ** 2))), (plane) => sharp(down(plane)), (plane) => sharp(right(plane, width)), (plane) => sharp(right(down(plane), width))];
  return kinds.flatMap((kind) => planes.map(kind));
}

/** Why an image is unlike the training images, or "". `seen`: { pixels, pose, drawing, predicted }. */
export function unlike(run, { pixels, pose, drawing, predicted }) {
  const { threshold, kindThreshold, answers, reasons } = run.certainty;
  const found = {
    low_level: () => lowLevel(pixels, [run.channels, ...run.size]),
    poses: () => Array.from(pose),
    reconstruction: () => (drawing?.length === pixels.length ? root(mean(Array.from(pixels, (value, k) => (value - drawing[k]) ** 2))) : -Infinity),
  };
  const scores = Object.keys(reasons).map((name) => {
    const means = run.grid(`means_${name}`);
    const features = found[name]();
    const score = means ? distance(features, means.row(predicted), run.grid(`whitening_${name}`).values) : features;
    return [normalized(score, Array.from(run.grid(`validation_${name}`).values)), reasons[name].replace("{class_name}", run.classes[predicted])];
  });
  const [largest, reason] = scores.sort((a, b) => b[0] - a[0])[0];
  if (largest <= threshold) return "";
  return kindThreshold === null ? reason : `${answers[Number(largest > kindThreshold)]} (${reason})`;
}

function borderOf(run, image) {
  const [height, width] = run.size;
  const pixels = run.its(image, "images").row();
  return mean(Array.from(pixels).filter((_, k) => k % width === 0 || k % width === width - 1 || Math.floor(k / width) % height % (height - 1) === 0));
}

/** Whether the reader's own image is bright where test images are dark, or the other way round. */
export function isInverted(run, image) {
  if (run.images[image].number !== null) return false;
  const tests = run.images.flatMap(({ number }, k) => (number === null ? [] : [borderOf(run, k)]));
  const own = borderOf(run, image);
  return Math.abs(255 - own - mean(tests)) + OTHER < Math.abs(own - mean(tests));
}
