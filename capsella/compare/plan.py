"""The plan of a comparison: its split, its networks, and as many epochs as the time allows.

`plan.json` and `split.csv` in the folder of the comparison keep what was decided at its start, so that it can continue.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from capsella.bench import execution_times
from capsella.compare.options import RATES, ComparisonOptions
from capsella.compare.verdict import Family
from capsella.data import DataOptions, Splits, SplitTable, load_split
from capsella.errors import ArgumentError, CapsellaError, unknown_name, warn_once
from capsella.experiments import curves_show_convergence, scaled_learning_rate
from capsella.files import write_json
from capsella.models import CapsuleClassifier, ImageClassifier, count_parameters, list_models
from capsella.models.base import shipped_parameters
from capsella.papers.own_images import recipe_for
from capsella.training import Recipe
from capsella.training.balance import choose_balance
from capsella.training.config import Balance, Exact
from capsella.training.precision import choose_precision, kind_of

# Small images: the founding papers' networks and Efficient-CapsNet; of the CNNs the second paper's (the first one's
# costs eight times as much) and a small residual network. Thesis: its best networks (Forslöv 2018, Table 3), which
# enlarge images to 224×224, and the residual network, because capsules must beat a CNN of today too.
GROUPS: dict[str, tuple[str, ...]] = {
    "capsules-small": ("sabour2017_capsnet", "hinton2018_matrix_capsnet_small", "mazzia2021_efficient_capsnet"),
    "cnn-small": ("hinton2018_cnn", "he2016_resnet10"),
    "capsules-thesis": ("forslov2018_capsnet1_init1", "forslov2018_emnet1_init1"),
    "cnn-thesis": ("forslov2018_cnnnet3_init1", "he2016_resnet10"),
}
GROUPS["thesis"] = GROUPS["capsules-thesis"] + GROUPS["cnn-thesis"]
WITH_BACKBONE = ("stem_capsules", "stem_linear")  # two heads on one pretrained backbone
LARGE = 64  # pixels on the shorter side from which on the thesis's networks are the default, with Efficient-CapsNet


@dataclass(frozen=True)
class Candidate:
    """A network to compare.

    parameters: without the decoder, which is only for training. recipe_name, recipe: how it is trained; its data,
    augmentation, epochs and batches are still to be set.
    """

    network: str
    family: Family
    parameters: int
    decoder_parameters: int
    recipe_name: str
    recipe: Recipe


def default_networks(image_size: tuple[int, int]) -> tuple[str, ...]:
    """Return capsule networks and CNNs for images of a size."""
    if min(image_size) < LARGE:
        return GROUPS["capsules-small"] + GROUPS["cnn-small"]
    return ("mazzia2021_efficient_capsnet", *GROUPS["thesis"])


def network_names(words: Sequence[str]) -> tuple[str, ...]:
    """Return the registered names that groups, shell patterns and names stand for.

    Raises:
        ValueError: a word is none of them; suggests the nearest.
    """
    names: dict[str, None] = {}
    for word in words:
        matching = GROUPS.get(word) or tuple(list_models(word))
        if not matching:
            raise unknown_name("models", word, (*GROUPS, *list_models()), "`capsella list models` lists the networks")
        names |= dict.fromkeys(matching)
    return tuple(names)


def make_candidates(names: Sequence[str], splits: Splits, backbone: str | None = None) -> list[Candidate]:
    """Build each network once on the meta device, so that one that does not fit the images is known at once.

    Raises:
        ArgumentError: a network cannot take the images, or there is not at least one capsule network and one CNN.
    """
    candidates = []
    for name in names:
        recipe_name, recipe = recipe_for(name)
        if backbone is not None and name in WITH_BACKBONE:
            recipe = recipe.with_model(backbone=backbone)
        model = _on_meta_device(recipe, splits)
        family: Family = "capsules" if isinstance(model, CapsuleClassifier) else "CNN"
        parameters = shipped_parameters(model)
        decoder = count_parameters(model) - parameters
        candidates.append(Candidate(name, family, parameters, decoder, recipe_name, recipe))
    if len({candidate.family for candidate in candidates}) < 2:
        raise ArgumentError("models", "have at least one capsule network and one CNN to compare", tuple(names))
    return candidates


def _on_meta_device(recipe: Recipe, splits: Splits) -> ImageClassifier:
    height, width = splits.image_size
    try:
        with torch.device("meta"):
            return recipe.model.create(splits.image_size, splits.channels, splits.classes)
    except (ValueError, RuntimeError) as error:
        images = f"{height}×{width}×{splits.channels} in {len(splits.classes)} classes"
        rule = f"be able to take the images of {splits.name}, {images}"
        raise ArgumentError("models", rule, recipe.model.name, str(error)) from error


@dataclass(frozen=True)
class Cost:
    """Seconds per image, timed before the training: of a training step, and of the validation."""

    training: float
    validation: float


@dataclass(frozen=True, eq=False)
class Plan:
    """The networks to train, their images, and the length of each training.

    table: which image is in which split. costs: by network. epochs, batch_size, precision, balance: the same for every
    network, fold and fraction of the images.
    """

    options: ComparisonOptions
    splits: Splits
    table: SplitTable
    candidates: tuple[Candidate, ...]
    costs: dict[str, Cost]
    epochs: int
    batch_size: int
    precision: Exact
    balance: Balance

    @property
    def folder(self) -> Path:
        """The folder of the runs and the report."""
        return self.options.output

    @property
    def runs_each(self) -> int:
        """Runs of each network: every learning rate with the first seed, and the best one with the others."""
        return len(RATES[self.options.rates]) + len(self.options.asked_seeds) - 1

    def seconds(self, network: str, epochs: int | None = None) -> float:
        """Estimate one run; on a fraction of the images it takes as many steps, and so as long."""
        cost = self.costs[network]
        images = cost.training * len(self.splits.train) + cost.validation * len(self.splits.validation)
        return images * (self.epochs if epochs is None else epochs)

    def total_seconds(self, epochs: int | None = None) -> float:
        """Estimate all runs; those of the data-size curve by the mean of each family, as the best is not known yet."""
        total = sum(self.runs_each * self.seconds(candidate.network, epochs) for candidate in self.candidates)
        for family in ("capsules", "CNN"):
            each = [
                self.seconds(candidate.network, epochs) for candidate in self.candidates if candidate.family == family
            ]
            total += len(self.options.shares) * len(self.options.asked_seeds) * sum(each) / len(each)
        return total

    def data(self, share: float = 1.0) -> DataOptions:
        """Return the images with the split of this comparison, or with a fraction of its training images."""
        return replace(
            self.options.data,
            split_file=self.folder / ("split.csv" if share == 1 else f"split-{share:g}.csv"),
            cell_radius=self.splits.cell_radius,
            range=self.splits.value_range,
            duplicates="ignore",  # they were looked for when the split was drawn
            folds=None,
            fold=None,
            validation=DataOptions.validation,
            test=DataOptions.test,
        )

    @property
    def undecidable(self) -> tuple[str, ...]:
        """The networks whose learning curves cannot tell whether they still learned at the end."""
        return tuple(
            candidate.network for candidate in self.candidates if not curves_show_convergence(self.recipe(candidate))
        )

    def recipe(self, candidate: Candidate, rate: float | None = None, share: float = 1.0) -> Recipe:
        """Return what one run trains; on a fraction of the images, with as many steps as on all.

        rate: the learning rate; default: its recipe's.
        """
        optimizer = candidate.recipe.optimizer
        return replace(
            candidate.recipe,
            data=self.data(share),
            augment=self.options.augment,
            optimizer=optimizer if rate is None else replace(optimizer, learning_rate=rate),
            epochs=self.epochs,
            epoch_images=None if share == 1 else len(self.splits.train),
            batch_size=self.batch_size,
            patience=None,
            precision=self.precision,
            balance=self.balance,
        )

    def rates(self, candidate: Candidate) -> list[float]:
        """Return the learning rates that are tried, to two digits."""
        return [scaled_learning_rate(candidate.recipe, factor) for factor in RATES[self.options.rates]]


def make_plan(options: ComparisonOptions, like: Plan | None = None) -> Plan:
    """Read and split the images, check every network against them, and time a step of each; write nothing.

    A comparison that was begun in the folder keeps its split, its networks and its epochs. It may continue with more
    seeds and another latency limit. A dry run plans a new one, whatever is there.

    like: a plan of the same networks on other folds, whose times, epochs, precision and balance are taken.

    Raises:
        ValueError: an unknown network, one that cannot take the images, or too little time for one epoch of each.
        CapsellaError: images that cannot be read or split, or that the folder lies among; another comparison is in the
            folder.
    """
    data = options.data
    data.check_outside(options.output)
    begun = None if options.dry_run else begun_with(options)
    if begun is not None:
        data = replace(data, split_file=options.output / "split.csv", duplicates="ignore", folds=None, fold=None)
    splits, table = load_split(data)
    options = _with_sizes(options, splits, begun)
    names = network_names(options.models) or default_networks(splits.image_size)
    if options.backbone is not None:
        names = tuple(dict.fromkeys((*names, *WITH_BACKBONE)))
    chosen = tuple(make_candidates(names if begun is None else begun["networks"], splits, options.backbone))
    batch_size = options.batch_size or (8 if min(splits.image_size) >= LARGE else 32)
    if begun is not None:
        costs = {name: Cost(**cost) for name, cost in begun["costs"].items()}
        epochs, precision, balance = (begun[name] for name in ("epochs", "precision", "balance"))
        return Plan(options, splits, table, chosen, costs, epochs, batch_size, precision, balance)
    if like is not None:
        return replace(like, options=options, splits=splits, table=table, candidates=chosen)
    costs = _measure_costs(chosen, splits, batch_size, options.accelerator)
    balance = choose_balance(splits.train.counts()).balance
    precision = choose_precision(options.accelerator).precision if options.precision == "auto" else options.precision
    plan = Plan(options, splits, table, chosen, costs, options.epochs, batch_size, precision, balance)
    return plan if options.minutes is None else replace(plan, epochs=_affordable(plan, 60 * options.minutes))


def begin(plan: Plan) -> None:
    """Write the split files and plan.json, unless the comparison was begun."""
    path, options = plan.folder / "plan.json", plan.options
    if path.exists():
        return
    plan.folder.mkdir(parents=True, exist_ok=True)
    plan.table.write(plan.folder / "split.csv")
    for share in options.shares:
        plan.table.with_share(plan.splits.train, share).write(plan.folder / f"split-{share:g}.csv")
    kept = {name: getattr(plan, name) for name in ("epochs", "batch_size", "precision", "balance")}
    networks = [candidate.network for candidate in plan.candidates]
    costs = {name: asdict(cost) for name, cost in plan.costs.items()}
    write_json(path, {"options": options.to_dict(), "networks": networks, "costs": costs, **kept})


def begun_with(options: ComparisonOptions) -> dict[str, Any] | None:
    """Return plan.json of this comparison if it was begun.

    Raises:
        CapsellaError: it was begun with other options; the file is damaged.
    """
    path = options.output / "plan.json"
    if not path.exists():
        if (options.output / "fold0").exists():
            raise CapsellaError(f"{options.output} holds a comparison of several folds; choose another --out")
        return None
    try:
        plan: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        before = plan["options"]
        changed = [name for name, value in options.to_dict().items() if not _continues(name, before[name], value)]
    except (ValueError, KeyError, TypeError) as error:
        raise CapsellaError(f"{path} is damaged: {error!r}; choose another --out") from error
    if changed:
        name, now = changed[0], options.to_dict()[changed[0]]
        was, now = ("the default" if value in (None, []) else value for value in (before[name], now))
        raise CapsellaError(
            f"{options.output} holds a comparison with {name} = {was}, not {now}; continue with the same options, or "
            "with more seeds, or choose another --out"
        )
    return plan


def _continues(name: str, before: Any, now: Any) -> bool:
    """Return whether a comparison that was begun with an option continues with another value."""
    if name == "seeds":  # the learning rate was chosen with the first
        return bool(now[: len(before)] == before)
    if name == "latency_limit":  # only the verdict uses it
        return True
    return (name == "sizes" and now is None) or before == now


def _with_sizes(options: ComparisonOptions, splits: Splits, begun: dict[str, Any] | None) -> ComparisonOptions:
    """Return options with the fractions that leave an image of every class.

    Raises:
        CapsellaError: fractions that were asked for do not, or there are fewer than two test images.
    """
    if len(splits.test) < 2:
        raise CapsellaError(f"{splits.name}: must have at least 2 test images, got {len(splits.test)}")
    if options.sizes is None and begun is not None:
        return replace(options, sizes=tuple(begun["options"]["sizes"]))
    asked = options.asked_sizes
    rare, count = min(splits.train.counts().items(), key=lambda item: item[1])
    possible = tuple(share for share in asked if share == 1 or count * share >= 1)
    if possible != asked:
        too_small = " and ".join(f"{share:g}" for share in asked if share not in possible)
        why = f"sizes: {too_small} of the {count} training images of the class {rare!r} is less than one"
        if options.sizes is not None:
            raise CapsellaError(f"{why}; leave out the data-size curve with --sizes 1, or add images")
        warn_once(why, f"{why}: not in the data-size curve")
    return replace(options, sizes=possible)


def _measure_costs(
    candidates: Sequence[Candidate], splits: Splits, batch_size: int, accelerator: str
) -> dict[str, Cost]:
    """Time a quarter of a step of each network, alone: together they might not fit into memory.

    An image costs a little more in a small batch than in a large one, and far more on a GPU, where a whole step is
    timed. Finished runs correct the estimate.
    """
    device = "cuda" if kind_of(accelerator) == "cuda" else "cpu"
    costs, few = {}, batch_size if device == "cuda" else max(2, batch_size // 4)
    for candidate in candidates:
        torch.manual_seed(0)
        model = candidate.recipe.model.create(splits.image_size, splits.channels, splits.classes)
        times = execution_times({candidate.network: model}, (few,), repeats=1, seconds=0, device=device)
        forward, backward = (row.timing.median / few for row in times.rows)
        costs[candidate.network] = Cost(backward, forward)
    return costs


def _affordable(plan: Plan, seconds: float) -> int:
    epoch = plan.total_seconds(1)
    if seconds < epoch:
        rule = f"be at least {epoch / 60:.1f}, for one epoch of every run on this machine"
        raise ArgumentError("minutes", rule, seconds / 60, "fewer networks, seeds, rates or sizes take less")
    return min(plan.options.epochs, int(seconds / epoch))
