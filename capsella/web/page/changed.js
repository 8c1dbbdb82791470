// The section on changed inputs: the image turned, shifted or scaled, each version encoded by the network.

import { angleBetween, strongest } from "./capsules.js";
import { makeChart, namedMovers, seriesOf } from "./chart.js";
import { decode } from "./decoder.js";
import { choices, h } from "./dom.js";
import { term } from "./glossary.js";
import { paint } from "./pictures.js";
import { makeSavers, sheet } from "./saved.js";
import { namedSlider } from "./slider.js";
import { turned } from "./turned.js";
import { aboutFollowing, plain, signed } from "./words.js";

const LOOKING = "The network is looking at this image, turned, shifted and scaled…";
const NAMES = { turn: "Turn", shift: "Shift", scale: "Scale" };

/** "turned by +20°", "shifted by −2 px", "scaled to 80 %", "unchanged". */
export function sayChange({ name, unit, amounts }, stop) {
  const amount = amounts[stop];
  if (stop === (amounts.length - 1) / 2) return "unchanged";
  if (name === "scale") return `scaled to ${amount}${unit}`;
  return `${name === "turn" ? "turned" : "shifted"} by ${signed(amount, 0)}${unit}`;
}

/** The section; `change(values)` sets parts of the state. */
export function makeChanged(run, change) {
  const input = h("canvas", { role: "img", "aria-label": "The input, changed" });
  const drawing = h("canvas", { role: "img", "aria-label": "What the capsule of the changed input draws" });
  const said = h("p", { class: "said", role: "status" });
  const lengths = makeChart("How sure the capsule is, at each amount", () => [0, 0.5, 1]);
  const poses = makeChart("Each number of the pose, at each amount", (low, high) => [low, 0, high]);
  const kinds = choices("How the input is changed", run.changes.map(({ name }) => NAMES[name]), (k) => change({ change: k, stop: null }));
  const range = { min: 0, max: run.changes[0].amounts.length - 1, step: 1, rest: (run.changes[0].amounts.length - 1) / 2 };
  let current = run.changes[0];
  const slider = namedSlider("Amount", range, (stop) => sayChange(current, stop), (stop) => change({ stop }));
  const legend = h("p", { class: "legend" });
  const whose = run.beside ? `how sure: ${run.name} (orange), ${run.beside} (blue, a CNN)` : "how sure";
  const told = h("p", { class: "told", role: "status" });
  const savers = makeSavers(`${run.name}-changed`, { png: "Save these pictures (PNG)" }, pictured, null, (text) => (told.textContent = text));
  const lead = h("p", { class: "lead", role: "status" });
  const element = h(
    "section",
    { class: "changed" },
    h("h2", {}, "Change the input: does the pose follow?"),
    h("p", {}, `Every changed image ${run.server ? "is" : "was"} shown to the network${run.looker ? "" : " when this page was made"}. Ideally the capsule stays as sure, and its `, term("pose"), " follows."),
    lead,
    h("div", { class: "controls" }, kinds.element, slider.element),
    said,
    h(
      "div",
      { class: run.layers ? "changed-row" : "changed-row undrawn" },
      h("figure", {}, input, h("figcaption", {}, "input, changed")),
      run.layers && h("figure", {}, drawing, h("figcaption", {}, "drawn from its capsule")),
      h("figure", { class: "chart" }, lengths.element, h("figcaption", {}, whose)),
      h("figure", { class: "chart" }, poses.element, legend),
    ),
    h("div", { class: "tools" }, ...savers.elements, told),
  );

  let shown = null; // the view and state to show
  const known = (image) => run.its(image, "changedPoses0") !== undefined;
  const inSight = makeLooker(run, element, (image, failure) => {
    if (!shown || shown.view.image !== image) return;
    if (failure) said.textContent = failure;
    else showKnown(shown.view, shown.state);
  });

  function pictured(side) {
    const drawings = run.layers ? [{ picture: drawing, caption: "drawn from its capsule" }] : [];
    const charts = [{ picture: lengths.element, caption: whose }, { picture: poses.element, caption: legend.textContent }];
    const figures = [{ picture: input, caption: "input, changed" }, ...(known(shown.view.image) ? [...drawings, ...charts] : [])];
    return sheet(figures, [run.name, said.textContent], side);
  }
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
    if (run.layers) paint(drawing, decode(run.layers, target, poseAt(stop)), [run.channels, ...run.decoder.size]);
    const active = run.its(state.image, `changedActivations${state.change}`);
    const stops = current.amounts.length;
    const sureness = (activations) => Array.from({ length: stops }, (_, k) => activations.row(k)[target]);
    const sure = sureness(active);
    const cnn = run.its(state.image, `cnnActivations${state.change}`);
    lengths.show([...(cnn ? [{ values: sureness(cnn), kind: "second" }] : []), { values: sure, kind: "first" }], 0, 1, stop, current);
    lead.textContent = aboutFollowing(current, angleBetween(poseAt(0), poseAt(stops - 1)), Math.min(...sure) - sure[range.rest]);
    showPoses(found, d, stop);
    const angle = angleBetween(poseAt(range.rest), poseAt(stop));
    const taken = strongest(active.row(stop));
    said.textContent =
      `Capsule of ${run.classes[target]}, the input ${sayChange(current, stop)}: ` +
      `how sure ${plain(sure[range.rest])} → ${plain(sure[stop])}, direction turned by ${plain(angle, 0)}°.` +
      (taken === target ? "" : ` The network now says ${run.classes[taken]}.`);
  }

  function showPoses(found, d, stop) {
    const { series, most, high } = seriesOf(found, d);
    poses.show(series, -high, high, stop, current);
    legend.replaceChildren("the pose: ", ...namedMovers(most.map((k) => run.dials.names[k])), d > 2 ? "; grey: the other numbers" : "");
  }
  return { element, show };
}

/** Has the network encode changed versions of an image once the section is in sight, then calls `done(image, failure)`. */
function makeLooker(run, element, done) {
  const asked = new Set(); // images that the network is looking at
  let wish = null;
  let seen = false;
  async function go() {
    if (!seen || !wish) return;
    const { image, facts } = wish;
    wish = null;
    if (asked.has(image)) return;
    asked.add(image);
    try {
      run.learn(image, await run.looker.changes(run.its(image, "images").row(), facts.predicted));
      done(image, "");
    } catch (error) {
      done(image, error.message);
    }
    asked.delete(image);
  }
  if (run.looker) {
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
