import assert from "node:assert/strict";
import { test } from "node:test";
import { calledPart, fieldAt, partsOf, placeAt } from "../../../capsella/web/page/parts.js";
import { fitted, wrapped } from "../../../capsella/web/page/saved.js";

const fields = { first: [8.5, 8.5], step: [2, 2], side: [17, 17] };

test("the part nearest to a pixel, never outside of the grid", () => {
  assert.deepEqual(placeAt([8.4, 10.6], fields, [2, 2]), { row: 1, column: 0 });
  assert.deepEqual(placeAt([0, 19.9], fields, [2, 2]), { row: 1, column: 0 });
  assert.deepEqual(placeAt([3, 3], { first: [15.5, 15.5], step: [0, 0], side: [31, 31] }, [1, 1]), { row: 0, column: 0 });
});

test("what a part sees, cut off at the image's border", () => {
  assert.deepEqual(fieldAt({ row: 1, column: 0 }, fields, [20, 20]), { left: 0, top: 0.1, width: 0.85, height: 0.85, pixels: [17, 17] });
  assert.deepEqual(fieldAt({ row: 0, column: 1 }, { first: [1, 1], step: [4, 4], side: [6, 6] }, [8, 10]), { left: 0.2, top: 0, width: 0.6, height: 0.5, pixels: [4, 6] });
});

/** [2 parents' places…] as the page's grids give them. */
const grid = (shape, values) => ({
  shape,
  row: (...index) => {
    const size = shape.slice(index.length).reduce((a, b) => a * b, 1);
    const place = index.reduce((at, k, axis) => at * shape[axis] + k, 0);
    return values.slice(place * size, (place + 1) * size);
  },
});
const arrays = {
  goals0: grid([1, 1, 2, 2], [3, 0, 1, 2]),
  shares0: grid([1, 1, 2, 2], [255, 0, 153, 102]),
  shown: grid([3], [4, 1, 7]),
  parts: grid([2, 3], [0, 1, 5, 0, 0, 2]),
  couplings: grid([3, 1, 2], [51, 255, 153, 0, 0, 0]),
};
const run = { its: (image, name) => arrays[name] };

test("where a place sends, and where one part of it", () => {
  const parts = partsOf(run, { image: 0, number: 0, iteration: 0, voting: true });
  assert.equal(parts.count, 2);
  assert.deepEqual(parts.at(0), { row: 0, column: 1, type: 5, dot: 0 });
  assert.deepEqual(parts.goals(parts.at(0)), [[1, 0.36], [4, 0.04000000000000001]]);
  assert.deepEqual(parts.goals({ row: 0, column: 1 }), [[1, 0.6], [2, 0.4]]);
  assert.equal(parts.has({ row: 0, column: 0 }, 1), true);
  assert.equal(parts.has({ row: 0, column: 0 }, 0), false);
  const still = partsOf(run, { image: 0, number: 0, iteration: 0, voting: false });
  assert.deepEqual([still.count, still.at(1)], [2, { row: 0, column: 1 }]);
  assert.equal(calledPart(parts.at(1)), "type 3, row 1, column 1");
  assert.equal(calledPart(still.at(1)), "row 1, column 2");
});

test("captions are wrapped, and pictures fit", () => {
  assert.deepEqual(wrapped("one two  three", 7, (text) => text.length), ["one two", "three"]);
  assert.deepEqual(wrapped("", 7, (text) => text.length), []);
  assert.deepEqual(wrapped("a-very-long-word b", 7, (text) => text.length), ["a-very-long-word", "b"]);
  assert.deepEqual(fitted([20, 20], 320), [320, 320]);
  assert.deepEqual(fitted([600, 150], 300), [600, 150]);
  assert.deepEqual(fitted([10, 20], 320), [160, 320]);
});
