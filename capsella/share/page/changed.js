// The input turned, shifted or scaled: pose numbers move while the length holds. All of it seen by the network before.

import { makeEasel } from "./artist.js";
import { angleBetween, heading } from "./capsules.js";
import { choices, h, svg } from "./dom.js";
import { paint } from "./pictures.js";
import { namedSlider } from "./slider.js";
import { turned } from "./turned.js";
import { plain, signed } from "./words.js";

const WIDTH = 560;
const HEIGHT = 150;
const LOOKING = "The network is looking at this image, turned, shifted and scaled…";
const NAMES = { turn: "Turn", shift: "Shift", scale: "Scale" };

/** "turned by +20°", "shifted by −2 px", "scaled to 80 %", "unchanged". */
export function sayChange({ name, unit, amounts }, stop) {
  const amount = amounts[stop];
  if (stop === (amounts.length - 1) / 2) return "unchanged";
  if (name === "scale") return `scaled to ${amount}${unit}`;
  return `${name === "turn" ? "turned" : "shifted"} by ${signed(amount, 0)}${unit}`;
}

/** A line through values, the first at the left edge; y runs from `low` at the bottom to `high` at the top. */
export function linePath(values, low, high, width = WIDTH, height = HEIGHT) {
  const y = (value) => height - ((value - low) / (high - low || 1)) * height;
  return Array.from(values, (value, k) => `${k ? "L" : "M"}${((k * width) / (values.length - 1)).toFixed(1)} ${y(value).toFixed(1)}`).join("");
}

function makeChart(label, ticks) {
  const lines = svg("g", {});
  const marks = svg("g", { class: "ticks" });
  const cursor = svg("line", { class: "cursor", y1: 0, y2: HEIGHT });
  const drawing = svg("svg", { viewBox: `-36 -10 ${WIDTH + 46} ${HEIGHT + 20}`, role: "img", "aria-label": label }, marks, cursor, lines);
  function show(series, low, high, stop, stops) {
    const y = (value) => HEIGHT - ((value - low) / (high - low || 1)) * HEIGHT;
    marks.replaceChildren(
      ...ticks(low, high).flatMap((value) => [
        svg("line", { x1: 0, x2: WIDTH, y1: y(value), y2: y(value) }),
        svg("text", { x: -6, y: y(value) + 4 }, plain(value, 1)),
      ]),
    );
    const x = (stop * WIDTH) / (stops - 1);
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    lines.replaceChildren(
      ...series.flatMap(({ values, kind }) => [
        svg("path", { class: kind, d: linePath(values, low, high) }),
        svg("circle", { class: kind, cx: x, cy: y(values[stop]), r: kind === "faint" ? 2.5 : 4 }),
      ]),
    );
  }
  return { element: drawing, show };
}

/** The two pose numbers that move most, and how far the largest goes. */
export function movers(poses, d) {
  const stops = poses.length / d;
  const ranges = Array.from({ length: d }, (_, k) => {
    const values = Array.from({ length: stops }, (_, stop) => poses[stop * d + k]);
    return Math.max(...values) - Math.min(...values);
  });
  return ranges.map((_, k) => k).sort((a, b) => ranges[b] - ranges[a]).slice(0, 2);
}

/** The section; `change(values)` sets parts of the state. */
export function makeChanged(run, change) {
  const input = h("canvas", { role: "img", "aria-label": "The input, changed" });
  const drawing = h("canvas", { role: "img", "aria-label": "What the capsule of the changed input draws" });
  const drawingCaption = h("figcaption", {}, "drawn from its capsule");
  const said = h("p", { class: "said", role: "status" });
  const lengths = makeChart("How sure the capsule is, at each amount", () => [0, 0.5, 1]);
  const poses = makeChart("Each number of the pose, at each amount", (low, high) => [low, 0, high]);
  const kinds = choices("How the input is changed", run.changes.map(({ name }) => NAMES[name]), (k) => change({ change: k, stop: null }));
  const range = { min: 0, max: run.changes[0].amounts.length - 1, step: 1, rest: (run.changes[0].amounts.length - 1) / 2 };
  let current = run.changes[0];
  const slider = namedSlider("Amount", range, (stop) => sayChange(current, stop), (stop) => change({ stop }));
  const legend = h("p", { class: "legend" });
  const element = h(
    "section",
    { class: "changed" },
    h("h2", {}, "Change the input, and the pose follows"),
    h("p", {}, `Here the network did look: every changed image ${run.server ? "is" : "was"} shown to it${run.server ? "" : " when this page was made"}. A good capsule stays as sure, and its numbers move.`),
    h("div", { class: "controls" }, kinds.element, slider.element),
    said,
    h(
      "div",
      { class: "changed-row" },
      h("figure", {}, input, h("figcaption", {}, "input, changed")),
      run.artist && h("figure", {}, drawing, drawingCaption),
      h("figure", { class: "chart" }, lengths.element, h("figcaption", {}, "how sure")),
      h("figure", { class: "chart" }, poses.element, legend),
    ),
  );

  const draw = run.artist && easelOn(run, drawing, drawingCaption);
  let shown = null; // what is to be seen, once it is in sight and known
  const known = (image) => run.its(image, "changedPoses0") !== undefined;
  const inSight = makeLooker(run, element, (image, failure) => {
    if (!shown || shown.view.image !== image) return;
    if (failure) said.textContent = failure;
    else showKnown(shown.view, shown.state);
  });

  function show(view, state) {
    shown = { view, state };
    current = run.changes[state.change];
    const stop = state.stop ?? range.rest;
    kinds.set(state.change);
    slider.set(stop);
    const changed = turned(view.pixels, [run.channels, ...run.size], current.name, current.amounts[stop]);
    paint(input, changed, [run.channels, ...run.size]);
    element.classList.toggle("unknown", !known(view.image));
    if (known(view.image)) return showKnown(view, state);
    said.textContent = LOOKING;
    inSight.ask(view);
  }

  function showKnown(view, state) {
    element.classList.remove("unknown");
    const stop = state.stop ?? range.rest;
    const target = view.facts.predicted;
    const found = run.its(state.image, `changedPoses${state.change}`).row();
    const d = run.dials.names.length;
    const poseAt = (k) => found.subarray(k * d, (k + 1) * d);
    draw?.({ image: state.image, target, pose: poseAt(stop), found: poseAt(range.rest) });
    const active = run.its(state.image, `changedActivations${state.change}`);
    const stops = current.amounts.length;
    const sure = Array.from({ length: stops }, (_, k) => active.row(k)[target]);
    lengths.show([{ values: sure, kind: "first" }], 0, 1, stop, stops);
    showPoses(found, d, stop);
    const angle = angleBetween(poseAt(range.rest), poseAt(stop));
    const strongest = active.row(stop).reduce((best, value, k, all) => (value > all[best] ? k : best), 0);
    said.textContent =
      `Capsule of ${run.classes[target]}, the input ${sayChange(current, stop)}: ` +
      `how sure ${plain(sure[range.rest])} → ${plain(sure[stop])}, direction ${plain(angle, 0)}° from where it was.` +
      (strongest === target ? "" : ` The network now says ${run.classes[strongest]}.`);
  }

  function showPoses(found, d, stop) {
    const stops = found.length / d;
    const most = movers(found, d);
    const high = Math.max(...found.map(Math.abs), 0.1);
    const series = Array.from({ length: d }, (_, k) => ({
      values: Array.from({ length: stops }, (_, at) => found[at * d + k]),
      kind: ["first", "second"][most.indexOf(k)] ?? "faint",
    })).sort((a, b) => (a.kind === "faint" ? 0 : 1) - (b.kind === "faint" ? 0 : 1));
    poses.show(series, -high, high, stop, stops);
    legend.replaceChildren(
      "the pose: ", h("span", { class: "first" }, run.dials.names[most[0]]),
      ...(most.length > 1 ? [" and ", h("span", { class: "second" }, run.dials.names[most[1]])] : []), " move most",
    );
  }
  return { element, show };
}

/** Draws what the capsule of a changed input holds. */
function easelOn(run, canvas, caption) {
  const shape = [run.channels, ...run.decoder.size];
  const say = (how, text) => {
    canvas.parentElement.className = how;
    caption.textContent = text;
  };
  return makeEasel(run.artist, {
    show(picture, how) {
      paint(canvas, picture, shape);
      say(how, how ? "drawing…" : "drawn from its capsule");
    },
    wait: () => say("late", "drawing…"),
    fail: (sentence) => say("failed", sentence),
  });
}

/** Asks the server for what becomes of an image, once the section is in sight; `done(image, failure)` when it is known. */
function makeLooker(run, element, done) {
  let wish = null;
  let seen = false;
  async function go() {
    if (!seen || !wish) return;
    const { image, facts } = wish;
    wish = null;
    try {
      run.learn(image, await run.server.changes(run.number, run.its(image, "images").row(), facts.predicted));
      done(image, "");
    } catch (error) {
      done(image, error.message);
    }
  }
  if (run.server) {
    new IntersectionObserver((entries) => {
      seen = entries[entries.length - 1].isIntersecting;
      go();
    }).observe(element);
  }
  return {
    ask(view) {
      wish = view;
      go();
    },
  };
}
