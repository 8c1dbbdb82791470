"""The plan of a comparison: folds, networks, and as many epochs as the time allows.

`plan.json` and `splits/` in the folder of the comparison keep what was decided at its start, so that it can continue.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from os.path import relpath
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from capsella.bench import time_in_turns
from capsella.data import (
    DataOptions,
    FolderData,
    ImageSet,
    LabelledImages,
    NamedData,
    Splits,
    SplitTable,
    inspect_folder,
    single_images,
)
from capsella.data.catalogue import largest_side
from capsella.data.decoding import check_memory
from capsella.data.images import join
from capsella.data.load import LoadedSource, load_source
from capsella.data.options import FileData
from capsella.data.splits import UNUSED
from capsella.data.summary import LEAST_TRAIN, few_groups
from capsella.errors import ArgumentError, CapsellaError, near_names, pluralize, warn_once
from capsella.evaluation import detectable_difference
from capsella.experiments.compare.contenders import (
    LARGEST,
    PRETRAINED,
    Contender,
    make_contenders,
    network_names,
    side_for,
)
from capsella.experiments.compare.options import (
    CROSS_VALIDATED_BELOW,
    FOLDS,
    RATES,
    SEEDS,
    SHARES,
    VALIDATION,
    ComparisonOptions,
)
from capsella.experiments.runner import Row
from capsella.files import read_json, write_json
from capsella.models.backbones import efficientnet
from capsella.models.inference import inference
from capsella.training import ComputeOptions
from capsella.training.balance import choose_balance
from capsella.training.config import Balance
from capsella.training.logistic_regression import MOST_CV_IMAGES
from capsella.training.loop import time_steps
from capsella.training.resolve import choose_precision
from capsella.training.run import check_same_settings

WARM_UP = 10  # a training's first tenth at most, when few steps are planned
DISAGREEMENT = 0.06  # expected proportion of images that only one of two good networks classifies correctly
ENOUGH_EPOCHS = 1 / 3  # of the usual ones; with fewer, networks from scratch get the time of the curve and of seeds
RUN_SECONDS, PASSES = 3.0, 5  # of each run besides its epochs: fixed, and passes over the validation images
SLOWER = 1.1  # epochs take longer than the steps that were timed: shuffling, metrics, checkpoints
REGRESSION_SECONDS = 0.04  # of a cross-validated logistic regression, per image that it uses
TOLERANCE = 1.15  # a plan may take up to this many times the requested minutes
ALL = math.inf  # in place of a fraction of the training images: all images, also those that the folds test
Measure = Literal["accuracy", "balanced accuracy"]
Key = tuple[str, int, float]  # of a row: network, fold, and fraction of the training images, or `ALL`


class Cost(NamedTuple):
    """Seconds per image of training and of inference, measured before the comparison."""

    training: float
    inference: float


class Fold(NamedTuple):
    """The split of one fold, with the table for its split file."""

    splits: Splits
    table: SplitTable


@dataclass(frozen=True, eq=False)
class Plan:
    """The trainings of a comparison.

    folds: splits, at the size that networks trained from scratch see. costs: by network. fractions: by network, the
    fraction of its usual epochs. loading: estimated seconds of loading a fold. seed_count: trainings of each network
    per fold. has_curve: whether networks are also trained on fractions of the images.
    """

    options: ComparisonOptions
    folds: tuple[Fold, ...]
    contenders: tuple[Contender, ...]
    costs: Mapping[str, Cost]
    fractions: Mapping[str, float]
    loading: float
    seed_count: int
    has_curve: bool

    @property
    def folder(self) -> Path:
        """The folder of the runs and the report."""
        return self.options.output

    @property
    def splits(self) -> Splits:
        """The images of the first fold."""
        return self.folds[0].splits

    @property
    def is_crossvalidated(self) -> bool:
        """True if every image is tested in one of several folds."""
        return len(self.folds) > 1

    @property
    def has_repeats(self) -> bool:
        """True if networks are trained more than once, so that intervals also cover the trainings."""
        return self.is_crossvalidated or self.seed_count > 1

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the images, warnings of few of them, and what the time is too short for."""
        short = ["no learning curve"] if self.options.curve and not self.has_curve else []
        if self.options.seeds is None and not self.is_crossvalidated and self.seed_count < SEEDS:
            short.append(f"{pluralize(self.seed_count, 'seed')} instead of {SEEDS}")
        is_usual = self.options.fine_tune is None and self.options.backbone == efficientnet.NAME
        if is_usual and any(each.is_fitted for each in self.contenders):
            short.append("the pretrained network stays frozen")
        tested, train = self.tested, self.splits.train.counts()
        few = [f"{name} ({count})" for name, count in train.items() if count < LEAST_TRAIN]
        return (
            *self.splits.notes,
            *([f"fewer than {LEAST_TRAIN} training images: {', '.join(few)}"] if few else []),
            *([] if tested.group is None else few_groups(tested.group.numpy(), tested.labels.numpy(), tested.classes)),
            *(f"{what}: {self.options.minutes:g} minutes are too short" for what in short),
        )

    def seeds(self, contender: Contender) -> tuple[int, ...]:
        """Return the seeds of a network on each fold; a logistic regression does not depend on the seed."""
        return (0,) if contender.is_fitted else tuple(range(self.seed_count))

    @property
    def measure(self) -> Measure:
        """The deciding measure: balanced accuracy if classes are so uneven that training balances them."""
        return "accuracy" if self.contenders[0].recipe.balance == "none" else "balanced accuracy"

    @property
    def tested(self) -> ImageSet:
        """The test images of all folds, in their order."""
        return join([single_images(fold.splits.test, "comparisons") for fold in self.folds])

    @property
    def shares(self) -> tuple[float, ...]:
        """The fractions of the learning curve below 1 that leave two images (on average two groups) of each class."""
        counts, group = self.splits.train.counts(), self.splits.train.metadata.get("group")
        rarest = min(counts.values()) if group is None else len(group.unique()) / len(counts)  # groups stay whole
        return tuple(share for share in SHARES if self.has_curve and share * rarest >= 2)

    @property
    def detectable(self) -> float:
        """The smallest true difference detected with a power of 0.8, by the expected disagreement."""
        tested = self.tested
        units = None if tested.group is None else len(tested.group.unique())
        balanced = self.measure != "accuracy"
        return detectable_difference(tested.labels.numpy(), DISAGREEMENT, balanced=balanced, units=units)

    def images(self, share: float = 1.0) -> int:
        """Return the number of images of a training on a fraction of the training images, or on `ALL`."""
        train = len(self.splits.train)
        return train + len(self.splits.test) if share == ALL else max(1, round(share * train))

    def epochs(self, contender: Contender, share: float = 1.0) -> int:
        """Return the epochs of a training on a fraction of the training images, or on `ALL`."""
        return contender.epochs_for(self.images(share), self.fractions[contender.name])

    def row(self, contender: Contender, fold: int, share: float = 1.0) -> Row:
        """Return the row of a network on one fold."""
        data, recipe = contender.recipe.data, contender.recipe
        of_file = {"range": self.splits.value_range, "duplicates": "ignore"} if isinstance(data, FileData) else {}
        data = data.replace(split_file=self.split_file(fold, share), **of_file).with_measured(None, self.splits.cut)
        epochs, optimizer = self.epochs(contender, share), recipe.optimizer
        steps = epochs * math.ceil(self.images(share) / recipe.batch_size)
        optimizer = replace(optimizer, warmup_steps=min(optimizer.warmup_steps, steps // WARM_UP))
        recipe = replace(recipe, data=data, epochs=epochs, optimizer=optimizer)
        part, has_fold = _part(share), self.is_crossvalidated and share != ALL
        words = [contender.title.partition(",")[0], f"fold {fold + 1}" if has_fold else "", part[1:]]
        return Row(
            slug=f"{contender.name}{f'-fold{fold}' if has_fold else ''}{part}",
            recipe_name=contender.recipe_name,
            recipe=recipe,
            cost=f"{contender.name}{part}",
            progress_label=", ".join(filter(None, words)),
            is_quiet=not self.options.verbose,
        )

    def rows(self) -> dict[Key, Row]:
        """Return all rows, fold by fold; only the first fold has a learning curve."""
        shares = {fold: (1.0, *self.shares) if fold == 0 else (1.0,) for fold in range(len(self.folds))}
        return {
            (contender.name, fold, share): self.row(contender, fold, share)
            for fold in shares
            for share in shares[fold]
            for contender in self.contenders
        }

    def split_file(self, fold: int, share: float = 1.0) -> Path:
        """Return the split file of a fold, or of the training on `ALL`."""
        return self.folder / "splits" / ("all.csv" if share == ALL else f"fold{fold}{_part(share)}.csv")

    def seconds(self, contender: Contender, share: float = 1.0, fraction: float | None = None) -> float:
        """Estimate the seconds of one run; fraction: of the usual epochs, by default the plan's."""
        cost, splits, train = self.costs[contender.name], self.splits, self.images(share)
        fraction = self.fractions[contender.name] if fraction is None else fraction
        validation, tested = len(splits.validation), 0 if share == ALL else len(splits.test)
        epochs = 0.0 if contender.is_fitted else fraction * contender.epochs_for(train)
        passes = 2 * train + PASSES * validation + tested
        fixed = RUN_SECONDS + REGRESSION_SECONDS * min(train, MOST_CV_IMAGES) * contender.is_fitted
        return fixed + SLOWER * epochs * (cost.training * train + cost.inference * validation) + cost.inference * passes

    def network_seconds(self, contender: Contender, fraction: float | None = None) -> float:
        """Estimate the seconds of all runs of a network."""
        shares = (1.0, *self.shares, ALL)
        return sum(self.runs(contender, share) * self.seconds(contender, share, fraction) for share in shares)

    def runs(self, contender: Contender, share: float = 1.0) -> float:
        """Return the number of runs of a network; that on `ALL`, which one of them has, counts for each in part."""
        if share == ALL:
            return 1 / len(self.contenders) if self.is_crossvalidated else 0
        rates = 1 if contender.is_fitted else len(RATES[self.options.rates])
        trainings = len(self.seeds(contender)) + rates - 1
        return trainings * len(self.folds) if share == 1 else trainings

    def total_seconds(self) -> float:
        """Estimate the seconds of the whole comparison."""
        return sum(map(self.network_seconds, self.contenders)) + self.loading_seconds

    @property
    def loading_seconds(self) -> float:
        """The estimated seconds of loading the images of every fold, and those of the training on `ALL`."""
        return self.loading * (len(self.folds) + self.is_crossvalidated)


def _part(share: float) -> str:
    """Return the end of the names of what belongs to a fraction of the training images, or to `ALL`."""
    return "-all" if share == ALL else "" if share == 1 else f"-{100 * share:g}%"


def make_plan(options: ComparisonOptions) -> Plan:
    """Read and split the images, check every network against them, and measure its speed; write nothing.

    A comparison that was started in the folder keeps its networks and its epochs. It may continue with more seeds and
    another latency limit. A dry run ignores what is there.

    Raises:
        ArgumentError: an unknown network, one that cannot take the images, or too little time.
        CapsellaError: images that cannot be read or split; another comparison is in the folder; the images changed.
    """
    options.data.check_outside(options.output)
    begun = {} if options.dry_run else _begun_with(options)
    started = time.monotonic()
    data, side = _sized(options)
    folds = tuple(_folds(options, data))
    loading = 2 * (time.monotonic() - started)
    splits = folds[0].splits
    if begun and begun["images"] != _digests(folds):
        raise CapsellaError("the images have changed since this comparison began; choose another --out")
    wanted = network_names(options.networks)
    names = begun.get("networks") or wanted
    if PRETRAINED in wanted and PRETRAINED not in names:
        warn_once("began without", "this comparison began without the pretrained network; another --out adds it")
    balance: Balance = begun.get("balance") or choose_balance(splits.train.counts())[0]
    precision = begun.get("precision") or options.precision
    if precision == "auto":
        precision = choose_precision(options.accelerator)[0]
    seeds = options.seeds or begun.get("seed_count") or (SEEDS if len(folds) == 1 else 1)
    costs: dict[tuple[str, str], Cost] = {}

    def plan_for(fine_tune: bool) -> Plan:
        chosen = replace(options, fine_tune=fine_tune)
        contenders = tuple(make_contenders(names, chosen, splits, side, balance, precision))
        plan = Plan(options, folds, contenders, {}, {}, loading, seeds, options.curve)
        if begun:
            kept = {name: begun[name] for name in ("fractions", "loading", "has_curve")}
            return replace(plan, costs={name: Cost(*cost) for name, cost in begun["costs"].items()}, **kept)
        for each in contenders:
            key = each.name, each.recipe_name
            costs[key] = costs.get(key) or _measure(each, plan)
        return _within_time(replace(plan, costs={each.name: costs[each.name, each.recipe_name] for each in contenders}))

    fine_tune: bool | None = begun.get("fine_tune", options.fine_tune)
    if fine_tune is not None or PRETRAINED not in names or options.backbone != efficientnet.NAME:
        return plan_for(fine_tune is True)
    with suppress(ArgumentError):  # too little time
        plan = plan_for(True)
        if _has_enough(plan) and plan.has_repeats:
            return plan
    return plan_for(False)


def begin(plan: Plan) -> None:
    """Write plan.json and the split files, unless they exist."""
    path = plan.folder / "plan.json"
    if path.exists():
        return
    for number, fold in enumerate(plan.folds):
        fold.table.write(plan.split_file(number))
    for share in plan.shares:
        _with_share(plan.folds[0], share).write(plan.split_file(0, share))
    if plan.is_crossvalidated:
        _with_all(plan.folds[0]).write(plan.split_file(0, ALL))
    recipe = plan.contenders[0].recipe
    write_json(
        path,
        {
            "options": plan.options.to_dict(),
            "images": _digests(plan.folds),
            "networks": [contender.name for contender in plan.contenders],
            "costs": plan.costs,
            "fractions": plan.fractions,
            "loading": plan.loading,
            "seed_count": plan.seed_count,
            "has_curve": plan.has_curve,
            "fine_tune": not any(each.is_fitted for each in plan.contenders),
            "balance": recipe.balance,
            "precision": recipe.precision,
        },
    )


def _digests(folds: Sequence[Fold]) -> list[dict[str, str]]:
    """Return digests of the images of each fold."""
    return [fold.splits.digests(test=True) for fold in folds]


def _begun_with(options: ComparisonOptions) -> dict[str, Any]:
    """Return the contents of plan.json; empty if the comparison was not started."""
    path = options.output / "plan.json"
    if not path.exists():
        return {}
    plan: dict[str, Any] = read_json(path)
    needed = {"options", "images", "networks", "costs", "fractions", "loading", "seed_count", "has_curve", "fine_tune"}
    if missing := {*needed, "balance", "precision"}.difference(plan):
        raise CapsellaError(f"{path} is damaged: it has no {', '.join(sorted(missing))}; choose another --out")
    before, now = plan["options"], options.to_dict()
    before["images"], now["images"] = (relpath(each["images"]) for each in (before, now))  # cells and cells/
    seeds = before.get("seeds"), now["seeds"]
    for name in ("seeds", "latency_limit"):
        before[name] = now[name]
    check_same_settings(options.output, before, now)
    if (seeds[1] or 0) < (seeds[0] or 0):
        raise CapsellaError(f"{options.output} has {seeds[0]} seeds, not {seeds[1]}; continue with as many or more")
    return plan


def _sized(options: ComparisonOptions) -> tuple[DataOptions, int]:
    """Return data options at the size that networks trained from scratch see, and the side of the original images."""
    data = options.data
    if isinstance(data, FolderData):
        summary = inspect_folder(data.path)
        (height, width), channels = (summary.height, summary.width), summary.channels
    else:
        train = load_source(data if options.size is None else data.replace(size=options.size)).source.train
        (height, width), channels = train.image_size, train.channels
    side = (largest_side(data.name) if isinstance(data, NamedData) else None) or min(height, width)
    size = options.size or side_for(side, LARGEST)
    sized = {"size": size, "channels": options.channels or channels, "cells": options.cells}
    return data.replace(**sized, validation=VALIDATION), side


def _folds(options: ComparisonOptions, data: DataOptions) -> Iterator[Fold]:
    """Yield the folds, or the one split; by default there are fewer folds if a class has fewer images than folds."""
    source = load_source(data)
    if options.classes:
        _keep_classes(source, options.classes)
    images = sum(map(len, source.rows.values()))
    number = options.folds
    if number is None:
        is_split = source.source.test is not None or options.split_file is not None
        number = 1 if is_split or images >= CROSS_VALIDATED_BELOW else FOLDS
        while number > 3:
            try:
                source.split(replace(data, folds=number, fold=0))
                break
            except CapsellaError:
                number -= 1
        if 1 < number < FOLDS:
            warn_once("few folds", f"{number} folds instead of {FOLDS}, because a class has so few images or groups")
    for fold in range(number):
        each = data if number == 1 else replace(data, folds=number, fold=fold)
        yield Fold(source.split(each), source.table(each))


def _keep_classes(source: LoadedSource, classes: Sequence[str]) -> None:
    """Leave the other classes out before the images are split, so that they cannot hinder it."""
    for name in classes:
        if name not in source.classes:
            raise ArgumentError("classes", "be classes of the images", name, near_names(name, source.classes))
    source.classes = tuple(name for name in source.classes if name in classes)
    labels, kept = source.images.labels, torch.tensor([source.images.classes.index(name) for name in source.classes])
    source.rows = {split: rows[torch.isin(labels[rows], kept)] for split, rows in source.rows.items()}


def _with_share(fold: Fold, share: float) -> SplitTable:
    """Return the table with a fraction of each class's training images; the others become unused.

    Groups are drawn whole, at least one per class. The images of a smaller fraction are among those of a larger one.
    """
    keys = [key for key, row in fold.table.rows.items() if row.split == "train"]
    train, rows = single_images(fold.splits.train, "comparisons"), dict(fold.table.rows)
    labels = train.labels.numpy()
    groups = np.arange(len(train)) if train.group is None else train.group.numpy()
    random = np.random.default_rng(0)
    for label in np.unique(labels):
        names, sizes = np.unique(groups[labels == label], return_counts=True)
        order = random.permutation(len(names))
        before = sizes[order].cumsum() - sizes[order]  # images that are drawn before each group
        drawn = names[order[before < max(1, round(share * sizes.sum()))]]
        for k in np.flatnonzero((labels == label) & ~np.isin(groups, drawn)).tolist():
            rows[keys[k]] = rows[keys[k]]._replace(split=UNUSED)
    return fold.table._replace(rows=rows)


def _with_all(fold: Fold) -> SplitTable:
    """Return the table that also trains on the test images, but for one or its group: a split needs a test image."""
    test = single_images(fold.splits.test, "comparisons")
    groups = np.arange(len(test)) if test.group is None else test.group.numpy()
    names, sizes = np.unique(groups, return_counts=True)
    tested = [key for key, row in fold.table.rows.items() if row.split == "test"]
    moved = {key for key, group in zip(tested, groups, strict=True) if group != names[sizes.argmin()]}
    rows = {key: row._replace(split="train") if key in moved else row for key, row in fold.table.rows.items()}
    return fold.table._replace(rows=rows)


def _measure(contender: Contender, plan: Plan) -> Cost:
    """Time a few training steps and the classification of a few images; their content does not matter."""
    recipe, splits = contender.recipe, plan.splits
    size = recipe.data.size or splits.image_size[0]
    if contender.is_fitted:
        torch.manual_seed(0)
        model = recipe.model.create((size, size), splits.channels, splits.classes)
        images = torch.rand(16, splits.channels, size, size)
        with inference(model):
            times = time_in_turns({"network": lambda: model(images)}, 3, warm_up=1)["network"]
        return Cost(0.0, median(times) / len(images))
    if size != splits.image_size[0]:
        others = " ".join(each.name for each in plan.contenders if each is not contender)
        number = sum(len(part) for part in splits.named().values())
        check_memory(number, (size, size), splits.channels, f"leave {contender.title} out: --networks {others}")
        parts: dict[str, Any] = {name: _blank(images, size) for name, images in splits.named().items()}
        splits = replace(splits, **parts)
    timed = time_steps(recipe, ComputeOptions(accelerator=plan.options.accelerator), 2.0, splits)
    return Cost(timed.step / min(recipe.batch_size, len(splits.train)), timed.image)


def _blank(images: LabelledImages, size: int) -> ImageSet:
    """Return black images of another size, which share one image's memory."""
    single = single_images(images, "comparisons")
    pixels = torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(len(single), single.channels, size, size)
    return replace(single, images=pixels)


def _within_time(plan: Plan) -> Plan:
    """Return the plan with as many epochs as the time allows.

    If networks would train for too few of their usual epochs, the learning curve is left out, then the third seed,
    unless the options name a number of seeds. The second seed, without which intervals do not cover the trainings, is
    only left out if no plan with it fits.

    Raises:
        ArgumentError: a network would train for fewer than its `least_epochs`.
    """
    minutes, asked = plan.options.minutes, plan.options.seeds is not None
    longest = TOLERANCE * 60 * minutes
    smaller = [plan, *(replace(plan, has_curve=False, seed_count=n) for n in range(plan.seed_count, 0, -1))]
    for attempt in smaller[: 2 if asked else None]:
        planned = replace(attempt, fractions=_fractions(attempt))
        is_second = attempt.seed_count == 2 and not attempt.has_curve
        if _has_enough(planned) or (is_second and planned.total_seconds() <= longest):
            break
    if planned.total_seconds() > longest:
        rule = f"be at least {planned.total_seconds() / 60:.1f} for a few epochs of every network on this machine"
        raise ArgumentError("minutes", rule, minutes, "fewer networks, folds or seeds take less")
    return planned


def _has_enough(plan: Plan) -> bool:
    """Return whether networks that are trained from scratch get enough of their usual epochs."""
    return all(plan.fractions[each.name] >= ENOUGH_EPOCHS for each in plan.contenders if each.family != "pretrained")


def _fractions(plan: Plan) -> dict[str, float]:
    """Divide the time evenly over the networks; what one does not need is divided over the others.

    Networks whose `least_epochs` take longer than that get these, and the others what is left.
    """
    left = 60 * plan.options.minutes - plan.loading_seconds
    images = len(plan.splits.train)
    fractions = {each.name: min(1.0, each.least_epochs / each.epochs_for(images)) for each in plan.contenders}
    waiting = sorted(plan.contenders, key=lambda each: plan.network_seconds(each, fractions[each.name]))
    while waiting and (least := plan.network_seconds(waiting[-1], fractions[waiting[-1].name])) > left / len(waiting):
        left -= least
        waiting.pop()
    waiting.sort(key=lambda each: plan.network_seconds(each, 1.0), reverse=True)
    while waiting:
        part = left / len(waiting)
        contender = waiting.pop()
        fixed, whole = (plan.network_seconds(contender, fraction) for fraction in (0.0, 1.0))
        fractions[contender.name] = 1.0 if whole <= part or whole == fixed else (part - fixed) / (whole - fixed)
        left -= plan.network_seconds(contender, fractions[contender.name])
    return fractions
