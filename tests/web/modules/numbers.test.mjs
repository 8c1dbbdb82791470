import assert from "node:assert/strict";
import { test } from "node:test";
import { floatOfHalf, floatsOfHalves } from "../../../capsella/web/page/content.js";
import { decode } from "../../../capsella/web/page/decoder.js";
import { spread } from "../../../capsella/web/page/pictures.js";
import { turned } from "../../../capsella/web/page/turned.js";

test("halves are the numbers of IEEE 754", () => {
  const known = [[0x3c00, 1], [0xc000, -2], [0x3555, 0.333251953125], [0x0001, 2 ** -24], [0x7bff, 65504], [0x8000, -0], [0x7c00, Infinity]];
  for (const [bits, value] of known) assert.equal(floatOfHalf(bits), value);
  assert.ok(Number.isNaN(floatOfHalf(0x7e00)));
  assert.deepEqual([...floatsOfHalves(Uint8Array.of(0x00, 0x55, 0x3c, 0x35))], [1, 0.333251953125]);
});

test("a decoder is products of matrices, and hears the target alone", () => {
  const hidden = { weight: Float32Array.of(1, -1, 2, 0, 0, 3, 1, 1), bias: Float32Array.of(0.5, 0), after: "relu" }; // [4 2]
  const last = { weight: Float32Array.of(1, 2), bias: Float32Array.of(-1), after: "sigmoid" }; // [2 1]
  const pose = Float32Array.of(1, 2);
  // of class 0: (1·1 + 2·2 + 0.5, −1) → (5.5, 0) → 4.5; of class 1: (2 + 0.5, 3 + 2) → 2.5 + 10 − 1
  assert.ok(Math.abs(decode([hidden, last], 0, pose)[0] - 1 / (1 + Math.exp(-4.5))) < 1e-6);
  assert.ok(Math.abs(decode([hidden, last], 1, pose)[0] - 1 / (1 + Math.exp(-11.5))) < 1e-6);
  assert.deepEqual([...pose], [1, 2]);
});

test("an image is turned clockwise, shifted to the right, enlarged about its centre", () => {
  const image = Float32Array.of(0, 1, 2, 3, 4, 5, 6, 7, 8);
  const shape = [1, 3, 3];
  const near = (got, wanted) => got.forEach((value, k) => assert.ok(Math.abs(value - wanted[k]) < 1e-6, `${got} is not ${wanted}`));
  near(turned(image, shape, "turn", 0), image);
  near(turned(image, shape, "turn", 90), [6, 3, 0, 7, 4, 1, 8, 5, 2]);
  near(turned(image, shape, "shift", 1), [0, 0, 1, 3, 3, 4, 6, 6, 7]);
  near(turned(image, shape, "scale", 200), [2, 2.5, 3, 3.5, 4, 4.5, 5, 5.5, 6]);
});

test("a grid over an image: its values at the centres of the fields, lines between, ends kept", () => {
  const fields = { first: [1, 1], step: [2, 2] };
  const got = spread(Float32Array.of(0, 1, 1, 2), [2, 2], fields, [4, 4]);
  assert.deepEqual([...got.slice(0, 4)], [0, 0.25, 0.75, 1]);
  assert.equal(got[15], 2);
  assert.deepEqual([...spread(Float32Array.of(0.5), [1, 1], { first: [2, 2], step: [1, 1] }, [2, 2])], [0.5, 0.5, 0.5, 0.5]);
});
