// Pictures one after another, as a GIF.

import { gifenc } from "./gifenc.js";

const COLOURS = 256;

/** `add(canvas)` for each picture, all of one size; then `file()`. `delay`: milliseconds that each is shown. */
export function makeFilm(delay) {
  const encoder = gifenc.GIFEncoder();
  return {
    add(canvas) {
      const { data, width, height } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      const palette = gifenc.quantize(data, COLOURS);
      encoder.writeFrame(gifenc.applyPalette(data, palette), width, height, { palette, delay });
    },
    file() {
      encoder.finish();
      return new Blob([encoder.bytes()], { type: "image/gif" });
    },
  };
}
