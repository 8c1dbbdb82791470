// One view of a run: image → capsules → drawing, the dials, the changed input, the routing.

import { heading, makeArrow, makeBars, norm, offsetsTowards } from "./capsules.js";
import { isInverted } from "./certainty.js";
import { makeChanged } from "./changed.js";
import { decode } from "./decoder.js";
import { makeDials } from "./dials.js";
import { h, roveByArrows } from "./dom.js";
import { term } from "./glossary.js";
import { makeMore } from "./more.js";
import { paint, paintDifference } from "./pictures.js";
import { makeRouting } from "./routing.js";
import { sheet } from "./saved.js";
import { makeTools, sayTurned } from "./tools.js";
import { aboutCertainty, aboutImage, aboutLength, isWrong, nameOf, namesOf, silence } from "./words.js";

/** Everything to show, computed from a state. */
function viewOf(run, state) {
  const facts = run.images[state.image];
  const activations = run.its(state.image, "activations").row();
  const target = state.target ?? facts.predicted;
  const pose = run.its(state.image, "poses").row(target);
  const turnedPose = Float32Array.from(pose, (value, k) => value + (state.offsets[k] ?? 0));
  const axes = run.grid("axes").row(target);
  const turnedLength = norm(turnedPose);
  return {
    runNumber: state.run,
    image: state.image,
    facts,
    activations,
    target,
    pose,
    turnedPose,
    pixels: Float32Array.from(run.its(state.image, "images").row(), (value) => value / 255),
    offsets: state.offsets,
    turnedDials: Object.values(state.offsets).filter((value) => value !== 0).length,
    activation: activations[target],
    length: norm(pose),
    turnedLength,
    turnedActivation: run.lengthIsActivation ? turnedLength : activations[target],
    heading: heading(axes, pose),
    turnedHeading: heading(axes, turnedPose),
  };
}

function makeThumbnail(run, k, choose) {
  const facts = run.images[k];
  const canvas = h("canvas", { "aria-hidden": "true" });
  paint(canvas, Float32Array.from(run.its(k, "images").row(), (value) => value / 255), [run.channels, ...run.size]);
  const called = nameOf(facts);
  const truth = facts.truth.length ? `: ${namesOf(run, facts.truth)}` : "";
  const label = `${called}${truth}${isWrong(facts) ? `, taken for ${namesOf(run, facts.taken)}` : ""}`;
  return h(
    "button",
    { type: "button", role: "radio", "data-value": k, "aria-label": label, title: label, onclick: () => choose(k) },
    canvas, isWrong(facts) && h("span", { class: "wrong", "aria-hidden": "true" }, "✗"),
  );
}

function makeStrip(run, choose) {
  const buttons = [];
  const strip = h("div", { class: "strip", role: "radiogroup", "aria-label": "Images" });
  roveByArrows(strip, choose);
  function set(chosen) {
    while (buttons.length < run.images.length) buttons.push(makeThumbnail(run, buttons.length, choose));
    strip.append(...buttons.slice(strip.children.length));
    buttons.forEach((button, k) => {
      button.setAttribute("aria-checked", k === chosen);
      button.tabIndex = k === chosen ? 0 : -1;
    });
    const middle = buttons[chosen].offsetLeft + buttons[chosen].offsetWidth / 2 - strip.clientWidth / 2;
    strip.scrollLeft = middle - strip.offsetLeft;
  }
  return { element: strip, set };
}

function framed(kind, words) {
  const canvas = h("canvas", { role: "img", "aria-label": words });
  const caption = h("figcaption", {}, words);
  return { canvas, caption, element: h("figure", { class: kind }, canvas, caption) };
}

const arrowTo = () => h("span", { class: "to", "aria-hidden": "true" }, "→");

/** The drawing beside the input, and their difference. */
function makeDrawing(run) {
  const drawing = framed("drawing", "drawing");
  const difference = framed("difference", "difference");
  difference.caption.append(h("span", { class: "key" }, ": orange is only in the drawing; blue is only in the input"));
  const shape = [run.channels, ...(run.decoder?.size ?? run.size)];

  function show(view, isSilent) {
    const picture = decode(run.layers, view.target, view.turnedPose);
    paint(drawing.canvas, picture, shape);
    difference.element.hidden = picture.length !== view.pixels.length;
    if (!difference.element.hidden) paintDifference(difference.canvas, picture, view.pixels, shape);
    drawing.caption.textContent = isSilent ? "drawing of a silent capsule" : "drawing";
  }
  return { figures: [drawing, difference], show, elements: run.layers ? [arrowTo(), drawing.element, difference.element] : [] };
}

/**
 * A view of a run. It calls `change(values)` to set parts of the state, whereupon `show(state)` is called, and
 * `bring(wanted)` to get an image that the page does not hold.
 */
export function makePane(run, change, bring) {
  const strip = makeStrip(run, (image) => change({ image, target: null, offsets: {} }));
  const news = h("p", { class: "news", role: "status" });
  const say = (text) => (news.textContent = text);
  const more = run.looker && makeMore(run, bring, say);
  const certainty = h("p", { class: "certainty", role: "status" });
  const invert = h("button", { type: "button", hidden: true, onclick: () => bringInverted(run, view.image, bring) }, "This looks like a negative. Invert it");
  const about = h("p", { class: "about", role: "status" });
  const input = framed("input", "input");
  const drawn = makeDrawing(run);
  const bars = makeBars((target) => change({ target, offsets: {} }));
  const dragged = (angle) => change({ offsets: offsetsTowards(run.grid("axes").row(view.target), view.pose, angle, run.dials.most) });
  const arrow = makeArrow(run.layers && dragged);
  const silent = h("p", { class: "silent", role: "status" });
  const lengths = h("p", { class: "lengths" });
  const dials = run.layers ? makeDials(run, (dial, value) => change({ offsets: { [dial]: value } })) : null;
  const tools = makeTools(run, dials, change, pictured);
  const changed = makeChanged(run, change);
  const routing = makeRouting(run, change);
  const row = h("div", { class: "row" }, bars.element, input.element, arrowTo(), arrow.element, ...drawn.elements);
  const workbench = h(
    "section",
    { class: "bench" },
    row, silent, lengths,
    dials ? [dialsHead(), dials.element] : h("p", { class: "note" }, run.whyNoDials),
    tools.element,
  );
  const head = h("div", { class: "head" }, h("div", {}, strip.element, about, certainty, invert, news, more?.element), more?.pad);
  const element = h("article", { class: "pane" }, head, workbench, changed.element, routing.element);
  if (run.looker) takeDrops(element, bring);
  let measured = "";
  let view = null;

  /** The pictures of the row and the texts about them, as a single picture. */
  function pictured(side) {
    const pictures = (run.layers ? [input, ...drawn.figures] : [input]).filter((one) => !one.element.hidden);
    const [first, ...others] = pictures.map(({ canvas, caption }) => ({ picture: canvas, caption: caption.textContent }));
    const lines = [run.name, about.textContent, silent.textContent, sayTurned(run, view.offsets)];
    return sheet([bars.figure(), first, arrow.figure(), ...others], lines, side);
  }
  function show(state) {
    view = viewOf(run, state);
    strip.set(state.image);
    const said = aboutImage(run, view.facts, view.activations);
    if (about.textContent !== said) about.textContent = said;
    certainty.textContent = aboutCertainty(view.facts);
    certainty.classList.toggle("strange", Boolean(view.facts.unlike));
    invert.hidden = !isInverted(run, view.image);
    bars.show(run, view);
    arrow.show(run, view);
    lengths.textContent = dials ? aboutLength(run, view) : "";
    const silenceNow = run.layers ? silence(run, view.target, view.activations) : "";
    if (silent.textContent !== silenceNow) silent.textContent = silenceNow;
    element.classList.toggle("is-silent", silenceNow !== "");
    if (run.layers) drawn.show(view, silenceNow !== "");
    dials?.show(view);
    const here = `${state.image}:${view.target}`;
    const all = here !== measured;
    measured = here;
    if (all) paint(input.canvas, view.pixels, [run.channels, ...run.size]);
    if (all && dials) dials.measure(view.target, view.pose);
    tools.show(view);
  }

  function showAll(state) {
    show(state);
    changed.show(view, state);
    routing.show(view, state);
  }
  const told = () => ({ name: run.classes[view.target], length: view.activation });
  return { element, run, show, showAll, say, said: told, play: tools.play, stop: tools.stop };
}

/** Has the network look at a file that is dropped on the view. */
function takeDrops(element, bring) {
  const over = (isOver) => (event) => {
    event.preventDefault();
    element.classList.toggle("over", isOver);
  };
  element.addEventListener("dragover", over(true));
  element.addEventListener("dragleave", over(false));
  element.addEventListener("drop", (event) => {
    over(false)(event);
    takeFile(event.dataTransfer.files, bring);
  });
}

/** Has the network look at the first of the dropped files. */
export function takeFile([file, ...others], bring) {
  if (file) bring({ file }, others.length ? `One at a time: this is ${file.name}, the first of ${others.length + 1}.` : "");
}

/** Has the network look at the negative of the reader's own image. */
function bringInverted(run, image, bring) {
  const canvas = document.createElement("canvas");
  paint(canvas, Float32Array.from(run.its(image, "images").row(), (value) => 1 - value / 255), [run.channels, ...run.size]);
  canvas.toBlob((blob) => bring({ file: new File([blob], `${run.images[image].title}, inverted`) }), "image/png");
}

function dialsHead() {
  return h(
    "p",
    { class: "hint" },
    "One ", term("dial"), " for each number of the capsule’s ", term("pose"), ", sorted by their effect on the drawing. Beside each dial are the drawings at its two ends. ",
    h("span", { class: "keys" }, "Keys: ↑ ↓ next dial, ← → turn, Enter to type, Delete back to the start. A mouse can drag the arrow."),
  );
}
