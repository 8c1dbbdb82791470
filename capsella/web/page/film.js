// Pictures one after another, as a GIF.

import { gifenc } from "./gifenc.js";

const COLOURS = 256;

/** Call `add(canvas)` for each picture, then `file()`. Smaller pictures are padded. `delay`: milliseconds per picture. */
export function makeFilm(delay) {
  const pictures = [];
  return {
    add(canvas) {
      pictures.push(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height));
    },
    file() {
      const encoder = gifenc.GIFEncoder();
      const [width, height] = ["width", "height"].map((side) => Math.max(...pictures.map((picture) => picture[side])));
      for (const picture of pictures) {
        const pixels = onPaper(picture, width, height);
        const data = new Uint8ClampedArray(pixels.buffer);
        const palette = gifenc.quantize(data, COLOURS);
        encoder.writeFrame(gifenc.applyPalette(data, palette), width, height, { palette, delay });
      }
      encoder.finish();
      return new Blob([encoder.bytes()], { type: "image/gif" });
    },
  };
}

/** The pixels of a picture, padded with the colour of its first pixel, as captions change in height. */
function onPaper(picture, width, height) {
  const own = new Uint32Array(picture.data.buffer);
  const pixels = new Uint32Array(width * height).fill(own[0]);
  for (let row = 0; row < picture.height; row++) {
    pixels.set(own.subarray(row * picture.width, (row + 1) * picture.width), row * width);
  }
  return pixels;
}
