"""The runs that the tables and figures of the thesis share, in one folder: which there are, and how each trains."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from capsella.data import DataOptions, thesis_set
from capsella.grid import Budget, BudgetName, Row
from capsella.papers.forslov2018.paper import NETWORKS, SETS, family
from capsella.training import Recipe
from capsella.training.registry import get_recipe

SOURCE = "bloodmnist"
"""The default images: 224×224, of the same maker's microscope as the thesis's, and there is a public download."""
SIZE = 224


SMALL = Budget(epochs=4, epoch_images=400, batch_size=10, validation_per_class=30, decays_once=True)
# Figure 34, of one light network, in batches of 5 and at constant rates as in the thesis.
FINE = Budget(epochs=40, epoch_images=75, batch_size=5, validation_per_class=20)
# Figures 35 to 37. The decoder costs several times as much as the rest of CAPSNET 1.
DRAWN = replace(SMALL, epochs=8, epoch_images=150)
# A night: some minutes to half an hour a run on two cores, with the decoder an hour or two.
NIGHT = Budget(
    epochs=20, epoch_images=800, batch_size=10, validation_per_class=50, decays_once=True, ema=0.99, precision="auto"
)
NIGHT_FINE = Budget(epochs=80, epoch_images=250, batch_size=5, validation_per_class=20, precision="auto")
NIGHT_DRAWN = replace(NIGHT, epochs=20, epoch_images=1000)
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
        """The INIT-NETs that are trained."""
        return (1, 2) if self.budget == "full" else (1,)

    @property
    def networks(self) -> list[tuple[str, int]]:
        """(network, INIT-NET) in the order of the tables."""
        return [(network, init) for network in NETWORKS for init in self.inits]

    @property
    def sets(self) -> tuple[str, ...]:
        """The training sets, as far as the source has them (`find_supply`)."""
        return SETS if self.budget == "full" else SHORTER_SETS

    @property
    def limit(self) -> Budget | None:
        """Of the runs of tables 3 and 4; None at the full budget."""
        return {"small": SMALL, "night": NIGHT, "full": None}[self.budget]

    @property
    def fine(self) -> Budget | None:
        """The same of `with_learning_rate`."""
        return {"small": FINE, "night": NIGHT_FINE, "full": None}[self.budget]

    @property
    def drawn(self) -> Budget | None:
        """The same of `with_decoder`."""
        return {"small": DRAWN, "night": NIGHT_DRAWN, "full": None}[self.budget]

    @property
    def mark(self) -> str:
        """What stands behind every number of ours: a night's trainings see 16,000 images, the thesis's 500,000."""
        return "few images" if self.budget == "night" else ""

    def describe(self) -> str:
        """How the runs train, beside the thesis's, for the note of a table."""
        if self.limit is None:
            return "As long as the thesis's, which prints the best of several settings, with a decoder or without."
        return (
            f"The recipes called modern, without a decoder: {self.limit}. The thesis trains on 500,000 images and "
            "prints the best of several settings."
        )

    def describe_fine(self) -> str:
        """The same of `with_learning_rate`."""
        if self.fine is None:
            return "As long as the thesis's."
        return (
            "The thesis's routing and batches, behind batch normalisation, at constant rates; the margin of the loss "
            f"rises over the whole training: {self.fine}."
        )

    def describe_drawn(self) -> str:
        """The same of `with_decoder`."""
        return "As long as the thesis's." if self.drawn is None else f"The recipe called modern: {self.drawn}."

    def options(self, name: str) -> DataOptions:
        """The images of one of `SETS`, or of "classes2", "classes3", …: all images of the first so many classes."""
        options = DataOptions(name=self.source, size=SIZE, channels=3)
        if name.startswith("classes"):
            return replace(options, first_classes=int(name.removeprefix("classes")))
        return thesis_set(name, options)

    def planned(self, name: str, network: str, init: int) -> Row:
        """The run of a network on a set.

        Args:
            name: of the set, as for `options`.
            network: a key of `NETWORKS`.
            init: 1 or 2.
        """
        recipe_name = f"forslov2018-{network}-init{init}" + ("" if self.limit is None else "-modern")
        recipe = replace(get_recipe(recipe_name), data=self.options(name))
        if self.limit is not None:
            recipe = self.limit.limit(recipe)
        else:
            longer = 2 if name == "hard" and family(network) != "capsnet" else 1
            recipe = _as_long_as_the_thesis(recipe, longer * STEPS, STEPS_BETWEEN_VALIDATIONS)
        slug, cost = f"{name}-{network}-init{init}", f"{network}-init{init}"
        if self.limit is None and name == "hard":
            cost = f"hard-{cost}"  # which is trained twice as long
        return Row(slug=slug, cost=cost, recipe_name=recipe_name, recipe=recipe)

    def with_learning_rate(self, rate: float) -> Row:
        """EM-NET 1 on mini, validated often, as for Figure 34, with the thesis's recipe at all budgets.

        Below the full budget the rate stays as it is, and there is batch normalisation: without it, the network
        had learnt nothing after 160 steps of 10 images (LOG.md, L010).
        """
        name = "forslov2018-emnet1-init1"
        recipe = replace(get_recipe(name), data=self.options("mini"))
        optimizer = replace(recipe.optimizer, learning_rate=rate)
        if self.fine is not None:
            recipe = self.fine.limit(recipe.with_model(batch_norm=True))
            recipe = replace(recipe, loss=replace(recipe.loss, spread_schedule="linear"))
            optimizer = replace(optimizer, decay=1.0)
        else:
            recipe = _as_long_as_the_thesis(recipe, STEPS, STEPS_BETWEEN_VALIDATIONS // 10)
        recipe = replace(recipe, optimizer=optimizer)
        return Row(slug=f"mini-emnet1-init1-rate{rate:g}", cost="rate", recipe_name=name, recipe=recipe)

    def with_decoder(self, network: str, decoder: bool) -> Row:
        """A capsule network on mini with DECODER NET, or without it, for Figures 35 to 37."""
        run = self.planned("mini", network, 1)
        recipe = run.recipe
        if self.drawn is not None:
            recipe = self.drawn.limit(recipe)
        recipe = recipe.with_model(reconstruction=decoder)
        suffix = "decoder" if decoder else "no-decoder"
        return replace(run, slug=f"{run.slug}-{suffix}", cost=f"{network}-{suffix}", recipe=recipe)

    def grid(self, sets: Sequence[str]) -> list[Row]:
        """Every network on every set, set after set, so that the time left is known after the first."""
        return [self.planned(name, *network) for name in sets for network in self.networks]


def _as_long_as_the_thesis(recipe: Recipe, steps: int, between_validations: int) -> Recipe:
    return replace(recipe, epochs=steps // between_validations, epoch_images=between_validations * recipe.batch_size)
