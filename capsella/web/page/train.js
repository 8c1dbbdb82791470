// A small capsule network (Sabour et al. 2017) that learns in the browser: forward pass and gradients by hand, in float64.

const PATCH = 4; // pixels a side of what a part sees
const STRIDE = 2;
const TYPES = 2; // parts at each position
const D = 8; // elements of each pose
const HIDDEN = 48; // units of the decoder
const ITERATIONS = 3;
const DRAWN = 0.04; // weight of the squared error of the drawing beside the margin loss
const TINY = 1e-12;

/** Random numbers in [0, 1) that a seed fixes (mulberry32). */
function randomFrom(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/**
 * The sizes of a network for square images of `side` pixels and a number of `classes`: `grid` positions a side, `parts`,
 * and the shape of each weight: `patch` [types·d pixels], `vote` [parts classes d d], `hidden` [classes d hidden],
 * `pixel` [hidden pixels].
 */
export function sizesOf(side, classes) {
  const grid = Math.floor((side - PATCH) / STRIDE) + 1;
  const parts = grid * grid * TYPES;
  const shapes = {
    patch: [TYPES * D, PATCH * PATCH], patchBias: [TYPES * D], vote: [parts, classes, D, D],
    hidden: [classes, D, HIDDEN], hiddenBias: [HIDDEN], pixel: [HIDDEN, side * side], pixelBias: [side * side],
  };
  return { side, classes, grid, parts, shapes, field: { first: [PATCH / 2, PATCH / 2], step: [STRIDE, STRIDE] } };
}

/** Zeros for weights, gradients or moments, by name. */
export function emptyWeights({ shapes }) {
  return Object.fromEntries(Object.entries(shapes).map(([name, shape]) => [name, new Float64Array(shape.reduce((a, b) => a * b, 1))]));
}

/** First weights: uniform around 0, with a deviation that keeps the scale of what goes in. */
function firstWeights(sizes, random) {
  const weights = emptyWeights(sizes);
  const deviation = { patch: 2 / PATCH, vote: 0.7 / Math.sqrt(D), hidden: 1.5 / Math.sqrt(D), pixel: 1 / Math.sqrt(HIDDEN) };
  for (const [name, scale] of Object.entries(deviation)) {
    weights[name].forEach((_, k, values) => (values[k] = Math.sqrt(12) * scale * (random() - 0.5)));
  }
  return weights;
}

/** The squash v = s·n / (1 + n²), where n = |s|, of each row of d numbers; returns n of each row. */
function squash(s, v, d) {
  return Float64Array.from({ length: s.length / d }, (_, row) => {
    let square = TINY;
    for (let k = row * d; k < (row + 1) * d; k++) square += s[k] * s[k];
    const n = Math.sqrt(square);
    for (let k = row * d; k < (row + 1) * d; k++) v[k] = (s[k] * n) / (1 + square);
    return n;
  });
}

/** Gradients of s from those of v; `n` as `squash` returned it. */
function squashBack(s, n, gradV, d) {
  const gradS = new Float64Array(s.length);
  for (let row = 0; row < n.length; row++) {
    const square = n[row] * n[row];
    let along = 0;
    for (let k = row * d; k < (row + 1) * d; k++) along += s[k] * gradV[k];
    const inward = (along * (1 - square)) / ((1 + square) * (1 + square) * n[row]);
    for (let k = row * d; k < (row + 1) * d; k++) gradS[k] = (gradV[k] * n[row]) / (1 + square) + inward * s[k];
  }
  return gradS;
}

/** Calls `visit(part's first output, pixel, weight's place in a row)` for all pixels of all patches. */
function overPatches({ side, grid }, visit) {
  for (let position = 0; position < grid * grid; position++) {
    const corner = STRIDE * (Math.floor(position / grid) * side + (position % grid));
    for (let q = 0; q < PATCH * PATCH; q++) {
      visit(position * TYPES * D, corner + Math.floor(q / PATCH) * side + (q % PATCH), q);
    }
  }
}

/**
 * The forward pass for an image, `pixels` in [0, 1]. The result holds the class capsules `v` [classes d] and their
 * `lengths`, the `couplings` [parts classes] of each iteration, and what `backward` needs.
 */
export function forward(sizes, weights, pixels) {
  const { classes, parts, grid } = sizes;
  const a = new Float64Array(parts * D);
  for (let position = 0; position < grid * grid; position++) a.set(weights.patchBias, position * TYPES * D);
  overPatches(sizes, (part, pixel, q) => {
    if (pixels[pixel] === 0) return;
    for (let o = 0; o < TYPES * D; o++) a[part + o] += weights.patch[o * PATCH * PATCH + q] * pixels[pixel];
  });
  const u = new Float64Array(a.length);
  const uNorms = squash(a, u, D);
  const votes = new Float64Array(parts * classes * D);
  for (let i = 0; i < parts; i++) {
    for (let j = 0; j < classes; j++) {
      const vote = (i * classes + j) * D;
      for (let d = 0; d < D; d++) {
        const row = (vote + d) * D;
        for (let e = 0; e < D; e++) votes[vote + e] += weights.vote[row + e] * u[i * D + d];
      }
    }
  }
  const logits = new Float64Array(parts * classes);
  const steps = [];
  for (let iteration = 0; iteration < ITERATIONS; iteration++) {
    const c = softmaxRows(logits, classes);
    const s = new Float64Array(classes * D);
    for (let ij = 0; ij < c.length; ij++) {
      const to = (ij % classes) * D;
      for (let e = 0; e < D; e++) s[to + e] += c[ij] * votes[ij * D + e];
    }
    const v = new Float64Array(s.length);
    const norms = squash(s, v, D);
    steps.push({ c, s, v, norms });
    for (let ij = 0; ij < logits.length; ij++) {
      const to = (ij % classes) * D;
      for (let e = 0; e < D; e++) logits[ij] += votes[ij * D + e] * v[to + e];
    }
  }
  const v = steps.at(-1).v;
  const lengths = Float64Array.from({ length: classes }, (_, j) => Math.sqrt(v.subarray(j * D, (j + 1) * D).reduce((sum, x) => sum + x * x, TINY)));
  return { pixels, a, u, uNorms, votes, steps, v, lengths, couplings: steps.map(({ c }) => c) };
}

function softmaxRows(logits, count) {
  const out = new Float64Array(logits.length);
  for (let row = 0; row < logits.length; row += count) {
    let sum = 0;
    for (let k = row; k < row + count; k++) sum += out[k] = Math.exp(logits[k]);
    for (let k = row; k < row + count; k++) out[k] /= sum;
  }
  return out;
}

/** What the decoder draws from the capsule of class `target`: `pixels` in [0, 1], and its `hidden` units. */
export function drawFrom({ side }, weights, v, target) {
  const hidden = Float64Array.from(weights.hiddenBias);
  for (let e = 0; e < D; e++) {
    const row = (target * D + e) * HIDDEN;
    for (let k = 0; k < HIDDEN; k++) hidden[k] += weights.hidden[row + k] * v[target * D + e];
  }
  const pixels = Float64Array.from(weights.pixelBias);
  for (let k = 0; k < HIDDEN; k++) {
    hidden[k] = Math.max(hidden[k], 0);
    if (hidden[k] > 0) for (let p = 0; p < side * side; p++) pixels[p] += weights.pixel[k * side * side + p] * hidden[k];
  }
  for (let p = 0; p < pixels.length; p++) pixels[p] = 1 / (1 + Math.exp(-pixels[p]));
  return { pixels, hidden };
}

/** Adds the gradients of an image's loss, times `scale`, to `grads`; returns the loss: margins and drawing. */
export function backward(sizes, weights, passed, label, grads, scale = 1) {
  const { classes, parts } = sizes;
  const { v, lengths, votes, steps } = passed;
  let gradV = new Float64Array(v.length);
  let loss = decoderBack(sizes, weights, passed, label, { grads, gradV, scale });
  for (let j = 0; j < classes; j++) {
    const away = j === label ? Math.max(0, 0.9 - lengths[j]) : Math.max(0, lengths[j] - 0.1);
    loss += (j === label ? 1 : 0.5) * away * away;
    const slope = (scale * (j === label ? -2 * away : away)) / lengths[j];
    for (let k = j * D; k < (j + 1) * D; k++) gradV[k] += slope * v[k];
  }
  const gradVotes = new Float64Array(votes.length);
  const gradLogits = new Float64Array(parts * classes); // of the iteration after the current one
  for (let iteration = ITERATIONS - 1; iteration >= 0; iteration--) {
    const { c, s, v: capsule, norms } = steps[iteration];
    if (iteration < ITERATIONS - 1) {
      gradV = new Float64Array(v.length);
      for (let ij = 0; ij < c.length; ij++) {
        const to = (ij % classes) * D;
        for (let e = 0; e < D; e++) {
          gradV[to + e] += gradLogits[ij] * votes[ij * D + e];
          gradVotes[ij * D + e] += gradLogits[ij] * capsule[to + e];
        }
      }
    }
    const gradS = squashBack(s, norms, gradV, D);
    for (let i = 0; i < parts; i++) couplingsBack(i * classes, classes, { c, votes, gradS, gradVotes, gradLogits });
  }
  votesBack(sizes, weights, passed, gradVotes, grads);
  return loss;
}

/** Gradients of the drawing's squared error; returns the error's part of the loss. */
function decoderBack({ side }, weights, { v, pixels }, label, { grads, gradV, scale }) {
  const drawing = drawFrom({ side }, weights, v, label);
  const area = side * side;
  const gradHidden = new Float64Array(HIDDEN);
  let loss = 0;
  for (let p = 0; p < area; p++) {
    const y = drawing.pixels[p];
    loss += DRAWN * (y - pixels[p]) ** 2;
    const grad = scale * 2 * DRAWN * (y - pixels[p]) * y * (1 - y);
    grads.pixelBias[p] += grad;
    for (let k = 0; k < HIDDEN; k++) {
      if (drawing.hidden[k] === 0) continue;
      grads.pixel[k * area + p] += grad * drawing.hidden[k];
      gradHidden[k] += grad * weights.pixel[k * area + p];
    }
  }
  for (let k = 0; k < HIDDEN; k++) {
    grads.hiddenBias[k] += gradHidden[k];
    for (let e = label * D; e < (label + 1) * D; e++) {
      grads.hidden[e * HIDDEN + k] += gradHidden[k] * v[e];
      gradV[e] += gradHidden[k] * weights.hidden[e * HIDDEN + k];
    }
  }
  return loss;
}

/** Adds the gradients of the votes and logits of a part, whose couplings begin at `first`, in one iteration. */
function couplingsBack(first, classes, { c, votes, gradS, gradVotes, gradLogits }) {
  const gradC = new Float64Array(classes);
  let mean = 0;
  for (let j = 0; j < classes; j++) {
    for (let e = 0; e < D; e++) {
      const at = (first + j) * D + e;
      gradVotes[at] += c[first + j] * gradS[j * D + e];
      gradC[j] += votes[at] * gradS[j * D + e];
    }
    mean += c[first + j] * gradC[j];
  }
  for (let j = 0; j < classes; j++) gradLogits[first + j] += c[first + j] * (gradC[j] - mean);
}

/** Gradients of the weights of votes and patches. */
function votesBack(sizes, weights, { pixels, a, u, uNorms }, gradVotes, grads) {
  const { classes, parts } = sizes;
  const gradU = new Float64Array(u.length);
  for (let i = 0; i < parts; i++) {
    for (let j = 0; j < classes; j++) {
      const vote = (i * classes + j) * D;
      for (let d = 0; d < D; d++) {
        const row = (vote + d) * D;
        let sum = 0;
        for (let e = 0; e < D; e++) {
          grads.vote[row + e] += u[i * D + d] * gradVotes[vote + e];
          sum += weights.vote[row + e] * gradVotes[vote + e];
        }
        gradU[i * D + d] += sum;
      }
    }
  }
  const gradA = squashBack(a, uNorms, gradU, D);
  gradA.forEach((grad, k) => (grads.patchBias[k % (TYPES * D)] += grad));
  overPatches(sizes, (part, pixel, q) => {
    if (pixels[pixel] === 0) return;
    for (let o = 0; o < TYPES * D; o++) grads.patch[o * PATCH * PATCH + q] += gradA[part + o] * pixels[pixel];
  });
}

/** A network that learns: `step(images, labels)` is a step of Adam on a batch and returns the mean loss. */
export function makeLearner(sizes, seed, rate = 0.002) {
  const random = randomFrom(seed);
  const weights = firstWeights(sizes, random);
  const [first, second] = [emptyWeights(sizes), emptyWeights(sizes)];
  let count = 0;
  function step(images, labels) {
    const grads = emptyWeights(sizes);
    let loss = 0;
    images.forEach((pixels, k) => (loss += backward(sizes, weights, forward(sizes, weights, pixels), labels[k], grads, 1 / images.length)));
    count += 1;
    const size = (rate * Math.sqrt(1 - 0.999 ** count)) / (1 - 0.9 ** count);
    for (const name of Object.keys(weights)) {
      const [w, g, m, s] = [weights[name], grads[name], first[name], second[name]];
      for (let k = 0; k < w.length; k++) {
        m[k] += 0.1 * (g[k] - m[k]);
        s[k] += 0.001 * (g[k] * g[k] - s[k]);
        w[k] -= (size * m[k]) / (Math.sqrt(s[k]) + 1e-8);
      }
    }
    return loss / images.length;
  }
  return { weights, random, step };
}
