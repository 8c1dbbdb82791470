"""The runs that the tables and figures of the thesis share, and which of its training sets a source of images has."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from capsella.data import THESIS_SETS, DataOptions, NamedData, load_data
from capsella.errors import CapsellaError
from capsella.experiments import Row
from capsella.papers.budget import Budget, BudgetName, Budgets, medium
from capsella.papers.forslov2018.paper import NETWORKS, SETS, family
from capsella.papers.table_types import Published
from capsella.training import Recipe
from capsella.training.registry import get_recipe

# 224×224 images that can be downloaded; their microscope is from the same maker as the thesis's.
SOURCE, SIZE = "bloodmnist", 224
SHORTER_SETS = ("mini", "small", "basic")
# The thesis trains for 100,000 steps (§9.2), EM-NETs and CNN-NETs twice as long on hard. It validates after each pass
# over the training images; here, validation is every 1,000 steps on all sets.
STEPS, STEPS_BETWEEN_VALIDATIONS = 100_000, 1000


_SMALL = Budget(epochs=4, epoch_images=400, batch_size=10, validation_per_class=30, decays_once=True)
# The medium budget takes minutes to half an hour per run on two cores, with the decoder an hour or two.
_MEDIUM = medium(800, 10, validation_per_class=50, cosine=False, decays_once=True, ema=0.99)
TABLE_BUDGETS = Budgets(_SMALL, _MEDIUM)  # of tables 3 and 4
RATE_BUDGETS = Budgets(  # of Figure 34
    Budget(epochs=40, epoch_images=75, batch_size=5, validation_per_class=20),
    Budget(epochs=80, epoch_images=250, batch_size=5, validation_per_class=20, precision="auto"),
)
DECODER_BUDGETS = Budgets(
    replace(_SMALL, epochs=8, epoch_images=150), replace(_MEDIUM, epoch_images=1000)
)  # Figures 35 to 37


@dataclass(frozen=True, kw_only=True)
class ThesisItem(Published):
    """A table or figure of the thesis, made from the shared runs of one budget on one source of images."""

    budget: BudgetName
    source: str = SOURCE
    family: str | None = "forslov2018"

    def on(self, source: str) -> Self:
        """Return the table or figure for another source of images."""
        return replace(self, source=source)

    def images(self) -> Iterator[DataOptions]:
        """Yield the options of the images that determine which sets exist, then those of the rows."""
        yield self.options("hard")
        yield from super().images()

    @property
    def networks(self) -> list[tuple[str, int]]:
        """The (network, INIT-NET) pairs to train, in the order of the tables."""
        return [(network, init) for network in NETWORKS for init in ((1, 2) if self.budget == "full" else (1,))]

    @property
    def sets(self) -> tuple[str, ...]:
        """The training sets of this budget."""
        return SETS if self.budget == "full" else SHORTER_SETS

    def options(self, name: str) -> DataOptions:
        """Return the data options of one of `SETS`, or of "classesN": all images of the first N classes."""
        options = NamedData(self.source, size=SIZE, channels=3)
        if name.startswith("classes"):
            return replace(options, first_classes=int(name.removeprefix("classes")))
        return replace(options, **THESIS_SETS[name])

    def row(self, name: str, network: str, init: int) -> Row:
        """Return the row of a network (a key of `NETWORKS`) behind INIT-NET 1 or 2, trained on a set."""
        recipe_name = f"forslov2018-{network}-init{init}" + ("" if self.budget == "full" else "-modern")
        recipe = replace(get_recipe(recipe_name), data=self.options(name))
        slug, cost = f"{name}-{network}-init{init}", f"{network}-init{init}"
        if self.budget != "full":
            return Row(slug=slug, cost=cost, recipe_name=recipe_name, recipe=TABLE_BUDGETS.limit(recipe, self.budget))
        longer = 2 if name == "hard" and family(network) != "capsnet" else 1
        recipe = _as_long_as_the_thesis(recipe, longer * STEPS, STEPS_BETWEEN_VALIDATIONS)
        return Row(slug=slug, cost=slug if name == "hard" else cost, recipe_name=recipe_name, recipe=recipe)

    def with_learning_rate(self, rate: float) -> Row:
        """Return the row of EM-NET 1 on mini for Figure 34: the thesis's recipe at all budgets, validated often.

        Below the full budget the learning rate is constant and batch normalisation is added: without it the network had
        learnt nothing after 160 steps of 10 images.
        """
        name = "forslov2018-emnet1-init1"
        recipe = replace(get_recipe(name), data=self.options("mini"))
        if self.budget != "full":
            recipe = RATE_BUDGETS.limit(recipe.with_model(batch_norm=True), self.budget)
            optimizer = replace(recipe.optimizer, decay=1.0)
            recipe = replace(recipe, loss=replace(recipe.loss, spread_schedule="linear"), optimizer=optimizer)
        else:
            recipe = _as_long_as_the_thesis(recipe, STEPS, STEPS_BETWEEN_VALIDATIONS // 10)
        recipe = replace(recipe, optimizer=replace(recipe.optimizer, learning_rate=rate))
        return Row(slug=f"mini-emnet1-init1-rate{rate:g}", cost="rate", recipe_name=name, recipe=recipe)

    def with_decoder(self, network: str, decoder: bool) -> Row:
        """Return the row of a capsule network on mini with or without DECODER NET, for Figures 35 to 37."""
        row, suffix = self.row("mini", network, 1), "decoder" if decoder else "no-decoder"
        recipe = DECODER_BUDGETS.limit(row.recipe, self.budget).with_model(reconstruction=decoder)
        return replace(row, slug=f"{row.slug}-{suffix}", cost=f"{network}-{suffix}", recipe=recipe)

    def grid(self, sets: Sequence[str]) -> list[Row]:
        """Return a row for every network on every set, set by set, so that the first set tells how long all take."""
        return [self.row(name, *network) for name in sets for network in self.networks]

    def images_by_set(self, wanted: Sequence[str] | None = None) -> dict[str, int]:
        """Return the training images of each of the `wanted` sets (default: `sets`) that this source has.

        A set with n images per class exists if at least half of the classes have n training images; the other classes
        contribute all of theirs, as in the thesis. A set of the first n classes exists if the source has n classes.
        hard, with all classes, exists if it differs from basic and medium.

        Raises:
            CapsellaError: the source has none of the sets; and what `load_data` raises.
        """
        splits = load_data(self.options("hard"))
        images = list(splits.train.counts().values())
        smaller = [THESIS_SETS[name]["first_classes"] for name in ("basic", "medium")]
        counts, wanted = {}, self.sets if wanted is None else wanted
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
        return counts


def _as_long_as_the_thesis(recipe: Recipe, steps: int, between_validations: int) -> Recipe:
    return replace(recipe, epochs=steps // between_validations, epoch_images=between_validations * recipe.batch_size)


def limits_note(budget: BudgetName, budgets: Budgets = TABLE_BUDGETS) -> str:
    """Describe how trainings with one of these budgets differ from the thesis's."""
    text = budgets.text(budget)
    return f"{text}; the thesis has 500,000 images." if text else "As long as the thesis's."


def mean_sd(numbers: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and the standard deviation, which is None for a single number."""
    return sum(numbers) / len(numbers), statistics.stdev(numbers) if len(numbers) > 1 else None


def accuracies_of(runs: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the test accuracy of each run, as a proportion."""
    return [1 - run["test"]["error_percent"] / 100 for run in runs]
