"""The recipes, data sets and rows of the routing benchmark, and the search for each row's learning rate."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from capsella.data import DataOptions, LabelledImages, NamedData, load_data, read_domain
from capsella.errors import unknown_name
from capsella.experiments import Row, Runner, ValidationResult, scaled_learning_rate, with_learning_rate
from capsella.losses import Classification
from capsella.papers.budget import Budget, BudgetName, Budgets, medium
from capsella.papers.hinton2018.recipes import MOVED_AND_MIXED
from capsella.papers.ribeiro2020 import WIDE
from capsella.routing import ROUTINGS, EMRouting, InvertedAttentionRouting, LogisticRouting, Routing, VariationalRouting
from capsella.training import AugmentOptions, ModelOptions, OptimizerOptions, Recipe
from capsella.training.registry import get_recipe, register_recipe

RATE = 3e-3


@register_recipe
def routings_smallnorb() -> Recipe:
    """A capsule network of 128,000 parameters on smallNORB, with any routing; our recipe.

    A routing whose activations are not lengths needs `--loss.name cross_entropy`, which the benchmark uses, too.
    """
    return Recipe(
        model=ModelOptions("benchmark_capsnet", {"crop": 32, "brightness": 0.2, "contrast": 0.2}),
        data=NamedData("smallnorb", size=48, camera="both", group="instance", validation=0.2),
        augment=MOVED_AND_MIXED,
        optimizer=OptimizerOptions(learning_rate=RATE, schedule="cosine", warmup_steps=500, ema=0.999),
        epochs=60,
        epoch_images=24_000,
        batch_size=32,
        keep="last",
    )


@register_recipe
def routings_elevation() -> Recipe:
    """The same network on a third of smallNORB's elevations, to be stopped at an error on new toys under these."""
    smallnorb = routings_smallnorb()
    return replace(
        smallnorb,
        data=smallnorb.data.replace(group=None, validation=0.1, viewpoints="elevation", test_viewpoints="familiar"),
        augment=AugmentOptions(),
        optimizer=OptimizerOptions(learning_rate=RATE, decay=1.0, warmup_steps=100, ema=0.99),
        epochs=500,
        epoch_images=2_000,
        keep="best",
    )


@register_recipe
def routings_toys() -> Recipe:
    """The same network on a third of the viewpoints of rendered objects, of which hundreds are for the test."""
    elevation = routings_elevation()
    return replace(elevation, data=elevation.data.replace(camera="left").on("toys-5"))


@register_recipe
def routings_digits() -> Recipe:
    """The same network on digits at random places of 40×40, also tested on affinely transformed digits."""
    return _on(NamedData("mnist40"), AugmentOptions(shift=6))


@register_recipe
def routings_cells() -> Recipe:
    """The same network on blood cells of one laboratory, also tested on those of another one."""
    augment = AugmentOptions(shift=3, padding_mode="border", flip=True, rotation=180.0)
    return _on(NamedData("pbc-subset", size=40, channels=3, cells="matched"), augment)


@register_recipe
def routings_cifar10() -> Recipe:
    """The same network on CIFAR-10, shifted and mirrored."""
    return _on(NamedData("cifar10"), AugmentOptions(shift=4, mirror=True))


def _on(data: DataOptions, augment: AugmentOptions) -> Recipe:
    return replace(routings_smallnorb(), model=ModelOptions("benchmark_capsnet"), data=data, augment=augment)


# Routings with other options than their defaults. EM: costs that do not grow with the number of children, and uniform
# couplings before the last iteration. Variational: no β, which batch normalisation would cancel, and a prior as wide as
# the votes. With the options of their papers, couplings of both peak before the votes are informative.
BEST: Mapping[str, Routing] = {
    "em": EMRouting(cost_scale=100.0, early_likelihood_weight=1 / 64),
    "variational": VariationalRouting(bias=False, precision=WIDE),
}
# The networks of rows that do not route single votes, by label.
CNNS = ("CNN, average pooling", "CNN, flattened")
OTHERS = {"cluster": "benchmark_cluster", **dict(zip(CNNS, ("benchmark_pooling", "benchmark_cnn"), strict=True))}
SMALL = Budget(
    epochs=4, epoch_images=960, batch_size=32, validation_per_class=20, test_per_class=100, cosine=True, ema=0.98
)
BUDGETS = Budgets(SMALL, medium(8_000, 32, epochs=10))
HALF_BUDGETS = Budgets(SMALL, medium(4_000, 32, epochs=10))  # for data sets on which networks nearly converge by then
STOPPED_BUDGETS = Budgets(
    Budget(epochs=6, epoch_images=640, batch_size=32, validation_per_class=20, test_per_class=100, ema=0.98),
    Budget(epochs=80, epoch_images=2_000, batch_size=32, validation_per_class=100, ema=0.999, precision="auto"),
)
# Error in per cent on familiar elevations of test toys, at which networks are compared on novel ones. With only three
# training toys per category, lower errors are not reached; at 15 %, rows did not differ.
STOPS: Mapping[BudgetName, float] = {"small": 40.0, "medium": 7.0, "full": 7.0}


@dataclass(frozen=True)
class ChangedImages:
    """Test images that differ from the training images. head: short name. images: returns their source and them."""

    head: str
    images: Callable[[DataOptions], tuple[str, LabelledImages]]


@dataclass(frozen=True)
class BenchmarkDataset:
    """A data set of the benchmark.

    recipe: registered name. sources: its possible sources, the default first. changed: further test images. stops:
    compare networks on the changed images at an equal error on the others.
    """

    label: str
    recipe: str
    sources: tuple[str, ...]
    budgets: Budgets = BUDGETS
    changed: ChangedImages | None = None
    stops: bool = False

    def base(self, budget: BudgetName, source: str) -> Recipe:
        """Return the recipe for a source of images, limited to a budget."""
        recipe = get_recipe(self.recipe)
        return self.budgets.limit(replace(recipe, data=recipe.data.on(source)), budget)


def _test_of(data: DataOptions) -> tuple[str, LabelledImages]:
    splits = load_data(data)
    return splits.name, splits.test


def _other_laboratory(data: DataOptions) -> tuple[str, LabelledImages]:
    laboratory = read_domain("segmentation-wbc", data)
    return laboratory.name, laboratory.of_classes(load_data(data).test.classes).images


NOVEL = ChangedImages("novel elevations", lambda data: _test_of(data.replace(test_viewpoints="novel")))
AFFINE = ChangedImages("affine digits", lambda data: _test_of(data.on("affnist-like")))
LABORATORY = ChangedImages("another laboratory", _other_laboratory)
DATASETS = (
    BenchmarkDataset("smallNORB", "routings-smallnorb", ("smallnorb", "smallnorb-jpeg")),
    BenchmarkDataset(
        *("smallNORB, a third of the elevations", "routings-elevation", ("smallnorb-jpeg-poses",)),
        *(STOPPED_BUDGETS, NOVEL, True),
    ),
    BenchmarkDataset("MNIST", "routings-digits", ("mnist40",), HALF_BUDGETS, AFFINE),
    BenchmarkDataset("blood cells", "routings-cells", ("pbc-subset",), HALF_BUDGETS, LABORATORY),
    BenchmarkDataset("CIFAR-10", "routings-cifar10", ("cifar10", "cifar10-jpeg")),
)


def datasets_on(sources: str) -> tuple[tuple[BenchmarkDataset, str], ...]:
    """Return pairs of a data set and its source, given names of sources separated by commas.

    Raises:
        ValueError: an unknown source (suggests the nearest).
    """
    by_source = {source: dataset for dataset in DATASETS for source in dataset.sources}
    names = ["mnist40" if name == "mnist" else name for name in sources.split(",")]
    for name in names:
        if name not in by_source:
            raise unknown_name("data", name, by_source)
    return tuple((by_source[name], name) for name in names)


@dataclass(frozen=True, kw_only=True)
class BenchmarkRow(Row):
    """A network on a data set. label: data set and routing. uniform: slug of the twin with uniform couplings."""

    label: tuple[str, str]
    uniform: str | None = None


def rows_on(dataset: BenchmarkDataset, source: str, budget: BudgetName) -> tuple[BenchmarkRow, ...]:
    """Return rows for every registered routing, its twin with uniform couplings, and networks without routing."""
    base = dataset.base(budget, source)
    options: dict[str, Any] = {name: value for name, value in base.model.options.items() if name != "routing"}
    routings = {name: BEST.get(name, kind()) for name, kind in sorted(ROUTINGS.items())}
    uniform = {
        name: fixed for name, routing in routings.items() if (fixed := _with_uniform_couplings(routing)) is not None
    }
    twins = {name: f"{name}, uniform" for name in uniform} | ({"dynamic": "uniform"} if "uniform" in routings else {})
    routings |= {twins[name]: routing for name, routing in uniform.items()}
    models: dict[str, tuple[ModelOptions, Classification]] = {
        name: (ModelOptions(base.model.name, {**options, "routing": routing}), _loss(routing))
        for name, routing in sorted(routings.items())
    }
    models |= {label: (ModelOptions(name, options), "cross_entropy") for label, name in OTHERS.items()}
    return tuple(
        BenchmarkRow(
            slug=_slug(source, label),
            recipe_name=dataset.recipe,
            recipe=replace(base, model=model, loss=replace(base.loss, name=loss)),
            label=(dataset.label, label.replace("_", " ")),
            uniform=_slug(source, twins[label]) if label in twins else None,
        )
        for label, (model, loss) in models.items()
    )


def _slug(source: str, label: str) -> str:
    return f"{source}-{label.replace(', ', '-').replace(' ', '-')}"


def _with_uniform_couplings(routing: Routing) -> Routing | None:
    """Return the routing's twin with uniform couplings; None if there is none or it is registered (dynamic's)."""
    if isinstance(routing, LogisticRouting):
        return routing.with_uniform_couplings()
    return replace(routing, iterations=1) if isinstance(routing, InvertedAttentionRouting) else None


def _loss(routing: Routing) -> Classification:
    """Return the loss that suits its activations. For lengths, cross-entropy is flat when all are long."""
    return "margin" if routing.activation_kind == "lengths" else "cross_entropy"


FACTORS = (1 / 3, 1.0, 3.0)  # learning rates tried for every row, as multiples of the recipe's
SPLITS = 2  # splits with different validation images; on smallNORB different toys, since a single one is misleading
SEARCH_SEED = 0  # seed of the short trainings, whatever the seeds of the results
SHORTER = 5  # short trainings have a fifth of the epochs
LEFT_OUT = 0.02  # proportion of training images held out in the trainings at the chosen rate


@dataclass(frozen=True)
class ChosenRate:
    """A row at the learning rate that its short trainings chose.

    row: the row to train at that rate. rate: the recipe's, unless other rates have a lower error on every split; among
    these, the one with the lowest mean error (ties: lowest mean loss). tried: validation errors by learning rate, one
    per split, infinite for a diverged training; empty without a search.
    """

    row: BenchmarkRow
    rate: float
    tried: Mapping[float, tuple[float, ...]] = field(default_factory=dict)

    @property
    def at_edge(self) -> bool:
        """True if the rate is the smallest or largest that was tried, so that one beyond it may be better."""
        return len(self.tried) > 1 and self.rate in (min(self.tried), max(self.tried))


def at_chosen_rate(row: BenchmarkRow, rate: float) -> BenchmarkRow:
    """Return the row for the final training: at this learning rate, on nearly all training images, at full length."""
    row = with_learning_rate(row, rate)
    data = replace(row.recipe.data, group=None, validation=LEFT_OUT)
    return replace(row, recipe=replace(row.recipe, data=data))


def choose_rates(rows: Sequence[BenchmarkRow], grid: Runner) -> list[ChosenRate]:
    """Train every row briefly at every learning rate on every split, without testing; a training may diverge."""
    tried = [
        (row, scaled_learning_rate(row.recipe, factor), split)
        for row in rows
        for factor in FACTORS
        for split in range(SPLITS)
    ]
    runs = grid.validate([_short(*candidate) for candidate in tried], (SEARCH_SEED,))
    by_row: dict[str, dict[float, list[ValidationResult]]] = {row.slug: {} for row in rows}
    for (row, rate, _), by_seed in zip(tried, runs, strict=True):
        by_row[row.slug].setdefault(rate, []).append(by_seed[SEARCH_SEED])
    return [choose_rate(row, by_row[row.slug]) for row in rows]


def choose_rate(row: BenchmarkRow, runs: Mapping[float, Sequence[ValidationResult]]) -> ChosenRate:
    """Choose a learning rate from the short trainings, given by rate; see `ChosenRate`."""

    def rank(rate: float) -> tuple[float, float]:
        return float(np.mean([run.error for run in runs[rate]])), float(np.mean([run.loss for run in runs[rate]]))

    default = scaled_learning_rate(row.recipe, 1.0)
    better = [rate for rate in runs if all(a.error < b.error for a, b in zip(runs[rate], runs[default], strict=True))]
    rate = min(better, key=rank, default=default)
    errors = {rate: tuple(run.error for run in of_rate) for rate, of_rate in runs.items()}
    return ChosenRate(at_chosen_rate(row, rate), rate, errors)


def stopped_rows(rows: Sequence[BenchmarkRow], stop_at_error: float) -> list[ChosenRate]:
    """Return the rows at their recipe's learning rate, to be stopped at a test error in per cent."""
    choices = []
    for row in rows:
        rate = scaled_learning_rate(row.recipe, 1.0)
        row = at_chosen_rate(row, rate)
        recipe = replace(row.recipe, stop_at_error=stop_at_error, stop_on="test")
        choices.append(ChosenRate(replace(row, slug=f"{row.slug}-stopped", recipe=recipe), rate))
    return choices


def _short(row: BenchmarkRow, rate: float, split: int) -> BenchmarkRow:
    """Return one of the row's short trainings."""
    short = with_learning_rate(row, rate)
    optimizer = replace(short.recipe.optimizer, warmup_steps=max(1, short.recipe.optimizer.warmup_steps // SHORTER))
    data, epochs = replace(short.recipe.data, split_seed=split), max(1, short.recipe.epochs // SHORTER)
    recipe = replace(short.recipe, data=data, optimizer=optimizer, epochs=epochs)
    return replace(short, slug=f"{short.slug}-split{split}", recipe=recipe, cost=f"{row.slug}, short")
