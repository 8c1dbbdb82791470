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

/** Sentences on the calibrated probability and the OOD check. `fewer`: the check lacks scores that `predict` has. */
export function aboutCertainty({ probability, unlike, fewer }) {
  const sure = probability === undefined ? "" : `Calibrated probability ${plain(probability)}. `;
  const distribution = unlike === undefined ? "" : unlike ? `Out of distribution: ${unlike}. Do not trust the answer.` : fewer ? "Not flagged as out of distribution; `capsella predict` checks more." : "In distribution: like the training images.";
  return `${sure}${distribution}`.trim();
}

/** A sentence on how the pose follows a change of the input. `angle`: in degrees. `loss`: change of the length, ≤ 0. */
export function aboutFollowing({ unit, amounts }, angle, loss) {
  const [from, to] = [amounts[0], amounts[amounts.length - 1]].map((amount) => `${plain(amount, 0)}${unit}`);
  const sure = loss > -0.1 ? "and the capsule stays as sure" : "but the capsule does not stay as sure";
  return `Here the pose ${angle < 10 ? "hardly follows" : "follows"} from ${from} to ${to}, ${sure}.${angle < 10 ? " Networks trained on changed images often ignore the change." : ""}`;
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
  return `Length ${plain(view.length)} → ${plain(sure)}: a dial changes one of the pose’s numbers, so the length changes a little, too. ${again}`;
}

/** A sentence on how much a layer's routing decided, and whether that is almost nothing. `result`: "0.90 for 8", or "". */
export function aboutEntropy(entropy, result) {
  const last = entropy[entropy.length - 1];
  if (Number.isNaN(last)) return { nothing: true, text: "There is one parent here, so routing had nothing to decide." };
  const text = `Routing decided ${plain(100 * Math.max(0, 1 - last), 1)} % here: 0 % means that every part shares itself evenly among the capsules, 100 % that each goes to a single one.`;
  return { nothing: last > 0.99, text: last > 0.9 && result ? `${text} The ${result} comes from the votes themselves.` : text };
}
