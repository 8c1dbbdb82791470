"""How much a row of a table is trained and tested: the same for all rows, so that they compare with each other."""

from dataclasses import dataclass, replace
from typing import Literal

from capsella.data import DataOptions
from capsella.errors import check_argument
from capsella.training import OptimizerOptions, Recipe
from capsella.training.config import Precision

BudgetName = Literal["small", "medium", "full"]
"""small: so short that rows compare with each other alone. medium: nearer to where a network ends, hours a row on two
cores. full: the whole training of each recipe."""

IMAGE_LIMITS = ("per_class", "validation_per_class", "test_per_class", "validation_pairs", "test_pairs")
WARM_UP = 50
"""The share of the steps, as one in so many, over which a cosine's learning rate rises first."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """A fixed training. What is None stays as the recipe has it.

    epochs, batch_size, epoch_images, precision: as in `Recipe`. per_class, validation_per_class, test_per_class,
    validation_pairs, test_pairs: as in `DataOptions`. decays_once: the learning rate decays once, from the first step
    to the last. cosine: the learning rate rises over the first fiftieth of the steps and then falls to nothing along
    half a cosine; the last epoch is kept. ema: as in `OptimizerOptions`.

    Raises:
        ValueError: a schedule without `epoch_images`, by which its steps are counted.
    """

    epochs: int
    batch_size: int
    epoch_images: int | None = None
    per_class: int | None = None
    validation_per_class: int | None = None
    test_per_class: int | None = None
    validation_pairs: int | None = None
    test_pairs: int | None = None
    decays_once: bool = False
    cosine: bool = False
    ema: float | None = None
    precision: Precision | None = None

    def __post_init__(self) -> None:
        counted = self.epoch_images is not None or not (self.cosine or self.decays_once)
        check_argument(counted, "be given with cosine and decays_once", epoch_images=self.epoch_images)

    def __str__(self) -> str:
        return "".join([self._images(), *self._training()])

    def _images(self) -> str:
        """What is seen, validated and tested on, in which batches."""
        if self.test_pairs is not None:
            return (
                f"{self.epochs} × {self.epoch_images} training, {self.validation_pairs} validation and "
                f"{self.test_pairs} test pairs, batches of {self.batch_size}"
            )
        if self.epoch_images is not None:
            return (
                f"{self.epochs * self.epoch_images:,} images seen in batches of {self.batch_size}, validated "
                f"{self.epochs} times on up to {self.validation_per_class} images a class"
            )
        return (
            f"{self.per_class} training, {self.validation_per_class} validation and {self.test_per_class} test images "
            f"a class, {self.epochs} epochs, batches of {self.batch_size}"
        )

    def _training(self) -> list[str]:
        """What is not as in the recipe beside that."""
        texts = []
        if self.cosine:
            texts.append("the rate falls to nothing along a cosine after a short warm-up, the last epoch is kept")
        if self.ema is not None:
            texts.append(f"averaged weights ({self.ema:g})")
        if self.precision == "auto":
            texts.append("bfloat16 where the machine is faster with it")
        return [f", {text}" for text in texts]

    def limit(self, recipe: Recipe) -> Recipe:
        """The recipe within this budget."""
        return replace(
            recipe,
            data=self._data(recipe.data),
            optimizer=self._optimizer(recipe.optimizer),
            epochs=self.epochs,
            batch_size=self.batch_size,
            epoch_images=self.epoch_images or recipe.epoch_images,
            precision=self.precision or recipe.precision,
            keep="last" if self.cosine else recipe.keep,
        )

    def _data(self, data: DataOptions) -> DataOptions:
        return replace(data, **{name: value for name in IMAGE_LIMITS if (value := getattr(self, name)) is not None})

    def _optimizer(self, optimizer: OptimizerOptions) -> OptimizerOptions:
        """With the budget's schedule and average."""
        if self.ema is not None:
            optimizer = replace(optimizer, ema=self.ema)
        if self.epoch_images is None:
            return optimizer
        steps = self.epochs * self.epoch_images // self.batch_size
        if self.cosine:
            return replace(optimizer, schedule="cosine", warmup_steps=steps // WARM_UP)
        optimizer = replace(optimizer, warmup_steps=min(optimizer.warmup_steps, steps // WARM_UP))
        return replace(optimizer, decay_steps=steps) if self.decays_once else optimizer


@dataclass(frozen=True)
class Budgets:
    """The budgets of a table's rows; the full one leaves each recipe as it is.

    small_optimizer: at the small budget in place of each recipe's own.
    """

    small: Budget
    medium: Budget
    small_optimizer: OptimizerOptions | None = None

    def limit(self, recipe: Recipe, budget: BudgetName) -> Recipe:
        """The recipe within the budget of that name."""
        if budget == "full":
            return recipe
        if budget == "medium":
            return self.medium.limit(recipe)
        return self.small.limit(replace(recipe, optimizer=self.small_optimizer or recipe.optimizer))

    def note(self, budget: BudgetName, before: str = "") -> str:
        """A sentence for the note of a table, with words before it; none at the full budget."""
        if budget == "full":
            return ""
        if budget == "medium":
            return f"{before}{self.medium}. "
        return f"{before}{self.small}{'' if self.small_optimizer is None else ', Adam'}. "
