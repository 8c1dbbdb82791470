// Paints pixels on canvases.

const DARKER = [40, 120, 220];
const BRIGHTER = [240, 120, 20];

/** The width of the picture: the two channels of a stereo pair are side by side. */
function widthOf([channels, , width]) {
  return channels === 2 ? 2 * width : width;
}

/** `write(data, at, k)` puts red, green, blue and opacity, 0..255, of pixel k at `at` to `at + 3`. */
function fillCanvas(canvas, width, height, write) {
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true }); // in the processor’s memory, as its pixels are
  const image = context.createImageData(width, height);
  for (let k = 0; k < width * height; k++) write(image.data, 4 * k, k);
  context.putImageData(image, 0, 0);
}

/** The index in [c h w] of a shown pixel's first channel, and the distance to the next channel (0 if there is one). */
function layoutOf([channels, height, width]) {
  const area = height * width;
  const single = (k) => k;
  const pair = (k) => (k % (2 * width) >= width ? area : 0) + Math.floor(k / (2 * width)) * width + (k % width);
  return { first: channels === 2 ? pair : single, apart: channels === 3 ? area : 0 };
}

/** An image [c h w] in [0, 1]. */
export function paint(canvas, pixels, shape) {
  const { first, apart } = layoutOf(shape);
  fillCanvas(canvas, widthOf(shape), shape[1], (data, at, k) => {
    const place = first(k);
    for (let c = 0; c < 3; c++) data[at + c] = 255 * pixels[place + c * apart];
    data[at + 3] = 255;
  });
}

/** What two capsules draw, in one picture: the one orange, the other blue. Grey drawings only. */
export function paintBoth(canvas, one, other, shape) {
  const { first } = layoutOf(shape);
  fillCanvas(canvas, widthOf(shape), shape[1], (data, at, k) => {
    const place = first(k);
    for (let c = 0; c < 3; c++) data[at + c] = BRIGHTER[c] * one[place] + DARKER[c] * other[place];
    data[at + 3] = 255;
  });
}

/** Where a drawing is brighter than the image (orange) or darker (blue); transparent where both are equal. */
export function paintDifference(canvas, drawing, image, shape) {
  const { first, apart } = layoutOf(shape);
  fillCanvas(canvas, widthOf(shape), shape[1], (data, at, k) => {
    const place = first(k);
    let sum = 0;
    let size = 0;
    for (let c = 0; c < 3; c++) {
      const away = drawing[place + c * apart] - image[place + c * apart];
      sum += away;
      size += Math.abs(away) / 3;
    }
    const colour = sum > 0 ? BRIGHTER : DARKER;
    for (let c = 0; c < 3; c++) data[at + c] = colour[c];
    data[at + 3] = 255 * Math.min(1, size);
  });
}

/** The image in grey under `sent`, a heat map [height width] in [0, 1]; for a stereo pair, the left image. */
export function paintOver(canvas, image, [channels, height, width], sent) {
  const apart = channels === 3 ? height * width : 0;
  fillCanvas(canvas, width, height, (data, at, k) => {
    const grey = (image[k] + image[k + apart] + image[k + 2 * apart]) / 3;
    const heat = 0.6 * sent[k];
    for (let c = 0; c < 3; c++) data[at + c] = 255 * grey * (1 - heat) + BRIGHTER[c] * heat;
    data[at + 3] = 255;
  });
}

/** Interpolates values of a grid [h w] over the image, linearly between the centres of receptive fields. */
export function spread(grid, [rows, columns], { first, step }, [height, width]) {
  const along = (pixel, axis, count) => {
    const at = step[axis] ? (pixel + 0.5 - first[axis]) / step[axis] : 0;
    const inside = Math.min(Math.max(at, 0), count - 1);
    const low = Math.min(Math.floor(inside), Math.max(count - 2, 0));
    return [low, Math.min(low + 1, count - 1), inside - low];
  };
  const across = Array.from({ length: width }, (_, x) => along(x, 1, columns));
  const out = new Float32Array(height * width);
  for (let y = 0; y < height; y++) {
    const [top, below, down] = along(y, 0, rows);
    for (let x = 0; x < width; x++) {
      const [left, right, part] = across[x];
      const upper = grid[top * columns + left] * (1 - part) + grid[top * columns + right] * part;
      const lower = grid[below * columns + left] * (1 - part) + grid[below * columns + right] * part;
      out[y * width + x] = upper * (1 - down) + lower * down;
    }
  }
  return out;
}
