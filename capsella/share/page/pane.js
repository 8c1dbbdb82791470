// One view of a run: image → capsules → drawing, the dials, the changed input, the routing.

import { makeEasel } from "./artist.js";
import { heading, makeArrow, makeBars, norm } from "./capsules.js";
import { makeChanged } from "./changed.js";
import { makeDials } from "./dials.js";
import { h, roveByArrows } from "./dom.js";
import { makeMore } from "./more.js";
import { paint, paintBoth, paintDifference, sheet } from "./pictures.js";
import { makeRouting } from "./routing.js";
import { aboutImage, aboutLength, isWrong, nameOf, namesOf, silence, signed } from "./words.js";

const PLAY_SECONDS = 3;

/** All that follows from a state. */
export function viewOf(run, state) {
  const facts = run.images[state.image];
  const activations = run.its(state.image, "activations").row();
  const poses = run.its(state.image, "poses");
  const target = state.target ?? facts.predicted;
  const pose = poses.row(target);
  const turnedPose = Float32Array.from(pose, (value, k) => value + (state.offsets[k] ?? 0));
  const axes = run.grid("axes").row(target);
  const turnedLength = norm(turnedPose);
  const other = facts.taken.length > 1 ? facts.taken.find((k) => k !== target) : null; // of a pair
  return {
    runNumber: state.run,
    image: state.image,
    facts,
    activations,
    target,
    pose,
    turnedPose,
    other,
    otherPose: other === null ? null : poses.row(other),
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
  const called = nameOf(facts).replace(/^./, (letter) => letter.toUpperCase());
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

/** The drawing beside the input, and the difference; of a pair both drawings in one. */
function makeDrawing(run, input) {
  const drawing = framed("drawing", "drawing");
  const difference = framed("difference", "difference");
  const shape = [run.channels, ...(run.decoder?.size ?? run.size)];
  const pictures = { first: null, second: null };
  let view = null;
  let isSilent = false;
  const say = (text) => (drawing.caption.textContent = text);
  const busy = (how) => {
    for (const { element } of [drawing, difference]) {
      element.classList.toggle("late", how === "late");
      element.classList.toggle("failed", how === "failed");
    }
  };

  function paintAll() {
    const { first, second } = pictures;
    const pair = view.other !== null;
    if (!first || (pair && !second)) return false;
    if (pair) paintBoth(drawing.canvas, first, second, shape);
    else paint(drawing.canvas, first, shape);
    const whole = pair ? first.map((value, k) => Math.min(1, value + second[k])) : first;
    difference.element.hidden = whole.length !== view.pixels.length;
    if (!difference.element.hidden) paintDifference(difference.canvas, whole, view.pixels, shape);
    if (pair) say(`drawing: ${run.classes[view.target]} orange, ${run.classes[view.other]} blue`);
    else say(isSilent ? "drawing, of a silent capsule" : "drawing");
    return true;
  }
  const easelOf = (which) =>
    makeEasel(run.artist, {
      show(picture, last) {
        pictures[which] = picture;
        if (!paintAll()) return;
        busy(last ? "" : "late");
        if (!last) say("drawing…");
      },
      wait() {
        busy("late");
        say("drawing…");
      },
      fail(sentence) {
        busy("failed");
        say(sentence);
      },
    });
  const drawFirst = run.artist && easelOf("first");
  const drawSecond = run.artist && easelOf("second");

  function show(next, silent) {
    if (view?.image !== next.image) Object.assign(pictures, { first: null, second: null });
    view = next;
    isSilent = silent;
    drawFirst({ image: view.image, target: view.target, pose: view.turnedPose, turned: view.turnedDials > 0 });
    if (view.other !== null) drawSecond({ image: view.image, target: view.other, pose: view.otherPose, turned: false });
  }
  return { figures: [input, drawing, difference], show, elements: run.artist ? [arrowTo(), drawing.element, difference.element] : [] };
}

/**
 * A run's view. `change(values)` is asked to set parts of the state, and answers with `show(state)`; `bring(wanted)`
 * is asked for an image that the page does not hold.
 */
export function makePane(run, change, bring) {
  const strip = makeStrip(run, (image) => change({ image, target: null, offsets: {} }));
  const news = h("p", { class: "news", role: "status" });
  const say = (text) => (news.textContent = text);
  const more = run.server && makeMore(run, run.server.tests(run.number), bring, say);
  const about = h("p", { class: "about", role: "status" });
  const input = framed("input", "input");
  const drawn = makeDrawing(run, input);
  const bars = makeBars((target) => change({ target, offsets: {} }));
  const arrow = makeArrow();
  const silent = h("p", { class: "silent", role: "status" });
  const lengths = h("p", { class: "lengths" });
  const dials = run.artist?.mayTurn ? makeDials(run, (dial, value) => change({ offsets: { [dial]: value } })) : null;
  const tools = makeTools(run, dials, change, () => sheetOf(run, drawn.figures));
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
  const element = h("article", { class: "pane" }, strip.element, more, news, about, workbench, changed.element, routing.element);
  let measured = "";

  function show(state) {
    const view = viewOf(run, state);
    strip.set(state.image);
    const said = aboutImage(run, view.facts, view.activations);
    if (about.textContent !== said) about.textContent = said;
    bars.show(run, view);
    arrow.show(run, view);
    lengths.textContent = dials ? aboutLength(run, view) : "";
    const silenceNow = run.artist ? silence(run, view.target, view.activations) : "";
    if (silent.textContent !== silenceNow) silent.textContent = silenceNow;
    element.classList.toggle("is-silent", silenceNow !== "");
    if (run.artist) drawn.show(view, silenceNow !== "");
    dials?.show(view);
    const here = `${state.image}:${view.target}`;
    const all = here !== measured;
    measured = here;
    if (all) paint(input.canvas, view.pixels, [run.channels, ...run.size]);
    if (all && dials) dials.measure(state.image, view.target, view.pose);
    tools.show(view);
    return view;
  }

  function showAll(state) {
    const view = show(state);
    changed.show(view, state);
    routing.show(view, state);
  }
  return { element, show, showAll, say, play: tools.play, stop: tools.stop };
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
      const whoever = run.server ? "reaches this server" : "has this file";
      const without = element.dataset.sendable ? "" : " Your own image is not in it.";
      said.textContent = `The link is copied. Whoever ${whoever} sees the same view with what stands after #.${without}`;
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
    element.dataset.sendable = view.facts.number === null ? "" : "yes";
    reset.disabled = turned.length === 0;
  }
  return { element, show, play: () => dials && start(), stop };
}
