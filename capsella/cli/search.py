"""`capsella search`."""

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from capsella.cli.flags import Group, parse, part_of, positional, settings
from capsella.cli.screen import console, show
from capsella.experiments.search.options import SearchOptions


@dataclass(frozen=True, kw_only=True)
class SearchCommon:
    """Tune the hyper-parameters of a recipe on validation images.

        capsella search IMAGES            for your images
        capsella search RECIPE [IMAGES]   a recipe, or its JSON file

    The search never sees test images. At the end the best candidates and the
    recipe are trained with several seeds, and the winner is tested once. Run the
    same command again to continue, or at the same time to use more cores. Watch
    it with optuna-dashboard runs/search-RECIPE/study.log.
    """

    words: Annotated[tuple[str, ...], *positional("[RECIPE] [IMAGES]", "A recipe, or its JSON file; your images.")]
    options: Annotated[SearchOptions, Group] = SearchOptions()  # noqa: RUF009  frozen
    dry_run: bool = False
    """Print the space and the plan, and stop."""


@dataclass(frozen=True, kw_only=True)
class SearchCommand(SearchCommon):
    """All flags."""

    space: Path | None = None
    """A Python file that sets `space` to a capsella.experiments.search.Space. Default: the recipe's own space."""
    given: settings() = field(default_factory=dict)  # type: ignore[valid-type]


def run(arguments: list[str]) -> None:
    """Search, test the winner, and write the report."""
    command = parse(SearchCommand, arguments or ["--help"], "search")

    from capsella.experiments.search import finish_search, open_search, read_space, run_search
    from capsella.experiments.search.report import outcome_summary, plan_summary
    from capsella.papers.own_images import choose_recipe
    from capsella.training import ComputeOptions

    out, options = console(), command.options
    name, recipe = choose_recipe(command.words, command.given, out)
    compute = ComputeOptions(**part_of(command.given, "compute"))
    space = None if command.space is None else read_space(command.space)
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
        outcome = run_search(search, out)
    except KeyboardInterrupt:
        print("The study is kept. Run the same command to continue.")
        raise
    page, winner = finish_search(search, outcome)
    show(outcome_summary(search, outcome))
    print(f"report  {page}")
    print(
        "run the command again to continue" if winner is None else f"recipe  {winner}\nnext    capsella train {winner}"
    )
