// One view of a run: image → capsules → drawing, the dials, the changed input, the routing.

import { heading, makeArrow, makeBars, norm } from "./capsules.js";
import { makeChanged } from "./changed.js";
import { decode } from "./decoder.js";
import { makeDials } from "./dials.js";
import { h, roveByArrows } from "./dom.js";
import { paint, paintDifference, sheet } from "./pictures.js";
import { makeRouting } from "./routing.js";
import { aboutImage, aboutLength, silence, signed } from "./words.js";

const PLAY_SECONDS = 3;

/** All that follows from a state. */
export function viewOf(run, state) {
  const facts = run.images[state.image];
  const activations = run.grid("activations").row(state.image);
  const target = state.target ?? facts.predicted;
  const pose = run.grid("poses").row(state.image, target);
  const turnedPose = Float32Array.from(pose, (value, k) => value + (state.offsets[k] ?? 0));
  const axes = run.grid("axes").row(target);
  const turnedLength = norm(turnedPose);
  return {
    runNumber: state.run,
    facts,
    activations,
    target,
    pose,
    pixels: Float32Array.from(run.grid("images").row(state.image), (value) => value / 255),
    offsets: state.offsets,
    turnedDials: Object.values(state.offsets).filter((value) => value !== 0).length,
    activation: activations[target],
    length: norm(pose),
    turnedLength,
    turnedActivation: run.lengthIsActivation ? turnedLength : activations[target],
    heading: heading(axes, pose),
    turnedHeading: heading(axes, turnedPose),
    drawing: run.layers && decode(run.layers, target, turnedPose),
  };
}

function makeStrip(run, choose) {
  const buttons = run.images.map((facts, k) => {
    const canvas = h("canvas", { "aria-hidden": "true" });
    paint(canvas, Float32Array.from(run.grid("images").row(k), (value) => value / 255), [run.channels, ...run.size]);
    const wrong = facts.truth !== facts.predicted;
    const label = `Test image ${facts.number}: ${run.classes[facts.truth]}${wrong ? `, taken for ${run.classes[facts.predicted]}` : ""}`;
    return h(
      "button",
      { type: "button", role: "radio", "data-value": k, "aria-label": label, title: label, onclick: () => choose(k) },
      canvas, wrong && h("span", { class: "wrong", "aria-hidden": "true" }, "✗"),
    );
  });
  const strip = h("div", { class: "strip", role: "radiogroup", "aria-label": "Images" }, buttons);
  roveByArrows(strip, choose);
  const set = (chosen) =>
    buttons.forEach((button, k) => {
      button.setAttribute("aria-checked", k === chosen);
      button.tabIndex = k === chosen ? 0 : -1;
      if (k !== chosen) return;
      const middle = button.offsetLeft + button.offsetWidth / 2 - strip.clientWidth / 2;
      strip.scrollLeft = middle - strip.offsetLeft;
    });
  return { element: strip, set };
}

function figure(kind, caption) {
  const canvas = h("canvas", { role: "img", "aria-label": caption });
  return { canvas, caption: h("figcaption", {}, caption), element: null, kind };
}

function framed(kind, words) {
  const made = figure(kind, words);
  made.element = h("figure", { class: kind }, made.canvas, made.caption);
  return made;
}

const arrowTo = () => h("span", { class: "to", "aria-hidden": "true" }, "→");

/** A run's view; `change(values)` is asked to set parts of the state, and answers with `show(state)`. */
export function makePane(run, change) {
  const strip = makeStrip(run, (image) => change({ image, target: null, offsets: {} }));
  const about = h("p", { class: "about", role: "status" });
  const input = framed("input", "input");
  const drawing = framed("drawing", "drawing");
  const difference = framed("difference", "difference");
  const bars = makeBars((target) => change({ target, offsets: {} }));
  const arrow = makeArrow();
  const silent = h("p", { class: "silent", role: "status" });
  const lengths = h("p", { class: "lengths" });
  const dials = run.layers && makeDials(run, (dial, value) => change({ offsets: { [dial]: value } }));
  const tools = makeTools(run, dials, change, () => sheetOf(run, [input, drawing, difference]));
  const changed = makeChanged(run, change);
  const routing = makeRouting(run, change);
  const drawn = run.layers ? [arrowTo(), drawing.element, difference.element] : [];
  const row = h("div", { class: "row" }, bars.element, input.element, arrowTo(), arrow.element, ...drawn);
  const workbench = h(
    "section",
    { class: "bench" },
    row, silent, lengths,
    run.layers ? [dialsHead(), dials.element] : h("p", { class: "note" }, run.whyNoDials),
    tools.element,
  );
  const element = h("article", { class: "pane" }, strip.element, about, workbench, changed.element, routing.element);
  let measured = "";

  function show(state) {
    const view = viewOf(run, state);
    strip.set(state.image);
    const said = aboutImage(run, view.facts, view.activations);
    if (about.textContent !== said) about.textContent = said;
    bars.show(run, view);
    arrow.show(run, view);
    lengths.textContent = aboutLength(run, view);
    const silenceNow = run.layers ? silence(run, view.target, view.activations) : "";
    if (silent.textContent !== silenceNow) silent.textContent = silenceNow;
    element.classList.toggle("is-silent", silenceNow !== "");
    if (run.layers) showDrawing(view);
    const here = `${state.image}:${view.target}`;
    const all = here !== measured;
    measured = here;
    if (all) paint(input.canvas, view.pixels, [run.channels, ...run.size]);
    if (all && dials) dials.measure(view.target, view.pose);
    tools.show(view);
    return view;
  }

  function showDrawing(view) {
    const shape = [run.channels, ...run.decoder.size];
    paint(drawing.canvas, view.drawing, shape);
    const alike = view.drawing.length === view.pixels.length;
    difference.element.hidden = !alike;
    if (alike) paintDifference(difference.canvas, view.drawing, view.pixels, shape);
    drawing.caption.textContent = element.classList.contains("is-silent") ? "drawing, of a silent capsule" : "drawing";
    dials.show(view);
  }

  function showAll(state) {
    const view = show(state);
    changed.show(view, state);
    routing.show(view, state);
  }
  return { element, show, showAll, play: tools.play, stop: tools.stop };
}

function dialsHead() {
  return h(
    "p",
    { class: "hint" },
    "One dial for each number of the capsule, the one that changes the drawing most first; at its sides what its ends draw. ",
    h("span", { class: "keys" }, "Keys: ↑ ↓ next dial, ← → turn, Enter to type, Delete back to the start."),
  );
}

function sheetOf(run, figures) {
  const shown = figures.filter(({ element }) => element.isConnected && !element.hidden);
  const about = figures[0].element.closest(".pane");
  return sheet(
    shown.map(({ canvas }) => canvas),
    [
      `${run.name}: ${shown.map(({ kind }) => kind).join(", ")}`,
      about.querySelector(".about").textContent,
      about.querySelector(".tools").dataset.turned,
    ].filter(Boolean),
  );
}

/** Play, reset, save and send. */
function makeTools(run, dials, change, picture) {
  const said = h("p", { class: "told", role: "status" });
  const button = (text, act) => h("button", { type: "button", onclick: act }, text);
  let playing = null;
  const play = button("Play the strongest dial", () => (playing === null ? start() : stop()));
  const reset = button("All dials back", () => change({ offsets: null }));
  const save = button("Save the picture (PNG)", () => {
    h("a", { href: picture(), download: `${run.name}.png` }).click();
  });
  const send = button("Copy the link to this view", async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      said.textContent = "The link is copied. Whoever has this file sees the same view with what stands after #.";
    } catch {
      said.textContent = "This browser does not let the page copy. The link stands in the address bar.";
    }
  });
  const element = h("div", { class: "tools" }, ...(dials ? [play, reset] : []), save, send, said);

  function start() {
    const dial = dials.strongest();
    const began = performance.now();
    const frame = (now) => {
      const part = Math.min(1, Math.max(0, now - began) / (1000 * PLAY_SECONDS));
      change({ offsets: { [dial]: part < 1 ? Math.sin(2 * Math.PI * part) * run.dials.most : 0 } });
      playing = part < 1 ? requestAnimationFrame(frame) : null;
      play.textContent = playing === null ? "Play the strongest dial" : "Stop";
    };
    playing = requestAnimationFrame(frame);
  }
  function stop() {
    if (playing === null) return;
    cancelAnimationFrame(playing);
    playing = null;
    play.textContent = "Play the strongest dial";
  }
  function show(view) {
    const turned = Object.entries(view.offsets).filter(([, value]) => value !== 0);
    element.dataset.turned = turned.map(([k, value]) => `${run.dials.names[k]} ${signed(value)}`).join(", ");
    reset.disabled = turned.length === 0;
  }
  return { element, show, play: () => dials && start(), stop };
}
