// What a view shows, and the same as the part of the address after #, so that a view can be sent.

/** An image, its strongest class, dials at zero. */
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

/** One view; what the text does not say, or says wrongly, is as at first. Dials are numbered from 1. */
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

/** One view or two, of what stands after #. */
export function parseHash(hash, runs) {
  return hash.replace(/^#/, "").split("|").slice(0, 2).map((text) => parseView(text, runs));
}

/** What stands after #, for one view or two. */
export function formatHash(states, runs) {
  return states.map((state) => formatView(state, runs)).join("|");
}

/** Test images that an address names and that the page does not hold: [{ run, number }]. */
export function missingImages(hash, runs) {
  return hash.replace(/^#/, "").split("|").slice(0, 2).flatMap((text) => {
    const said = new URLSearchParams(text);
    const run = whole(said.get("run"), runs.length) ?? 0;
    const number = whole(said.get("image"), runs[run].of);
    return number === null || runs[run].images.some((facts) => facts.number === number) ? [] : [{ run, number }];
  });
}
