"""How much a row of a table is trained and tested: the same for all rows, so that they compare with each other."""

from dataclasses import dataclass, replace

from capsella.training import Recipe


@dataclass(frozen=True, kw_only=True)
class Budget:
    """A fixed training. What is None stays as the recipe has it.

    epochs, batch_size, epoch_images: as in `Recipe`. per_class, validation_per_class, test_per_class, validation_pairs,
    test_pairs: as in `DataOptions`. decays_once: the learning rate decays once, from the first step to the last.
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

    def __str__(self) -> str:
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

    def limit(self, recipe: Recipe) -> Recipe:
        """The recipe within this budget."""
        names = ("per_class", "validation_per_class", "test_per_class", "validation_pairs", "test_pairs")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        limited = replace(recipe, data=replace(recipe.data, **given), epochs=self.epochs, batch_size=self.batch_size)
        if self.epoch_images is None:
            return limited
        limited = replace(limited, epoch_images=self.epoch_images)
        if not self.decays_once:
            return limited
        steps = self.epochs * self.epoch_images // self.batch_size
        return replace(limited, optimizer=replace(recipe.optimizer, decay_steps=steps))
