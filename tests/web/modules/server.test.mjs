import assert from "node:assert/strict";
import { deflateSync } from "node:zlib";
import { test } from "node:test";
import { readContent, unpacked } from "../../../capsella/web/page/content.js";
import { askArrays, makeServer } from "../../../capsella/web/page/server.js";

const packed = (bytes) => deflateSync(Uint8Array.from(bytes)).toString("base64");
/** A run of two images of 1×2 pixels, which a server knows. */
async function made() {
  const facts = {
    runs: [{ images: [{ number: 0, predicted: 1 }, { number: 1, predicted: 0 }], decoder: null, dials: { most: 1 } }],
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

test("what the page holds comes as bytes, or as the sentence that says why not", async (t) => {
  const headers = new Headers({ "content-type": "application/octet-stream" });
  t.mock.method(globalThis, "fetch", async () => ({ ok: true, headers, arrayBuffer: async () => Uint8Array.of(1, 2).buffer }));
  assert.deepEqual([...new Uint8Array(await askArrays())], [1, 2]);
  t.mock.method(globalThis, "fetch", async () => ({ ok: false, headers, json: async () => ({ error: "Sign in." }) }));
  await assert.rejects(askArrays(), /^Error: Sign in\.$/);
});
