// A tour in five steps about the shown image: what a capsule is, its length, its dials, a changed input, routing.

import { h } from "./dom.js";
import { plain } from "./words.js";

/** The steps: `css` selects the element, `act` does something on the pane, `say` returns the text. */
const STEPS = [
  {
    css: ".row",
    say: ({ run, name }) =>
      `A usual neuron answers with one number. A capsule answers with several, drawn here as an arrow. This network has ${run.classes.length} class capsules, one for each row of bars. The chosen one is the capsule of ${name}.`,
  },
  {
    css: ".arrow",
    say: ({ name, length }) =>
      `Its length is how sure it is that ${name} is there: ${plain(length)} here. The outer circle is 1, the dashed one ½. The capsules of classes that are not there are short.`,
  },
  {
    css: ".all-dials, .note",
    act: (pane) => pane.play(),
    say: ({ run, name }) =>
      run.layers
        ? `Its direction is how this ${name} looks. A dial changes one of its numbers, and a decoder draws what the capsule then holds. Watch the drawing while the first dial goes from end to end: that is what this number stands for.`
        : `Its direction is how it looks. ${run.whyNoDials}`,
  },
  {
    css: ".changed",
    act: (pane, change) => change({ change: 0, stop: pane.run.changes[0].amounts.length - 1 }),
    say: () => "Now the input itself is turned, and the network looks again. The sentence in bold says whether the capsule stays as sure, and whether its direction follows.",
  },
  {
    css: ".routing",
    say: () => "Last, how the parts of the image choose a class: they vote, and routing weighs the votes. The sentence in bold says how much that decided.",
  },
];

/** A button that starts the tour. `first()`: the view that it is about. `choose(view, values)` changes a view. */
export function makeTour(first, choose) {
  const text = h("p", { role: "status" });
  const button = (label, act) => h("button", { type: "button", onclick: act }, label);
  const back = button("Back", () => go(at - 1));
  const next = button("Next", () => (at === STEPS.length - 1 ? end() : go(at + 1)));
  const quit = button("End the tour", () => end());
  const panel = h("section", { class: "tour", "aria-label": "Tour" }, text, h("div", {}, back, next, quit));
  const start = button("Take the tour: 5 steps", () => go(0));
  let at = 0;

  const marked = () => document.querySelectorAll(".toured").forEach((element) => element.classList.remove("toured"));
  function end() {
    marked();
    panel.remove();
    start.focus();
  }
  function go(step) {
    at = step;
    const view = first();
    const { css, act, say } = STEPS[step];
    marked();
    act?.(view.pane, (values) => choose(view, values));
    const element = view.holder.querySelector(css);
    element.classList.add("toured");
    (element.closest(".row") ?? element).before(panel);
    panel.scrollIntoView({ block: step < 3 ? "center" : "start" });
    back.disabled = step === 0;
    quit.hidden = step === STEPS.length - 1;
    next.textContent = quit.hidden ? "Done" : "Next";
    text.textContent = `${step + 1} of ${STEPS.length}. ${say({ run: view.pane.run, ...view.pane.said() })}`;
    next.focus({ preventScroll: true });
  }
  return start;
}
