// Draws for a run in a thread of its own, by what the page holds of ONNX Runtime.

function startThread(run) {
  const { library, worker, wasm } = run.engine;
  const thread = new Worker(URL.createObjectURL(new Blob([worker], { type: "text/javascript" })));
  thread.postMessage({ library, wasm, graph: run.graph, classes: run.classes.length });
  return thread;
}

/**
 * `drawings(target, poses, urgent)` promises pictures. What is urgent goes first; the thread starts with the first
 * question. `start` is for tests.
 */
export function makeDraughtsman(run, start = startThread) {
  const jobs = [];
  let thread = null;
  let current = null; // what the thread works at; at first that it opens

  function next() {
    current = jobs.shift() ?? null;
    if (current) thread.postMessage({ target: current.target, pose: current.pose });
  }
  function open() {
    thread = start(run);
    current = { resolve() {}, reject() {} };
    thread.onmessage = ({ data }) => {
      if (data.failure) current.reject(new Error(data.failure));
      else current.resolve(data.drawing);
      next();
    };
    thread.onerror = (event) => {
      for (const job of [current, ...jobs.splice(0)]) job?.reject(new Error(`the drawing thread ended: ${event.message}`));
      current = null;
    };
  }
  function drawn(target, pose, urgent) {
    return new Promise((resolve, reject) => {
      jobs[urgent ? "unshift" : "push"]({ target, pose, resolve, reject });
      if (!thread) open();
      else if (!current) next();
    });
  }
  return { drawings: (target, poses, urgent) => Promise.all(poses.map((pose) => drawn(target, pose, urgent))) };
}
