// The section in which a small capsule network learns: accuracy over time, and ten test images as its capsules see them.

import { strongest } from "./capsules.js";
import { makeChart } from "./chart.js";
import { h } from "./dom.js";
import { term } from "./glossary.js";
import { paint, paintOver, spread } from "./pictures.js";
import { drawFrom, emptyWeights, forward, makeLearner, sizesOf } from "./train.js";
import { plain } from "./words.js";

const SECONDS = 30;
const BATCH = 16;
const BUSY_MILLISECONDS = 30; // of training before the page may handle events

/** How many images a network predicts correctly, and how much the last couplings decided: 1 less their mean entropy. */
function tested(sizes, weights, { images, labels }) {
  let right = 0;
  let entropy = 0;
  images.forEach((pixels, k) => {
    const { lengths, couplings } = forward(sizes, weights, pixels);
    right += strongest(lengths) === labels[k];
    entropy -= couplings.at(-1).reduce((sum, c) => sum + c * Math.log(c), 0) / sizes.parts / Math.log(sizes.classes);
  });
  return { right, decided: 1 - entropy / images.length };
}

/** The mean share [grid grid] of the parts at each position that goes to a class. */
function sharesOf({ grid, parts, classes }, couplings, target) {
  const shares = new Float64Array(grid * grid);
  const types = parts / (grid * grid);
  for (let i = 0; i < parts; i++) shares[Math.floor(i / types)] += couplings[i * classes + target] / types;
  return shares;
}

/** A test image under where its parts go, and the drawing from its capsule; `show(weights)`. */
function makeExample(sizes, classes, pixels, label) {
  const over = h("canvas", { "aria-hidden": "true" });
  const drawing = h("canvas", { "aria-hidden": "true" });
  const caption = h("figcaption", {});
  const shape = [1, sizes.side, sizes.side];
  function show(weights) {
    const { v, lengths, couplings } = forward(sizes, weights, pixels);
    const shares = sharesOf(sizes, couplings.at(-1), label).map((share) => Math.min(1, (share * sizes.classes) / 2));
    paintOver(over, pixels, shape, spread(shares, [sizes.grid, sizes.grid], sizes.field, shape.slice(1)));
    paint(drawing, drawFrom(sizes, weights, v, label).pixels, shape);
    const taken = strongest(lengths);
    caption.textContent = `${classes[label]}: ${plain(lengths[label])}${taken === label ? "" : `, taken for ${classes[taken]}`}`;
  }
  return { element: h("figure", {}, over, drawing, caption), show };
}

/** The section. `facts`: { side, classes }. `grids`: images [n side side] and labels [n] of "train" and "test". */
export function makeTraining({ side, classes }, grids) {
  const sizes = sizesOf(side, classes.length);
  const setOf = (name) => {
    const labels = [...grids[`${name}Labels`].values];
    return { labels, images: labels.map((_, k) => Float64Array.from(grids[`${name}Images`].row(k), (value) => value / 255)) };
  };
  const [training, test] = [setOf("train"), setOf("test")];
  const examples = classes.map((_, label) => test.labels.indexOf(label)).filter((k) => k >= 0).slice(0, 10)
    .map((k) => makeExample(sizes, classes, test.images[k], test.labels[k]));
  const chart = makeChart("Correct test images in per cent, and how much routing decides in per cent, over time", () => [0, 50, 100]);
  const times = { amounts: Array.from({ length: SECONDS + 1 }, (_, k) => k), unit: " s" };
  const button = h("button", { type: "button", onclick: () => (running ? (running = false) : start()) }, `Train for ${SECONDS} seconds`);
  const said = h("p", { class: "said", role: "status" });
  let running = false;
  let history = []; // [right, decided] in per cent, once a second

  function show(weights) {
    const { right, decided } = tested(sizes, weights, test);
    const seconds = history.push([(100 * right) / test.labels.length, 100 * decided]) - 1;
    const line = (which) => history.map((values) => values[which]);
    chart.show([{ values: line(1), kind: "second" }, { values: line(0), kind: "first" }], 0, 100, seconds, times);
    for (const example of examples) example.show(weights);
    said.textContent = `${seconds} s: ${right} of ${test.labels.length} test images correct (${plain(history[seconds][0], 1)} %); routing decides ${plain(100 * decided, 1)} %.`;
  }
  async function start() {
    running = true;
    button.textContent = "Stop";
    said.setAttribute("aria-live", "off"); // only the result is read out
    history = [];
    const learner = makeLearner(sizes, Date.now());
    const began = performance.now();
    while (running && history.length <= SECONDS) {
      const now = performance.now();
      if (now - began >= 1000 * history.length) show(learner.weights);
      while (performance.now() - now < BUSY_MILLISECONDS) {
        const batch = Array.from({ length: BATCH }, () => Math.floor(learner.random() * training.labels.length));
        learner.step(batch.map((k) => training.images[k]), batch.map((k) => training.labels[k]));
      }
      await new Promise((done) => setTimeout(done));
    }
    button.textContent = "Train again";
    said.setAttribute("aria-live", "polite");
    said.textContent = `${running ? "Done" : "Stopped"} after ${said.textContent}`;
    running = false;
  }

  for (const example of examples) example.show(makeLearner(sizes, 1).weights);
  const weights = Object.values(emptyWeights(sizes)).reduce((sum, values) => sum + values.length, 0);
  const element = h(
    "section",
    { class: "training" },
    h("h2", {}, "Train a capsule network here"),
    h("p", {}, `In ${SECONDS} seconds, ${sizes.parts} `, term("part", "parts"), ` and ${classes.length} class capsules with ${weights.toLocaleString("en")} weights learn in this browser from ${training.labels.length.toLocaleString("en")} training images of ${side}×${side} pixels, with three `, term("iteration", "iterations"), " of routing."),
    h("div", { class: "controls" }, button, said),
    h("div", { class: "training-row" },
      h("figure", { class: "chart" }, chart.element, h("figcaption", { class: "legend" }, h("span", { class: "first" }, "correct test images, % (orange)"), ", ", h("span", { class: "second" }, "decided by routing, % (blue)"))),
      h("div", {},
        h("div", { class: "examples" }, examples.map((example) => example.element)),
        h("p", { class: "hint" }, "Above, test images; the more orange, the more the parts there send to the true class (an even tint is an equal share). Below, what its capsule draws. The number is how sure it is."))),
  );
  chart.show([], 0, 100, 0, times);
  return { element, images: training.labels.length };
}
