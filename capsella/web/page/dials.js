// One dial for each pose element of a capsule, ranked by its effect on the drawing.

import { decode } from "./decoder.js";
import { h } from "./dom.js";
import { paint } from "./pictures.js";
import { makeSlider } from "./slider.js";
import { signed, typed } from "./words.js";

const VISIBLE = 0.05; // a dial that changes no pixel by this much has no visible effect
const BUSY = 30; // milliseconds of measuring before the page may handle events

/** The largest change of a pixel from one end of a dial to the other. */
export function effectOf(low, high) {
  let most = 0;
  let sum = 0;
  for (let k = 0; k < low.length; k++) {
    const change = Math.abs(high[k] - low[k]);
    sum += change;
    if (change > most) most = change;
  }
  return { most, mean: sum / low.length };
}

/** The indices of dials by descending effect, and of those without visible effect. */
export function ranked(effects) {
  const order = effects.map((_, k) => k).sort((a, b) => effects[b].mean - effects[a].mean);
  return {
    strong: order.filter((k) => effects[k].most >= VISIBLE),
    flat: order.filter((k) => effects[k].most < VISIBLE),
  };
}

function makeDial(index, name, most, shape, turn, refuse) {
  const range = { min: -most, max: most, step: most / 100, rest: 0 };
  const slider = makeSlider(name, range, (value) => `${signed(value, 3)}, of −${most} to ${most}`, (value) => turn(index, value));
  const number = h("input", { class: "number", type: "text", inputmode: "decimal", tabindex: -1, autocomplete: "off", "aria-label": `${name}, typed` });
  const ends = ["low", "high"].map((end, k) => h("canvas", { class: `end ${end}`, "aria-hidden": "true", onclick: () => turn(index, k ? most : -most) }));
  const element = h("div", { class: "dial", "data-dial": index }, h("span", { class: "name" }, name), number, ends[0], slider.element, ends[1]);

  function set(value) {
    slider.set(value);
    if (document.activeElement !== number) number.value = signed(value, 3);
  }
  function take() {
    const { value, refusal } = typed(number.value, name, most);
    if (refusal) refuse(refusal);
    else turn(index, value);
    return !refusal;
  }
  number.addEventListener("focus", () => number.select());
  const asItWas = () => (number.value = slider.element.getAttribute("aria-valuetext").split(",")[0]);
  number.addEventListener("change", () => {
    if (!take()) asItWas();
  });
  number.addEventListener("keydown", (event) => {
    if (event.key === "Escape") asItWas();
    if (event.key === "Enter" || event.key === "Escape") slider.element.focus();
  });
  slider.element.addEventListener("keydown", (event) => {
    if (event.key === "Enter") number.focus();
  });
  const showEnds = (pictures) => pictures.forEach((picture, k) => paint(ends[k], picture, shape));
  return { element, slider: slider.element, set, showEnds };
}

/** Up and down go from dial to dial of a group; Tab enters it once. */
function roveDials(group) {
  group.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    const sliders = [...group.querySelectorAll('[role="slider"]')];
    const at = sliders.indexOf(event.target);
    if (at < 0) return;
    event.preventDefault();
    sliders[(at + (event.key === "ArrowDown" ? 1 : -1) + sliders.length) % sliders.length].focus();
  });
  group.addEventListener("focusin", (event) => {
    if (event.target.getAttribute("role") === "slider") onlyStop(group, event.target);
  });
}

function onlyStop(group, chosen) {
  for (const slider of group.querySelectorAll('[role="slider"]')) slider.tabIndex = slider === chosen ? 0 : -1;
}

/** The dials of a run; `turn(dial, value)` is called as they turn. */
export function makeDials(run, turn) {
  const { names, most } = run.dials;
  const shape = [run.channels, ...run.decoder.size];
  const said = h("p", { class: "refusal", role: "status" });
  const turnAndForget = (index, value) => {
    said.textContent = "";
    turn(index, value);
  };
  const dials = names.map((name, k) => makeDial(k, name, most, shape, turnAndForget, (text) => (said.textContent = text)));
  const strong = h("div", { class: "dials", role: "group", "aria-label": "Dials" });
  const flat = h("div", { class: "dials", role: "group", "aria-label": "Dials that change nothing here" });
  const summary = h("summary", {});
  const folded = h("details", { class: "flat" }, summary, flat);
  for (const group of [strong, flat]) roveDials(group);
  let measured = 0;
  let shown = null;
  let strongest = 0;

  /** Draw both ends of each dial, starting from the original pose, and sort the dials. */
  async function measure(target, pose) {
    const mine = ++measured;
    const effects = [];
    let began = performance.now();
    for (let k = 0; k < dials.length; k++) {
      if (performance.now() - began > BUSY) {
        await new Promise((done) => setTimeout(done));
        if (mine !== measured) return;
        began = performance.now();
      }
      const end = (offset) => decode(run.layers, target, pose.map((value, i) => value + (i === k ? offset : 0)));
      const pictures = [end(-most), end(most)];
      dials[k].showEnds(pictures);
      effects.push(effectOf(...pictures));
    }
    order(ranked(effects));
  }

  function order(rank) {
    strongest = (rank.strong[0] ?? rank.flat[0]);
    for (const [group, places] of [[strong, rank.strong], [flat, rank.flat]]) {
      const wanted = places.map((k) => dials[k].element);
      const focused = wanted.some((element) => element.contains(document.activeElement)) && document.activeElement;
      if (wanted.some((element, k) => group.children[k] !== element) || group.children.length !== wanted.length) {
        group.replaceChildren(...wanted);
      }
      if (focused) focused.focus();
      else if (places.length) onlyStop(group, dials[places[0]].slider);
    }
    folded.hidden = rank.flat.length === 0;
    const one = rank.flat.length === 1;
    summary.textContent = `${rank.flat.length} ${one ? "dial has" : "dials have"} no visible effect here: no pixel changes by more than a twentieth`;
  }

  function show(view) {
    if (view.image !== shown) said.textContent = "";
    shown = view.image;
    dials.forEach((dial, k) => dial.set(view.offsets[k] ?? 0));
  }
  return { element: h("div", { class: "all-dials" }, said, strong, folded), show, measure, strongest: () => strongest };
}
