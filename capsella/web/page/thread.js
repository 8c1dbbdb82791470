// Runs ONNX Runtime in a worker thread, so that the page stays responsive.

function startThread({ library, worker, wasm }, parts) {
  const thread = new Worker(URL.createObjectURL(new Blob([worker], { type: "text/javascript" })));
  thread.postMessage({ library, wasm, ...parts });
  return thread;
}

/**
 * `ask(pixels)` promises what `openEncoder` answers; `parts`: its arguments. Images are encoded one at a time. The first
 * one starts the thread. `start` is for tests.
 */
export function makeThread(engine, parts, start = startThread) {
  const jobs = [];
  let thread = null;
  let current = null; // the job that the thread works on; at first, opening the graph

  function next() {
    current = jobs.shift() ?? null;
    if (current) thread.postMessage({ pixels: current.pixels });
  }
  function open() {
    thread = start(engine, parts);
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
      thread = null; // the next image starts another one
    };
  }
  return {
    ask: (pixels) =>
      new Promise((resolve, reject) => {
        jobs.push({ pixels, resolve, reject });
        if (!thread) open();
        else if (!current) next();
      }),
  };
}
