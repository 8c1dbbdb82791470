// Paints pixels on canvases.

const DARKER = [40, 120, 220];
const BRIGHTER = [240, 120, 20];

/** `write(data, at, k)` puts red, green, blue and opacity, 0..255, of pixel k at `at` to `at + 3`. */
function fillCanvas(canvas, width, height, write) {
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true }); // in the processor’s memory, as its pixels are
  const image = context.createImageData(width, height);
  for (let k = 0; k < width * height; k++) write(image.data, 4 * k, k);
  context.putImageData(image, 0, 0);
}

/** The distance in [c h w] from a pixel's red to its green; 0 for one channel, and for a stereo pair, whose left image is shown. */
const apartOf = ([channels, height, width]) => (channels === 3 ? height * width : 0);

/** An image [c h w] in [0, 1]. */
export function paint(canvas, pixels, shape) {
  const apart = apartOf(shape);
  fillCanvas(canvas, shape[2], shape[1], (data, at, k) => {
    for (let c = 0; c < 3; c++) data[at + c] = 255 * pixels[k + c * apart];
    data[at + 3] = 255;
  });
}

/** Where a drawing is brighter than the image (orange) or darker (blue); transparent where both are equal. */
export function paintDifference(canvas, drawing, image, shape) {
  const apart = apartOf(shape);
  fillCanvas(canvas, shape[2], shape[1], (data, at, k) => {
    let sum = 0;
    let size = 0;
    for (let c = 0; c < 3; c++) {
      const away = drawing[k + c * apart] - image[k + c * apart];
      sum += away;
      size += Math.abs(away) / 3;
    }
    const colour = sum > 0 ? BRIGHTER : DARKER;
    for (let c = 0; c < 3; c++) data[at + c] = colour[c];
    data[at + 3] = 255 * Math.min(1, size);
  });
}

/** The image in grey under `sent`, a heat map [height width] in [0, 1]. */
export function paintOver(canvas, image, shape, sent) {
  const apart = apartOf(shape);
  fillCanvas(canvas, shape[2], shape[1], (data, at, k) => {
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
