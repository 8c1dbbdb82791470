// Pixels to canvases.

const DARKER = [40, 120, 220];
const BRIGHTER = [240, 120, 20];

/** A stereo pair, of two channels, stands side by side. */
function widthOf([channels, , width]) {
  return channels === 2 ? 2 * width : width;
}

function fillCanvas(canvas, width, height, colourAt) {
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true }); // in the processor’s memory, as its pixels are
  const image = context.createImageData(width, height);
  for (let k = 0; k < width * height; k++) image.data.set(colourAt(k), 4 * k);
  context.putImageData(image, 0, 0);
}

/** Where in [c h w] the channels of a shown pixel lie: three numbers. */
function placesOf([channels, height, width], k) {
  const area = height * width;
  if (channels === 3) return [k, area + k, 2 * area + k];
  if (channels !== 2) return [k, k, k];
  const row = Math.floor(k / (2 * width));
  const column = k % (2 * width);
  const at = (column >= width ? area : 0) + row * width + (column % width);
  return [at, at, at];
}

/** An image [c h w] in [0, 1]. */
export function paint(canvas, pixels, shape) {
  const level = (place) => 255 * pixels[place];
  fillCanvas(canvas, widthOf(shape), shape[1], (k) => {
    const [r, g, b] = placesOf(shape, k);
    return [level(r), level(g), level(b), 255];
  });
}

/** What two capsules draw, in one picture: the one orange, the other blue. Grey drawings only. */
export function paintBoth(canvas, one, other, shape) {
  fillCanvas(canvas, widthOf(shape), shape[1], (k) => {
    const [at] = placesOf(shape, k);
    return BRIGHTER.map((colour, c) => Math.min(255, colour * one[at] + DARKER[c] * other[at])).concat(255);
  });
}

/** Where a drawing is brighter than the image (orange) and darker (blue); clear where both are alike. */
export function paintDifference(canvas, drawing, image, shape) {
  fillCanvas(canvas, widthOf(shape), shape[1], (k) => {
    const away = placesOf(shape, k).map((place) => drawing[place] - image[place]);
    const mean = (away[0] + away[1] + away[2]) / 3;
    const size = away.reduce((sum, one) => sum + Math.abs(one), 0) / 3;
    return [...(mean > 0 ? BRIGHTER : DARKER), 255 * Math.min(1, size)];
  });
}

/** The image in grey under what a layer sent, [height width] in [0, 1]. */
export function paintOver(canvas, image, shape, sent) {
  const [, height, width] = shape;
  const single = shape[0] === 2 ? [1, height, width] : shape;
  fillCanvas(canvas, width, height, (k) => {
    const grey = placesOf(single, k).reduce((sum, place) => sum + image[place], 0) / 3;
    const heat = 0.6 * sent[k];
    return BRIGHTER.map((colour) => 255 * grey * (1 - heat) + colour * heat).concat(255);
  });
}

/** Values of a grid [h w] over the image, straight lines between the centres of receptive fields. */
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
