// Saves parts of the page as PNG, and sweeps of a dial as GIF.

import { h } from "./dom.js";
import { makeFilm } from "./film.js";

const SIDES = { png: 320, gif: 200 }; // pixels of a picture in a file
const FRAME_MILLISECONDS = 80;
const GAP = 20;
const LINE = 22;
const TINTED = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "opacity", "font-size", "font-family", "text-anchor", "display"];

/** An SVG of the page as an image, with its computed colours. */
async function rendered(svg, width, height) {
  const copy = svg.cloneNode(true);
  const inside = [...copy.querySelectorAll("*")];
  [...svg.querySelectorAll("*")].forEach((element, k) => {
    const style = getComputedStyle(element);
    for (const name of TINTED) inside[k].style.setProperty(name, style.getPropertyValue(name));
  });
  for (const [name, value] of Object.entries({ xmlns: "http://www.w3.org/2000/svg", width, height })) copy.setAttribute(name, value);
  const picture = new Image();
  picture.src = `data:image/svg+xml,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
  await picture.decode();
  return picture;
}

/** Text in lines that are no wider than `width`. */
export function wrapped(text, width, measure) {
  const lines = [];
  for (const word of text.split(" ").filter(Boolean)) {
    const longer = lines.length ? `${lines[lines.length - 1]} ${word}` : word;
    if (lines.length && measure(longer) <= width) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

/** Width and height of a picture scaled into a box that is `side` high and, for wide pictures, twice as wide. */
export function fitted([width, height], side) {
  const scale = Math.min(side / height, (width > height ? 2 * side : side) / width);
  return [Math.round(width * scale), Math.round(height * scale)];
}

function sizeOf({ picture, bars }, side) {
  if (bars) return [side, Math.min(side, LINE * bars.length)];
  if (picture instanceof HTMLCanvasElement) return fitted([picture.width, picture.height], side);
  return fitted([picture.viewBox.baseVal.width, picture.viewBox.baseVal.height], side);
}

function drawBars(context, bars, [x, y], [width, height], ink) {
  const row = height / bars.length;
  const name = Math.max(...bars.map((bar) => context.measureText(bar.name).width)) + 8;
  const number = Math.max(...bars.map((bar) => context.measureText(bar.text).width)) + 8;
  const track = Math.max(width - name - number, 10);
  bars.forEach((bar, k) => {
    const middle = y + (k + 0.5) * row;
    context.fillStyle = ink.line;
    context.fillRect(x + name, middle - 4, track, 8);
    context.fillStyle = bar.chosen ? ink.accent : ink.second;
    context.fillRect(x + name, middle - 4, track * Math.min(bar.share, 1), 8);
    context.fillStyle = ink.ink;
    context.fillText(bar.name, x, middle + 5);
    context.fillText(bar.text, x + width - number + 8, middle + 5);
  });
}

function drawFrame(context, field, [x, y], [width, height], ink) {
  const box = [x + field.left * width, y + field.top * height, field.width * width, field.height * height];
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.rect(...box);
  context.fillStyle = "rgb(0 0 0 / .6)";
  context.fill("evenodd");
  Object.assign(context, { strokeStyle: ink.accent, lineWidth: 2 });
  context.strokeRect(...box);
  context.restore();
}

function inkOf(element) {
  const style = getComputedStyle(element);
  const ink = Object.fromEntries(["line", "accent", "second", "ink"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  return { ...ink, paper: style.backgroundColor, family: style.fontFamily };
}

/**
 * A canvas with figures in a row and lines of text below. A figure is { picture, caption, field }, with a canvas or an
 * SVG of the page and the frame to draw on it, or { bars, caption }, with bars { name, share, text, chosen }.
 */
export async function sheet(figures, lines, side) {
  const ink = inkOf(document.body);
  const out = document.createElement("canvas");
  const context = out.getContext("2d");
  const small = `13px ${ink.family}`;
  const large = `16px ${ink.family}`;
  const sizes = figures.map((figure) => sizeOf(figure, side));
  const widths = sizes.map(([width]) => width);
  const across = widths.reduce((sum, width) => sum + width + GAP, GAP);
  const measured = (font) => (text) => ((context.font = font), context.measureText(text).width);
  const captions = figures.map(({ caption }, k) => wrapped(caption, widths[k], measured(small)));
  const below = lines.flatMap((line) => wrapped(line, across - 2 * GAP, measured(large)));
  const foot = side + GAP + 17 * Math.max(...captions.map((caption) => caption.length)) + 10;
  Object.assign(out, { width: across, height: foot + LINE * below.length + GAP });
  context.fillStyle = ink.paper;
  context.fillRect(0, 0, out.width, out.height);
  context.imageSmoothingEnabled = false;
  let x = GAP;
  for (const [k, { picture, bars, field }] of figures.entries()) {
    const place = [x, GAP + (side - sizes[k][1]) / 2];
    context.font = small;
    if (bars) drawBars(context, bars, place, sizes[k], ink);
    else context.drawImage(picture instanceof HTMLCanvasElement ? picture : await rendered(picture, ...sizes[k]), ...place, ...sizes[k]);
    if (field) drawFrame(context, field, place, sizes[k], ink);
    context.fillStyle = ink.ink;
    captions[k].forEach((line, row) => context.fillText(line, x, side + GAP + 17 * (row + 1)));
    x += widths[k] + GAP;
  }
  context.font = large;
  below.forEach((line, row) => context.fillText(line, GAP, foot + LINE * (row + 0.7)));
  return out;
}

function save(blob, name) {
  const address = URL.createObjectURL(blob);
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

/** A GIF of a sweep: { count, show(k), back(), fits() }; `fits`: whether image and class are still the same. */
async function filmed({ count, show, back, fits }, drawn) {
  const film = makeFilm(FRAME_MILLISECONDS);
  try {
    for (let k = 0; k < count; k++) {
      show(k);
      await new Promise((done) => setTimeout(done)); // the page may handle events
      if (!fits()) throw new Error("another image or class was chosen");
      film.add(await drawn(SIDES.gif));
    }
  } finally {
    if (fits()) back();
  }
  return film.file();
}

/**
 * Buttons that save the canvas that `drawn(side)` promises, as PNG and, if there is a `sweep()`, as GIF. `sweep` returns
 * the argument of `filmed`, with a name `called`. `name`: stem of the files. `labels`: of the buttons. `tell(text)`
 * reports what was saved.
 */
export function makeSavers(name, labels, drawn, sweep, tell) {
  async function record() {
    moving.disabled = true;
    const steps = sweep();
    tell(`Drawing ${steps.called}…`);
    try {
      save(await filmed(steps, drawn), `${name}.gif`);
      tell(`Saved: ${steps.called}.`);
    } catch (error) {
      tell(`Nothing was saved: ${error.message}.`);
    } finally {
      moving.disabled = false;
    }
  }
  const keep = (blob) => {
    save(blob, `${name}.png`);
    tell(`Saved: ${name}.png.`);
  };
  const still = h("button", { type: "button", onclick: async () => (await drawn(SIDES.png)).toBlob(keep) }, labels.png);
  const moving = sweep ? h("button", { type: "button", onclick: record }, labels.gif) : null;
  return { elements: [still, moving], moving };
}
