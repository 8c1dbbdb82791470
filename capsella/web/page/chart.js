// Lines over the amounts of a change.

import { h, svg } from "./dom.js";
import { plain } from "./words.js";

const WIDTH = 560;
const HEIGHT = 150;

/** A chart of lines over the amounts of a change, with a cursor at the chosen one. `ticks(low, high)`: values of y ticks. */
export function makeChart(label, ticks) {
  const lines = svg("g", {});
  const marks = svg("g", { class: "ticks" });
  const cursor = svg("line", { class: "cursor", y1: 0, y2: HEIGHT });
  const drawing = svg("svg", { viewBox: `-52 -14 ${WIDTH + 84} ${HEIGHT + 42}`, role: "img", "aria-label": label }, marks, cursor, lines);
  function show(series, low, high, stop, { amounts, unit }) {
    const stops = amounts.length;
    const across = (k) => (k * WIDTH) / (stops - 1);
    const y = (value) => HEIGHT - ((value - low) / (high - low || 1)) * HEIGHT;
    const path = (values) => Array.from(values, (value, k) => `${k ? "L" : "M"}${across(k).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    marks.replaceChildren(
      ...ticks(low, high).flatMap((value) => [
        svg("line", { x1: 0, x2: WIDTH, y1: y(value), y2: y(value) }),
        svg("text", { x: -6, y: y(value) + 6 }, plain(value, 1)),
      ]),
      ...[0, (stops - 1) / 2, stops - 1].map((k) => svg("text", { class: "across", x: across(k), y: HEIGHT + 24 }, `${plain(amounts[k], 0)}${unit}`)),
    );
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, across(stop));
    lines.replaceChildren(
      ...series.flatMap(({ values, kind }) => [
        svg("path", { class: kind, d: path(values) }),
        svg("circle", { class: kind, cx: across(stop), cy: y(values[stop]), r: kind === "faint" ? 2.5 : 4 }),
      ]),
    );
  }
  return { element: drawing, show };
}

/** The indices of the two of d numbers that vary most. */
export function movers(poses, d) {
  const stops = poses.length / d;
  const ranges = Array.from({ length: d }, (_, k) => {
    const values = Array.from({ length: stops }, (_, stop) => poses[stop * d + k]);
    return Math.max(...values) - Math.min(...values);
  });
  return ranges.map((_, k) => k).sort((a, b) => ranges[b] - ranges[a]).slice(0, 2);
}

/** A series for each of d numbers over all stops, the two that vary `most` last, and the largest magnitude, `high`. */
export function seriesOf(found, d) {
  const most = movers(found, d);
  const stops = found.length / d;
  const series = Array.from({ length: d }, (_, k) => ({
    values: Array.from({ length: stops }, (_, at) => found[at * d + k]),
    kind: ["first", "second"][most.indexOf(k)] ?? "faint",
  })).sort((a, b) => (a.kind === "faint" ? 0 : 1) - (b.kind === "faint" ? 0 : 1));
  return { series, most, high: Math.max(...found.map(Math.abs), 0.1) };
}

/** "a (orange) and b (blue) move most", in the colours of their lines. */
export function namedMovers([first, second]) {
  const also = second === undefined ? [] : [" and ", h("span", { class: "second" }, `${second} (blue)`)];
  return [h("span", { class: "first" }, `${first} (orange)`), ...also, ` ${also.length ? "move" : "moves"} most`];
}
