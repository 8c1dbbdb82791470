// Requests to the server that served this page, for whatever needs Python. A shared file has no server.

import { readArrays, unpacked } from "./content.js";

const BYTES = "application/octet-stream";
const GONE = "The server does not answer. Has capsella explore ended?";

async function answered(address, options) {
  let response;
  let said;
  try {
    response = await fetch(address, options);
    if (response.ok && response.headers.get("content-type") === BYTES) return await response.arrayBuffer();
    said = await response.json();
  } catch {
    throw new Error(response ? `The server’s response cannot be read (status ${response.status}).` : GONE);
  }
  if (!response.ok) throw new Error(said.error);
  return said;
}

/** The arrays of the page as a buffer, which is not compressed. */
export const askArrays = () => answered("api/arrays");

/** Functions that send requests about a run to the server, and return promises; null if `facts` name no server. */
export function makeServer(facts, run) {
  if (!facts.server) return null;
  const of = (what) => `api/runs/${run}/${what}`;
  const post = (address, body) => answered(address, { method: "POST", body });
  const grids = async (answer) => readArrays(answer.arrays, await unpacked(answer.data), "0/");
  const image = async (answer) => ({ facts: answer.image, grids: await grids(answer) });
  return {
    /** By what test images can be found: `numbers`, `truth`, `right`. */
    tests: facts.server.tests[run],
    image: async (number) => image(await answered(of(`images/${number}`))),
    async file(file) {
      if (file.size > facts.server.bytes) {
        throw new Error(`${file.name}: must be at most ${facts.server.bytes / 1e6} MB, got ${(file.size / 1e6).toFixed(1)} MB`);
      }
      return image(await post(of(`files?name=${encodeURIComponent(file.name)}`), file));
    },
    sketch: async (blob) => image(await post(of("sketches"), blob)),
    changes: async (pixels, predicted) => grids(await post(of(`changes?class=${predicted}`), pixels)),
  };
}
