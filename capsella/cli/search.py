"""`capsella search`."""

import runpy
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from capsella.cli import screen
from capsella.cli.chosen import changes_line, chosen_recipe
from capsella.cli.flags import prepare
from capsella.errors import CapsellaError, near_names, pluralize
from capsella.grid import duration
from capsella.ray_cluster import Place, check_ray, joined
from capsella.search import Outcome, Search, SearchOptions, Space, open_search, work
from capsella.search.final import final_seconds, save_finalists, seeds_left, train_winner, winning_recipe
from capsella.search.length import seconds_an_epoch
from capsella.search.options import TRIALS
from capsella.search.report import write_report
from capsella.search.schedule import expected_epochs
from capsella.search.space import registered_space, registered_spaces
from capsella.training import Machine, Recipe, save_recipe

USAGE = """usage: capsella search RECIPE [IMAGES] [--minutes M] [--trials N] [--FLAG …]
       capsella search IMAGES [--minutes M] [--trials N] [--FLAG VALUE …]

Looks for better values of a recipe's fields: learning rate, batch, changes of
the images, loss, routing, and what its network lets one choose. RECIPE is a
name, or a JSON file. IMAGES is a folder with one sub-folder a class.

Every candidate learns from the same images and is judged by the same
validation images. The search does not see test images. One candidate in three
goes on to the next, three times as long part of the training. At the end, the
best five and the recipe are trained with three seeds. Then the winner is
trained on nearly all images but the test's, and tested once.

To use more cores or machines, call the same command again at the same time,
with the same --out (and --storage). Interrupted, it goes on when called again.

  capsella search demo --minutes 30
  capsella search cells/ --trials 60 --save-recipe mine.json
  capsella train mine.json cells/
  capsella search demo --objectives error ms --limit-ms 5
  optuna-dashboard sqlite:///runs/search-demo/study.db

All flags, those of the recipe too: capsella search RECIPE --help
"""

BEGINNING = "reading the images, timing a few steps"


@dataclass(frozen=True, kw_only=True)
class SearchCommand:
    """Search for better values of a recipe's fields, by validation images alone.

    --on, --cpus and --gpus are for the final training of the winner alone.
    """

    search: Annotated[SearchOptions, tyro.conf.arg(name="")] = SearchOptions()  # noqa: RUF009  frozen
    space: str | None = None
    """A Python file that sets `space` to a capsella.search.Space, or a recipe whose space to take; default: the
    recipe's own space."""
    machine: Annotated[Machine, tyro.conf.arg(name="")] = Machine()
    place: Annotated[Place, tyro.conf.arg(name="")] = Place()
    dry_run: bool = False
    """Print the space and the plan, and stop."""
    recipe: Annotated[Recipe, tyro.conf.arg(name="")]


def run(arguments: list[str]) -> None:
    """Search, write the report, and train the winner."""
    console = screen.console()
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return
    name, recipe, images, words = chosen_recipe(arguments, console)
    recipe, words = prepare(recipe, words, SearchCommand, SearchOptions, Machine, Place)
    command = tyro.cli(SearchCommand, default=SearchCommand(recipe=recipe), args=words, prog=f"capsella search {name}")
    if images is not None:
        console.print(changes_line(command.recipe.augment), markup=False, soft_wrap=True)
    if command.place.on is not None:  # which is joined at the end: hours later
        check_ray()
    space = None if command.space is None else space_of(command.space, command.recipe)
    if command.dry_run:
        with tempfile.TemporaryDirectory() as folder:
            options = replace(command.search, out=Path(folder, name), storage=None)
            with console.status(BEGINNING):
                search = open_search(command.recipe, name, options, space, command.machine)
            _print_plan(search, console)
        return
    with console.status(BEGINNING):
        search = open_search(command.recipe, name, command.search, space, command.machine)
    _print_plan(search, console)
    print(f"study   {search.folder}")
    try:
        outcome = work(search, console)
        _print_outcome(outcome)
        _finish(search, outcome, console, command.place)
    except KeyboardInterrupt:
        print("The study is kept. The same command goes on.")
        raise


def space_of(word: str, recipe: Recipe) -> Space:
    """The space that a word stands for: a Python file, or a recipe that has one of its own.

    Raises:
        CapsellaError: neither.
    """
    if word.endswith(".py"):
        return read_space(Path(word))
    registered = registered_space(word)
    if registered is None:
        hint = near_names(word, registered_spaces())
        raise CapsellaError(f"space: must be a Python file or a recipe with a space of its own, got {word!r}; {hint}")
    return registered(recipe)


def read_space(path: Path) -> Space:
    """The `space` that a Python file sets. The file is run: take none from strangers.

    Raises:
        CapsellaError: no such file, an error in it, or no space.
    """
    if not path.is_file():
        raise CapsellaError(f"{path}: no such file")
    try:
        found = runpy.run_path(str(path)).get("space")
    except Exception as error:  # whatever is wrong in the user's own file
        raise CapsellaError(f"{path}: {type(error).__name__}: {error}") from error
    if not isinstance(found, Space):
        raise CapsellaError(f"{path}: must set `space` to a capsella.search.Space, got {type(found).__name__}")
    return found


def _print_plan(search: Search, console: Console) -> None:
    table = Table("field", "the recipe's", "from")
    for path, own in search.space.labels_of(search.recipe).items():
        table.add_row(path, str(own), str(search.space.of[path]))
    screen.show(table)
    options, rungs = search.options, search.rules.rungs
    trials = options.all_trials
    number = "as many candidates as there is time for" if trials is None else pluralize(trials, "candidate")
    ends = " and ".join(map(str, rungs))
    short = search.trained.epochs != search.recipe.epochs or search.trained.epoch_images != search.recipe.epoch_images
    print(f"{number}, up to {rungs[-1]} epochs each; one in three goes on after epoch {ends.rpartition(' and ')[0]}"
          if len(rungs) > 1 else f"{number}, {pluralize(rungs[-1], 'epoch')} each")  # fmt: skip
    if short:
        images = search.trained.epoch_images
        which = "" if images is None else f" of {images:,} images"
        minutes = search.study.settings["length"]["minutes"]  # of the call that began the study
        console.print(
            f"note: to fit into {minutes:g} minutes, each trains for {rungs[-1]} epochs{which}; the recipe has "
            f"{search.recipe.epochs}. What is best after a short training may not be after a long one.",
            soft_wrap=True,
        )
    if options.minutes is None:
        with console.status(BEGINNING):
            seconds = seconds_an_epoch(search.trained, search.images, search.machine)
        whole = expected_epochs(search.rules, options.all_trials or TRIALS) * seconds
        print(f"Estimated: {duration(whole)} for one process, from a few steps of the recipe here.")


def _print_outcome(outcome: Outcome) -> None:
    others = [name for name in outcome.objectives if name != "error"]
    table = Table("candidate")
    for head in ("seeds", f"{outcome.error_name} %", *others, *(["front"] if others else [])):
        table.add_column(head, justify="right")
    front = outcome.front
    for one in outcome.finalists:
        costs = one.cost_texts
        table.add_row(
            Text(one.name),
            str(len(one.judged)),
            one.error_text,
            *costs,
            *(["yes" if one in front else ""] if others else []),
        )
    screen.show(table)
    print(" ".join([outcome.verdict, outcome.front_verdict]).strip())


def _finish(search: Search, outcome: Outcome, console: Console, place: Place) -> None:
    """The page, the winner's recipe, its test, and the page with it."""
    winner, options = outcome.winner, search.options
    print(f"report  {write_report(search, outcome)}")
    if winner is None:
        print("call the command again, and it goes on")
        return
    path = search.folder / "winner.json"
    for one in (path, *([] if options.save_recipe is None else [options.save_recipe])):
        save_recipe(winning_recipe(search, winner), one)
        print(f"recipe  {one}")
    if len(outcome.finalists) > 1:
        print(f"others  {save_finalists(search, outcome)}")
    if options.final:
        if left := seeds_left(search, winner):
            images = pluralize(len(search.images.train(winning_recipe(search, winner))), "image")
            seeds, time = pluralize(left, "seed"), duration(left * final_seconds(search, outcome))
            console.print(
                f"Training {winner.name} with {seeds} on {images}: about {time}. Ctrl-C leaves that out.",
                soft_wrap=True,
            )
        with joined(place):
            tested = train_winner(search, winner, console)
        if tested is not None:
            print(f"test error of {winner.name}: {tested.text} on {pluralize(tested.images, 'image')}, {tested.folder}")
            write_report(search, outcome)
    print(f"next    capsella train {path}")
