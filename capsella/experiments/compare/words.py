"""The plan and the decision of a comparison in words, for its report and for the screen."""

import textwrap
from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from capsella.errors import pluralize
from capsella.evaluation import Interval, points
from capsella.evaluation.shortcuts import Shortcut
from capsella.experiments.compare.decision import Decision, NetworkResult
from capsella.experiments.compare.plan import ALL, DISAGREEMENT, Plan
from capsella.experiments.compare.results import Comparison
from capsella.experiments.runner import format_duration

MOST_CLASSES = 4  # the most classes that a sentence names
WIDTH = 80  # of the screen


def phrase(found: Comparison) -> tuple[str, list[str]]:
    """Return the decision in words: a headline, and sentences that explain it."""
    decision = found.decision
    sentences = [
        _accuracy(found),
        _why(decision),
        *([] if decision.recommended is None else [_given_up(decision)]),
        _latency(decision),
        _limits(found),
    ]
    if found.final is not None:
        sentences.append(
            "capsella export and predict take this network trained once more, also on the images that its fold "
            f"tested{'' if found.setting.groups is None else ', except one group'}. "
            "The accuracies are those of the folds' networks; that of the last one was not measured."
        )
    if found.left_out:
        sentences.append(f"A training diverged, so these are not compared: {', '.join(found.left_out)}.")
    return _headline(decision), sentences


def shortcut_lines(shortcuts: Sequence[Shortcut]) -> list[str]:
    """Return a warning about the cues that reveal the class without the object, or nothing."""
    found = [shortcut for shortcut in shortcuts if shortcut.is_found]
    if not found:
        return []
    cues = " ".join(_shortcut(shortcut, is_first=shortcut is found[0]) for shortcut in found)
    return [f"{cues} Networks may use this in place of the object. Check that the classes were imaged alike."]


def short_warnings(shortcuts: Sequence[Shortcut]) -> list[str]:
    """Return the cue of each shortcut in a few words, for the first screen of a phone."""
    lines = []
    for shortcut in shortcuts:
        if shortcut.is_found:
            names = list(shortcut.given_away)[:MOST_CLASSES]
            given = f", and gives away {', '.join(names)}" if names else ""
            right, guess = 100 * shortcut.accuracy.estimate, 100 * shortcut.guess
            lines.append(f"The {shortcut.cue} alone is right for {right:.1f} % (guessing: {guess:.1f} %){given}")
    return lines


def plan_lines(plan: Plan) -> list[str]:
    """Return how a plan tests, and the smallest difference that its test can show."""
    tested = plan.tested
    images = pluralize(len(tested), "image")
    unit = "" if tested.group is None else f" of {pluralize(len(tested.group.unique()), 'group')}"
    tests = f"{images}{unit} are held out for the test"
    if plan.is_crossvalidated:
        tests = f"Each of {images}{unit} is tested once, in {len(plan.folds)} folds"
    return [
        f"{tests}; {pluralize(plan.seed_count, 'seed')}.",
        f"The test can show differences of {points(plan.detectable, signed=False)} points of {plan.measure} or more "
        f"(four times in five, if two networks disagree on {100 * DISAGREEMENT:g} % of the images).",
    ]


def _headline(decision: Decision) -> str:
    chosen = decision.recommended
    if chosen is None:
        return {
            "none useful": "Use none of them yet: no network is shown to be better than chance.",
            "none complete": "Use none of them yet: each network that beats chance misses a whole class.",
            "none fast": f"None is fast enough: each takes more than {decision.setting.limit:g} ms per image.",
        }[decision.reason]
    kind = {"capsules": "the capsule network", "CNN": "the CNN", "pretrained": "the pretrained CNN"}[chosen.family]
    return f"Use {kind}, {chosen.title}." if chosen.family != "pretrained" else f"Use {chosen.title}."


def _why(decision: Decision) -> str:
    others = ", ".join(
        _difference(decision, network) for network in decision.finalists if network is not decision.leader
    )
    measure, leader = decision.setting.measure, decision.leader.title
    highest = f"Its {measure} is the highest{_among(decision)}"
    reasons = {
        "winner": f"{highest}, and the test shows that none of the others is as good: {others}.",
        "ahead": f"{highest}, but the test does not show that every other one is worse: {others}.",
        "best useful": f"Of the networks that beat chance, find every class and are fast enough, it has the highest "
        f"{measure}: {others}.",
        "faster": "It is the fastest within one standard error of the most accurate network that beats chance, finds "
        f"every class and is fast enough: {others}.",
        "none useful": f"{leader} has the highest {measure}: {others}. Look at the labels, the learning curves and the "
        "images at the size that the networks see; then train longer or collect more images.",
        "none complete": f"{_never_found(decision)} {leader} has the highest {measure}: {others}.",
        "none fast": f"{leader} has the highest {measure}: {others}. capsella bench shows whether ONNX Runtime or "
        "int8 is fast enough.",
    }
    return reasons[decision.reason]


def _difference(decision: Decision, network: NetworkResult) -> str:
    interval = decision.against[network.name]
    return f"{network.title} {points(interval.estimate)} points ({points(interval.low)} to {points(interval.high)})"


def percent(interval: Interval) -> str:
    """Return a proportion with its interval, in per cent.

    >>> percent(Interval(0.951, 0.93, 0.97, 0.01, None, 100))
    '95.1 % (93.0 to 97.0)'
    """
    estimate, low, high = (100 * value for value in (interval.estimate, interval.low, interval.high))
    return f"{estimate:.1f} % ({low:.1f} to {high:.1f})"


def network_cells(decision: Decision, network: NetworkResult) -> list[str]:
    """Return a network's title, accuracy, balanced accuracy and milliseconds per image."""
    setting = decision.setting
    shares = [percent(setting.accuracy(network.correct)), percent(setting.balanced_accuracy(network.correct))]
    return [network.title, *shares, f"{network.latency[0]:.1f}"]


def _accuracy(found: Comparison) -> str:
    decision, setting, network = found.decision, found.setting, found.decision.leader
    accuracy, balanced = (percent(f(network.correct)) for f in (setting.accuracy, setting.balanced_accuracy))
    units = "images" if setting.groups is None else f"groups ({setting.units})"
    units += " and trainings" if found.plan.has_repeats else "; one training of each network"
    share = 100 * float((setting.labels == setting.majority).mean())
    text = (
        f"{network.title} classifies {accuracy} of {len(setting.labels):,} unseen images correctly; "
        f"its mean recall over classes is {balanced}. In brackets: 95 % intervals over {units}. Always "
        f"predicting {setting.classes[setting.majority]} would be right for {share:.1f} %."
    )
    never = _never_found(decision)
    return f"{text} {never}" if never and decision.reason != "none complete" else text


def _never_found(decision: Decision) -> str:
    return " ".join(
        f"{network.title} never found {' or '.join(f'{name} ({images} images)' for name, images in classes)}."
        for network in decision.finalists
        if (classes := decision.never_found[network.name])
    )


def _given_up(decision: Decision) -> str:
    """Return a sentence on where other finalists are better than the recommended one."""
    leader, parts = decision.leader, []
    for network in decision.finalists:
        if network is leader:
            continue
        gain = decision.against[network.name]
        better = []
        if gain.estimate > 0:
            sure = "" if gain.low > 0 else " (may be chance)"
            better.append(f"{points(gain.estimate, signed=False)} points of {decision.setting.measure}{sure}")
        if network.latency[0] < 0.8 * leader.latency[0]:
            better.append(f"{leader.latency[0] - network.latency[0]:.1f} ms per image")
        if network.parameters < 0.8 * leader.parameters:
            sizes = f"{_millions(network.parameters)} parameters in place of {_millions(leader.parameters)}"
            better.append(f"a smaller network ({sizes})")
        if better:
            parts.append(f"{', and '.join(better)}, compared with {network.title}")
    if parts:
        return f"What you give up: {'; '.join(parts)}."
    return f"You give up little: no other network{_among(decision)} is more accurate, or a fifth faster or smaller."


def _among(decision: Decision) -> str:
    return "" if len(decision.networks) == len(decision.finalists) else " among the best of each kind"


def _millions(number: int) -> str:
    return f"{number / 1e6:.1f} million" if number >= 1e5 else f"{number:,}"


def _latency(decision: Decision) -> str:
    times = ", ".join(f"{network.title} {network.latency[0]:.1f} ms" for network in decision.finalists)
    return f"Time per image: {times} (median on this machine's processor, one image per call)."


def _limits(found: Comparison) -> str:
    decision, plan = found.decision, found.plan
    (nearest,) = (network.title for network in decision.finalists if network.name == decision.nearest)
    spread = " and the spread between trainings that were observed" if plan.has_repeats else " that was observed"
    text = (
        f"A true difference between {decision.leader.title} and {nearest} of less than "
        f"{points(decision.detectable, signed=False)} points would often go unnoticed: by the disagreement{spread}, "
        "one of that size is found four times in five (expected from the number of images: "
        f"{points(plan.detectable, signed=False)})."
    )
    short = [
        f"{each.title} ({plan.epochs(each)} of {each.epochs_for(len(plan.splits.train))} epochs)"
        for each in plan.contenders
        if plan.fractions[each.name] < 0.5
    ]
    if short:
        text += f" Longer trainings (--minutes) may change the order: {', '.join(short)}."
    new = "another day, patient or instrument" if found.setting.groups is None else "another day or instrument"
    return f"{text} How networks do on images of {new} was not tested."


def _shortcut(shortcut: Shortcut, *, is_first: bool) -> str:
    accuracy = percent(shortcut.accuracy)
    text = f"The {shortcut.cue} alone gives a balanced accuracy of {accuracy}"
    text += f", where guessing has {100 * shortcut.guess:.1f} %." if is_first else "."
    names = [f"{name} (AUC {area:.2f})" for name, area in shortcut.given_away.items()]
    if names:
        more = f" and {len(names) - MOST_CLASSES} more" if len(names) > MOST_CLASSES else ""
        text += f" It gives away {', '.join(names[:MOST_CLASSES])}{more}."
    return text


# On the screen


def shortcut_summary(shortcuts: Sequence[Shortcut]) -> Group:
    """Return the warnings about cues that reveal the class without the object."""
    return Group(*_wrapped([f"WARNING: {line}" for line in shortcut_lines(shortcuts)]))


def plan_summary(plan: Plan) -> Group:
    """Return the images, the networks with their epochs and times, and what the test can show."""
    splits = plan.splits
    head = [f"{splits.name}: {len(splits.classes)} classes", *plan.notes]
    head += [f"left out {reason}" for reason in splits.broken]
    table = Table("network", pad_edge=False, box=None)
    for name in ("pixels", "parameters", "epochs", "one run", "all runs"):
        table.add_column(name, justify="right")
    for each in plan.contenders:
        time = plan.network_seconds(each)
        usual, epochs = each.epochs_for(len(splits.train)), plan.epochs(each)
        shown = "–" if each.is_fitted else f"{epochs}" if epochs >= usual else f"{epochs} of {usual}"
        cells = [str(each.recipe.data.size), f"{each.parameters:,}", shown]
        table.add_row(Text(each.title), *cells, format_duration(plan.seconds(each)), format_duration(time))
    runs = sum(plan.runs(each, share) for each in plan.contenders for share in (1.0, *plan.shares, ALL))
    total = f"{runs:.0f} runs, about {format_duration(plan.total_seconds())} in all on this machine."
    return Group(*_wrapped(head), Text(), table, Text(), *_wrapped([*plan_lines(plan), total]))


def result_summary(found: Comparison) -> Group:
    """Return the table of all networks, and the decision last."""
    decision = found.decision
    table = Table("network", pad_edge=False, box=None)
    for head in ("accuracy", "balanced accuracy", "ms"):
        table.add_column(head, justify="right")
    for network in decision.networks:
        title, *shown = network_cells(decision, network)
        table.add_row(Text(title, style="bold" if network is decision.recommended else ""), *shown)
    headline, sentences = phrase(found)
    lines = [headline, *sentences]
    if decision.recommended is not None:
        lines.append(f"Run: {decision.recommended.best_run}")
    if found.final is not None:
        lines.append(f"Network for export and predict (trained on test images, too): {found.final}")
    return Group(Text(), table, Text(), *_wrapped(lines))


def _wrapped(lines: Sequence[str]) -> list[Text]:
    """Return lines of at most `WIDTH` characters; a longer path stays whole."""
    wrapped = (textwrap.wrap(line, WIDTH, break_long_words=False, break_on_hyphens=False) for line in lines)
    return [Text("\n".join(parts), no_wrap=True, overflow="ignore") for parts in wrapped]
