// The state of a view, also as the part of the URL after #, so that a link to it can be sent.

/** The initial state: an image with its predicted class, dials at zero. */
export function firstState(run = 0, image = 0) {
  return { run, image, target: null, offsets: {}, change: 0, stop: null, layer: null, iteration: null };
}

function whole(text, below) {
  const value = Number(text);
  return text !== null && text !== "" && Number.isInteger(value) && value >= 0 && value < below ? value : null;
}

function dialsOf(text, count, most) {
  const offsets = {};
  for (const part of (text ?? "").split(",")) {
    const [dial, value] = part.split(":");
    const index = whole(dial, count + 1);
    const offset = Number(value);
    if (index && value !== undefined && Math.abs(offset) <= most && offset !== 0) offsets[index - 1] = offset;
  }
  return offsets;
}

/** The state that a text describes; missing or invalid values stay as in `firstState`. Dials are numbered from 1. */
export function parseView(text, runs) {
  const said = new URLSearchParams(text);
  const number = whole(said.get("run"), runs.length) ?? 0;
  const run = runs[number];
  const state = firstState(number, run.first ?? 0);
  const image = run.images.findIndex((facts) => String(facts.number) === said.get("image"));
  if (image >= 0) state.image = image;
  state.target = whole(said.get("class"), run.classes.length);
  state.offsets = dialsOf(said.get("dials"), run.dials.names.length, run.dials.most);
  state.change = Math.max(0, run.changes.findIndex((change) => change.name === said.get("change")));
  state.stop = whole(said.get("stop"), run.changes[0].amounts.length);
  state.layer = whole(said.get("layer"), run.routed.length);
  state.iteration = whole(said.get("iteration"), run.routed[state.layer ?? run.routed.length - 1]?.iterations ?? 0);
  return state;
}

/** The text that `parseView` reads. */
function formatView(state, runs) {
  const run = runs[state.run];
  const said = [];
  if (runs.length > 1) said.push(`run=${state.run}`);
  const { number } = run.images[state.image];
  if (number !== null) said.push(`image=${number}`);
  if (state.target !== null) said.push(`class=${state.target}`);
  const dials = Object.entries(state.offsets).filter(([, value]) => value !== 0);
  if (dials.length) said.push(`dials=${dials.map(([k, value]) => `${Number(k) + 1}:${Number(value.toFixed(4))}`).join(",")}`);
  if (state.change) said.push(`change=${run.changes[state.change].name}`);
  for (const name of ["stop", "layer", "iteration"]) if (state[name] !== null) said.push(`${name}=${state[name]}`);
  return said.join("&");
}

/** The states of one or two views from the part of a URL after #. */
export function parseHash(hash, runs) {
  return hash.replace(/^#/, "").split("|").slice(0, 2).map((text) => parseView(text, runs));
}

/** The part of a URL after # for one or two views. */
export function formatHash(states, runs) {
  return states.map((state) => formatView(state, runs)).join("|");
}

/** Test images that a URL names but the page does not contain: [{ run, number }]. */
export function missingImages(hash, runs) {
  return hash.replace(/^#/, "").split("|").slice(0, 2).flatMap((text) => {
    const said = new URLSearchParams(text);
    const run = whole(said.get("run"), runs.length) ?? 0;
    const number = whole(said.get("image"), runs[run].of);
    return number === null || runs[run].images.some((facts) => facts.number === number) ? [] : [{ run, number }];
  });
}
