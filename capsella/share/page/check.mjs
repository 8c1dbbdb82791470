// Run by Node: computes pictures as the page does, from the finished file, for `parity.py` to compare.
// Arguments: the page. Input: a JSON list of requests. Output: a JSON list of pictures, each a list of pixels.

import { readFileSync } from "node:fs";
import { readContent } from "./content.js";
import { decode } from "./decoder.js";
import { turned } from "./turned.js";

const html = readFileSync(process.argv[2], "utf8");
const inside = (id) => {
  const start = html.indexOf(">", html.indexOf(`id="${id}"`)) + 1;
  return html.slice(start, html.indexOf("</script>", start));
};
const runs = await readContent(JSON.parse(inside("facts")), inside("data"));

function picture(request) {
  const run = runs[request.run];
  if ("draw" in request) {
    const pose = Float32Array.from(run.its(request.draw, "poses").row(request.target));
    request.offsets.forEach((offset, k) => (pose[k] += offset));
    return decode(run.layers, request.target, pose);
  }
  const pixels = Float32Array.from(run.its(request.change, "images").row(), (value) => value / 255);
  return turned(pixels, [run.channels, ...run.size], request.name, request.amount);
}

const requests = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(requests.map((request) => Array.from(picture(request), (value) => Math.round(value * 1e6) / 1e6))));
