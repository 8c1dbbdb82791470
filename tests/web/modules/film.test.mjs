import assert from "node:assert/strict";
import { test } from "node:test";
import { makeFilm } from "../../../capsella/web/page/film.js";

/** A canvas of one colour. */
function canvas(width, height, colour) {
  const data = new Uint8ClampedArray(4 * width * height).map((_, k) => [...colour, 255][k % 4]);
  return { width, height, getContext: () => ({ getImageData: () => ({ data, width, height }) }) };
}

test("pictures of a film may differ in width and height", async () => {
  const film = makeFilm(80);
  film.add(canvas(5, 4, [255, 0, 0]));
  film.add(canvas(7, 3, [0, 255, 0])); // the pointer crossed it: one more figure stands beside
  film.add(canvas(4, 6, [0, 0, 255]));
  const bytes = new DataView(await film.file().arrayBuffer());
  const size = [bytes.getUint16(6, true), bytes.getUint16(8, true)];
  assert.deepEqual(size, [7, 6]);
});
