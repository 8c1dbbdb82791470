// What turned dials are likely to draw, at once, where the drawing itself takes long.

const EDGE = 0.002; // half a grey level: nearer to black or white a logit says nothing
const LOGITS = Float32Array.from({ length: 256 }, (_, level) => {
  const value = Math.min(Math.max(level / 255, EDGE), 1 - EDGE);
  return Math.log(value / (1 - value));
});

/**
 * Pixels in [0, 1] from known drawings, all of them 0..255: `start` as the network found the pose, `near` of a pose that
 * is near. `ends`: of a dial its drawing at an end, and `part`, how much further towards it than in `near`. What dials
 * change in the logits adds up: exact for a decoder that is linear before its last sigmoid, and nearly so for one whose
 * ReLUs change little from `near`.
 */
export function guess(start, near, ends) {
  const pixels = new Float32Array(start.length);
  for (let k = 0; k < start.length; k++) {
    let logit = LOGITS[near[k]];
    for (const { picture, part } of ends) logit += part * (LOGITS[picture[k]] - LOGITS[start[k]]);
    pixels[k] = 1 / (1 + Math.exp(-logit));
  }
  return pixels;
}
