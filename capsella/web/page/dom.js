// Creates HTML and SVG elements. Text is never parsed as HTML, since class names may come from strangers' folders.

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An HTML element with attributes ("onclick" and its like are listeners) and children. */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An SVG element; arguments as for `h`. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

/** Makes the arrow keys choose among the radio buttons of a group, of which only one is in the Tab order. */
export function roveByArrows(group, choose) {
  const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  group.addEventListener("keydown", (event) => {
    const choices = [...group.querySelectorAll('[role="radio"]')];
    const at = choices.indexOf(event.target);
    if (at < 0) return;
    let next = at;
    if (event.key in STEPS) next = (at + STEPS[event.key] + choices.length) % choices.length;
    else if (event.key === "Home") next = 0;
    else if (event.key === "End") next = choices.length - 1;
    else return;
    event.preventDefault();
    choose(Number(choices[next].dataset.value));
    group.querySelector('[role="radio"][tabindex="0"]')?.focus();
  });
}

/** A group of radio buttons with these `labels`. Returns its element and `set(index)`. */
export function choices(name, labels, choose) {
  const buttons = labels.map((label, k) =>
    h("button", { type: "button", role: "radio", "data-value": k, onclick: () => choose(k) }, label),
  );
  const group = h("div", { class: "choices", role: "radiogroup", "aria-label": name }, buttons);
  roveByArrows(group, choose);
  const set = (chosen) =>
    buttons.forEach((button, k) => {
      button.setAttribute("aria-checked", k === chosen);
      button.tabIndex = k === chosen ? 0 : -1;
    });
  return { element: group, set };
}
