// The class capsules of an image: a bar for each, and an arrow for the chosen one, which has the dials.

import { h, roveByArrows, svg } from "./dom.js";
import { plain } from "./words.js";

const MOST_BARS = 12;

/** The euclidean length. */
export function norm(values) {
  return Math.sqrt(values.reduce((sum, value) => sum + value * value, 0));
}

/** The index of the largest value. */
export const strongest = (values) => values.reduce((best, value, k) => (value > values[best] ? k : best), 0);

/** The angle between two poses, in degrees. */
export function angleBetween(a, b) {
  const product = a.reduce((sum, value, k) => sum + value * b[k], 0);
  const cosine = product / (norm(a) * norm(b) || 1);
  return (Math.acos(Math.min(1, Math.max(-1, cosine))) * 180) / Math.PI;
}

/** The arrow's angle, clockwise from upward, in radians: the pose in the plane of its class, given by `axes` [2 d]. */
export function heading(axes, pose) {
  const d = pose.length;
  let usual = 0;
  let aside = 0;
  for (let k = 0; k < d; k++) {
    usual += axes[k] * pose[k];
    aside += axes[d + k] * pose[k];
  }
  return Math.atan2(aside, usual);
}

/** Offsets of all dials, within ±`most`, that turn the arrow to an angle in the plane of the class, given by `axes` [2 d]. */
export function offsetsTowards(axes, pose, angle, most) {
  const d = pose.length;
  const along = (axis) => pose.reduce((sum, value, k) => sum + axes[axis * d + k] * value, 0);
  const radius = Math.hypot(along(0), along(1));
  const [usual, aside] = [radius * Math.cos(angle) - along(0), radius * Math.sin(angle) - along(1)];
  return Object.fromEntries(Array.from(pose, (_, k) => [k, Math.min(Math.max(usual * axes[k] + aside * axes[d + k], -most), most)]));
}

/** The indices of the classes that get a bar, ascending: all, or the most active ones and the chosen one. */
export function shownClasses(activations, target) {
  const every = Array.from(activations.keys());
  if (every.length <= MOST_BARS) return every;
  const strongest = every.sort((a, b) => activations[b] - activations[a]).slice(0, MOST_BARS);
  if (!strongest.includes(target)) strongest[MOST_BARS - 1] = target;
  return strongest.sort((a, b) => a - b);
}

/** The bars of the class capsules; a click chooses one. */
export function makeBars(choose) {
  const group = h("div", { class: "bars", role: "radiogroup", "aria-label": "Class capsules, and how sure each is" });
  roveByArrows(group, choose);
  let built = "";
  let bars = new Map();

  function build(run, classes) {
    bars = new Map();
    const buttons = classes.map((k) => {
      const fill = h("span", { class: "fill" });
      const value = h("span", { class: "number" });
      const name = h("span", { class: "name", title: run.classes[k] }, run.classes[k]);
      const track = h("span", { class: "track", "aria-hidden": "true" }, fill);
      const button = h(
        "button",
        { type: "button", role: "radio", "data-value": k, onclick: () => choose(k) },
        name, track, value,
      );
      bars.set(k, { button, fill, value });
      return button;
    });
    const longest = Math.max(...classes.map((k) => run.classes[k].length));
    group.style.setProperty("--name", `${0.6 * Math.min(longest + 1, 11)}rem`);
    group.replaceChildren(...buttons);
  }

  function show(run, view) {
    const classes = shownClasses(view.activations, view.target);
    const key = `${view.runNumber}:${classes}`;
    if (key !== built) build(run, classes);
    built = key;
    for (const [k, { button, fill, value }] of bars) {
      const chosen = k === view.target;
      const activation = chosen ? view.turnedActivation : view.activations[k];
      fill.style.width = `${100 * Math.min(activation, 1)}%`;
      value.textContent = plain(Math.min(activation, 1));
      button.setAttribute("aria-checked", chosen);
      button.tabIndex = chosen ? 0 : -1;
      button.classList.toggle("turned", chosen && view.turnedDials > 0);
    }
  }
  /** The same for `sheet`. */
  function figure() {
    const rows = Array.from(bars.values(), ({ button, value }) => ({
      name: button.querySelector(".name").textContent,
      share: Number(value.textContent),
      text: value.textContent,
      chosen: button.getAttribute("aria-checked") === "true",
    }));
    return { bars: rows, caption: "how sure each capsule is" };
  }
  return { element: group, show, figure };
}

/**
 * The arrow of the chosen capsule: length is activation, direction is pose. A faint arrow shows the original one. A mouse
 * or pen that drags it calls `turn(angle)`, clockwise from upward; null: it cannot be dragged.
 */
export function makeArrow(turn) {
  const shaft = (name) => svg("path", { class: name, d: "" });
  const found = shaft("found");
  const turned = shaft("turned");
  const drawing = svg(
    "svg",
    { viewBox: "-110 -110 220 220", role: "img" },
    svg("circle", { class: "rim", r: 100 }),
    svg("circle", { class: "half", r: 50 }),
    svg("text", { class: "scale", x: 53, y: 5 }, "½"),
    svg("text", { class: "scale", x: 89, y: 5 }, "1"),
    found, turned, svg("circle", { class: "hub", r: 4 }),
  );
  const caption = h("figcaption", {});
  const drag = (event) => {
    const box = drawing.getBoundingClientRect();
    if (event.buttons !== 1 || event.pointerType === "touch") return; // a finger scrolls the page
    turn(Math.atan2(event.clientX - box.left - box.width / 2, box.top + box.height / 2 - event.clientY));
  };
  if (turn) {
    drawing.classList.add("draggable");
    for (const kind of ["pointerdown", "pointermove"]) drawing.addEventListener(kind, drag);
  }

  function show(run, view) {
    found.setAttribute("d", view.turnedDials ? arrowPath(view.activation, view.heading) : "");
    turned.setAttribute("d", arrowPath(Math.min(view.turnedActivation, 1), view.turnedHeading));
    const sure = plain(Math.min(view.turnedActivation, 1));
    caption.textContent = `capsule of ${run.classes[view.target]}`;
    drawing.setAttribute("aria-label", `Arrow of length ${sure}, the circle’s radius being 1`);
  }
  const figure = () => ({ picture: drawing, caption: caption.textContent });
  return { element: h("figure", { class: "arrow" }, drawing, caption), show, figure };
}

/** The SVG path of an arrow from the centre, with a length in [0, 1]. */
export function arrowPath(length, angle) {
  const x = Math.sin(angle);
  const y = -Math.cos(angle);
  const tip = 100 * length;
  const head = Math.min(16, tip);
  const at = (along, aside) => `${(along * x - aside * y).toFixed(2)} ${(along * y + aside * x).toFixed(2)}`;
  return `M0 0L${at(tip, 0)}M${at(tip - head, -head * 0.55)}L${at(tip, 0)}L${at(tip - head, head * 0.55)}`;
}
