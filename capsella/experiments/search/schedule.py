"""The length of candidates' trainings: that of the recipe, or shorter if the time is limited."""

import math
from dataclasses import replace

from capsella.errors import ArgumentError, pluralize
from capsella.experiments.search.options import TRIALS, SearchOptions
from capsella.losses.options import STAIR
from capsella.training.loop import StepTime
from capsella.training.recipe import Recipe

SHORTEST = 9  # epochs of a shortened training: its rungs then end after 1, 3 and 9 epochs
FEWEST_STEPS = 2  # of a shortened epoch
TRAINING_SHARE = 0.85  # of the time; the rest is for what is not training


def rungs_for(recipe: Recipe, options: SearchOptions, images: int, batch_size: int) -> tuple[int, ...]:
    """Return the rungs of a recipe with `images` training images and at most this batch size.

    A warm-up counts steps, so that it lasts the most epochs with the largest batch.
    """
    steps = math.ceil((recipe.epoch_images or images) / batch_size)
    return options.rungs(recipe.epochs, recipe.optimizer.warmup_steps / steps)


def shorten(recipe: Recipe, options: SearchOptions, images: int, batch_size: int, time: StepTime, seen: int) -> Recipe:
    """Return the recipe with as few epochs as it takes for the whole search to fit into `minutes`.

    Warm-up and decay are shortened alike. Below nine epochs, the epochs are shortened instead.

    Args:
        recipe, options: of the search.
        images: training images.
        batch_size: the largest of the space.
        time: seconds of a step, and of a validated image.
        seen: validation images.

    Raises:
        ArgumentError: the time is too short even for a few steps of each candidate.
    """
    if options.minutes is None:
        return recipe
    steps, validation = math.ceil((recipe.epoch_images or images) / recipe.batch_size), seen * time.image
    seconds = TRAINING_SHARE * 60 * options.minutes
    affordable = seconds / (steps * time.step + validation)

    def needed(epochs: float) -> float:
        return options.expected_epochs(rungs_for(scaled(recipe, epochs), options, images, batch_size))

    epochs = recipe.epochs
    while epochs > SHORTEST and needed(epochs) > affordable:
        epochs -= 1
    if needed(epochs) <= affordable:
        return recipe if epochs == recipe.epochs else scaled(recipe, epochs)
    steps_left = int((seconds / needed(epochs) - validation) / time.step)  # of each epoch, which is validated whole
    if steps_left < FEWEST_STEPS:
        least = math.ceil(needed(epochs) * (FEWEST_STEPS * time.step + validation) / (TRAINING_SHARE * 60))
        what = f"{pluralize(options.number_of_trials or TRIALS, 'trial')} on this machine"
        hint = "fewer --trials, --finalists or --seeds take less"
        raise ArgumentError("minutes", f"be at least {least} for {what}", options.minutes, hint)
    few = min(steps_left * recipe.batch_size, recipe.epoch_images or images)
    whole = recipe.epoch_images or images
    return replace(scaled(recipe, epochs * few / whole), epochs=epochs, epoch_images=few)


def scaled(recipe: Recipe, epochs: float) -> Recipe:
    """Return the recipe for another number of epochs, with its warm-up, decay and widening margin in proportion."""
    share, steps = epochs / recipe.epochs, recipe.optimizer.decay_steps
    optimizer = replace(
        recipe.optimizer,
        warmup_steps=round(share * recipe.optimizer.warmup_steps),
        decay_steps=None if steps is None else max(1, round(share * steps)),
    )
    loss = recipe.loss
    rise = STAIR if loss.spread_schedule == "stairs" and loss.spread_steps is None else loss.spread_steps
    loss = replace(loss, spread_steps=None if rise is None else max(1, round(share * rise)))
    return replace(recipe, epochs=max(1, int(epochs)), optimizer=optimizer, loss=loss)
