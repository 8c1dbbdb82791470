"""The verdict of a comparison in words: the only place that phrases it."""

from collections.abc import Sequence
from typing import NamedTuple

from capsella.compare.verdict import AnyInterval, NetworkResult, Reason, TestSetting, Verdict
from capsella.errors import pluralize
from capsella.evaluation import Interval, points

ENOUGH_EPOCHS = 12  # the slope of the last third of fewer epochs seldom shows what still falls
MAX_IMAGES = 1_000_000  # advice to collect more test images than that is none
REASONS: dict[Reason, str] = {
    "winner": "it is the more accurate one, and fast enough",
    "better per class": "the two are equally accurate, and it finds more of each class on average",
    "faster": "the two cannot be told apart, and it is the faster one",
    "only fast one": "it is the only one within the limit",
    "only useful one": "it is the only one that is better than chance",
    "only complete one": "it is the only one that finds every class",
    "winner too slow": "the better one is too slow as it is; try `capsella bench` on it first",
    "none useful": "neither is shown to be better than chance",
    "none complete": "none that is better than chance finds every class",
    "none fast": "none that would do is fast enough; `capsella bench` shows whether ONNX Runtime or int8 is",
}


class Words(NamedTuple):
    """A headline, and a few sentences by what they are about."""

    headline: str
    sentences: dict[str, str]

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"{part}: {text}" for part, text in self.sentences.items())])


def phrase(verdict: Verdict, left_out: Sequence[str] = ()) -> Words:
    """Return a verdict in words. left_out: networks that diverged with some seed or on some fold."""
    sentences = {
        "accuracy": _accuracy(verdict),
        "classes": _classes(verdict) + _never_found(verdict),
        "better than chance": " ".join(_chance(verdict, result) for result in verdict.networks),
        "training": training_text(verdict.setting),
        "recommendation": _recommendation(verdict),
    }
    if verdict.setting.folds is None:
        sentences["changed images"] = _changed(verdict)
        sentences["what to do next"] = _next(verdict)
    if left_out:
        sentences["left out"] = f"Diverged and therefore not compared: {', '.join(left_out)}."
    return Words(_headline(verdict), sentences)


def _headline(verdict: Verdict) -> str:
    setting, (capsules, cnn) = verdict.setting, verdict.networks
    if not verdict.useful:
        return (
            f"Use neither yet: the test does not show that {capsules.network} or {cnn.network} is better than chance. "
            f"Always predicting {setting.classes[setting.majority]} is right for {100 * setting.majority_share:.1f} %, "
            f"and guessing finds {100 * setting.guess:.1f} % of a class on average."
        )
    text = _winner(verdict)
    if verdict.winner is not None:
        best = capsules if verdict.winner == "capsules" else cnn
        if best.network not in verdict.useful:
            text += " But it is not shown to be better than chance."
        if isinstance(verdict.difference, Interval) and verdict.difference.seed_error is None:
            text += " But with one seed: another may turn the result."
    elif len(verdict.useful) == 1:
        text += f" Only {verdict.useful[0]} is shown to be better than chance."
    early = [result.network for result in verdict.networks if result.network in setting.unfinished]
    if early:
        text += f" But {' and '.join(early)} still learned when the training ended."
    if verdict.ahead_per_class not in (None, verdict.winner):
        text += f" But {_ahead_per_class(verdict)}"
    return text + _never_found(verdict)


def _winner(verdict: Verdict) -> str:
    setting, (capsules, cnn) = verdict.setting, verdict.networks
    seeds, images = capsules.correct.shape
    over = f"{setting.folds} folds of {images} images" if setting.folds else f"{images} test images"
    if verdict.winner is None:
        with_seeds = "" if setting.folds else f" and {pluralize(seeds, 'seed')}"
        return f"No difference that {over}{with_seeds} could show."
    kind, best, other, sign = ("The capsule network", capsules, cnn, 1)
    if verdict.winner == "CNN":
        kind, best, other, sign = "The CNN", cnn, capsules, -1
    return f"{kind} wins: {best.network} is {_by_points(verdict.difference, sign)} more accurate than {other.network}."


def _by_points(difference: AnyInterval, sign: int) -> str:
    low, high = sorted((sign * difference.low, sign * difference.high))
    estimate, low_text, high_text = (points(share, signed=False) for share in (sign * difference.estimate, low, high))
    return f"{estimate} points (95 % interval {low_text} to {high_text})"


def _interval(difference: AnyInterval) -> str:
    low, high = points(difference.low), points(difference.high)
    return f"{points(difference.estimate)} points, 95 % interval {low} to {high}"


def _accuracy(verdict: Verdict) -> str:
    setting, difference = verdict.setting, verdict.difference
    each = ", ".join(f"{result.network} {100 * result.correct.mean():.1f} %" for result in verdict.networks)
    text = f"{each}; difference {_interval(difference)}"
    if not isinstance(difference, Interval) or verdict.best_seeds is None:
        return f"{text}, from the differences on each fold."
    units = "test images" if setting.groups is None else f"groups of test images ({setting.units} here)"
    if difference.seed_error is None:
        text += f" over {units}. With a single seed the interval does not cover what another seed would give."
    else:
        text += f" over {units} and seeds."
    pair = verdict.best_seeds
    alike = "" if setting.groups is None else ", which treats images as independent"
    return (
        f"{text} The comparison would find a true difference of {100 * difference.detectable:.1f} points four times in "
        f"five. Of the best seeds, {pair.only_first} images are right only with the capsules and {pair.only_second} "
        f"only with the CNN (McNemar's exact test{alike}: p = {pair.p_value:.2g})."
    )


def _classes(verdict: Verdict) -> str:
    each = ", ".join(f"{name} {100 * chance.recall.estimate:.1f} %" for name, chance in verdict.evidence.chance.items())
    return f"Mean recall: {each}; difference {_interval(verdict.evidence.recall_difference)}."


def _ahead_per_class(verdict: Verdict) -> str:
    sign, best = (1, verdict.capsules) if verdict.ahead_per_class == "capsules" else (-1, verdict.cnn)
    return f"{best.network} has a mean recall that is {_by_points(verdict.evidence.recall_difference, sign)} higher."


def _never_found(verdict: Verdict) -> str:
    return "".join(
        f" {network} never found {' or '.join(f'{name} ({images} test images)' for name, images in classes)}."
        for network, classes in verdict.never_found.items()
        if classes
    )


def _chance(verdict: Verdict, result: NetworkResult) -> str:
    setting, chance = verdict.setting, verdict.evidence.chance[result.network]
    is_useful = "is" if result.network in verdict.useful else "is not shown to be"
    low, high = 100 * chance.recall.low, 100 * chance.recall.high
    return (
        f"{result.network} {is_useful} better than chance: {_interval(chance.gain)} against always predicting "
        f"{setting.classes[setting.majority]}; mean recall {100 * chance.recall.estimate:.1f} % ({low:.1f} to "
        f"{high:.1f}) against {100 * setting.guess:.1f} % by guessing."
    )


def training_text(setting: TestSetting) -> str:
    """Return whether the networks were trained long enough, as far as their learning curves show it."""
    epochs = pluralize(setting.epochs, "epoch")
    few = setting.epochs < ENOUGH_EPOCHS
    if setting.unfinished:
        return (
            f"Not trained to the end: {', '.join(setting.unfinished)}. The training loss or error still fell in the "
            f"last third of {epochs}; longer training may change the result.{_undecidable(setting)}"
        )
    if setting.all_undecidable:
        text = (
            f"We cannot tell whether {epochs} were enough: with a cosine schedule every curve falls at the end. To "
            "find out, train for twice as many, with another --out."
        )
        return text + (" So few epochs are seldom enough." if few else "")
    text = f"No network's training loss or error still fell at the end of its {epochs}.{_undecidable(setting)}"
    return text + (" With so few epochs that says little: look at the curves." if few else "")


def _undecidable(setting: TestSetting) -> str:
    if not setting.undecidable:
        return ""
    *others, last = setting.undecidable
    names = f"{', '.join(others)} and {last}" if others else last
    return f" {names}: unknown, because with a cosine schedule every curve falls at the end."


def _recommendation(verdict: Verdict) -> str:
    facts = "; ".join(
        f"{result.network} takes {result.latency[0]:.1f} ms per image (95 % of calls within {result.latency[1]:.1f} ms)"
        f" and has {result.parameters:,} parameters"
        for result in verdict.networks
    )
    limit, reason = f"{verdict.setting.limit:g} ms", REASONS[verdict.reason]
    if verdict.recommended is None:
        return f"{facts}. Limit: {limit}. Use neither yet: {reason}."
    return f"{facts}. Limit: {limit}. Use {verdict.recommended}: {reason}."


def _changed(verdict: Verdict) -> str:
    """Return which network holds better under each change: only if the interval of the difference excludes 0."""
    capsules, cnn = verdict.networks
    if capsules.changed is None or cnn.changed is None:
        return "Not measured."
    if capsules.changed.has_two_groups:
        return "The changed images are of only two groups, which is too few for an interval."
    if not verdict.kept:
        return "Not compared: a network that is not better than chance has no accuracy to keep."
    by_network: dict[str, list[str]] = {capsules.network: [], cnn.network: [], "": []}
    for change, kept in verdict.kept.items():
        low, high = kept.difference.low, kept.difference.high
        better = capsules.network if low > 0 else cnn.network if high < 0 else ""
        shares = f"{100 * kept.first.estimate:.0f} and {100 * kept.second.estimate:.0f} %"
        by_network[better].append(f"{change} ({shares}, difference {points(low)} to {points(high)} points)")
    parts = [f"{name} holds better under {', '.join(texts)}" for name, texts in by_network.items() if name and texts]
    parts += [f"no difference is shown under {', '.join(by_network[''])}"] if by_network[""] else []
    single = min(len(capsules.correct), len(cnn.correct)) == 1
    return (
        "Share of its accuracy above that of always predicting the majority class "
        f"({100 * verdict.setting.majority_share:.1f} %) that each keeps on changed images, capsules first: "
        f"{'; '.join(parts)}.{' With a single seed, another may turn this.' if single else ''}"
    )


def _next(verdict: Verdict) -> str:
    setting = verdict.setting
    advice = [_data_size(verdict, result) for result in verdict.networks if result.network in verdict.data_size]
    if setting.unfinished:
        advice.append(f"Train longer: --epochs {2 * setting.epochs}, with another --out.")
    if not verdict.useful:
        advice.append(
            "Look at the learning curves, the labels, and the images at the size that the networks see; train longer "
            "or collect more images, and compare again."
        )
        return " ".join(advice)
    needed = verdict.images_needed
    if needed is not None and setting.units < needed <= MAX_IMAGES:
        units = "test images" if setting.groups is None else "groups of test images, e.g. patients,"
        advice.append(
            f"To show a difference as small as the one measured ({100 * abs(verdict.difference.estimate):.1f} points), "
            f"you would need about {needed:,} {units} and more seeds."
        )
    if verdict.winner is None:
        advice.append("Until then choose by speed, size and the cost of errors, not by this difference.")
    elif isinstance(verdict.difference, Interval) and verdict.difference.seed_error is None:
        advice.append("Confirm it with more seeds.")
    else:
        advice.append("Confirm it on images of another day, patient or instrument before you rely on it.")
    return " ".join(advice)


def _data_size(verdict: Verdict, result: NetworkResult) -> str:
    assert result.smaller is not None
    gain, seeds = verdict.data_size[result.network], len(result.smaller[1])
    low, high = points(gain.low), points(gain.high)
    text = f"{result.network}: all training images instead of {100 * result.smaller[0]:g} % bring "
    text += f"{points(gain.estimate)} points ({low} to {high})"
    if seeds < len(result.correct):
        text += f" over {seeds} of {len(result.correct)} seeds; the others diverged"
    if gain.low > 0:
        return f"{text}. It still learns from more images: collect more."
    if gain.high < 0:
        return f"{text}. More images made it worse: look for wrong labels, or train longer."
    return f"{text}. That is within noise: this test cannot show that more images help."
