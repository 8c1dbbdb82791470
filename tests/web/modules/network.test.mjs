import assert from "node:assert/strict";
import { test } from "node:test";
import { isInverted } from "../../../capsella/web/page/certainty.js";
import { changesSaid, notAsItIs } from "../../../capsella/web/page/fit.js";
import { makeNetwork } from "../../../capsella/web/page/network.js";

/** A thread whose network of two classes is as sure of each as the first two pixels are bright; its poses are these. */
function fakeThread() {
  const thread = {
    postMessage: ({ pixels }) =>
      queueMicrotask(() => {
        const activations = pixels.slice(0, 2);
        thread.onmessage({ data: { answer: { activations, poses: Float32Array.of(pixels[0], 0, pixels[1], 1) } } });
      }),
  };
  queueMicrotask(() => thread.onmessage({ data: { answer: null } }));
  return thread;
}

const changes = [{ name: "turn", amounts: [-90, 0, 90] }, { name: "shift", amounts: [-1, 0, 1] }];
const run = { channels: 1, fit: "crop", size: [1, 3], encoder: new Uint8Array(1), engine: {}, layers: null, changes };

test("a page without the network looks at nothing", () => {
  assert.equal(makeNetwork({ ...run, encoder: null }), null);
});

test("a changed image is looked at, every amount of every change", async () => {
  const network = makeNetwork(run, fakeThread);
  const grids = await network.changes(Uint8Array.of(51, 102, 255), 1);
  assert.deepEqual(grids.changedActivations1.shape, [1, 3, 2]);
  assert.deepEqual(grids.changedPoses1.shape, [1, 3, 2]);
  const levels = [...grids.changedActivations1.values].map((value) => Math.round(255 * value));
  assert.deepEqual(levels, [102, 255, 51, 102, 51, 51]); // to the left, as it is, to the right
  assert.deepEqual([...grids.changedPoses1.row(0, 1)].map((value) => Math.round(255 * value)), [102, 255]);
});

test("what was done to a file is said, and nothing where nothing was done", () => {
  assert.deepEqual(changesSaid("a.png", [8, 8], [8, 8], false, "pad"), []);
  assert.deepEqual(changesSaid("a.png", [16, 16], [8, 8], true, "pad"), [
    "a.png has 16×16 pixels: resized to the network’s 8×8",
    "its colours became grey, which is what the network takes",
  ]);
  assert.match(changesSaid("a.png", [16, 20], [8, 8], false, "crop")[0], /20×16 pixels: the middle was cut out and resized/);
});

// Of 2×3 pixels, as Pillow writes them.
const FILES = {
  "plain.png": "iVBORw0KGgoAAAANSUhEUgAAAAIAAAADCAAAAACcgYFdAAAAEUlEQVR4nGO8cYpl1SEGPy4AE3ADbIPO1oEAAAAASUVORK5CYII=",
  "deep.png": "iVBORw0KGgoAAAANSUhEUgAAAAIAAAADEAAAAADMEV0eAAAAF0lEQVR4nGPg4OPcwsReyfSd6fe0v+wAGwkE5hsKSwwAAAAASUVORK5CYII=",
  "moves.png": "iVBORw0KGgoAAAANSUhEUgAAAAIAAAADCAAAAACcgYFdAAAACGFjVEwAAAACAAAAAPONk3AAAAAaZmNUTAAAAAAAAAACAAAAAwAAAAAAAAAAAAAAAQAAYJrBuQAAABFJREFUeJxjvHGKZdUhBj8uABNwA2yDztaBAAAAGmZjVEwAAAABAAAAAgAAAAMAAAAAAAAAAAAAAAEAAPvpK20AAAAVZmRBVAAAAAJ4nGMQZmGSPM2w9AUABqQCizRS/YgAAAAASUVORK5CYII=",
  "plain.gif": "R0lGODdhAgADAIIAAAoKCkRERE5OToKCgqKiotjY2AAAAAAAACwAAAAAAgADAAAICQALEBgQQACAgAA7",
  "plain.jpg": "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAgGBgcGBQgHBwcJCQgKDBQNDAsLDBkSEw8UHRofHh0aHBwg",
};

test("files that a browser would show otherwise are refused", () => {
  const problem = (name) => notAsItIs(name, Uint8Array.from(Buffer.from(FILES[name], "base64")));
  for (const name of ["plain.png", "plain.jpg"]) assert.equal(problem(name), "");
  assert.equal(problem("deep.png"), "deep.png: has 16 bits a channel, of which a browser drops half; save it with 8 bits");
  assert.equal(problem("moves.png"), "moves.png: must be a single picture, and it is animated");
  assert.match(problem("plain.gif"), /^plain.gif: is damaged, or no image that this page reads/);
});

test("a negative is noticed, and an image like the others is none", () => {
  const frame = (border, middle) => [border, border, border, border, middle, border, border, border, border];
  const pictures = [frame(0, 255), frame(250, 10), frame(10, 250)];
  const shown = { size: [3, 3], images: [{ number: 4 }, { number: null }, { number: null }], its: (k) => ({ row: () => pictures[k] }) };
  assert.deepEqual([0, 1, 2].map((k) => isInverted(shown, k)), [false, true, false]);
});
