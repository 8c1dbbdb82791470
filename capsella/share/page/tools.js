// Below the dials: play, reset, save as PNG or GIF, send.

import { h } from "./dom.js";
import { makeFilm } from "./film.js";
import { signed } from "./words.js";

const PLAY_SECONDS = 3;
const SIDES = { png: 320, gif: 200 }; // pixels of each picture in a file
const FRAMES = 24; // from the middle to one end, to the other, and back
const FRAME_MILLISECONDS = 80;

/** The way of a dial at a part of a sweep, both in [0, 1]. */
const sweepAt = (part) => Math.sin(2 * Math.PI * part);

function save(address, name) {
  h("a", { href: address, download: name }).click();
}

/** Play, reset, save and send. `sheet(side)` is a canvas with the view; `settled()` promises that it is drawn. */
export function makeTools(run, dials, change, { sheet, settled }) {
  const said = h("p", { class: "told", role: "status" });
  const button = (text, act) => h("button", { type: "button", onclick: act }, text);
  let playing = null;
  let view = null;
  let lastTurned = null; // a dial, by its number
  const play = button("Play the strongest dial", () => (playing === null ? start() : stop()));
  const reset = button("All dials back", () => change({ offsets: null }));
  const still = button("Save the picture (PNG)", () => save(sheet(SIDES.png).toDataURL("image/png"), `${run.name}.png`));
  const moving = button("Save the sweep of a dial (GIF)", () => record());
  const send = button("Copy the link to this view", async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      const whoever = run.server ? "reaches this server" : "has this file";
      const without = element.dataset.sendable ? "" : " Your own image is not in it.";
      said.textContent = `The link is copied. Whoever ${whoever} sees the same view with what stands after #.${without}`;
    } catch {
      said.textContent = "This browser does not let the page copy. The link stands in the address bar.";
    }
  });
  const element = h("div", { class: "tools" }, ...(dials ? [play, reset] : []), still, dials && moving, send, said);

  function start() {
    const dial = dials.strongest();
    const began = performance.now();
    const frame = (now) => {
      const part = Math.min(1, Math.max(0, now - began) / (1000 * PLAY_SECONDS));
      change({ offsets: { [dial]: part < 1 ? sweepAt(part) * run.dials.most : 0 } });
      playing = part < 1 ? requestAnimationFrame(frame) : null;
      play.textContent = playing === null ? "Play the strongest dial" : "Stop";
    };
    playing = requestAnimationFrame(frame);
  }
  function stop() {
    if (playing === null) return;
    cancelAnimationFrame(playing);
    playing = null;
    play.textContent = "Play the strongest dial";
  }
  /** The dial that was turned last, or the strongest, through its whole range; then it is as before. */
  async function record() {
    stop();
    const dial = lastTurned ?? dials.strongest();
    const before = view.offsets[dial] ?? 0;
    const { image, target } = view;
    const film = makeFilm(FRAME_MILLISECONDS);
    moving.disabled = true;
    said.textContent = `Drawing ${run.dials.names[dial]} from end to end…`;
    try {
      for (let k = 0; k < FRAMES; k++) {
        change({ offsets: { [dial]: sweepAt(k / FRAMES) * run.dials.most } });
        await settled();
        await new Promise((done) => setTimeout(done)); // the page gets its turn
        if (view.image !== image || view.target !== target) throw new Error("another image or class was chosen");
        film.add(sheet(SIDES.gif));
      }
      change({ offsets: { [dial]: before } });
      const address = URL.createObjectURL(film.file());
      save(address, `${run.name}.gif`);
      setTimeout(() => URL.revokeObjectURL(address), 60_000);
      said.textContent = `Saved: ${run.dials.names[dial]} from end to end.`;
    } catch (error) {
      said.textContent = `Nothing was saved: ${error.message}.`;
    } finally {
      moving.disabled = false;
    }
  }
  function show(next) {
    const changed = Object.keys(next.offsets).find((k) => next.offsets[k] !== (view?.offsets[k] ?? 0));
    if (view?.target !== next.target || view?.image !== next.image) lastTurned = null;
    else if (changed !== undefined) lastTurned = Number(changed);
    view = next;
    const turned = Object.entries(next.offsets).filter(([, value]) => value !== 0);
    element.dataset.turned = turned.map(([k, value]) => `${run.dials.names[k]} ${signed(value)}`).join(", ");
    element.dataset.sendable = next.facts.number === null ? "" : "yes";
    reset.disabled = turned.length === 0;
  }
  return { element, show, play: () => dials && start(), stop };
}
