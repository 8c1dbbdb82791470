// Controls for other images: a file, a drawing and, with a server, test images by number and class.

import { h } from "./dom.js";

const SIDE = 224; // the shorter one of the canvas; a stroke of 18 is there as thick as one of a handwritten digit at 28
const STROKE = 18;

/** The next index in `tests` after `last` of a class (null: any) and outcome, "right" or "wrong" ("": either); or -1. */
export function nextSuch({ numbers, truth, right }, last, target, outcome) {
  const fits = (k) => (target === null || truth[k].includes(target)) && (outcome === "" || right[k] === (outcome === "right"));
  for (let step = 1; step <= numbers.length; step++) {
    const k = (last + step) % numbers.length;
    if (fits(k)) return k;
  }
  return -1;
}

/** The typed index of one of `count` test images, `{ value }`, or why it is refused, `{ refusal }`. */
export function testNumber(text, count) {
  const value = Number(text.trim());
  if (text.trim() !== "" && Number.isInteger(value) && value >= 0 && value < count) return { value };
  return { refusal: `Test images have numbers from 0 to ${count - 1}; “${text.trim()}” is none of them, and nothing was changed.` };
}

const label = (text, control) => h("label", {}, `${text} `, control);

/** `size`: rows and columns of the network's images; the canvas has the same proportions. */
function makeSketchpad(size, take) {
  const [rows, columns] = size.map((side) => Math.round((SIDE * side) / Math.min(...size)));
  const canvas = h("canvas", { class: "sketch", width: columns, height: rows, role: "img", "aria-label": "Drawing area, light on dark, for mouse, pen or finger. Without one of them, choose a file instead." });
  const pen = canvas.getContext("2d", { willReadFrequently: true }); // each stroke is read as a PNG
  const clear = () => {
    pen.fillStyle = "black";
    pen.fillRect(0, 0, columns, rows);
  };
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return [((event.clientX - box.left) * columns) / box.width, ((event.clientY - box.top) * rows) / box.height];
  };
  let last = null;
  function strokeTo(here) {
    Object.assign(pen, { strokeStyle: "white", lineWidth: STROKE, lineCap: "round" });
    pen.beginPath();
    pen.moveTo(...last);
    pen.lineTo(...here);
    pen.stroke();
    last = here;
  }
  canvas.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    canvas.setPointerCapture(event.pointerId);
    last = at(event);
    pen.fillStyle = "white"; // a click leaves a dot
    pen.beginPath();
    pen.arc(...last, STROKE / 2, 0, 2 * Math.PI);
    pen.fill();
  });
  canvas.addEventListener("pointermove", (event) => last && strokeTo(at(event)));
  canvas.addEventListener("pointerup", () => {
    if (last) canvas.toBlob(take, "image/png");
    last = null;
  });
  canvas.addEventListener("pointercancel", () => (last = null));
  clear();
  const button = h("button", { type: "button", onclick: clear }, "Clear");
  return h("div", { class: "sketchpad" }, h("p", {}, "Draw one, and the network looks at it:"), canvas, button);
}

/** Test images by their number, and by their class. */
function makeFinders(run, bring, refuse) {
  const { tests } = run.server;
  const number = h("input", { type: "text", inputmode: "numeric", size: 6, autocomplete: "off" });
  const which = h("select", {}, h("option", { value: "" }, "any class"), run.classes.map((name, k) => h("option", { value: k }, name)));
  const outcomes = { "": "right and wrong", right: "right", wrong: "wrong" };
  const outcome = h("select", {}, Object.entries(outcomes).map(([value, text]) => h("option", { value }, text)));
  let last = -1;

  const byNumber = (event) => {
    event.preventDefault();
    const { value, refusal } = testNumber(number.value, run.of);
    if (refusal) refuse(refusal);
    else bring({ number: value });
  };
  const byClass = (event) => {
    event.preventDefault();
    const before = last;
    last = nextSuch(tests, last, which.value === "" ? null : Number(which.value), outcome.value);
    if (last < 0) refuse(`None of the ${tests.numbers.length} test images that the network looked at is such an image.`);
    else bring({ number: tests.numbers[last] }, last === before ? "It is the only such image." : "");
  };
  return [
    h("form", { onsubmit: byNumber }, label(`Test image, 0 to ${run.of - 1}`, number), h("button", {}, "Show it")),
    h("form", { onsubmit: byClass }, label("True class", which), label("Answer", outcome), h("button", {}, "Next such image")),
  ];
}

/** Controls to choose other images: a folded `element`, and a `pad` to draw on if the network takes grey images.
 * `bring(wanted, note)` is called with { number }, { file } or { sketch }. */
export function makeMore(run, bring, refuse) {
  const file = h("input", { type: "file", accept: "image/png,image/jpeg,image/bmp,image/tiff,image/gif,image/webp" });
  file.addEventListener("change", () => {
    if (file.files.length) bring({ file: file.files[0] });
    file.value = ""; // so that the same file can be chosen again
  });
  const sources = run.server ? "Another image: from the test set, or from a file" : "An image of your own, from a file";
  const whither = run.server ? "which the server does not keep" : "which does not leave this page";
  const element = h(
    "details",
    { class: "more" },
    h("summary", {}, sources),
    h(
      "div",
      { class: "sources" },
      run.server && makeFinders(run, bring, refuse),
      h("div", {}, label(`A file, ${whither} (or drop one on the page)`, file)),
    ),
  );
  return { element, pad: run.channels === 1 ? makeSketchpad(run.size, (sketch) => bring({ sketch })) : null };
}
