// A CNN's features for the same changed images, beside the elements of the pose.

import { makeChart, namedMovers, seriesOf } from "./chart.js";
import { h } from "./dom.js";
import { plain } from "./words.js";

/** A row of charts; `show(image, target, change, stop)`. */
export function makeBeside(run) {
  const { name, network, features, of, kept } = run.beside;
  const sure = makeChart(`How sure ${name} is, at each amount`, () => [0, 0.5, 1]);
  const moving = makeChart(`Features of ${name}, at each amount`, (low, high) => [low, 0, high]);
  const legend = h("p", { class: "legend" });
  const said = h("p", { class: "said" });
  const element = h(
    "div",
    { class: "changed-row cnn" },
    h("div", {}, h("h3", {}, `Beside it, a CNN: ${name}`), said),
    h("figure", { class: "chart" }, sure.element, h("figcaption", {}, "how sure the CNN is")),
    h("figure", { class: "chart" }, moving.element, legend),
  );

  function show(image, target, change, stop) {
    const active = run.its(image, `besideActivations${change}`);
    element.hidden = !active; // of a reader's own image in a page that was sent
    if (!active) return;
    const stops = active.shape[0];
    const values = Array.from({ length: stops }, (_, k) => active.row(k)[target]);
    sure.show([{ values, kind: "first" }], 0, 1, stop, run.changes[change]);
    const { series, most, high } = seriesOf(run.its(image, `besideFeatures${change}`).row(), features);
    moving.show(series, -high, high, stop, run.changes[change]);
    const which = features < of ? `the ${features} of its ${of} features that move most` : `its ${of} features`;
    legend.replaceChildren(`${which}: `, ...namedMovers(most.map((k) => `feature ${kept[k] + 1}`)));
    const angle = run.its(image, `besideAngles${change}`).row()[stop];
    said.textContent =
      `${network} saw the same images. How sure it is of ${run.classes[target]}: ${plain(values[(stops - 1) / 2])} → ${plain(values[stop])}; ` +
      `the direction of its feature vector turned by ${plain(angle, 0)}°.`;
  }
  const figures = () =>
    element.hidden
      ? []
      : [
          { picture: sure.element, caption: "how sure the CNN is" },
          { picture: moving.element, caption: legend.textContent },
        ];
  return { element, show, figures, said: () => (element.hidden ? "" : said.textContent) };
}
