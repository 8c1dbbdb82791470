// A thread of its own for what takes long, so that the page can scroll meanwhile: ONNX Runtime, as the page holds it.

function startThread({ library, worker, wasm }, opens, parts) {
  const thread = new Worker(URL.createObjectURL(new Blob([worker], { type: "text/javascript" })));
  thread.postMessage({ library, wasm, opens, ...parts });
  return thread;
}

/**
 * `ask(question, urgent)` promises the answer of what `worker.js` opens by that name with these `parts`. One question
 * goes at a time, what is urgent first; the thread starts with the first. `start` is for tests.
 */
export function makeThread(engine, opens, parts, start = startThread) {
  const jobs = [];
  let thread = null;
  let current = null; // what the thread works at; at first that it opens

  function next() {
    current = jobs.shift() ?? null;
    if (current) thread.postMessage({ question: current.question });
  }
  function open() {
    thread = start(engine, opens, parts);
    current = { resolve() {}, reject() {} };
    thread.onmessage = ({ data }) => {
      if (data.failure) current.reject(new Error(data.failure));
      else current.resolve(data.answer);
      next();
    };
    thread.onerror = (event) => {
      for (const job of [current, ...jobs.splice(0)]) job?.reject(new Error(`the thread of the network ended: ${event.message}`));
      current = null;
      thread.terminate?.();
      thread = null; // the next question opens another
    };
  }
  return {
    ask: (question, urgent) =>
      new Promise((resolve, reject) => {
        jobs[urgent ? "unshift" : "push"]({ question, resolve, reject });
        if (!thread) open();
        else if (!current) next();
      }),
  };
}
