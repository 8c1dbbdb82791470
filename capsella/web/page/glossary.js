// Technical terms with explanations that open by mouse, touch or keyboard.

import { h } from "./dom.js";

const TERMS = {
  capsule: "a group of neurons that answers with a list of numbers instead of one. Together the numbers are an arrow: its length is how sure the capsule is that its object is there, its direction is how that object looks.",
  pose: "the numbers of a capsule: how its object looks, for example how slanted, thick or large it is. Nobody told the network what each number means; it learned them in training.",
  dial: "one number of the pose, to be turned by hand. The change in the drawing shows what this number stands for.",
  part: "a capsule that sees only a window of the image, say a stroke. The class capsules are made from the parts.",
  vote: "what one part predicts for the arrow of a class: “if this stroke belongs to a 7, then the 7 looks like this.”",
  coupling: "the share of itself that a part sends to a class. The shares of one part add up to 100 %.",
  "coupling entropy": "a measure of how evenly the parts share themselves among the classes: 100 % means evenly, 0 % that each goes to a single class. Routing decided the rest.",
  iteration: "a round of routing: every class averages its votes, and parts whose vote lies near the average send more of themselves there.",
};
let count = 0;

/** A button that shows the explanation of one of `TERMS`; `text` is how the sentence spells it. */
export function term(name, text = name) {
  const id = `term-${(count += 1)}`;
  const note = h("span", { id, popover: "auto", class: "meaning" }, h("b", {}, `A ${name}`.replace(/^A (?=[aeiou])/, "An ")), ` is ${TERMS[name]}`);
  const button = h("button", { type: "button", class: "term", popovertarget: id }, text);
  button.addEventListener("pointerenter", ({ pointerType }) => pointerType === "mouse" && note.showPopover?.());
  button.addEventListener("pointerleave", ({ pointerType }) => pointerType === "mouse" && note.hidePopover?.());
  return h("span", {}, button, note);
}
