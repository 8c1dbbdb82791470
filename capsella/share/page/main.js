// The page: one view, or two beside each other.

import { readContent } from "./content.js";
import { decode } from "./decoder.js";
import { choices, h } from "./dom.js";
import { makePane } from "./pane.js";
import { firstState, formatHash, parseHash } from "./state.js";

const page = document.getElementById("page");

/** The largest difference, in grey levels of 255, between this browser's drawings and PyTorch's. */
export function worstDrawing(run) {
  let worst = 0;
  run.images.forEach((facts, image) => {
    const drawn = decode(run.layers, facts.predicted, run.grid("poses").row(image, facts.predicted));
    const expected = run.grid("drawn").row(image);
    drawn.forEach((value, k) => (worst = Math.max(worst, Math.abs(255 * value - expected[k]))));
  });
  return worst;
}

function header(runs) {
  const names = runs.map((run) => run.name).join(" and ");
  return h(
    "header",
    {},
    h("h1", {}, "Inside a capsule network"),
    h("p", { class: "idea" },
      "What a capsule found is drawn here as an arrow: its ", h("b", {}, "length is how sure"), " it is, its ",
      h("b", {}, "direction is how it looks"), ". From that arrow alone, a decoder draws the picture again."),
    h("p", { class: "what" }, `${names}: ${runs.map((run) => `${run.network}, ${run.classes.length} classes`).join("; ")}.`),
  );
}

function footer(runs, compared) {
  const inside = runs.map((run) => `${run.images.length} of the ${run.of} test images of ${run.name}`).join(" and ");
  const checked = h("span", {});
  const when = compared
    ? "It was compared with PyTorch when it was made."
    : "It was not compared with PyTorch when it was made, because Node was not installed there.";
  const check = () => {
    const drawing = runs.filter((run) => run.layers);
    if (!drawing.length) return;
    const worst = Math.max(...drawing.map(worstDrawing));
    checked.textContent = ` In this browser, no pixel of the ${drawing.reduce((sum, run) => sum + run.images.length, 0)} drawings is further than ${worst.toFixed(1)} grey levels of 255 from PyTorch’s (rounding alone makes 0.5).`;
  };
  return { element: h("footer", {}, h("p", {}, `Inside this file: ${inside}. It asks no other machine for anything. ${when}`, checked)), check };
}

function makePage(runs, compared) {
  const views = []; // { state, pane, holder }
  const holders = h("div", { class: "panes" });
  const beside = h("button", { type: "button", class: "beside", onclick: () => (views.length > 1 ? remove() : add()) });
  const { element: foot, check } = footer(runs, compared);
  page.replaceChildren(header(runs), holders, beside, foot);
  let saving = null;

  function remember() {
    clearTimeout(saving);
    saving = setTimeout(() => history.replaceState(null, "", `#${formatHash(views.map(({ state }) => state), runs)}`), 150);
  }
  function build(view) {
    view.pane?.stop();
    view.pane = makePane(runs[view.state.run], (values) => set(view, values));
    const which = choices("Run", runs.map((run) => run.name), (run) => {
      view.state = firstState(run);
      build(view);
      remember();
    });
    which.set(view.state.run);
    which.element.hidden = runs.length < 2;
    view.holder.replaceChildren(which.element, view.pane.element);
    view.pane.showAll(view.state);
  }
  function set(view, values) {
    const onlyDials = Object.keys(values).length === 1 && "offsets" in values;
    let { offsets } = view.state;
    if (onlyDials && values.offsets) offsets = { ...offsets, ...values.offsets };
    else if ("offsets" in values) offsets = {};
    view.state = { ...view.state, ...values, offsets };
    if (onlyDials) view.pane.show(view.state);
    else view.pane.showAll(view.state);
    remember();
  }
  function open(state) {
    const view = { state, pane: null, holder: h("div", { class: "holder" }) };
    views.push(view);
    holders.append(view.holder);
    build(view);
  }
  function settle() {
    holders.classList.toggle("two", views.length > 1);
    beside.textContent = views.length > 1 ? "One view again" : runs.length > 1 ? "Put the other run beside it" : "Put a second image beside it";
  }
  function add() {
    const first = views[0].state;
    const other = runs.length > 1 ? 1 - first.run : first.run;
    open({ ...firstState(other), image: runs.length > 1 ? 0 : (first.image + 1) % runs[other].images.length });
    settle();
    remember();
  }
  function remove() {
    views.pop().holder.remove();
    settle();
    remember();
  }
  function follow() {
    const states = parseHash(location.hash, runs);
    while (views.length) views.pop().holder.remove();
    states.forEach(open);
    settle();
  }
  follow();
  window.addEventListener("hashchange", follow);
  return { views, check };
}

/** The strongest dial plays once, unless the reader likes no motion, came for a view, or does something first. */
function playOnce({ views }) {
  if (location.hash.length > 1 || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  const timer = setTimeout(() => views[0].pane.play(), 600);
  const cancel = () => {
    clearTimeout(timer);
    views.forEach(({ pane }) => pane.stop());
  };
  for (const kind of ["pointerdown", "keydown"]) addEventListener(kind, cancel, { once: true, capture: true });
}

const facts = JSON.parse(document.getElementById("facts").textContent);
const runs = await readContent(facts, document.getElementById("data").textContent);
const made = makePage(runs, facts.compared);
page.dataset.ready = "true";
playOnce(made);
setTimeout(made.check, 1500);
