// Words that are explained where they first appear, by pointer, finger and key.

import { h } from "./dom.js";

const TERMS = {
  capsule: "a group of neurons that answers with a list of numbers, not with one. The numbers together are an arrow: its length says how sure the capsule is that its thing is there, its direction how that thing looks.",
  pose: "the numbers of a capsule: how its thing looks, for example how slanted, thick or large it is. Nobody told the network what each number means; it found them in training.",
  dial: "one number of the pose, to be turned by hand. What then changes in the drawing is what this number stands for.",
  part: "a small capsule that sees a small window of the image, say a stroke. The class capsules are made from the parts.",
  vote: "what one part predicts for the arrow of a class: “if this stroke belongs to a 7, then the 7 looks like this.”",
  coupling: "the share of itself that a part sends to a class. The shares of one part add up to 100 %.",
  entropy: "how evenly the parts share themselves out: 1 is to all classes alike, so nothing is decided; 0 is each to one class.",
  iteration: "a round of routing: every class averages its votes, and parts whose vote lies near the average send more of themselves there.",
};
let count = 0;

/** A word of `TERMS`, as `text` in a sentence, with its explanation. */
export function term(name, text = name) {
  const id = `term-${(count += 1)}`;
  const note = h("span", { id, popover: "auto", class: "meaning" }, h("b", {}, `A ${name}`.replace(/^A (?=[aeiou])/, "An ")), ` is ${TERMS[name]}`);
  const button = h("button", { type: "button", class: "term", popovertarget: id }, text);
  button.addEventListener("pointerenter", ({ pointerType }) => pointerType === "mouse" && note.showPopover?.());
  button.addEventListener("pointerleave", ({ pointerType }) => pointerType === "mouse" && note.hidePopover?.());
  return h("span", {}, button, note);
}
