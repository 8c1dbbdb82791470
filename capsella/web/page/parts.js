// Point at a part to see its receptive field, and the parents it goes to.

import { h } from "./dom.js";
import { namedSlider } from "./slider.js";

const HINT = "Point at the image or at a dot, or turn “Part”: which pixels a part sees, and where it goes.";

/** Row and column, in a grid of `rows` × `columns`, of the part whose centre is nearest to a pixel (x, y). */
export function placeAt([x, y], { first, step }, [rows, columns]) {
  const along = (pixel, axis, count) => {
    const at = step[axis] ? Math.round((pixel - first[axis]) / step[axis]) : 0;
    return Math.min(Math.max(at, 0), count - 1);
  };
  return { row: along(y, 0, rows), column: along(x, 1, columns) };
}

/** The receptive field of a part: left, top, width and height relative to an image of `size`, and its size in `pixels`. */
export function fieldAt({ row, column }, { first, step, side }, size) {
  const [down, across] = [row, column].map((place, axis) => {
    const centre = first[axis] + step[axis] * place;
    const low = Math.max(0, Math.round(centre - side[axis] / 2)); // what lies outside of the image is zeros
    const high = Math.min(size[axis], Math.round(centre + side[axis] / 2));
    return { at: low / size[axis], part: (high - low) / size[axis], pixels: high - low };
  });
  return { left: across.at, top: down.at, width: across.part, height: down.part, pixels: [down.pixels, across.pixels] };
}

/**
 * The parts of a layer: all parts at a position, { row, column }, or a single one with a dot in the plot of votes,
 * { row, column, type, dot }. The second argument names the image, the layer, the iteration, and whether there are dots.
 */
export function partsOf(run, { image, number, iteration, voting }) {
  const its = (name) => run.its(image, name);
  const [, rows, columns, most] = its(`goals${number}`).shape;
  const ofDot = (dot) => {
    const [row, column, type] = its("parts").row(dot);
    return { row, column, type, dot };
  };
  function goalsOfDot({ dot }) {
    const classes = Array.from(its("shown").row());
    const goals = classes.map((k, place) => [k, (its("couplings").row(place, iteration)[dot] / 255) ** 2]); // roots are kept
    return goals.sort((a, b) => b[1] - a[1]).slice(0, most);
  }
  function goalsOfPlace({ row, column }) {
    const shares = its(`shares${number}`).row(iteration, row, column);
    return Array.from(its(`goals${number}`).row(iteration, row, column), (parent, k) => [parent, shares[k] / 255]);
  }
  return {
    grid: [rows, columns],
    count: voting ? its("parts").shape[0] : rows * columns,
    ofDot,
    /** The k-th part: by activity if they have dots, else row by row. */
    at: (k) => (voting ? ofDot(k) : { row: Math.floor(k / columns), column: k % columns }),
    /** `[parent, share]` of the parents that receive most, in descending order. */
    goals: (part) => (part.dot === undefined ? goalsOfPlace(part) : goalsOfDot(part)),
    /** Whether a dot belongs to a part, or to one of the parts at a position. */
    has: (part, dot) => (part.dot === undefined ? ofDot(dot).row === part.row && ofDot(dot).column === part.column : dot === part.dot),
  };
}

/** "type 3, row 1, column 2". */
export function calledPart({ row, column, type }) {
  return `${type === undefined ? "" : `type ${type + 1}, `}row ${row + 1}, column ${column + 1}`;
}

/** A line of a list of shares, in [0, 1]. */
export function shareItem(name, share, digits = 0, attributes = {}) {
  const bar = h("span", { class: "track", "aria-hidden": "true" }, h("span", { class: "fill", style: `width:${100 * share}%` }));
  return h("li", { "data-name": name, "data-share": share, ...attributes }, `${name} `, bar, ` ${(100 * share).toFixed(digits)} %`);
}

/** The bars of such a list, for `sheet`. */
export function barsOf(list) {
  return Array.from(list.children, (item) => ({
    name: item.dataset.name,
    share: Number(item.dataset.share),
    text: item.lastChild.textContent.trim(),
    chosen: item.hasAttribute("aria-current"),
  }));
}

/** A frame over a picture, which is darkened outside; `set(null)` hides it. */
function makeFrame(canvas) {
  const frame = h("span", { class: "field", hidden: true });
  function set(field) {
    frame.hidden = field === null;
    for (const side of ["left", "top", "width", "height"]) frame.style[side] = field ? `${100 * field[side]}%` : "";
  }
  return { element: h("div", { class: "over" }, canvas, frame), set };
}

/** Calls `point(part)` for the part under the pointer, null when it leaves. `parts()`, `fields()`: of the shown layer. */
function listenTo(canvas, dots, { size }, parts, fields, point) {
  const overImage = (event) => {
    const box = canvas.getBoundingClientRect();
    const x = ((event.clientX - box.left) * size[1]) / box.width;
    const y = ((event.clientY - box.top) * size[0]) / box.height;
    point(placeAt([x, y], fields(), parts().grid));
  };
  const overDot = ({ target }) => target !== dots && point(parts().ofDot([...dots.children].indexOf(target)));
  for (const kind of ["pointermove", "pointerdown"]) canvas.addEventListener(kind, overImage);
  for (const kind of ["pointerover", "pointerdown"]) dots.addEventListener(kind, overDot);
  for (const element of [canvas, dots]) {
    element.addEventListener("pointerleave", ({ pointerType }) => pointerType !== "touch" && point(null));
  }
}

/**
 * The parts of a routed layer, to be pointed at. `canvas`: the image that the frame lies on. `dots`: the votes, a
 * circle each. `show(view, number, iteration, voting)`; voting: whether the dots are shown.
 */
export function makeParts(run, canvas, dots) {
  const frame = makeFrame(canvas);
  const said = h("p", { class: "hint part", role: "status" });
  const list = h("ol", { class: "shares goals" });
  const sum = h("p", { class: "hint equation" });
  const place = h("div", { class: "named" });
  let here = null;
  let parts = null;
  let built = "";
  let pointed = null; // the part under the pointer
  let chosen = null; // the part that the slider is at

  const field = () => here && (pointed ?? chosen) && fieldAt(pointed ?? chosen, run.routed[here.number].fields, run.size);
  const nameOf = (parent) => (here.number === run.routed.length - 1 ? run.classes[parent] : `type ${parent + 1}`);
  function draw() {
    const part = pointed ?? chosen;
    frame.set(field());
    const marked = part !== null && here.voting;
    dots.classList.toggle("some", marked);
    [...dots.children].forEach((dot, k) => dot.classList.toggle("on", marked && parts.has(part, k)));
    list.replaceChildren(...(part ? parts.goals(part).map(([parent, share]) => shareItem(nameOf(parent), share)) : []));
    said.textContent = part ? sentence(part) : HINT;
    sum.textContent = part && here.number === run.routed.length - 1 ? equation(part) : "";
  }
  function sentence(part) {
    const { types } = run.routed[here.number];
    const who = part.dot !== undefined ? "The part of" : types === 1 ? "The part at" : `All ${types} parts at`;
    return `${who} ${calledPart(part)}: ${field().pixels.join("×")} pixels, in the frame. What goes where, in iteration ${here.iteration + 1}:`;
  }
  function equation(part) {
    const [[parent, share]] = parts.goals(part);
    const equal = 1 / run.classes.length;
    return `The arrow of a class is made from Σ c · vote over all parts. For ${run.classes[parent]}, c = ${share.toFixed(3)} here; with equal shares, c would be ${equal.toFixed(3)}.`;
  }
  function point(part) {
    pointed = part;
    draw();
  }
  listenTo(canvas, dots, run, () => parts, () => run.routed[here.number].fields, point);

  function build() {
    const range = { min: 0, max: parts.count, step: 1, rest: 0 };
    const say = (k) => (k === 0 ? "none chosen" : `${k} of ${parts.count}: ${calledPart(parts.at(k - 1))}`);
    const slider = namedSlider("Part", range, say, (k) => {
      chosen = k === 0 ? null : parts.at(k - 1);
      slider.set(k);
      point(null);
    });
    place.replaceChildren(h("span", { "aria-hidden": "true" }, "Part"), slider.element);
  }
  function show(view, number, iteration, voting) {
    here = { image: view.image, number, iteration, voting };
    parts = partsOf(run, here);
    const key = `${view.image}:${number}:${voting}`;
    if (key !== built) {
      pointed = chosen = null; // another image’s parts are others
      build();
    }
    built = key;
    draw();
  }
  return { over: frame.element, slider: place, told: h("div", {}, said, list, sum), list, said: () => said.textContent, show, field };
}
