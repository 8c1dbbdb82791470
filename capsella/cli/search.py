"""`capsella search`."""

import runpy
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console

from capsella.cli.flags import Group, parse, part_of, positional, settings
from capsella.cli.screen import console, show
from capsella.errors import CapsellaError, near_names, pluralize
from capsella.experiments.search.options import SearchOptions

if TYPE_CHECKING:
    from capsella.experiments.search import Outcome, Search, Space
    from capsella.training import Recipe

    All = dict[str, Any]
else:
    All = settings()

BEGINNING = "reading the images, timing a few steps"


@dataclass(frozen=True, kw_only=True)
class SearchCommon:
    """Search for better values of a recipe's fields, by validation images.

        capsella search IMAGES            for your images
        capsella search RECIPE [IMAGES]   a recipe, or its JSON file

    The search never sees test images. At the end the best candidates and the
    recipe are trained with several seeds, and the winner is tested once. Run the
    same command again to continue, or at the same time to use more cores. Look
    on with optuna-dashboard runs/search-RECIPE/study.log.
    """

    words: Annotated[tuple[str, ...], *positional("[RECIPE] [IMAGES]", "A recipe, or its JSON file; your images.")]
    options: Annotated[SearchOptions, Group] = SearchOptions()  # noqa: RUF009  frozen
    dry_run: bool = False
    """Print the space and the plan, and stop."""


@dataclass(frozen=True, kw_only=True)
class SearchCommand(SearchCommon):
    """All flags."""

    space: str | None = None
    """A Python file that sets `space` to a capsella.experiments.search.Space, or a recipe whose space to use. Default:
    the recipe's own space."""
    given: All = field(default_factory=dict)


def run(arguments: list[str]) -> None:
    """Search, test the winner, and write the report."""
    command = parse(SearchCommand, arguments or ["--help"], "search")

    from capsella.cli.recipes import choose_recipe, describe_augmentation
    from capsella.experiments.search import open_search, run_search
    from capsella.training import ComputeOptions

    out, options = console(), command.options
    name, recipe, fitted = choose_recipe(command.words, command.given, out)
    compute = ComputeOptions(**part_of(command.given, "compute"))
    if fitted is not None:
        out.print(describe_augmentation(recipe.augment), markup=False, soft_wrap=True)
    space = None if command.space is None else space_of(command.space, recipe)
    if command.dry_run:
        with tempfile.TemporaryDirectory() as folder:
            options = replace(options, out=Path(folder, name), storage=None)
            with out.status(BEGINNING):
                search = open_search(recipe, name, options, space, compute)
            _print_plan(search, out)
        return
    with out.status(BEGINNING):
        search = open_search(recipe, name, options, space, compute)
    _print_plan(search, out)
    print(f"study   {search.folder}")
    try:
        _finish(search, run_search(search, out))
    except KeyboardInterrupt:
        print("The study is kept. Run the same command to continue.")
        raise


def space_of(word: str, recipe: "Recipe") -> "Space":
    """Return the space that a Python file sets, or that of a recipe.

    Raises:
        CapsellaError: neither; or an error in the file.
    """
    from capsella.experiments.search import Space
    from capsella.training.search_space import registered_space, registered_spaces

    if word.endswith(".py"):
        try:  # the file is run: take none from strangers
            found = runpy.run_path(word).get("space")
        except Exception as error:  # any mistake in the user's file
            raise CapsellaError(f"{word}: {type(error).__name__}: {error}") from error
        if not isinstance(found, Space):
            raise CapsellaError(f"{word}: must set `space` to a Space, got {type(found).__name__}")
        return found
    registered = registered_space(word)
    if registered is None:
        hint = near_names(word, registered_spaces())
        raise CapsellaError(f"space: must be a Python file or a recipe with a space of its own, got {word!r}; {hint}")
    return registered(recipe)


def _print_plan(search: "Search", out: Console) -> None:
    from rich.table import Table

    from capsella.experiments.search.study import end_of

    table = Table("field", "the recipe's value", "searched")
    for path, value in search.space.point_of(search.recipe).items():
        table.add_row(path, str(value), str(search.space.fields[path]))
    show(table)
    rungs, trained, trials = search.rungs, search.trained, search.options.number_of_trials
    number = "as many candidates as there is time for" if trials is None else pluralize(trials, "candidate")
    line = f"{number}, up to {pluralize(rungs[-1], 'epoch')} each"
    if len(rungs) > 1:
        line += f"; after epoch {' and '.join(map(str, rungs[:-1]))} about one in three continues"
    print(line)
    if trained.epochs != search.recipe.epochs or trained.epoch_images != search.recipe.epoch_images:
        images = "" if trained.epoch_images is None else f" of {trained.epoch_images:,} images"
        out.print(
            f"note: to fit into the time, each trains for {rungs[-1]} epochs{images}; the recipe has "
            f"{search.recipe.epochs}. What is best after a short training may not be best after a long one.",
            soft_wrap=True,
        )
    print(f"Estimated for one process: {end_of(search)}.")


def _print_outcome(outcome: "Outcome", search: "Search") -> None:
    from rich.table import Table

    from capsella.experiments.search.report import front_verdict, lines_of, verdict

    names = [name for name in outcome.options.objectives if name != "error"]
    table = Table("candidate")
    for head in ("seeds", f"{outcome.error_name} %", *names, *(["Pareto front"] if names else [])):
        table.add_column(head, justify="right")
    for line in lines_of(search, outcome):
        front = ["yes" if line.on_front else ""] if names else []
        table.add_row(line.name, str(line.seeds), line.error, *line.costs, *front)
    show(table)
    print(" ".join([verdict(outcome), front_verdict(outcome)]).strip())


def _finish(search: "Search", outcome: "Outcome") -> None:
    """Print the outcome, test the winner, and write the report and the recipes."""
    from capsella.experiments.search.finalists import final_test, recipe_of, save_recipes
    from capsella.experiments.search.report import winner_test, write_report
    from capsella.training import save_recipe

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
    path = options.save_recipe or search.folder / "winner.json"
    print(f"recipe  {path}\nnext    capsella train {path}")
