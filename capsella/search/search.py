"""`search`: one worker at a study from beginning to end, and what comes of it."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from capsella.errors import CapsellaError, check_argument
from capsella.files import alone_in, write_json
from capsella.grid import duration
from capsella.search.candidate import Images
from capsella.search.cost import Costs
from capsella.search.defaults import default_space
from capsella.search.length import rules_of, shortened
from capsella.search.opened import Search
from capsella.search.options import SearchOptions
from capsella.search.outcome import Outcome
from capsella.search.schedule import Rules, rungs_of
from capsella.search.space import Space
from capsella.search.storage import answering, storage_url
from capsella.search.study import IMAGES, Study, check_optuna
from capsella.search.worker import Worker
from capsella.training import Machine, Recipe
from capsella.training.devices import check_accelerator


def open_search(
    recipe: Recipe,
    name: str,
    options: SearchOptions,
    space: Space | None = None,
    machine: Machine = Machine(),
    images: Images | None = None,
) -> Search:
    """The study of a recipe: a new one, or the one that is in its folder.

    Args:
        recipe, name: that is to be bettered.
        options: how long, for what, within which limits.
        space: what may be changed; default: the space of the recipe, see `default_space`.
        machine, images: where candidates are trained; and on what, where that is loaded already.

    Raises:
        CapsellaError: Optuna is missing; the space does not fit the recipe; a study of something else is in the folder.
        ValueError: too few minutes, or more than one device.
    """
    check_optuna()
    _check(recipe, machine)
    recipe.data.check_outside(folder_of(name, options))
    space = space or default_space(recipe, name)
    space = space.only(options.tune) if options.tune else space
    space.check(recipe)
    folder, images = folder_of(name, options), images or Images()
    images.of(recipe.data)  # before a folder is made: what is wrong shows at once, and leaves no study behind
    begun = options.storage is not None or (folder / "study.db").exists()
    short = None if begun else shortened(recipe, options, images, machine, space)
    folder.mkdir(parents=True, exist_ok=True)
    with (
        alone_in(folder / ".beginning", wait=math.inf),
        answering(folder),
    ):  # who makes a database must be alone with it
        study = Study.open(storage_url(options.storage, folder), folder.name, space, options.objectives, recipe.seed)
        trained, rules = _agreed(
            study, recipe, options, space, images, lambda: short or shortened(recipe, options, images, machine, space)
        )
    return Search(folder, name, recipe, trained, space, options, rules, study, images, machine)


def _check(recipe: Recipe, machine: Machine) -> None:
    one = "be 1, as a worker trains one candidate at a time (the same search again is another worker)"
    check_argument(machine.devices == 1, one, devices=machine.devices)
    if recipe.stop_at_error is not None and recipe.stop_on == "test":
        raise CapsellaError("a search never looks at test images: set --stop-on validation")


def folder_of(name: str, options: SearchOptions) -> Path:
    """Of the study."""
    return options.out or Path("runs", f"search-{name}")


def _agreed(
    study: Study, recipe: Recipe, options: SearchOptions, space: Space, images: Images, shorten: Callable[[], Recipe]
) -> tuple[Recipe, Rules]:
    """The recipe as all workers train it, and how the study goes: the first worker says for how many epochs."""
    length = study.settings.get("length")
    if length is None:
        short = shorten()
        length = {name: getattr(short, name) for name in ("epochs", "epoch_images")}
        length["minutes"] = options.minutes
        length["optimizer"] = {name: getattr(short.optimizer, name) for name in ("warmup_steps", "decay_steps")}
        length["spread_steps"] = short.loss.spread_steps
    trained = replace(
        recipe,
        epochs=length["epochs"],
        epoch_images=length["epoch_images"],
        optimizer=replace(recipe.optimizer, **length["optimizer"]),
        loss=replace(recipe.loss, spread_steps=length.get("spread_steps", recipe.loss.spread_steps)),
    )
    rules = rules_of(trained, options, images, space)
    if kept := study.settings:  # by a version that reckoned otherwise, perhaps
        rules = replace(rules, rungs=tuple(kept.get("rungs", rungs_of(trained.epochs))))
    study.agree(
        {
            "recipe": recipe.complete().to_dict(),
            "space": space.to_dict(),
            "objectives": options.objectives,
            "limit_ms": options.limit_ms,
            "limit_parameters": options.limit_parameters,
            "finalists": options.finalists,
            "seeds": options.seeds,
            "length": length,
            "rungs": rules.rungs,
            IMAGES: images.of(recipe.data).digests(),
        }
    )
    study.begin(space.labels_of(trained))
    return trained, rules


def work(search: Search, console: Console | None = None) -> Outcome:
    """Take jobs until there are none or the time is up; then write outcome.json.

    Raises:
        CapsellaError: as `Worker.run` raises; the study's database does not answer.
        ValueError: this machine lacks the devices.
    """
    check_accelerator(search.machine)  # else every training would fail here, and its candidate be refused for all
    console = console or Console(quiet=True)
    began, options = time.monotonic(), search.options
    with console.status("beginning") as status, answering(search.folder):
        spent = search.study.seconds_spent()  # by all workers, also those of calls before this one
        deadline = None if options.minutes is None else began + 60 * options.minutes - spent
        worker = Worker(search, Costs(options, search.images), _sayer(console), status.update, deadline)
        worker.run()
        outcome = search.outcome
    write_json(search.folder / "outcome.json", outcome.to_dict())
    console.print(f"{worker.jobs} trainings by this process in {duration(time.monotonic() - began)}", soft_wrap=True)
    return outcome


def _sayer(console: Console) -> Callable[[str], object]:
    return lambda line: console.print(line, markup=False, soft_wrap=True)
