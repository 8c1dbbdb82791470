"""Budgets: limits on training and test images that all rows of a table share."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from capsella.training import OptimizerOptions, Recipe
from capsella.training.config import Precision

# small: minutes per row, only to compare rows with each other. medium: hours per row on two cores, closer to
# convergence. full: the whole training of each recipe.
BudgetName = Literal["small", "medium", "full"]
IMAGE_LIMITS = ("per_class", "validation_per_class", "test_per_class", "validation_pairs", "test_pairs")
WARM_UP = 50  # the learning rate warms up over at most one fiftieth of the steps


@dataclass(frozen=True, kw_only=True)
class Budget:
    """A training of fixed length, which replaces fields of a recipe, `DataOptions` and `OptimizerOptions`.

    Fields that are None keep the recipe's value. decays_once: one decay period spans the whole training. cosine: a
    short warm-up, then half a cosine to zero; the last epoch is kept. Both need `epoch_images`.
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

    def __str__(self) -> str:
        images = f"{self.per_class} images per class" if self.epoch_images is None else f"{self.epoch_images:,} images"
        return f"{self.epochs} epochs of {images} in batches of {self.batch_size}"

    def limit(self, recipe: Recipe) -> Recipe:
        """Return the recipe with the fields of this budget."""
        limits = {name: value for name in IMAGE_LIMITS if (value := getattr(self, name)) is not None}
        optimizer = recipe.optimizer if self.ema is None else replace(recipe.optimizer, ema=self.ema)
        if self.epoch_images is not None:
            steps = self.epochs * self.epoch_images // self.batch_size
            if self.cosine:
                optimizer = replace(optimizer, schedule="cosine", warmup_steps=steps // WARM_UP)
            else:
                optimizer = replace(optimizer, warmup_steps=min(optimizer.warmup_steps, steps // WARM_UP))
            optimizer = replace(optimizer, decay_steps=steps) if self.decays_once else optimizer
        return replace(
            recipe,
            data=replace(recipe.data, **limits),
            optimizer=optimizer,
            epochs=self.epochs,
            batch_size=self.batch_size,
            epoch_images=self.epoch_images or recipe.epoch_images,
            precision=self.precision or recipe.precision,
            keep="last" if self.cosine else recipe.keep,
        )


def step_decay(l2: float, *drops: float) -> OptimizerOptions:
    """Return SGD with learning rate 0.1, divided by ten after each of the given fractions of the training."""
    return OptimizerOptions(method="sgd", learning_rate=0.1, l2=l2, schedule="steps", decay=0.1, drops=drops)


def images(per_class: int, validation: int, test: int, epochs: int, batch_size: int) -> Budget:
    """Return a budget with these numbers of training, validation and test images per class."""
    limits: dict[str, Any] = {"per_class": per_class, "validation_per_class": validation, "test_per_class": test}
    return Budget(epochs=epochs, batch_size=batch_size, **limits)


def medium(epoch_images: int, batch_size: int, epochs: int = 20, **options: Any) -> Budget:
    """Return a medium budget: a cosine schedule, averaged weights, and bfloat16 if that is faster."""
    defaults: dict[str, Any] = {"cosine": True, "ema": 0.999, "precision": "auto", "validation_per_class": 100}
    return Budget(epochs=epochs, epoch_images=epoch_images, batch_size=batch_size, **defaults | options)


@dataclass(frozen=True)
class Budgets:
    """The budgets of a table. small_optimizer: replaces the optimizer of every recipe at the small budget."""

    small: Budget
    medium: Budget
    small_optimizer: OptimizerOptions | None = None

    def limit(self, recipe: Recipe, budget: BudgetName) -> Recipe:
        """Return the recipe limited to the named budget; "full" returns it unchanged."""
        if budget == "small" and self.small_optimizer is not None:
            recipe = replace(recipe, optimizer=self.small_optimizer)
        return recipe if budget == "full" else {"small": self.small, "medium": self.medium}[budget].limit(recipe)

    def text(self, budget: BudgetName) -> str:
        """Describe the budget, e.g. "20 epochs of 8,000 images in batches of 32"; empty at the full budget."""
        return "" if budget == "full" else str(self.small if budget == "small" else self.medium)

    def note(self, budget: BudgetName, before: str = "") -> str:
        """Describe the budget in a sentence that begins with `before`; empty at the full budget."""
        return "" if budget == "full" else f"{before}{self.text(budget)}. "
