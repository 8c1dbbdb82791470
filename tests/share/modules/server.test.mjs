import assert from "node:assert/strict";
import { deflateSync } from "node:zlib";
import { test } from "node:test";
import { makeArtist, makeEasel } from "../../../capsella/share/page/artist.js";
import { readContent } from "../../../capsella/share/page/content.js";
import { makeServer } from "../../../capsella/share/page/server.js";

const packed = (bytes) => deflateSync(Uint8Array.from(bytes)).toString("base64");
const soon = () => new Promise((done) => setTimeout(done, 5));

/** A run of two images of 1×2 pixels, whose drawings the server makes. */
async function made() {
  const facts = {
    runs: [{ images: [{ number: 0, predicted: 1 }, { number: 1, predicted: 0 }], decoder: { after: null, size: [1, 2] } }],
    arrays: { "0/drawn": ["u1", [2, 1, 1, 2], 0], "0/bias0": ["u1", [1], 4] },
  };
  const [run] = await readContent(facts, packed([0, 51, 102, 255, 9, 0, 0, 0]));
  return run;
}

/** Stands for the network: each question is kept until `answer` is called. */
function watched(t) {
  const asked = [];
  t.mock.method(globalThis, "fetch", (address, options) => new Promise((resolve) => {
    asked.push({ address, ...options, answer: (said, ok = true) => resolve({ ok, status: ok ? 200 : 400, json: async () => said }) });
  }));
  return asked;
}

test("a page that was sent asks nobody", () => {
  assert.equal(makeServer({ runs: [] }), null);
});

test("images that came later have arrays of their own", async () => {
  const run = await made();
  assert.deepEqual([...run.its(1, "drawn").row()], [102, 255]);
  assert.equal(run.its(0, "nothing"), undefined);
  const place = run.add({ number: 7 }, { drawn: run.grid("drawn") });
  assert.equal(place, 2);
  assert.equal(run.images[2].number, 7);
  assert.deepEqual([...run.its(2, "drawn").row()], [0, 51]);
  assert.equal(run.its(2, "bias0"), undefined);
  run.learn(0, { more: run.grid("drawn") });
  assert.deepEqual(run.its(0, "more").shape, [1, 1, 2]);
});

test("what the server refuses is an error with its sentence; so is its silence", async (t) => {
  const server = makeServer({ server: { bytes: 10, tests: [] } });
  const asked = watched(t);
  const refused = server.image(0, 99);
  assert.equal(asked[0].address, "api/runs/0/images/99");
  asked[0].answer({ error: "image: must be from 0 to 9, got 99" }, false);
  await assert.rejects(refused, { message: "image: must be from 0 to 9, got 99" });
  t.mock.method(globalThis, "fetch", async () => { throw new TypeError("failed"); });
  await assert.rejects(server.image(0, 1), { message: "The server does not answer. Has capsella explore ended?" });
  await assert.rejects(server.file(0, { name: "a.png", size: 11 }), /a.png: must be at most/);
});

test("the last wish wins, and drawings are asked for once", async (t) => {
  const asked = watched(t);
  const run = { ...(await made()), number: 0 };
  const artist = makeArtist(run, makeServer({ server: { bytes: 10, tests: [] } }));
  const told = [];
  const draw = makeEasel(artist, { show: (picture, last) => told.push([[...picture].map((value) => Math.round(255 * value)), last]), wait: () => told.push("wait"), fail: (text) => told.push(text) });
  draw({ image: 0, target: 1, pose: [1], turned: false });
  assert.deepEqual(told.splice(0), [[[0, 51], true]]); // it was drawn beforehand
  for (const value of [2, 3, 4]) draw({ image: 0, target: 1, pose: [value], turned: true });
  assert.equal(asked.length, 1);
  assert.equal(asked[0].body, '{"target":1,"poses":[[2]]}');
  const answer = (grey) => ({ arrays: { "0/drawings": ["u1", [1, 1, 1, 2], 0] }, data: packed([grey, grey, 0, 0]) });
  asked[0].answer(answer(20));
  await soon();
  assert.equal(asked[1].body, '{"target":1,"poses":[[4]]}');
  asked[1].answer(answer(40));
  await soon();
  assert.deepEqual(told.splice(0), ["wait", "wait", "wait", [[20, 20], false], "wait", [[40, 40], true]]);
  draw({ image: 0, target: 1, pose: [2], turned: true });
  assert.deepEqual(told.splice(0), [[[20, 20], true]]);
  assert.equal(asked.length, 2);
  draw({ image: 1, target: 1, pose: [7], turned: true });
  asked[2].answer({ error: "no" }, false);
  await soon();
  assert.deepEqual(told.splice(0), ["wait", "no"]);
});

test("without server and weights there are the drawings that were made beforehand", async () => {
  const artist = makeArtist(await made(), null);
  assert.equal(artist.mayTurn, false);
  assert.deepEqual([...artist.now(1, 0, [0], false)].map((value) => Math.round(255 * value)), [102, 255]);
  assert.equal(artist.now(1, 1, [0], false), null);
  await assert.rejects(artist.later(1, [[0]]), /no drawing: the page holds those/);
});
