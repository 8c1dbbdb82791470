// Run by Node: computes pictures and capsules as the page does, from the finished file, for `test_share.py` to compare.
// Arguments: the page. Input: a JSON list of requests. Output: a JSON list of answers, each a list of numbers.

import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { readContent, unpacked } from "../../../capsella/web/page/content.js";
import { decode } from "../../../capsella/web/page/decoder.js";
import { openEncoder } from "../../../capsella/web/page/engine.js";
import { turned } from "../../../capsella/web/page/turned.js";

const html = readFileSync(process.argv[2], "utf8");
const inside = (id) => {
  const start = html.indexOf(">", html.indexOf(`id="${id}"`)) + 1;
  return html.slice(start, html.indexOf("</script>", start));
};
const runs = readContent(JSON.parse(inside("facts")), await unpacked(inside("data")));

/** ONNX Runtime as the page holds it. Node imports from files alone. */
async function libraryOf({ library }) {
  const folder = mkdtempSync(join(tmpdir(), "capsella-"));
  try {
    writeFileSync(join(folder, "library.mjs"), library);
    return await import(pathToFileURL(join(folder, "library.mjs")));
  } finally {
    rmSync(folder, { recursive: true });
  }
}

async function lookerOf(run) {
  if (!run.encoder) return null;
  const parts = { wasm: run.engine.wasm, graph: run.encoder, shape: [run.channels, ...run.size] };
  return openEncoder(await libraryOf(run.engine), parts);
}

const lookers = [];
for (const run of runs) lookers.push(await lookerOf(run));
const pixelsOf = (run, image) => Float32Array.from(run.its(image, "images").row(), (value) => value / 255);

async function look({ run, look: image, scale }) {
  const { activations, poses } = await lookers[run](pixelsOf(runs[run], image));
  return [...activations, ...poses.map((value) => value / scale)];
}

function picture(request) {
  const run = runs[request.run];
  if ("draw" in request) {
    const pose = Float32Array.from(run.its(request.draw, "poses").row(request.target));
    request.offsets.forEach((offset, k) => (pose[k] += offset));
    return decode(run.layers, request.target, pose);
  }
  return turned(pixelsOf(run, request.change), [run.channels, ...run.size], request.name, request.amount);
}

const answers = [];
for (const request of JSON.parse(readFileSync(0, "utf8"))) {
  const answer = await ("look" in request ? look(request) : picture(request));
  answers.push(Array.from(answer, (value) => Math.round(value * 1e6) / 1e6));
}
console.log(JSON.stringify(answers));
