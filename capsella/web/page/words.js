// Formats numbers and sentences.

/** "+0.12", "−0.05", "0". */
export function signed(value, digits = 2) {
  const rounded = Number(value.toFixed(digits));
  if (rounded === 0) return "0";
  return (rounded > 0 ? "+" : "−") + Math.abs(rounded).toFixed(digits);
}

/** "0.97". */
export function plain(value, digits = 2) {
  return (value < 0 ? "−" : "") + Math.abs(value).toFixed(digits);
}

/** A typed number, `{ value }`, or why it is refused, `{ refusal }`. The decimal separator may be a comma. */
export function typed(text, name, most) {
  const value = Number(text.trim().replace(",", ".").replace("−", "-")); // an empty field is 0
  if (!Number.isFinite(value)) {
    return { refusal: `${name} takes a number; “${text.trim()}” is none, and nothing was changed.` };
  }
  if (Math.abs(value) > most) {
    return { refusal: `${name} goes from −${most} to ${most}; ${plain(value)} is outside, and nothing was changed.` };
  }
  return { value };
}

/** Names of classes: "3", or "3 and 5". */
export function namesOf(run, classes) {
  return classes.map((k) => run.classes[k]).join(" and ");
}

/** What an image is called, at the start of a sentence; a file keeps its name. */
export function nameOf(facts) {
  return facts.number === null ? facts.title : `Test image ${facts.number}`;
}

/** Whether the network misclassifies an image; false if its class is unknown. */
export function isWrong({ truth, taken }) {
  return truth.length > 0 && [...truth].sort().join() !== [...taken].sort().join();
}

/** Sentences on an image's true and predicted class. */
export function aboutImage(run, facts, activations) {
  const { truth, taken, predicted } = facts;
  const called = nameOf(facts);
  const is = truth.length ? `${called} ${truth.length > 1 ? "shows" : "is"} ${namesOf(run, truth)}. ` : `${called}. `;
  if (activations[predicted] < run.sure) {
    return `${is}No capsule is sure: that of ${run.classes[predicted]}, the most active, has ${plain(activations[predicted])}.`;
  }
  const verdict = truth.length && !isWrong(facts) ? "The network agrees" : `The network takes it for ${namesOf(run, taken)}`;
  const sure = taken.map((k) => plain(activations[k])).join(" and ");
  const whose = taken.length > 1 ? `its capsules of ${namesOf(run, taken)} have` : `its capsule of ${run.classes[predicted]} has`;
  return `${is}${verdict}: ${whose} ${sure} of 1.`;
}

/** Sentences on the calibrated probability and the OOD check. */
export function aboutCertainty({ probability, unlike }) {
  const sure = probability === undefined ? "" : `Calibrated probability ${plain(probability)}. `;
  const distribution = unlike === undefined ? "" : unlike ? `Out of distribution: ${unlike}. Do not trust the answer.` : "In distribution: like the training images.";
  return `${sure}${distribution}`.trim();
}

/** A sentence on how the pose follows a change of the input. `angle`: in degrees. `loss`: change of the length, ≤ 0. */
export function aboutFollowing({ name, unit, amounts }, angle, loss) {
  const way = `${{ turn: "turn", shift: "shift", scale: "change of size" }[name]} of ${plain(amounts[amounts.length - 1] - amounts[0], 0)}${unit}`;
  const sure = loss > -0.1 ? "and the capsule stays as sure" : `but the capsule becomes less sure, by up to ${plain(-loss)}`;
  if (angle < 10) return `Here the pose hardly follows: its direction changes by ${plain(angle, 0)}° over a ${way}. Such a network has learnt to ignore the change, often because it was trained on changed images.`;
  return `Here the pose follows: its direction changes by ${plain(angle, 0)}° over a ${way}, ${sure}.`;
}

/** Why a drawing must not be trusted, or "". */
export function silence(run, target, activations) {
  if (activations[target] >= run.silent) return "";
  const name = run.classes[target];
  return `The capsule of ${name} is silent (${plain(activations[target])}): the network sees no ${name} here. What it draws says nothing about this image.`;
}

/** Sentences on how the dials change the length, and what that means. */
export function aboutLength(run, view) {
  const again = "The network does not look at this drawing again.";
  if (!run.lengthIsActivation) {
    return `This network does not compute how sure it is from the pose, so the dials leave it at ${plain(view.activation)}. ${again}`;
  }
  if (view.turnedDials === 0) return `Turn a dial: arrow and drawing follow. ${again}`;
  const sure = Math.min(view.turnedLength, 1);
  return `Length ${plain(view.length)} → ${plain(sure)}, from the dials alone. ${again}`;
}

/** A sentence on how much a layer's routing decided, and whether that is almost nothing. */
export function aboutEntropy(entropy) {
  const last = entropy[entropy.length - 1];
  if (Number.isNaN(last)) return { nothing: true, text: "There is one parent here, so routing had nothing to decide." };
  const of = `Entropy of the couplings: ${last.toFixed(4)} of 1.`;
  if (last > 0.99) {
    return { nothing: true, text: `Routing decided almost nothing here: each part was shared nearly evenly. ${of}` };
  }
  if (last > 0.9) return { nothing: false, text: `Routing decided a little here: parts slightly preferred some capsules. ${of}` };
  return { nothing: false, text: `Routing decided something here: parts preferred some capsules. ${of}` };
}
