// Pictures one after another, as a GIF.

import { gifenc } from "./gifenc.js";

const COLOURS = 256;

/** `add(canvas)` for each picture, all as wide as the first; then `file()`. `delay`: milliseconds that each is shown. */
export function makeFilm(delay) {
  const pictures = [];
  return {
    add(canvas) {
      pictures.push(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height));
    },
    file() {
      const encoder = gifenc.GIFEncoder();
      const { width } = pictures[0];
      const height = Math.max(...pictures.map((picture) => picture.height)); // captions grow and shrink
      for (const picture of pictures) {
        const pixels = new Uint32Array(width * height).fill(new Uint32Array(picture.data.buffer, 0, 1)[0]); // the paper
        pixels.set(new Uint32Array(picture.data.buffer));
        const data = new Uint8ClampedArray(pixels.buffer);
        const palette = gifenc.quantize(data, COLOURS);
        encoder.writeFrame(gifenc.applyPalette(data, palette), width, height, { palette, delay });
      }
      encoder.finish();
      return new Blob([encoder.bytes()], { type: "image/gif" });
    },
  };
}
