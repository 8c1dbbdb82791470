"""How long candidates train: as the recipe, or less where the time does not allow it."""

import math
from dataclasses import replace

from capsella.errors import check_argument, pluralize
from capsella.losses.options import STAIR
from capsella.search.candidate import Images
from capsella.search.options import TRIALS, SearchOptions
from capsella.search.schedule import Rules, expected_epochs, rungs_of
from capsella.search.space import Space
from capsella.training import Machine, Recipe
from capsella.training.timing import StepTime, time_steps

SHORTEST = 9
"""Epochs of a training that is shortened: then its three rungs end after 1, 3 and 9 of them."""
FEWEST_STEPS = 2
"""Of such an epoch."""
SHARE = 0.85
"""Of the time that is planned for; the rest is for what is not training."""


def rules_of(recipe: Recipe, options: SearchOptions, images: Images, space: Space) -> Rules:
    """How a study of candidates of this length goes.

    A warm-up is in steps, so it lasts the most epochs with the largest batch of the space.
    """
    batches = space.of["batch_size"].ends if "batch_size" in space.of else (recipe.batch_size,)
    warm_up = recipe.optimizer.warmup_steps / _steps_an_epoch(replace(recipe, batch_size=max(batches)), images)
    error = options.objectives.index("error")
    return Rules(rungs_of(recipe.epochs, warm_up), options.finalists, options.seeds, error)


def _steps_an_epoch(recipe: Recipe, images: Images) -> int:
    return math.ceil((recipe.epoch_images or len(images.train(recipe))) / recipe.batch_size)


def shortened(recipe: Recipe, options: SearchOptions, images: Images, machine: Machine, space: Space) -> Recipe:
    """The recipe with as many images to learn from as there is time for, all candidates and repetitions counted.

    A step is timed. Warm-up and decay are shortened alike. An epoch is no pass over the images any more where the whole
    training has fewer than nine.

    Raises:
        ValueError: `minutes` is too short for a few steps of each.
    """
    if options.minutes is None:
        return recipe
    trials, seconds = options.trials or TRIALS, SHARE * 60 * options.minutes
    time, validation = time_of(recipe, images, machine)
    affordable = seconds / (_steps_an_epoch(recipe, images) * time.step + validation)

    def all_epochs(one: Recipe) -> int:
        return expected_epochs(rules_of(one, options, images, space), trials)

    if all_epochs(recipe) <= affordable:
        return recipe
    short = all_epochs(_lasting(recipe, SHORTEST))
    epochs = min(recipe.epochs, SHORTEST * affordable / short)
    while epochs >= SHORTEST and all_epochs(_lasting(recipe, epochs)) > affordable:  # where rungs end is rounded
        epochs -= 1
    if epochs >= SHORTEST:
        return _lasting(recipe, epochs)
    steps = int((seconds / short - validation) / time.step)  # of each of nine epochs, which are all validated whole
    needed = math.ceil(short * (FEWEST_STEPS * time.step + validation) / (SHARE * 60))
    number, seeds = pluralize(trials, "candidate"), pluralize(options.seeds, "seed")
    rule = f"be at least {needed} here for {number} and {pluralize(options.finalists, 'finalist')} with {seeds}"
    check_argument(
        steps >= FEWEST_STEPS, f"{rule}; fewer take less: --trials, --finalists, --seeds", minutes=options.minutes
    )
    an_epoch = recipe.epoch_images or len(images.train(recipe))
    few = min(steps * recipe.batch_size, an_epoch)
    return replace(_lasting(recipe, SHORTEST * few / an_epoch), epochs=SHORTEST, epoch_images=few)


def _lasting(recipe: Recipe, epochs: float) -> Recipe:
    """For so many epochs, with its warm-up, its decay and the spread loss's margin in their proportion."""
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


def time_of(recipe: Recipe, images: Images, machine: Machine) -> tuple[StepTime, float]:
    """Of a step, and the seconds of a whole validation, from a few steps."""
    splits = images.of(recipe.data)
    time = time_steps(recipe, machine, seconds=2.0, splits=splits)
    return time, len(splits.validation) * time.image


def seconds_an_epoch(recipe: Recipe, images: Images, machine: Machine) -> float:
    """Of training and validation, from a few steps."""
    time, validation = time_of(recipe, images, machine)
    return _steps_an_epoch(recipe, images) * time.step + validation
