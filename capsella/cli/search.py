"""`capsella search`."""

import runpy
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from capsella.cli.flags import Group, parse, part_of, positional, settings
from capsella.cli.screen import console, show
from capsella.errors import CapsellaError, near_names
from capsella.experiments.search.options import SearchOptions

if TYPE_CHECKING:
    from capsella.experiments.search import Outcome, Search, Space
    from capsella.training import Recipe

    All = dict[str, Any]
else:
    All = settings()


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
    from capsella.experiments.search.terminal import plan_summary
    from capsella.training import ComputeOptions

    out, options = console(), command.options
    name, recipe, fitted = choose_recipe(command.words, command.given, out)
    compute = ComputeOptions(**part_of(command.given, "compute"))
    if fitted is not None:
        out.print(describe_augmentation(recipe.augment), markup=False, soft_wrap=True)
    space = None if command.space is None else space_of(command.space, recipe)
    with tempfile.TemporaryDirectory() as folder, out.status("reading the images, timing a few steps"):
        if command.dry_run:
            options = replace(options, out=Path(folder, name), storage=None)
        search = open_search(recipe, name, options, space, compute)
        summary = plan_summary(search)
    show(summary)
    if command.dry_run:
        return
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


def _finish(search: "Search", outcome: "Outcome") -> None:
    """Print the outcome, test the winner, and write the report and the recipes."""
    from capsella.experiments.search.finalists import final_test, recipe_of, save_recipes
    from capsella.experiments.search.report import winner_test, write_report
    from capsella.experiments.search.terminal import outcome_summary
    from capsella.training import save_recipe

    show(outcome_summary(search, outcome))
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
