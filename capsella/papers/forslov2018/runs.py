"""The runs that the thesis's tables and figures share in one folder, and which of its training sets a source has."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

from capsella.data import THESIS_SETS, DataOptions, NamedData, load_data, thesis_set
from capsella.errors import CapsellaError
from capsella.evaluation import Spread
from capsella.experiments import Row
from capsella.papers.budget import Budget, BudgetName, medium
from capsella.papers.forslov2018.paper import NETWORKS, SETS, family
from capsella.papers.table_types import FEW_IMAGES, Published
from capsella.training import Recipe
from capsella.training.registry import get_recipe

# 224×224 images of a public download, by a microscope of the same maker as the thesis's.
SOURCE, SIZE = "bloodmnist", 224


class Limits(NamedTuple):
    """Budgets of tables 3 and 4; of Figure 34, one light network in the thesis's small batches; of Figures 35 to 37.

    The decoder of the last ones costs several times as much as the rest of CAPSNET 1.
    """

    table: Budget
    rates: Budget
    decoder: Budget


_SMALL = Budget(epochs=4, epoch_images=400, batch_size=10, validation_per_class=30, decays_once=True)
# The medium budget takes minutes to half an hour per run on two cores, with the decoder an hour or two.
_MEDIUM = medium(800, 10, validation_per_class=50, cosine=False, decays_once=True, ema=0.99)
LIMITS: dict[BudgetName, Limits] = {  # the full budget has none
    "small": Limits(
        _SMALL,
        Budget(epochs=40, epoch_images=75, batch_size=5, validation_per_class=20),
        replace(_SMALL, epochs=8, epoch_images=150),
    ),
    "medium": Limits(
        _MEDIUM,
        Budget(epochs=80, epoch_images=250, batch_size=5, validation_per_class=20, precision="auto"),
        replace(_MEDIUM, epoch_images=1000),
    ),
}
SHORTER_SETS = ("mini", "small", "basic")
# Of the thesis's trainings (§9.2); EM-NETs and CNN-NETs got twice as many on hard. The thesis validates after each pass
# over the training images; here every 1,000 steps, on every set alike.
STEPS, STEPS_BETWEEN_VALIDATIONS = 100_000, 1000


@dataclass(frozen=True)
class ThesisRuns:
    """The runs of one budget on the images of one source."""

    budget: BudgetName
    source: str = SOURCE

    @property
    def inits(self) -> tuple[int, ...]:
        """Return the INIT-NETs that are trained."""
        return (1, 2) if self.budget == "full" else (1,)

    @property
    def networks(self) -> list[tuple[str, int]]:
        """Return (network, INIT-NET) in the order of the tables."""
        return [(network, init) for network in NETWORKS for init in self.inits]

    @property
    def sets(self) -> tuple[str, ...]:
        """Return the training sets, if the source has them."""
        return SETS if self.budget == "full" else SHORTER_SETS

    @property
    def limits(self) -> Limits | None:
        """Return the budgets; None at the full one."""
        return LIMITS.get(self.budget)

    def describe(self, kind: Literal["table", "rates", "decoder"] = "table") -> str:
        """Return how the runs of a kind train compared with the thesis's."""
        if self.limits is None:
            more = ", which prints the best of several settings, with a decoder or without"
            return f"As long as the thesis's{more if kind == 'table' else ''}."
        if kind == "table":
            return (
                f"The recipes called modern, without a decoder: {self.limits.table}. The thesis trains on 500,000 "
                "images and prints the best of several settings."
            )
        if kind == "decoder":
            return f"The recipe called modern: {self.limits.decoder}."
        return (
            "The thesis's routing and batches, behind batch normalisation, at constant rates; the margin of the loss "
            f"rises over the whole training: {self.limits.rates}."
        )

    def options(self, name: str) -> DataOptions:
        """Return the images of one of `SETS`, or of "classes2", "classes3", …: all images of the first classes."""
        options = NamedData(self.source, size=SIZE, channels=3)
        if name.startswith("classes"):
            return replace(options, first_classes=int(name.removeprefix("classes")))
        return thesis_set(name, options)

    def row(self, name: str, network: str, init: int) -> Row:
        """Return the run of a network (a key of `NETWORKS`) behind INIT-NET 1 or 2 on a set."""
        recipe_name = f"forslov2018-{network}-init{init}" + ("-modern" if self.limits else "")
        recipe = replace(get_recipe(recipe_name), data=self.options(name))
        if self.limits:
            recipe = self.limits.table.limit(recipe)
        else:
            longer = 2 if name == "hard" and family(network) != "capsnet" else 1
            recipe = _as_long_as_the_thesis(recipe, longer * STEPS, STEPS_BETWEEN_VALIDATIONS)
        slug, cost = f"{name}-{network}-init{init}", f"{network}-init{init}"
        if self.limits is None and name == "hard":
            cost = f"hard-{cost}"  # trained twice as long
        return Row(slug=slug, cost=cost, recipe_name=recipe_name, recipe=recipe)

    def with_learning_rate(self, rate: float) -> Row:
        """Return EM-NET 1 on mini, validated often, for Figure 34: the thesis's recipe at all budgets.

        Below the full budget the rate is constant, and there is batch normalisation: without it the network had
        learnt nothing after 160 steps of 10 images.
        """
        name = "forslov2018-emnet1-init1"
        recipe = replace(get_recipe(name), data=self.options("mini"))
        optimizer = replace(recipe.optimizer, learning_rate=rate)
        if self.limits:
            recipe = self.limits.rates.limit(recipe.with_model(batch_norm=True))
            recipe = replace(recipe, loss=replace(recipe.loss, spread_schedule="linear"))
            optimizer = replace(optimizer, decay=1.0)
        else:
            recipe = _as_long_as_the_thesis(recipe, STEPS, STEPS_BETWEEN_VALIDATIONS // 10)
        recipe = replace(recipe, optimizer=optimizer)
        return Row(slug=f"mini-emnet1-init1-rate{rate:g}", cost="rate", recipe_name=name, recipe=recipe)

    def with_decoder(self, network: str, decoder: bool) -> Row:
        """Return a capsule network on mini with or without DECODER NET, for Figures 35 to 37."""
        row = self.row("mini", network, 1)
        recipe = self.limits.decoder.limit(row.recipe) if self.limits else row.recipe
        suffix = "decoder" if decoder else "no-decoder"
        recipe = recipe.with_model(reconstruction=decoder)
        return replace(row, slug=f"{row.slug}-{suffix}", cost=f"{network}-{suffix}", recipe=recipe)

    def grid(self, sets: Sequence[str]) -> list[Row]:
        """Return every network on every set, set after set, so that the time left is known after the first."""
        return [self.row(name, *network) for name in sets for network in self.networks]

    def available_sets(self, wanted: Sequence[str] | None = None) -> "AvailableSets":
        """Return which of the `wanted` sets (by default those of the budget) the source has."""
        return AvailableSets.find(self.options("hard"), self.sets if wanted is None else wanted)


def _as_long_as_the_thesis(recipe: Recipe, steps: int, between_validations: int) -> Recipe:
    return replace(recipe, epochs=steps // between_validations, epoch_images=between_validations * recipe.batch_size)


@dataclass(frozen=True)
class AvailableSets:
    """The thesis's training sets that a source has.

    name: of the source. classes: how many it has. counts: training images by set, in order. missing: the other sets.
    """

    name: str
    classes: int
    counts: dict[str, int]
    missing: tuple[str, ...]

    @classmethod
    def find(cls, options: DataOptions, wanted: Sequence[str]) -> "AvailableSets":
        """Count the training images of the source in `options`.

        A set of n images per class exists if at least half of the classes have n training images; the others give all
        they have, as in the thesis. A set of the first classes exists if the source has so many; hard, all of them, if
        it differs from basic and medium.

        Raises:
            CapsellaError: the source has none of the sets; and what `load_data` raises.
        """
        splits = load_data(options)
        images = list(splits.train.counts().values())
        smaller = [THESIS_SETS[name]["first_classes"] for name in ("basic", "medium")]
        counts = {}
        for name in wanted:
            per_class, first = (THESIS_SETS[name].get(key) for key in ("per_class", "first_classes"))
            if per_class is not None:
                exists = 2 * sum(count >= per_class for count in images) >= len(images)
            else:
                exists = len(images) >= first if first is not None else len(images) not in smaller
            if exists:
                counts[name] = sum(min(count, per_class or count) for count in images[:first])
        if not counts:
            raise CapsellaError(f"{splits.name} has none of the thesis's sets {', '.join(wanted)}")
        return cls(splits.name, len(images), counts, tuple(name for name in wanted if name not in counts))

    @property
    def sets(self) -> tuple[str, ...]:
        """Return the names of the sets, in order."""
        return tuple(self.counts)

    def classes_of(self, name: str) -> int:
        """Return how many classes one of the sets has."""
        return THESIS_SETS[name].get("first_classes", self.classes)

    def describe(self) -> str:
        """Return which sets there are, and why others are missing, for the note of a table."""
        sizes = ", ".join(f"{name} {count:,}" for name, count in self.counts.items())
        text = (
            f"The thesis's sets hold 15 classes of one laboratory (basic 5, medium 10); here mini, small and "
            f"medium-size hold the {self.classes} classes of {self.name}. Training images: {sizes}."
        )
        if "small" in self.counts and "basic" in self.counts and self.classes == 5:
            text += (
                " With five classes in all, small and basic are of the same classes, and differ in their size alone."
            )
        missing = f" {self.name} has too few classes or images for: {', '.join(self.missing)}." if self.missing else ""
        return text + missing


@dataclass(frozen=True, kw_only=True)
class FromRuns(Published):
    """A table or figure made of the shared runs. item: in the names of files, as in "table3"."""

    runs: ThesisRuns
    item: str
    family: str | None = "forslov2018"
    suffix: ClassVar[str] = ".png"

    def on(self, source: str) -> Self:
        """Return the same table or figure on images of another source."""
        return replace(self, runs=replace(self.runs, source=source))

    def caveat(self, slug: str) -> str:
        """Return that networks at the medium budget see 16,000 images, and the thesis's 500,000."""
        return FEW_IMAGES if self.runs.budget == "medium" else ""

    def images(self) -> Iterator[DataOptions]:
        """Yield the images that decide which sets there are, then those of the rows."""
        yield self.runs.options("hard")
        yield from super().images()

    def path(self, folder: Path) -> Path:
        """Return the path of the JSON or picture."""
        return folder / f"{self.family}-{self.item}-{self.runs.budget}-{self.runs.source}{self.suffix}"


def mean_sd(numbers: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean, and the standard deviation of two or more numbers."""
    return sum(numbers) / len(numbers), Spread.of(list(numbers)).sd if len(numbers) > 1 else None


def accuracies_of(runs: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the test accuracy of each run, as a share of 1.

    >>> accuracies_of([{"test": {"error_percent": 12.5}}])
    [0.875]
    """
    return [1 - run["test"]["error_percent"] / 100 for run in runs]


def images_tested(results: Sequence[Mapping[str, Any]]) -> str:
    """Return in words how many test images the runs had; sets with fewer classes have fewer.

    >>> images_tested([{"test": {"images": 377}}]), images_tested([{"test": {"images": n}} for n in (377, 221, 377)])
    ('377 images', '221 to 377 images')
    """
    counts = sorted({result["test"]["images"] for result in results})
    return f"{counts[0]} images" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} images"
