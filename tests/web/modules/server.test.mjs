import assert from "node:assert/strict";
import { deflateSync } from "node:zlib";
import { test } from "node:test";
import { makeArtist, makeEasel } from "../../../capsella/web/page/artist.js";
import { readContent, unpacked } from "../../../capsella/web/page/content.js";
import { makeDraughtsman } from "../../../capsella/web/page/draughtsman.js";
import { askArrays, makeServer } from "../../../capsella/web/page/server.js";

const packed = (bytes) => deflateSync(Uint8Array.from(bytes)).toString("base64");
/** Waits for what is to come, however long a busy machine takes. */
async function until(holds) {
  for (let tries = 0; !holds() && tries < 400; tries++) await new Promise((done) => setTimeout(done, 25));
}

/** A run of two images of 1×2 pixels, whose drawings the server makes. */
async function made() {
  const facts = {
    runs: [{ images: [{ number: 0, predicted: 1 }, { number: 1, predicted: 0 }], decoder: { after: null, size: [1, 2] }, dials: { most: 1 } }],
    arrays: { "0/drawn": ["u1", [2, 1, 1, 2], 0], "0/bias0": ["u1", [1], 4] },
  };
  const [run] = readContent(facts, await unpacked(packed([0, 51, 102, 255, 9, 0, 0, 0])));
  return run;
}

/** Stands for the network: each question is kept until `answer` is called. */
function watched(t) {
  const asked = [];
  t.mock.method(globalThis, "fetch", (address, options) => new Promise((resolve) => {
    asked.push({ address, ...options, answer: (said, ok = true) => resolve({ ok, status: ok ? 200 : 400, headers: new Headers(), json: async () => said }) });
  }));
  return asked;
}

test("a page that was sent asks nobody", () => {
  assert.equal(makeServer({ runs: [] }, 0), null);
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
  const server = makeServer({ server: { bytes: 10, tests: [] } }, 0);
  const asked = watched(t);
  const refused = server.image(99);
  assert.equal(asked[0].address, "api/runs/0/images/99");
  asked[0].answer({ error: "image: must be from 0 to 9, got 99" }, false);
  await assert.rejects(refused, { message: "image: must be from 0 to 9, got 99" });
  t.mock.method(globalThis, "fetch", async () => { throw new TypeError("failed"); });
  await assert.rejects(server.image(1), { message: "The server does not answer. Has capsella explore ended?" });
  await assert.rejects(server.file({ name: "a.png", size: 11 }), /a.png: must be at most/);
});

test("the last wish wins, and drawings are asked for once", async (t) => {
  const asked = watched(t);
  const run = { ...(await made()), server: makeServer({ server: { bytes: 10, tests: [] } }, 0) };
  const artist = makeArtist(run);
  const told = [];
  const draw = makeEasel(artist, { show: (picture, how) => told.push([[...picture].map((value) => Math.round(255 * value)), how]), wait: () => told.push("wait"), fail: (text) => told.push(text) });
  const wish = (image, value) => draw({ image, target: 1, pose: [value], found: [1] });
  wish(0, 1);
  assert.deepEqual(told.splice(0), [[[0, 51], ""]]); // it was drawn beforehand
  for (const value of [2, 3, 4]) wish(0, value);
  assert.equal(asked.length, 1);
  assert.equal(asked[0].body, '{"target":1,"poses":[[2]]}');
  const answer = (grey) => ({ arrays: { "0/drawings": ["u1", [1, 1, 1, 2], 0] }, data: packed([grey, grey, 0, 0]) });
  asked[0].answer(answer(20));
  await until(() => asked.length === 2);
  assert.equal(asked[1].body, '{"target":1,"poses":[[4]]}');
  asked[1].answer(answer(40));
  await until(() => told.length === 6);
  assert.deepEqual(told.splice(0), ["wait", "wait", "wait", [[20, 20], "late"], "wait", [[40, 40], ""]]);
  wish(0, 2);
  assert.deepEqual(told.splice(0), [[[20, 20], ""]]);
  assert.equal(asked.length, 2);
  wish(1, 7);
  asked[2].answer({ error: "no" }, false);
  await until(() => told.length === 2);
  assert.deepEqual(told.splice(0), ["wait", "no"]);
});

/** A thread that draws each pose as one pixel, its sigmoid, when it is told to. */
function fakeThread() {
  const thread = { asked: [], postMessage: (question) => thread.asked.push(question) };
  thread.opened = () => thread.onmessage({ data: { answer: null } });
  thread.answer = () => {
    const [, pose] = thread.asked.at(-1).question;
    thread.onmessage({ data: { answer: Float32Array.of(1 / (1 + Math.exp(-pose[0] - 2 * pose[1]))) } });
  };
  return thread;
}

test("what a reader waits for is drawn before the ends of dials, and failures are told", async () => {
  const thread = fakeThread();
  const { drawings } = makeDraughtsman({ classes: [] }, () => thread);
  const ends = drawings(0, [[1, 0], [2, 0]], false);
  const urgent = drawings(0, [[3, 0]], true);
  assert.equal(thread.asked.length, 0); // until it is open
  thread.opened();
  thread.answer();
  thread.answer();
  thread.answer();
  assert.deepEqual(thread.asked.map(({ question: [, pose] }) => pose[0]), [3, 1, 2]);
  assert.equal((await ends).length, 2);
  assert.ok(Math.abs((await urgent)[0][0] - 1 / (1 + Math.exp(-3))) < 1e-6);
  const failing = drawings(0, [[4, 0]], true);
  thread.onmessage({ data: { failure: "this browser cannot draw it: no memory" } });
  await assert.rejects(failing, { message: "this browser cannot draw it: no memory" });
});

test("what the page holds comes as bytes, or as the sentence that says why not", async (t) => {
  const headers = new Headers({ "content-type": "application/octet-stream" });
  t.mock.method(globalThis, "fetch", async () => ({ ok: true, headers, arrayBuffer: async () => Uint8Array.of(1, 2).buffer }));
  assert.deepEqual([...new Uint8Array(await askArrays())], [1, 2]);
  t.mock.method(globalThis, "fetch", async () => ({ ok: false, headers, json: async () => ({ error: "Sign in." }) }));
  await assert.rejects(askArrays(), /^Error: Sign in\.$/);
});
