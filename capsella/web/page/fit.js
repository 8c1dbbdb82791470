// Preprocesses an image file for the network like `data/reading.py` and `data/image_file.py`; resizing follows Pillow.

const MOST_PIXELS = 40_000_000; // the limit of the server of `capsella explore`

const ONE = 2 ** 22; // Pillow’s weights are fixed-point numbers; this is 1

function bicubic(distance) {
  const x = Math.abs(distance);
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
  return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

/** For each of `count` new pixels between the old positions `from` and `to`: the first old pixel of its filter, and weights. */
function filters(length, from, to, count) {
  const scale = (to - from) / count;
  const wide = Math.max(scale, 1); // a shrinking filter looks at all pixels
  return Array.from({ length: count }, (_, k) => {
    const centre = from + (k + 0.5) * scale;
    const first = Math.max(0, Math.floor(centre - 2 * wide + 0.5));
    const last = Math.min(length, Math.floor(centre + 2 * wide + 0.5));
    const weights = Array.from({ length: last - first }, (_, j) => bicubic((first + j + 0.5 - centre) / wide));
    const sum = weights.reduce((a, b) => a + b, 0);
    return { first, weights: weights.map((weight) => Math.trunc((weight / sum) * ONE + Math.sign(weight) / 2)) };
  });
}

/** Filters `lines` lines of pixels: lines are `apart` in memory, pixels of a line `step`; `newApart`, `newStep` in the result. */
function along(values, lines, [apart, step], [newApart, newStep], chosen) {
  const out = new Uint8ClampedArray(lines * chosen.length);
  for (let line = 0; line < lines; line++) {
    chosen.forEach(({ first, weights }, k) => {
      let sum = ONE / 2;
      for (let j = 0; j < weights.length; j++) sum += weights[j] * values[line * apart + (first + j) * step];
      out[line * newApart + k * newStep] = Math.floor(sum / ONE);
    });
  }
  return out;
}

/** One channel, [h w] of 0..255, resized to [height, width]. `fit`, for other proportions: "crop", "pad" or "squash". */
export function resized(values, [h, w], [height, width], fit) {
  if (h === height && w === width) return Uint8ClampedArray.from(values);
  if (fit === "squash" || (fit === "pad" && w * height === h * width)) return stretched(values, [h, w], [height, width]);
  if (fit === "pad") return padded(values, [h, w], [height, width]);
  const wide = w / h >= width / height;
  const [rows, columns] = wide ? [h, (h * width) / height] : [(w * height) / width, w];
  const [top, left] = [(h - rows) / 2, (w - columns) / 2];
  const narrow = along(values, h, [w, 1], [width, 1], filters(w, left, left + columns, width));
  return along(narrow, width, [1, width], [1, width], filters(h, top, top + rows, height));
}

function stretched(values, [h, w], [height, width]) {
  const narrow = along(values, h, [w, 1], [width, 1], filters(w, 0, w, width));
  return along(narrow, width, [1, width], [1, width], filters(h, 0, h, height));
}

/** The whole image in the centre, padded with the median of its border. */
function padded(values, [h, w], [height, width]) {
  const scale = Math.min(width / w, height / h);
  const [rows, columns] = [h, w].map((side) => Math.max(1, Math.floor(side * scale + 0.5)));
  const inner = stretched(values, [h, w], [rows, columns]);
  const sides = Array.from({ length: h }, (_, row) => [values[row * w], values[row * w + w - 1]]).flat();
  const border = [...values.subarray(0, w), ...values.subarray((h - 1) * w), ...sides].sort((a, b) => a - b);
  const out = new Uint8ClampedArray(height * width).fill(border[border.length >> 1]);
  const [top, left] = [(height - rows) >> 1, (width - columns) >> 1];
  for (let row = 0; row < rows; row++) out.set(inner.subarray(row * columns, (row + 1) * columns), (top + row) * width + left);
  return out;
}

/** The channels, each [h w] of 0..255, of RGBA pixels; grey is computed as in Pillow. */
export function channelsOf(rgba, channels) {
  const count = rgba.length / 4;
  const plane = (value) => Uint8ClampedArray.from({ length: count }, (_, k) => value(4 * k));
  if (channels === 3) return [0, 1, 2].map((c) => plane((at) => rgba[at + c]));
  return [plane((at) => (rgba[at] * 19595 + rgba[at + 1] * 38470 + rgba[at + 2] * 7471 + 0x8000) >> 16)];
}

const isGrey = (rgba) => rgba.every((value, k) => k % 4 > 1 || value === rgba[k + 1]);

/** Sentences on how preprocessing changed a file of [h w] pixels. */
export function changesSaid(name, [h, w], [height, width], turnsGrey, fit) {
  const said = [];
  if (h !== height || w !== width) {
    const done = { crop: "the middle was cut out and ", pad: "padded and ", squash: "squashed and " }[fit];
    const first = h * width === w * height ? "" : done;
    said.push(`${name} has ${w}×${h} pixels: ${first}resized to the network’s ${width}×${height}`);
  }
  if (turnsGrey) said.push("its colours became grey, which is what the network takes");
  return said;
}

const text = (bytes, from, length) => String.fromCharCode(...bytes.subarray(from, from + length));

const READABLE = ["\x89PNG", "\xff\xd8\xff", "BM"]; // others can be animated, or browsers ignore their EXIF rotation

/** Why a browser would not show the file as it is, as a sentence; or "". Browsers reduce all files to 8 bits. */
export function notAsItIs(name, bytes) {
  if (!READABLE.some((kind) => text(bytes, 0, kind.length) === kind)) return `${name}: is damaged, or no image that this page reads: PNG, JPEG or BMP`;
  if (text(bytes, 1, 3) !== "PNG") return "";
  if (bytes[24] === 16) return `${name}: has 16 bits a channel, of which a browser drops half; save it with 8 bits`;
  return text(bytes, 37, 4) === "acTL" ? `${name}: must be a single picture, and it is animated` : "";
}

/** Reads an image file: `values` [c h w] of 0..255, and `said`, sentences on how it was changed. */
export async function readFile(file, [channels, ...size], fit) {
  const problem = notAsItIs(file.name, new Uint8Array(await file.arrayBuffer()));
  if (problem) throw new Error(problem);
  const bitmap = await createImageBitmap(file, { colorSpaceConversion: "none" }).catch(() => {
    throw new Error(`${file.name}: is damaged, or no image that this browser can read`);
  });
  const { width, height } = bitmap;
  if (width * height > MOST_PIXELS) {
    throw new Error(`${file.name}: is too large, must have at most ${MOST_PIXELS / 1e6} megapixels, got ${width}×${height}`);
  }
  const pen = Object.assign(document.createElement("canvas"), { width, height }).getContext("2d", { willReadFrequently: true });
  pen.drawImage(bitmap, 0, 0);
  const seesThrough = pen.getImageData(0, 0, width, height).data.some((value, k) => k % 4 === 3 && value < 255);
  pen.fillStyle = "black"; // behind what is transparent
  pen.fillRect(0, 0, width, height);
  pen.drawImage(bitmap, 0, 0);
  const rgba = pen.getImageData(0, 0, width, height).data;
  const planes = channelsOf(rgba, channels).map((plane) => resized(plane, [height, width], size, fit));
  const values = new Uint8Array(channels * size[0] * size[1]);
  planes.forEach((plane, c) => values.set(plane, c * plane.length));
  const said = changesSaid(file.name, [height, width], size, channels === 1 && !isGrey(rgba), fit);
  if (seesThrough) said.push("what was transparent became black");
  return { values, said };
}
