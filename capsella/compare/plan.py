"""The plan of a comparison: one split, the networks, and as many epochs as the time allows; kept, so that it goes on.

`plan.json` and `split.csv` in the folder of the comparison hold what was decided at its start.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from capsella.bench import execution_times
from capsella.compare.networks import LARGE, WITH_BACKBONE, Candidate, candidates, names_of, suited
from capsella.compare.options import RATES, ComparisonOptions
from capsella.data import DataOptions, Splits, SplitTable, load_split
from capsella.errors import CapsellaError, warn_once
from capsella.experiments import curves_show_convergence, scaled_learning_rate
from capsella.files import write_json
from capsella.training import Recipe
from capsella.training.balance import choose_balance
from capsella.training.config import Balance, Exact
from capsella.training.precision import choose_precision, kind_of


@dataclass(frozen=True)
class Cost:
    """Seconds an image, as timed before the training: of a step of the training, and of the validation."""

    training: float
    validation: float


@dataclass(frozen=True, eq=False)
class Plan:
    """What is trained, on what, how long.

    table: which image is in which split. costs: by network. epochs, batch_size, precision, balance: the same for every
    network, fold and share of the images.
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
        """Where the runs and the report go."""
        return self.options.output

    @property
    def runs_each(self) -> int:
        """Runs of each network: every learning rate with the first seed, and the best one with the others."""
        return len(RATES[self.options.rates]) + len(self.options.asked_seeds) - 1

    def seconds(self, network: str, epochs: int | None = None) -> float:
        """Estimated for one run; one on a share of the images takes as many steps, and so as long."""
        cost = self.costs[network]
        images = cost.training * len(self.splits.train) + cost.validation * len(self.splits.validation)
        return images * (self.epochs if epochs is None else epochs)

    def total_seconds(self, epochs: int | None = None) -> float:
        """Estimated for all runs; which networks the data-size curve is of is not known yet: the mean of each kind."""
        total = sum(self.runs_each * self.seconds(one.network, epochs) for one in self.candidates)
        for family in ("capsules", "CNN"):
            each = [self.seconds(one.network, epochs) for one in self.candidates if one.family == family]
            total += len(self.options.shares) * len(self.options.asked_seeds) * sum(each) / len(each)
        return total

    def data(self, share: float = 1.0) -> DataOptions:
        """The images with the split of this comparison, or with a share of its training images."""
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
        return tuple(one.network for one in self.candidates if not curves_show_convergence(self.recipe(one)))

    def recipe(self, one: Candidate, rate: float | None = None, share: float = 1.0) -> Recipe:
        """What one run trains; on a share of the images, with as many steps as on all.

        `rate`: the learning rate; default: its recipe's.
        """
        given, usual = self.options, one.recipe.optimizer
        return replace(
            one.recipe,
            data=self.data(share),
            augment=given.augment,
            optimizer=usual if rate is None else replace(usual, learning_rate=rate),
            epochs=self.epochs,
            epoch_images=None if share == 1 else len(self.splits.train),
            batch_size=self.batch_size,
            patience=None,
            precision=self.precision,
            balance=self.balance,
        )

    def rates(self, one: Candidate) -> list[float]:
        """The learning rates that are tried, to two digits."""
        return [scaled_learning_rate(one.recipe, factor) for factor in RATES[self.options.rates]]


def make_plan(options: ComparisonOptions, like: Plan | None = None) -> Plan:
    """Read the images, split them, check every network against them, and time a step of each; writes nothing.

    A comparison that was begun in the folder keeps its split, its networks and its number of epochs. It may be called
    again with more seeds, which are trained, and with another limit of latency. A dry run plans a new one, whatever is
    there.

    `like`: a plan of the same networks on other folds, whose times, epochs, precision and balance are taken.

    Raises:
        ValueError: an unknown network, one that cannot take the images, too little time for one epoch of each.
        CapsellaError: images that cannot be read or split, or that its folder lies among; a comparison with other
            options is in the folder.
    """
    data = options.data
    data.check_outside(options.output)
    begun = None if options.dry_run else begun_with(options)
    if begun is not None:
        data = replace(data, split_file=options.output / "split.csv", duplicates="ignore", folds=None, fold=None)
    splits, table = load_split(data)
    options = _with_sizes(options, splits, begun)
    names = names_of(options.models) or suited(splits.image_size)
    if options.backbone is not None:
        names = tuple(dict.fromkeys((*names, *WITH_BACKBONE)))
    chosen = candidates(names if begun is None else begun["networks"], splits, options.backbone)
    batch_size = options.batch_size or (8 if min(splits.image_size) >= LARGE else 32)
    if begun is not None:
        costs = {name: Cost(**cost) for name, cost in begun["costs"].items()}
        precision = begun.get("precision", options.precision)  # not in plans from before there was "auto"
        balance = begun.get("balance", "auto")  # older plans let every run decide
        return Plan(options, splits, table, tuple(chosen), costs, begun["epochs"], batch_size, precision, balance)
    if like is not None:
        return replace(like, options=options, splits=splits, table=table, candidates=tuple(chosen))
    costs = _costs(chosen, splits, batch_size, options.accelerator)
    balance = choose_balance(splits.train.counts()).balance
    precision = choose_precision(options.accelerator).precision if options.precision == "auto" else options.precision
    plan = Plan(options, splits, table, tuple(chosen), costs, options.epochs, batch_size, precision, balance)
    return plan if options.minutes is None else replace(plan, epochs=_affordable(plan, 60 * options.minutes))


def begin(plan: Plan) -> None:
    """Write the split files and plan.json; a comparison that was begun is left as it is.

    Raises:
        CapsellaError: no space left.
    """
    path = plan.folder / "plan.json"
    if path.exists():
        return
    plan.folder.mkdir(parents=True, exist_ok=True)
    plan.table.write(plan.folder / "split.csv")
    for share in plan.options.shares:
        plan.table.with_share(plan.splits.train, share).write(plan.folder / f"split-{share:g}.csv")
    write_json(
        path,
        {
            "options": plan.options.to_dict(),
            "networks": [one.network for one in plan.candidates],
            "costs": {name: asdict(cost) for name, cost in plan.costs.items()},
            "epochs": plan.epochs,
            "batch_size": plan.batch_size,
            "precision": plan.precision,
            "balance": plan.balance,
        },
    )


def begun_with(options: ComparisonOptions) -> dict[str, Any] | None:
    """plan.json of this comparison, if it was begun.

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
        older = plan["options"]
    except (ValueError, KeyError, TypeError) as error:
        raise CapsellaError(f"{path} is damaged: {error!r}; choose another --out") from error
    for name, value in options.to_dict().items():
        usual = {"folds": None, "fold": None, "mirror": False}.get(name, value)  # an older plan has fewer options
        if not _goes_on(name, older.get(name, usual), value):
            before, now = ("the default" if one in (None, []) else one for one in (older.get(name), value))
            raise CapsellaError(
                f"{options.output} holds a comparison with {name} = {before}, not {now}; go on with the same options, "
                "or more seeds behind the first ones, or choose another --out"
            )
    return plan


def _goes_on(name: str, before: Any, now: Any) -> bool:
    """Whether a comparison that was begun with an option goes on with this one."""
    if name == "seeds":  # the learning rate was chosen with the first
        return now[: len(before)] == before
    if name == "latency_limit":  # only the verdict reads it
        return True
    return (name == "sizes" and now is None) or before == now


def _with_sizes(options: ComparisonOptions, splits: Splits, begun: dict[str, Any] | None) -> ComparisonOptions:
    """Shares that leave an image of every class: the default ones that do, or those asked for, or an error.

    The test must have more than one image to be compared by.
    """
    if len(splits.test) < 2:
        raise CapsellaError(f"{splits.name}: must have at least 2 test images, got {len(splits.test)}")
    if options.sizes is None and begun is not None:
        return replace(options, sizes=tuple(begun["options"]["sizes"]))
    asked = options.asked_sizes
    rare, count = min(splits.train.counts().items(), key=lambda one: one[1])
    kept = tuple(share for share in asked if share == 1 or count * share >= 1)
    if kept != asked:
        left_out = " and ".join(f"{share:g}" for share in asked if share not in kept)
        why = f"sizes: {left_out} of the {count} training images of the class {rare!r} is less than one"
        if options.sizes is not None:
            raise CapsellaError(f"{why}; leave out the data-size curve with --sizes 1, or add images")
        warn_once(why, f"{why}: not in the data-size curve")
    return replace(options, sizes=kept)


def _costs(chosen: list[Candidate], splits: Splits, batch_size: int, accelerator: str) -> dict[str, Cost]:
    """A quarter of a step of each network, timed alone where it will train: together they might not fit into memory.

    An image costs a little more in a small batch than in a large one, and on a GPU far more, so there a step is whole;
    the finished runs correct the estimate.
    """
    device = "cuda" if kind_of(accelerator) == "cuda" else "cpu"
    costs, few = {}, batch_size if device == "cuda" else max(2, batch_size // 4)
    for one in chosen:
        torch.manual_seed(0)
        model = one.recipe.model.create(splits.image_size, splits.channels, splits.classes)
        times = execution_times({one.network: model}, (few,), repeats=1, seconds=0, device=device)
        forward, backward = (row.timing.median / few for row in times.rows)
        costs[one.network] = Cost(backward, forward)
    return costs


def _affordable(plan: Plan, seconds: float) -> int:
    epoch = plan.total_seconds(1)
    if seconds < epoch:
        raise ValueError(
            f"minutes: must be at least {epoch / 60:.1f}, for one epoch of every run on this machine, "
            f"got {seconds / 60:g}; fewer networks, seeds, rates or sizes take less"
        )
    return min(plan.options.epochs, int(seconds / epoch))
