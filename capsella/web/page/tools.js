// The buttons below the dials: play, reset, save as PNG or GIF, copy a link.

import { h } from "./dom.js";
import { makeSavers } from "./saved.js";
import { signed } from "./words.js";

const PLAY_SECONDS = 3;
const FRAMES = 24; // from the middle to one end, to the other, and back

/** The value of a dial, in [−1, 1], after a fraction of a sweep. */
const sweepAt = (part) => Math.sin(2 * Math.PI * part);

function makeSender(run, tell, sendable) {
  return async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      const whoever = run.server ? "reaches this server" : "has this file";
      tell(`The link is copied. Whoever ${whoever} sees the same view with it, or with its part after #.${sendable() ? "" : " Your own image is not in it."}`);
    } catch {
      tell("This browser does not allow copying. The link is in the address bar.");
    }
  };
}

/** The buttons. `drawn(side)` promises a canvas with the view. */
export function makeTools(run, dials, change, drawn) {
  const said = h("p", { class: "told", role: "status" });
  const tell = (text) => (said.textContent = text);
  const button = (text, act) => h("button", { type: "button", onclick: act }, text);
  let playing = null;
  let view = null;
  let lastTurned = null; // index of a dial
  const play = button("Play the strongest dial", () => (playing === null ? start() : stop()));
  const reset = button("Reset all dials", () => change({ offsets: null }));
  const labels = { png: "Save the picture (PNG)", gif: "Save the sweep of a dial (GIF)" };
  const savers = makeSavers(run.name, labels, drawn, dials && sweep, tell);
  const send = button("Copy the link to this view", makeSender(run, tell, () => view.facts.number !== null));
  const element = h("div", { class: "tools" }, ...(dials ? [play, reset] : []), ...savers.elements, send, said);

  function start() {
    const dial = dials.strongest();
    const before = view.offsets[dial] ?? 0;
    const began = performance.now();
    const frame = (now) => {
      const part = Math.min(1, Math.max(0, now - began) / (1000 * PLAY_SECONDS));
      if (part === 1) {
        stop();
        change({ offsets: { [dial]: before } });
        return;
      }
      playing = requestAnimationFrame(frame);
      play.textContent = "Stop";
      change({ offsets: { [dial]: sweepAt(part) * run.dials.most } });
    };
    playing = requestAnimationFrame(frame);
  }
  function stop() {
    if (playing === null) return;
    cancelAnimationFrame(playing);
    playing = null;
    play.textContent = "Play the strongest dial";
  }
  /** A sweep of the dial that was turned last, or of the strongest, through its whole range and back. */
  function sweep() {
    stop();
    const dial = lastTurned ?? dials.strongest();
    const before = view.offsets[dial] ?? 0;
    const { image, target } = view;
    return {
      called: `${run.dials.names[dial]} from end to end`,
      count: FRAMES,
      show: (k) => change({ offsets: { [dial]: sweepAt(k / FRAMES) * run.dials.most } }),
      back: () => change({ offsets: { [dial]: before } }),
      fits: () => view.image === image && view.target === target,
    };
  }
  function show(next) {
    const changed = Object.keys(next.offsets).find((k) => next.offsets[k] !== (view?.offsets[k] ?? 0));
    if (view?.target !== next.target || view?.image !== next.image) {
      lastTurned = null;
      stop(); // the dials of another image are the reader's
    } else if (changed !== undefined) lastTurned = Number(changed);
    view = next;
    reset.disabled = next.turnedDials === 0;
  }
  return { element, show, play: () => dials && playing === null && start(), stop };
}

/** "number 3 +0.25, number 5 −0.10", or "". */
export function sayTurned(run, offsets) {
  const turned = Object.entries(offsets).filter(([, value]) => value !== 0);
  return turned.map(([k, value]) => `${run.dials.names[k]} ${signed(value)}`).join(", ");
}
