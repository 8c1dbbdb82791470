// Routing, iteration by iteration: a map of what went to a capsule, the votes for it, and how much was decided.

import { choices, h, svg } from "./dom.js";
import { term } from "./glossary.js";
import { barsOf, makeParts, shareItem } from "./parts.js";
import { paint, paintOver, spread } from "./pictures.js";
import { makeSavers, sheet } from "./saved.js";
import { namedSlider } from "./slider.js";
import { aboutEntropy, aboutImage, plain } from "./words.js";

const NOT_HERE = "This page cannot show the routing of your own images. capsella explore can.";
const NOTHING_ROUTED = "This network has no routing iterations to show.";

/** The radius of a vote's dot: its area is proportional to the coupling; 4 if all classes get the same share. */
export function dotRadius(coupling, classes) {
  return Math.min(12, 4 * Math.sqrt(coupling * classes));
}

/** The plot of the votes of the most active children, with the path of their mean over the iterations. */
function makeVotes(classes) {
  const dots = svg("g", { class: "dots" });
  const way = svg("path", { class: "way", d: "" });
  const mean = svg("path", { class: "mean", d: "M-9 0H9M0 -9V9" });
  const element = svg("svg", { viewBox: "-115 -115 230 230", role: "img" }, svg("circle", { class: "rim", r: 100 }), dots, way, mean);
  function show(points, couplings, means, iteration) {
    const count = points.length / 2;
    if (dots.children.length !== count) dots.replaceChildren(...Array.from({ length: count }, () => svg("circle", {})));
    for (let k = 0; k < count; k++) {
      const dot = dots.children[k];
      dot.setAttribute("cx", (100 * points[2 * k]) / 127);
      dot.setAttribute("cy", (-100 * points[2 * k + 1]) / 127);
      dot.setAttribute("r", dotRadius((couplings[k] / 255) ** 2, classes).toFixed(2));
    }
    const at = (k) => `${(100 * means[2 * k]).toFixed(1)} ${(-100 * means[2 * k + 1]).toFixed(1)}`;
    mean.setAttribute("transform", `translate(${at(iteration).replace(" ", ",")})`);
    way.setAttribute("d", Array.from({ length: iteration + 1 }, (_, k) => `${k ? "L" : "M"}${at(k)}`).join(""));
    element.setAttribute("aria-label", `${count} votes around their mean, after iteration ${iteration + 1}`);
  }
  return { element, dots, show };
}

/** The section; `change(values)` sets parts of the state. */
export function makeRouting(run, change) {
  if (run.routed.length === 0) return { element: h("section", { class: "routing note" }, NOTHING_ROUTED), show() {} };
  const last = run.routed.length - 1;
  const lead = h("p", { class: "lead" });
  const elsewhere = h("p", {}, run.sharper && `To see routing that decides, put the other run beside this one: ${run.sharper}.`);
  const over = h("canvas", { role: "img", "aria-label": "What went to the capsule, over the input" });
  const overCaption = h("figcaption", {});
  const votes = makeVotes(run.classes.length);
  const votesCaption = h("figcaption", {});
  const votesFigure = h("figure", { class: "votes" }, votes.element, votesCaption);
  const entropies = h("ol", { class: "shares" });
  const parts = makeParts(run, over, votes.dots);
  const told = h("p", { class: "told", role: "status" });
  const savers = makeSavers(`${run.name}-routing`, { png: "Save this step (PNG)" }, pictured, null, (text) => (told.textContent = text));
  const layers = choices("Layer", run.routed.map((layer) => layer.title), (k) => change({ layer: k, iteration: null }));
  layers.element.hidden = last === 0;
  const place = h("div", { class: "iterations named" });
  let slider = null;
  let steps = 0;
  let shown = null;
  const element = h(
    "section",
    { class: "routing" },
    h("h2", {}, "Routing, step by step"),
    h("p", {}, "Each small ", term("part"), " has a ", term("vote"), " for each class, and routing gives more weight to votes that agree: in each ", term("iteration"), ", a part sends more of itself (its ", term("coupling"), ") to the classes whose average lies near its vote."),
    lead,
    elsewhere,
    h("div", { class: "controls" }, layers.element, place, parts.slider),
    h(
      "div",
      { class: "routing-row" },
      h("figure", {}, parts.over, overCaption),
      votesFigure,
      h("div", { class: "decided" }, h("h3", {}, "How much was decided (from the ", term("coupling entropy"), ")"), entropies, h("h3", {}, "Where a part goes"), parts.told),
    ),
    h("div", { class: "tools" }, ...savers.elements, told),
  );

  function makeSteps(count) {
    steps = count;
    const range = { min: 0, max: count - 1, step: 1, rest: 0 };
    slider = count > 1 ? namedSlider("Iteration", range, (k) => `iteration ${k + 1} of ${count}`, (iteration) => change({ iteration })) : null;
    place.replaceChildren(...(slider ? [slider.element] : []));
    place.hidden = slider === null;
  }

  function pictured(side) {
    const votesToo = votesFigure.hidden ? [] : [{ picture: votes.element, caption: votesCaption.textContent }];
    const unkept = element.classList.contains("unkept"); // then the map is another class's
    const figures = [
      ...(unkept ? [] : [{ picture: over, caption: overCaption.textContent, field: parts.field() }]),
      ...votesToo,
      { bars: barsOf(entropies), caption: "how much was decided" },
      ...(parts.field() ? [{ bars: barsOf(parts.list), caption: parts.said() }] : []),
    ];
    const said = [`${run.name}: ${aboutImage(run, shown.view.facts, shown.view.activations)}`, lead.textContent];
    return sheet(figures, unkept ? [...said, overCaption.textContent] : said, side);
  }
  function show(view, state) {
    shown = { view, state };
    const number = state.layer ?? last;
    const layer = run.routed[number];
    if (layer.iterations !== steps) makeSteps(layer.iterations);
    const iteration = Math.min(state.iteration ?? layer.iterations - 1, layer.iterations - 1);
    slider?.set(iteration);
    layers.set(number);
    const entropy = run.its(state.image, `entropy${number}`)?.row();
    element.classList.toggle("absent", !entropy);
    if (!entropy) {
      lead.textContent = NOT_HERE;
      return;
    }
    const { nothing, text } = aboutEntropy(entropy, number === last ? `${plain(view.activation)} for ${run.classes[view.target]}` : "");
    lead.textContent = text;
    lead.classList.toggle("nothing", nothing);
    showEntropies(entropy, iteration);
    const classes = Array.from(run.its(state.image, "shown").row());
    const kept = classes.indexOf(view.target);
    element.classList.toggle("unkept", kept < 0);
    votesFigure.hidden = kept < 0 || number !== last || !run.its(state.image, "points");
    parts.show(view, number, iteration, !votesFigure.hidden);
    if (kept < 0) {
      overCaption.textContent = `The page keeps routing for the ${classes.length} most active classes; ${run.classes[view.target]} is not among them.`;
      return;
    }
    showOver(view, state, number, kept, iteration);
    if (!votesFigure.hidden) showVotes(view, state, kept, iteration);
  }

  function showOver(view, state, number, kept, iteration) {
    const grid = run.its(state.image, `evidence${number}`);
    const maps = Float32Array.from(grid.row(kept, iteration), (value) => value / 255);
    const fields = run.routed[number].fields;
    paintOver(over, view.pixels, [run.channels, ...run.size], spread(maps, grid.shape.slice(2), fields, run.size));
    const parent = run.its(state.image, `parents${number}`).row()[kept];
    const whose = number === last ? run.classes[view.target] : `type ${parent + 1}, which gave most to the next layer`;
    const [down, across] = fields.side.map((side) => Math.round(side));
    const everywhere = fields.side.every((side, axis) => side >= 0.9 * run.size[axis]);
    over.classList.toggle("everywhere", everywhere);
    if (everywhere) paint(over, view.pixels, [run.channels, ...run.size]);
    overCaption.textContent = everywhere ? `Every part sees nearly the whole image, so there is no map for iteration ${iteration + 1}.` : `Orange: what went to ${whose}, iteration ${iteration + 1}. A part sees ${down}×${across} pixels.`;
  }

  function showVotes(view, state, kept, iteration) {
    const points = run.its(state.image, "points").row(kept);
    const couplings = run.its(state.image, "couplings").row(kept, iteration);
    votes.show(points, couplings, run.its(state.image, "means").row(kept), iteration);
    const share = Math.round(100 * run.its(state.image, "spread").row()[kept]);
    const children = run.routed[last].children;
    const which = points.length / 2 < children ? `the ${points.length / 2} most active of ${children} parts` : `${children} parts`;
    votesCaption.textContent = `Votes of ${which} for ${run.classes[view.target]}, in the two directions with ${share} % of their variance. A dot’s area is its coupling; dots on the rim belong farther out. The cross is the mean.`;
  }

  function showEntropies(entropy, iteration) {
    entropies.replaceChildren(
      ...Array.from(entropy, (value, k) => {
        const decided = Number.isFinite(value) ? 1 - value : 0;
        return shareItem(`iteration ${k + 1}`, decided, 1, { "aria-current": k === iteration ? "step" : null });
      }),
    );
  }
  return { element, show };
}
