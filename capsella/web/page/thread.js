// Runs ONNX Runtime in a worker thread, so that the page stays responsive.

function startThread({ library, worker, wasm }, opens, parts) {
  const thread = new Worker(URL.createObjectURL(new Blob([worker], { type: "text/javascript" })));
  thread.postMessage({ library, wasm, opens, ...parts });
  return thread;
}

/**
 * `ask(question, urgent)` promises the answer of the graph that `worker.js` opens: `opens` is "decoder" or "encoder",
 * `parts` its arguments. Questions are answered one at a time, urgent ones first. The first one starts the thread.
 * `start` is for tests.
 */
export function makeThread(engine, opens, parts, start = startThread) {
  const jobs = [];
  let thread = null;
  let current = null; // the job that the thread works on; at first, opening the graph

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
      thread = null; // the next question starts another one
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
