// A slider for mouse, pen, finger and keys. A finger turns it sideways only: a vertical swipe scrolls the page.

import { h } from "./dom.js";

const LEAST_SWIPE = 8; // pixels after which the direction of a swipe is decided

/** Whether a finger that moved by (dx, dy) turns the slider (true), scrolls the page (false), or is undecided (null). */
export function isTurn(dx, dy) {
  if (Math.hypot(dx, dy) < LEAST_SWIPE) return null;
  return Math.abs(dx) > Math.abs(dy);
}

/** The nearest value that a slider can take. */
export function snapped(value, { min, max, step }) {
  const steps = Math.round((value - min) / step);
  const near = Number((min + steps * step).toFixed(6));
  return Math.min(Math.max(near, min), max) + 0; // no −0
}

/** The value after a key, or null for other keys. */
export function keyed(key, value, { min, max, step, rest }) {
  const moves = { ArrowRight: step, ArrowLeft: -step, PageUp: 10 * step, PageDown: -10 * step };
  if (key in moves) return snapped(value + moves[key], { min, max, step });
  if (key === "Home") return min;
  if (key === "End") return max;
  if (key === "Delete" || key === "Backspace") return rest;
  return null;
}

/**
 * range: { min, max, step, rest }, where `rest` is where the fill begins. say: the value in words.
 * Returns the element, and `set(value)`, which does not call `turn`.
 */
export function makeSlider(label, range, say, turn) {
  const fill = h("span", { class: "fill" });
  const thumb = h("span", { class: "thumb" });
  const track = h("span", { class: "track" }, fill, h("span", { class: "rest" }), thumb);
  const element = h("div", { class: "slider", role: "slider", tabindex: 0, "aria-label": label }, track);
  element.setAttribute("aria-valuemin", range.min);
  element.setAttribute("aria-valuemax", range.max);
  const part = (value) => (range.max === range.min ? 0 : (value - range.min) / (range.max - range.min));
  track.style.setProperty("--rest", part(range.rest));
  let value = range.rest;

  function set(next) {
    value = next;
    const here = part(value);
    const rest = part(range.rest);
    fill.style.left = `${100 * Math.min(here, rest)}%`;
    fill.style.width = `${100 * Math.abs(here - rest)}%`;
    thumb.style.left = `${100 * here}%`;
    element.setAttribute("aria-valuenow", value);
    element.setAttribute("aria-valuetext", say(value));
  }

  function turnTo(next) {
    const before = value;
    set(snapped(next, range));
    if (value !== before) turn(value);
  }

  listen(element, track, range, () => value, turnTo);
  set(value);
  return { element, set };
}

/** A slider with its value in words beside it. */
export function namedSlider(label, range, say, turn) {
  const said = h("output", { "aria-hidden": "true" });
  const slider = makeSlider(label, range, say, turn);
  const set = (value) => {
    slider.set(value);
    said.textContent = say(value);
  };
  set(range.rest);
  return { element: h("div", { class: "named" }, slider.element, said), set };
}

function listen(element, track, range, now, turnTo) {
  const width = () => track.getBoundingClientRect().width || 1;
  const across = range.max - range.min;
  let drag = null;
  element.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    element.focus({ preventScroll: true });
    const touch = event.pointerType === "touch";
    drag = { x: event.clientX, y: event.clientY, value: now(), turning: !touch };
    if (touch) return;
    element.setPointerCapture(event.pointerId);
    drag.value = range.min + ((event.clientX - track.getBoundingClientRect().left) / width()) * across;
    turnTo(drag.value);
  });
  element.addEventListener("pointermove", (event) => {
    if (!drag) return;
    const dx = event.clientX - drag.x;
    if (!drag.turning) {
      const turns = isTurn(dx, event.clientY - drag.y);
      if (turns === false) drag = null;
      if (!turns) return;
      drag.turning = true;
      element.setPointerCapture(event.pointerId);
    }
    turnTo(drag.value + (dx / width()) * across);
  });
  for (const end of ["pointerup", "pointercancel"]) element.addEventListener(end, () => (drag = null));
  element.addEventListener("keydown", (event) => {
    const next = keyed(event.key, now(), range);
    if (next === null) return;
    event.preventDefault();
    turnTo(next);
  });
}
