// What needs Python is asked of the server that this page came from. A page that was sent has none.

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
    throw new Error(response ? `The server says nothing that can be read (${response.status}).` : GONE);
  }
  if (!response.ok) throw new Error(said.error);
  return said;
}

/** Questions to the server, or null where `facts` tell of none. Each is a promise; errors are sentences. */
export function makeServer(facts) {
  if (!facts.server) return null;
  const of = (run, what) => `api/runs/${run}/${what}`;
  const post = (address, body) => answered(address, { method: "POST", body });
  const grids = async (answer) => readArrays(answer.arrays, await unpacked(answer.data), "0/");
  const image = async (answer) => ({ facts: answer.image, grids: await grids(answer) });
  return {
    /** What the page holds, as a buffer: sent as it is, so that nothing is to be unpacked. */
    arrays: () => answered("api/arrays"),
    /** What can be found in a run's test images: `numbers`, `truth`, `right`. */
    tests: (run) => facts.server.tests[run],
    image: async (run, number) => image(await answered(of(run, `images/${number}`))),
    async file(run, file) {
      if (file.size > facts.server.bytes) {
        throw new Error(`${file.name}: must be at most ${facts.server.bytes / 1e6} MB, got ${(file.size / 1e6).toFixed(1)} MB`);
      }
      return image(await post(of(run, `files?name=${encodeURIComponent(file.name)}`), file));
    },
    sketch: async (run, blob) => image(await post(of(run, "sketches"), blob)),
    changes: async (run, pixels, predicted) => grids(await post(of(run, `changes?class=${predicted}`), pixels)),
    async drawings(run, target, poses) {
      const answer = await post(of(run, "drawings"), JSON.stringify({ target, poses: poses.map((pose) => Array.from(pose)) }));
      const { drawings } = await grids(answer);
      return poses.map((_, k) => Float32Array.from(drawings.row(k), (value) => value / 255));
    },
  };
}
