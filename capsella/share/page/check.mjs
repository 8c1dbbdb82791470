// Run by Node: computes pictures as the page does, from the finished file, for `parity.py` to compare.
// Arguments: the page. Input: a JSON list of requests. Output: a JSON list of pictures, each a list of pixels.

import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { readContent, unpacked } from "./content.js";
import { decode } from "./decoder.js";
import { openEngine } from "./engine.js";
import { turned } from "./turned.js";

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

async function drawerOf(run) {
  if (run.layers) return (target, pose) => decode(run.layers, target, pose);
  if (!run.graph) return null;
  return openEngine(await libraryOf(run.engine), { wasm: run.engine.wasm, graph: run.graph, classes: run.classes.length });
}

const drawers = [];
for (const run of runs) drawers.push(await drawerOf(run));

function picture(request) {
  const run = runs[request.run];
  if ("draw" in request) {
    const pose = Float32Array.from(run.its(request.draw, "poses").row(request.target));
    request.offsets.forEach((offset, k) => (pose[k] += offset));
    return drawers[request.run](request.target, pose);
  }
  const pixels = Float32Array.from(run.its(request.change, "images").row(), (value) => value / 255);
  return turned(pixels, [run.channels, ...run.size], request.name, request.amount);
}

const pictures = [];
for (const request of JSON.parse(readFileSync(0, "utf8"))) {
  pictures.push(Array.from(await picture(request), (value) => Math.round(value * 1e6) / 1e6));
}
console.log(JSON.stringify(pictures));
