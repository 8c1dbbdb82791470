// The page: one view, or two beside each other.

import { arrowPath } from "./capsules.js";
import { readArrays, readContent, unpacked } from "./content.js";
import { decode } from "./decoder.js";
import { choices, h, svg } from "./dom.js";
import { term } from "./glossary.js";
import { makeNetwork } from "./network.js";
import { makePane, takeFile } from "./pane.js";
import { askArrays, makeServer } from "./server.js";
import { firstState, formatHash, missingImages, parseHash } from "./state.js";
import { makeTour } from "./tour.js";
import { makeTraining } from "./training.js";

const page = document.getElementById("page");

/** The largest difference, in grey levels of 255, between this browser's drawings and PyTorch's. */
function worstDrawing(run) {
  let worst = 0;
  run.images.forEach((facts, image) => {
    const drawn = decode(run.layers, facts.predicted, run.its(image, "poses").row(facts.predicted));
    const expected = run.its(image, "drawn").row(); // by PyTorch
    drawn.forEach((value, k) => (worst = Math.max(worst, Math.abs(255 * value - expected[k]))));
  });
  return worst;
}

/** The picture of a neuron with one number beside a capsule with an arrow. */
function idea() {
  const drawing = svg(
    "svg",
    { class: "idea", viewBox: "0 0 250 88", role: "img", "aria-label": "A neuron holds one number, 0.93. A capsule holds an arrow." },
    svg("circle", { class: "rim", cx: 65, cy: 33, r: 30 }), svg("text", { x: 65, y: 39 }, "0.93"), svg("text", { class: "small", x: 65, y: 82 }, "a neuron"),
    svg("circle", { class: "rim", cx: 185, cy: 33, r: 30 }), svg("path", { class: "turned", d: arrowPath(0.28, 0.6), transform: "translate(185,33)" }), svg("text", { class: "small", x: 185, y: 82 }, "a capsule"),
  );
  return drawing;
}

function header(runs, starts, beside) {
  const about = (run) => `${run.name}: ${run.network}, ${run.classes.length} classes, ${run.right[0]} of ${run.right[1]} test images correct`;
  return h(
    "header",
    {},
    h("div", {},
      h("h1", {}, `Inside a network that tells ${runs[0].classes.length} classes apart`),
      h("p", { class: "lede" },
        "A usual neuron answers with one number. A ", term("capsule"), " answers with an arrow: its ", h("b", {}, "length is how sure"), " it is, its ", h("b", {}, "direction is how it looks"), ".",
        runs.some((run) => run.decoder) ? " From that arrow alone, a decoder tries to draw the picture again." : "", " ", starts),
      h("p", { class: "what" }, `${runs.map(about).join("; ")}.`),
      runs.flatMap((run) => run.warnings.map((text) => h("p", { class: "alarm" }, `${runs.length > 1 ? `${run.name}: ` : ""}${text[0].toUpperCase()}${text.slice(1)}.`)))),
    h("div", { class: "aside" }, idea(), beside),
  );
}

function whence(runs, training) {
  if (runs[0].server) return "This page is served by capsella explore and contacts no other server. capsella share writes it as a file to send; capsella predict classifies folders of images.";
  const inside = runs.map((run) => `${run.images.length} of the ${run.of} test images of ${run.name}`).join(" and ");
  const own = runs.some((run) => run.looker) ? " So is the network: it can look at your own images, which do not leave this page." : "";
  const small = training ? ` So are ${training.images} small training images, from which a network can learn here.` : "";
  return `Inside this file: ${inside}.${own}${small} This page contacts no other machine.`;
}

function footer(runs, training) {
  const checked = h("span", {});
  const text = whence(runs, training);
  const check = () => {
    const drawing = runs.filter((run) => run.layers);
    if (!drawing.length) return;
    const worst = Math.max(...drawing.map(worstDrawing));
    checked.textContent = ` In this browser, no pixel of the ${drawing.reduce((sum, run) => sum + run.images.length, 0)} drawings is further than ${worst.toFixed(1)} grey levels of 255 from PyTorch’s (rounding alone makes 0.5).`;
  };
  return { element: h("footer", {}, h("p", {}, text, checked)), check };
}

/** The index in a run of an image that another run shows, which is fetched if necessary; null if that is impossible. */
async function placeOf(run, facts, alike) {
  const same = run.images.findIndex((one) => (facts.wanted ? one.wanted === facts.wanted : alike && one.number === facts.number));
  if (same >= 0) return same;
  const canBeHad = facts.wanted ? run.looker : run.server && alike;
  return canBeHad ? fetchImage(run, facts.wanted ?? { number: facts.number }) : null;
}

const asked = new Map(); // run → requested image → promise of its index in the run

/** Has the network encode an image, once; promises its index in the run. `wanted`: { number }, { file } or { sketch }. */
function fetchImage(run, wanted) {
  if (!asked.has(run)) asked.set(run, new Map());
  const its = asked.get(run);
  const key = wanted.number ?? wanted;
  if (!its.has(key)) its.set(key, lookAt(run, wanted).finally(() => its.delete(key)));
  return its.get(key);
}

async function lookAt(run, wanted) {
  const [kind] = Object.keys(wanted);
  const { facts, grids } = await run.looker[kind === "number" ? "image" : kind](wanted[kind]);
  return run.add(kind === "number" ? facts : { ...facts, wanted }, grids);
}

function makePage(runs, { alike }, training) {
  const views = []; // { state, pane, holder, wishes }
  const holders = h("div", { class: "panes" });
  const tour = makeTour(() => views[0], choose);
  const beside = h("button", { type: "button", class: "beside", onclick: () => (views.length > 1 ? remove() : add()) });
  const { element: foot, check } = footer(runs, training);
  const toTraining = training ? [" ", h("button", { type: "button", onclick: () => training.element.scrollIntoView() }, "Train one here")] : [];
  page.replaceChildren(header(runs, [tour, toTraining].flat(), beside), holders, training?.element ?? "", foot);
  let saving = null;

  function remember() {
    clearTimeout(saving);
    saving = setTimeout(() => history.replaceState(null, "", `#${formatHash(views.map(({ state }) => state), runs)}`), 150);
  }
  function build(view) {
    view.pane?.stop();
    const run = runs[view.state.run];
    view.pane = makePane(run, (values) => choose(view, values), (wanted, note) => bring(view, wanted, note));
    const which = choices("Run", runs.map(({ name }) => name), (number) => switchTo(view, number));
    which.set(view.state.run);
    which.element.hidden = runs.length < 2;
    const hadFocus = view.holder.contains(document.activeElement);
    view.holder.replaceChildren(which.element, view.pane.element);
    if (hadFocus) which.element.querySelector('[tabindex="0"]').focus();
    view.pane.showAll(view.state);
  }
  const isOnlyDials = (values) => Object.keys(values).length === 1 && "offsets" in values;
  function set(view, values) {
    const onlyDials = isOnlyDials(values);
    let { offsets } = view.state;
    if (onlyDials && values.offsets) offsets = { ...offsets, ...values.offsets };
    else if ("offsets" in values) offsets = {};
    view.state = { ...view.state, ...values, offsets };
    if (onlyDials) view.pane.show(view.state);
    else view.pane.showAll(view.state);
    remember();
  }
  /** Applies a reader's choice; a view of another run follows, except for the dials. An image that is still being
   * encoded is awaited unless another one is chosen. */
  function choose(view, values) {
    if ("image" in values) {
      view.wishes++;
      view.pane.say("");
    }
    set(view, values);
    if (isOnlyDials(values)) return;
    for (const other of views) if (other !== view && other.state.run !== view.state.run) follow(other, view);
  }
  /** Shows the image, class and changed input of another view. */
  async function follow(view, leader) {
    const facts = runs[leader.state.run].images[leader.state.image];
    const { target, change, stop } = leader.state;
    const image = await when(view, placeOf(runs[view.state.run], facts, alike));
    if (image === null) return;
    const same = runs[view.state.run].classes.join() === runs[leader.state.run].classes.join();
    const values = { image, target: same ? target : null, change, stop };
    if (Object.entries(values).some(([name, value]) => view.state[name] !== value)) {
      const moved = values.image !== view.state.image || values.target !== view.state.target;
      set(view, moved ? { ...values, offsets: {} } : values);
    }
  }
  /** The result of a promise; null if it fails, or something else was chosen in the meantime. */
  async function when(view, promise) {
    const wish = ++view.wishes;
    view.pane.say("");
    const slow = setTimeout(() => wish === view.wishes && view.pane.say("The network is looking at it…"), 300);
    try {
      const got = await promise;
      if (wish !== view.wishes) return null;
      view.pane.say("");
      return got;
    } catch (error) {
      if (wish === view.wishes) view.pane.say(error.message);
      return null;
    } finally {
      clearTimeout(slow);
    }
  }
  async function bring(view, wanted, note = "") {
    const run = runs[view.state.run];
    const known = run.images.findIndex((facts) => "number" in wanted && facts.number === wanted.number);
    const image = known >= 0 ? known : await when(view, fetchImage(run, wanted));
    if (image === null) return;
    choose(view, { image, target: null, offsets: {} });
    view.pane.say(note || (run.images[image].said ?? []).join("; "));
  }
  async function switchTo(view, number) {
    const facts = runs[view.state.run].images[view.state.image];
    let problem = "";
    const image = await when(view, placeOf(runs[number], facts, alike).catch((error) => ((problem = error.message), null)));
    view.state = firstState(number, image ?? runs[number].first);
    build(view);
    view.pane.say(problem);
    remember();
  }
  function open(state) {
    const view = { state, pane: null, holder: h("div", { class: "holder" }), wishes: 0 };
    views.push(view);
    holders.append(view.holder);
    build(view);
    return view;
  }
  function settle() {
    holders.classList.toggle("two", views.length > 1);
    const which = runs.length > 2 ? "another run" : "the other run";
    beside.textContent = views.length > 1 ? "One view again" : runs.length > 1 ? `Put ${which} beside it` : "Put a second image beside it";
  }
  function add() {
    const [first] = views;
    const other = (first.state.run + 1) % runs.length;
    const second = open({ ...firstState(other), image: runs.length > 1 ? runs[other].first : (first.state.image + 1) % runs[other].images.length });
    if (runs.length > 1) follow(second, first);
    settle();
    remember();
  }
  function remove() {
    views.pop().holder.remove();
    settle();
    remember();
  }
  /** Shows the views that the URL describes. */
  async function read() {
    const missing = runs[0].server ? missingImages(location.hash, runs) : [];
    await Promise.all(missing.map(({ run, number }) => fetchImage(runs[run], { number }).catch(() => null)));
    while (views.length) views.pop().holder.remove();
    parseHash(location.hash, runs).forEach(open);
    settle();
  }
  window.addEventListener("hashchange", read);
  takeDropsBeside(() => views[0], (view) => runs[view.state.run].looker, bring);
  return { check, read };
}

/** A file dropped outside the views goes to the first view; otherwise the browser would open it instead of the page. */
function takeDropsBeside(first, looks, bring) {
  for (const kind of ["dragover", "drop"]) {
    document.addEventListener(kind, (event) => {
      if (event.defaultPrevented || !looks(first())) return;
      event.preventDefault();
      if (kind === "drop") takeFile(event.dataTransfer.files, (wanted, note) => bring(first(), wanted, note));
    });
  }
}

/** The final coupling entropy of the image with which a run opens; 1 without routing. */
function lastEntropy(run) {
  return run.its(run.first, `entropy${run.routed.length - 1}`)?.row().at(-1) ?? 1;
}

/** Reads what the page holds, and shows it. */
async function openPage() {
  const facts = JSON.parse(document.getElementById("facts").textContent);
  const buffer = await (facts.server ? askArrays() : unpacked(document.getElementById("data").textContent));
  const runs = readContent(facts, buffer);
  for (const run of runs) {
    run.server = makeServer(facts, run.number);
    run.looker = run.server ?? makeNetwork(run);
    run.sharper = runs.find((other) => lastEntropy(other) < Math.min(0.9, lastEntropy(run)))?.name;
  }
  const training = facts.training && makeTraining(facts.training, readArrays(facts.arrays, buffer, "training/"));
  const made = makePage(runs, facts, training);
  await made.read();
  page.dataset.ready = "true";
  setTimeout(made.check, 1500);
}

openPage().catch((error) => {
  page.replaceChildren(h("p", { role: "alert" }, `The page could not be opened: ${error.message}`));
  throw error;
});
