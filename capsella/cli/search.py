"""`capsella search`."""

import runpy
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from capsella.cli import screen
from capsella.cli.chosen import changes_line, chosen_recipe
from capsella.cli.flags import prepare
from capsella.errors import CapsellaError, near_names, pluralize
from capsella.experiments.search import Outcome, Search, SearchOptions, Space, open_search, run_search
from capsella.experiments.search.finalists import final_test, recipe_of, save_recipes
from capsella.experiments.search.report import front_verdict, lines_of, verdict, winner_test, write_report
from capsella.experiments.search.study import end_of
from capsella.training import ComputeOptions, Recipe, save_recipe
from capsella.training.search_space import registered_space, registered_spaces

USAGE = """usage: capsella search RECIPE [IMAGES] [--minutes M] [--trials N] [--FLAG …]
       capsella search IMAGES [--minutes M] [--trials N] [--FLAG VALUE …]

Look for better values of a recipe's fields: learning rate, batch size,
augmentation, loss, routing, and what its network lets you choose. RECIPE is a
name or a JSON file. IMAGES is a folder with one subfolder per class.

All candidates learn from the same images and are judged on the same validation
images. Most are stopped early. At the end the best and the recipe are trained
with three seeds, and the winner is tested once. Test images are not used
before that.

To use more cores or machines, run the same command again at the same time with
the same --out (and --storage). After an interruption, run it again.

  capsella search demo --minutes 30
  capsella search cells/ --trials 60 --save-recipe mine.json
  capsella train mine.json cells/
  capsella search demo --objectives error ms --limit-ms 5
  optuna-dashboard runs/search-demo/study.log

All flags, those of the recipe too: capsella search RECIPE --help
"""

BEGINNING = "reading the images, timing a few steps"


@dataclass(frozen=True, kw_only=True)
class SearchCommand:
    """Search for better values of a recipe's fields, by validation images alone."""

    search: Annotated[SearchOptions, tyro.conf.arg(name="")] = SearchOptions()  # noqa: RUF009  frozen
    space: str | None = None
    """A Python file that sets `space` to a capsella.experiments.search.Space, or a recipe whose space to use. Default:
    the recipe's own space."""
    compute: Annotated[ComputeOptions, tyro.conf.arg(name="")] = ComputeOptions()
    dry_run: bool = False
    """Print the space and the plan, and stop."""
    recipe: Annotated[Recipe, tyro.conf.arg(name="")]


def run(arguments: list[str]) -> None:
    """Search, test the winner, and write the report."""
    console = screen.console()
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return
    name, recipe, images, words = chosen_recipe(arguments, console)
    recipe, words = prepare(recipe, words, SearchCommand, SearchOptions, ComputeOptions)
    command = tyro.cli(SearchCommand, default=SearchCommand(recipe=recipe), args=words, prog=f"capsella search {name}")
    if images is not None:
        console.print(changes_line(command.recipe.augment), markup=False, soft_wrap=True)
    space = None if command.space is None else space_of(command.space, command.recipe)
    if command.dry_run:
        with tempfile.TemporaryDirectory() as folder:
            options = replace(command.search, out=Path(folder, name), storage=None)
            with console.status(BEGINNING):
                search = open_search(command.recipe, name, options, space, command.compute)
            _print_plan(search, console)
        return
    with console.status(BEGINNING):
        search = open_search(command.recipe, name, command.search, space, command.compute)
    _print_plan(search, console)
    print(f"study   {search.folder}")
    try:
        outcome = run_search(search, console)
        _finish(search, outcome)
    except KeyboardInterrupt:
        print("The study is kept. Run the same command to continue.")
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
        raise CapsellaError(
            f"{path}: must set `space` to a capsella.experiments.search.Space, got {type(found).__name__}"
        )
    return found


def _print_plan(search: Search, console: Console) -> None:
    table = Table("field", "the recipe's value", "searched")
    for path, value in search.space.point_of(search.recipe).items():
        table.add_row(path, str(value), str(search.space.fields[path]))
    screen.show(table)
    options, rungs, trained = search.options, search.rungs, search.trained
    trials = options.number_of_trials
    number = "as many candidates as there is time for" if trials is None else pluralize(trials, "candidate")
    line = f"{number}, up to {pluralize(rungs[-1], 'epoch')} each"
    if len(rungs) > 1:
        line += f"; after epoch {' and '.join(map(str, rungs[:-1]))} about one in three continues"
    print(line)
    if trained.epochs != search.recipe.epochs or trained.epoch_images != search.recipe.epoch_images:
        images = "" if trained.epoch_images is None else f" of {trained.epoch_images:,} images"
        console.print(
            f"note: to fit into the time, each trains for {rungs[-1]} epochs{images}; the recipe has "
            f"{search.recipe.epochs}. What is best after a short training may not be best after a long one.",
            soft_wrap=True,
        )
    print(f"Estimated for one process: {end_of(search)}.")


def _print_outcome(outcome: Outcome, search: Search) -> None:
    names = [name for name in outcome.options.objectives if name != "error"]
    table = Table("candidate")
    for head in ("seeds", f"{outcome.error_name} %", *names, *(["front"] if names else [])):
        table.add_column(head, justify="right")
    for line in lines_of(search, outcome):
        front = ["yes" if line.on_front else ""] if names else []
        table.add_row(line.name, str(line.seeds), line.error, *line.costs, *front)
    screen.show(table)
    print(" ".join([verdict(outcome), front_verdict(outcome)]).strip())


def _finish(search: Search, outcome: Outcome) -> None:
    """Print the outcome, test the winner, and write the report and the recipes."""
    _print_outcome(outcome, search)
    winner, options = outcome.winner, search.options
    if winner is not None and options.final:
        print(winner_test(outcome, final_test(search, winner)))
    print(f"report  {write_report(search, outcome)}")
    if winner is None:
        print("run the command again to continue")
        return
    save_recipes(search, outcome)
    if options.save_recipe is not None:
        save_recipe(recipe_of(search, winner), options.save_recipe)
    print(f"recipe  {options.save_recipe or search.folder / 'winner.json'}")
    print(f"next    capsella train {options.save_recipe or search.folder / 'winner.json'}")
