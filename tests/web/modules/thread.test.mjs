import assert from "node:assert/strict";
import { test } from "node:test";
import { makeThread } from "../../../capsella/web/page/thread.js";

test("after a thread died, the next question opens another", async () => {
  const threads = [];
  const start = () => {
    const thread = { postMessage: ({ pixels }) => pixels && setTimeout(() => thread.onmessage({ data: { answer: `${pixels}!` } })), terminate: () => (thread.ended = true) };
    threads.push(thread);
    setTimeout(() => (threads.length === 1 ? thread.onerror({ message: "no memory" }) : thread.onmessage({ data: {} })));
    return thread;
  };
  const { ask } = makeThread({}, {}, start);
  await assert.rejects(ask("one"), /the thread of the network ended: no memory/);
  assert.equal(await ask("two"), "two!");
  assert.deepEqual(threads.map(({ ended }) => ended), [true, undefined]);
});
