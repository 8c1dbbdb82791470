import assert from "node:assert/strict";
import { test } from "node:test";
import { arrowPath, heading, offsetsTowards, shownClasses } from "../../../capsella/web/page/capsules.js";
import { sayChange } from "../../../capsella/web/page/changed.js";
import { movers } from "../../../capsella/web/page/chart.js";
import { effectOf, ranked } from "../../../capsella/web/page/dials.js";
import { nextSuch, testNumber } from "../../../capsella/web/page/more.js";
import { dotRadius } from "../../../capsella/web/page/routing.js";
import { isTurn, keyed, snapped } from "../../../capsella/web/page/slider.js";
import { firstState, formatHash, missingImages, parseHash, parseView } from "../../../capsella/web/page/state.js";
import { aboutCertainty, aboutEntropy, aboutFollowing, aboutImage, aboutLength, signed, silence, typed } from "../../../capsella/web/page/words.js";

const run = {
  name: "digits", classes: ["zero", "one"], sure: 0.5, silent: 0.1, lengthIsActivation: true,
  of: 12,
  images: [{ number: 4, truth: [0], taken: [0], predicted: 0 }, { number: 9, truth: [1], taken: [0], predicted: 0 }],
  dials: { names: ["number 1", "number 2", "number 3"], most: 0.25 },
  changes: [{ name: "turn", unit: "°", amounts: [-10, 0, 10] }, { name: "scale", unit: " %", amounts: [90, 100, 110] }],
  routed: [{ iterations: 3 }],
};

test("a finger turns sideways and scrolls up and down", () => {
  assert.equal(isTurn(3, 2), null);
  assert.equal(isTurn(20, 5), true);
  assert.equal(isTurn(5, -20), false);
});

test("a slider takes steps, stays within its range, and has no −0", () => {
  const range = { min: -0.25, max: 0.25, step: 0.0025, rest: 0 };
  assert.equal(snapped(0.1013, range), 0.1025);
  assert.equal(snapped(7, range), 0.25);
  assert.ok(Object.is(snapped(-0.0001, range), 0));
  assert.equal(keyed("ArrowLeft", 0, range), -0.0025);
  assert.equal(keyed("PageUp", 0, range), 0.025);
  assert.equal(keyed("End", 0, range), 0.25);
  assert.equal(keyed("Delete", 0.1, range), 0);
  assert.equal(keyed("Tab", 0.1, range), null);
});

test("numbers out of range are refused with a sentence", () => {
  assert.deepEqual(typed("0,1", "number 1", 0.25), { value: 0.1 });
  assert.deepEqual(typed("−0.25", "number 1", 0.25), { value: -0.25 });
  assert.match(typed("3", "number 1", 0.25).refusal, /number 1 goes from −0.25 to 0.25; 3.00 is outside, and nothing was changed/);
  assert.deepEqual(typed("", "number 1", 0.25), { value: 0 });
  for (const text of ["abc", "Infinity", "1e999"]) assert.match(typed(text, "number 1", 0.25).refusal, /takes a number/);
});

test("dials are ranked by what they change, and those that change nothing are apart", () => {
  const effects = [effectOf([0, 0], [0.5, 0.1]), effectOf([0, 0], [0.01, 0.04]), effectOf([0, 0], [0.6, 0.6])];
  assert.deepEqual(ranked(effects), { strong: [2, 0], flat: [1] });
});

test("a view goes through the address and back; two do", () => {
  const state = { ...firstState(), image: 1, target: 1, offsets: { 0: 0.1, 2: -0.25 }, change: 1, stop: 2, layer: 0, iteration: 1 };
  const hash = formatHash([state, firstState()], [run]);
  assert.equal(hash, "image=9&class=1&dials=1:0.1,3:-0.25&change=scale&stop=2&layer=0&iteration=1|image=4");
  assert.deepEqual(parseHash(`#${hash}`, [run]), [state, firstState()]);
});

test("an address that says nonsense shows the first view", () => {
  for (const text of ["", "image=77", "class=2", "class=-1", "dials=1:9,4:0.1,0:0.1,x", "stop=3&iteration=3", "<script>", "run=5", "change=__proto__"]) {
    assert.deepEqual(parseView(text, [run]), firstState(), text);
  }
});

test("an image of one's own is in no address, and images that are missing are found in one", () => {
  const own = { ...run, images: [...run.images, { number: null, title: "cell.png", truth: [], taken: [1], predicted: 1 }] };
  assert.equal(formatHash([{ ...firstState(), image: 2, target: 1 }], [own]), "class=1");
  assert.deepEqual(missingImages("#image=4|image=7&class=1", [run]), [{ run: 0, number: 7 }]);
  assert.deepEqual(missingImages("#image=12|image=x", [run]), []);
});

test("the arrow: upward where a pose is usual, aside by the second axis, as long as it is sure", () => {
  const axes = [1, 0, 0, 1];
  assert.equal(heading(axes, [2, 0]), 0);
  assert.ok(Math.abs(heading(axes, [1, 1]) - Math.PI / 4) < 1e-12);
  const dragged = offsetsTowards(axes, [1, 1], 0.5, 1);
  assert.ok(Math.abs(heading(axes, [1 + dragged[0], 1 + dragged[1]]) - 0.5) < 1e-12);
  assert.ok(Math.abs(Math.hypot(1 + dragged[0], 1 + dragged[1]) - Math.SQRT2) < 1e-12);
  assert.equal(offsetsTowards(axes, [1, 0], 1, 0.25)[1], 0.25);
  assert.match(arrowPath(0.5, 0), /^M0 0L0\.00 -50\.00M/);
});

test("many classes: the most active have bars, and the chosen one", () => {
  const many = Float32Array.from({ length: 100 }, (_, k) => k / 100);
  assert.deepEqual(shownClasses(many, 3), [3, 89, 90, 91, 92, 93, 94, 95, 96, 97, 98, 99]);
  assert.deepEqual(shownClasses(Float32Array.of(0.1, 0.9), 0), [0, 1]);
});

test("sentences", () => {
  assert.equal(aboutImage(run, run.images[1], [0.9, 0.2]), "Test image 9 is one. The network takes it for zero: its capsule of zero has 0.90 of 1.");
  assert.match(aboutImage(run, run.images[0], [0.3, 0.2]), /No capsule is sure: that of zero, the most active, has 0.30/);
  const own = { number: null, title: "cell.png", truth: [], taken: [1], predicted: 1 };
  assert.equal(aboutImage(run, own, [0.2, 0.9]), "cell.png. The network takes it for one: its capsule of one has 0.90 of 1.");
  const pair = { number: 4, truth: [0, 1], taken: [1, 0], predicted: 1 };
  assert.equal(aboutImage(run, pair, [0.8, 0.9]), "Test image 4 shows zero and one. The network agrees: its capsules of one and zero have 0.90 and 0.80 of 1.");
  assert.equal(silence(run, 1, [0.9, 0.2]), "");
  assert.match(silence(run, 1, [0.9, 0.02]), /The capsule of one is silent/);
  assert.match(aboutLength(run, { turnedDials: 1, length: 0.5, turnedLength: 1.2 }), /0.50 → 1.00: a dial.*does not look at this drawing again/);
  assert.match(aboutLength({ ...run, lengthIsActivation: false }, { activation: 0.7 }), /the dials leave it at 0.70/);
  assert.equal(signed(-0.0001), "0");
});

test("what is known of an image beside its activations, and whether a pose follows", () => {
  assert.equal(aboutCertainty({}), "");
  assert.match(aboutCertainty({ probability: 0.516, unlike: "details unlike any 7" }), /^Calibrated probability 0.52. Out of distribution: details unlike any 7/);
  assert.match(aboutCertainty({ unlike: "" }), /^In distribution/);
  assert.match(aboutCertainty({ unlike: "", fewer: true }), /^Not flagged as out of distribution/);
  const turn = { unit: "°", amounts: [-40, 0, 40] };
  assert.match(aboutFollowing(turn, 2, 0), /hardly follows from −40° to 40°, and the capsule stays as sure/);
  assert.match(aboutFollowing(turn, 25, -0.3), /pose follows from −40° to 40°, but the capsule does not stay as sure/);
});

test("test images are found by class and by right or wrong, round and round", () => {
  const tests = { numbers: [3, 5, 8], truth: [[0], [1], [0]], right: [true, false, false] };
  assert.equal(nextSuch(tests, -1, 0, ""), 0);
  assert.equal(nextSuch(tests, 0, 0, ""), 2);
  assert.equal(nextSuch(tests, 2, 0, ""), 0);
  assert.equal(nextSuch(tests, 0, null, "wrong"), 1);
  assert.equal(nextSuch(tests, 0, 1, "right"), -1);
  assert.deepEqual(testNumber(" 7 ", 12), { value: 7 });
  for (const text of ["", "12", "-1", "1.5", "x", "1e3"]) assert.match(testNumber(text, 12).refusal, /numbers from 0 to 11/, text);
});

test("routing that decides nothing is called so", () => {
  const { nothing, text } = aboutEntropy([1, 0.995], "0.90 for 8");
  assert.equal(nothing, true);
  assert.match(text, /^Routing decided 0.5 % here: 0 % means .* The 0.90 for 8 comes from the votes themselves.$/);
  assert.equal(aboutEntropy([1, 0.9], "0.90 for 8").nothing, false);
  assert.match(aboutEntropy([1, 0.9], "0.90 for 8").text, /^Routing decided 10.0 % .* a single one.$/);
  assert.equal(aboutEntropy([NaN], "").nothing, true);
});

test("changes in words, the numbers that move most, and dots as large as their couplings", () => {
  assert.equal(sayChange(run.changes[0], 0), "turned by −10°");
  assert.equal(sayChange(run.changes[0], 1), "unchanged");
  assert.equal(sayChange(run.changes[1], 2), "scaled to 110 %");
  assert.deepEqual(movers([0, 5, 0, 1, 5, 9], 3), [2, 0]);
  assert.equal(dotRadius(0.1, 10), 4);
  assert.equal(dotRadius(0.4, 10), 8);
});
