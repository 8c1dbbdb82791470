"""`capsella train`."""

import dataclasses
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.markup import escape

from capsella.cli import screen
from capsella.cli.flags import prepare
from capsella.cli.recipes import recipe_groups
from capsella.data.outline import outline
from capsella.errors import CapsellaError
from capsella.evaluation import Evaluation, Spread
from capsella.explain import about_training, run_facts, write_report
from capsella.files import write_json
from capsella.grid import finish_run
from capsella.papers import get_recipe, list_recipes, recipe_function
from capsella.papers.own_images import DEFAULT, fitted
from capsella.training import Machine, Recipe, Run, RunFolder, is_first_process, new_run_folder, resume, train

USAGE = """usage: capsella train IMAGES [--out FOLDER] [--seeds N] [--FIELD VALUE …]
       capsella train RECIPE [IMAGES] [--out FOLDER] [--FIELD VALUE …]
       capsella train --resume RUN

IMAGES is a folder with one sub-folder a class. Size, batch and epochs are
chosen for it, unless flags set them. Without a RECIPE it is images-efficient.

Trains a recipe and keeps the epoch with the lowest validation error (with
--keep last, the last; where rare classes are balanced, the lowest balanced
error). Tests that once, and writes report.html.

Every field of a recipe is a flag: `capsella train RECIPE --help` lists them.
--model NAME takes another network. If both networks have the same options, it
keeps the recipe's, or else takes its own defaults (`capsella models NAME`).

Class capsules on a network that was trained before: a run, or a backbone.
  capsella train images-stem-capsules IMAGES --stem RUN

Recipes by paper; `capsella recipes` says what each is:
"""


@dataclass(frozen=True)
class Train:
    """Train a recipe. Of a field's name the unique end is enough, as --iterations."""

    recipe: Annotated[Recipe, tyro.conf.arg(name="")]
    out: Path | None = None
    """Folder of the run; default: runs/RECIPE, numbered where that exists."""
    seeds: int = 1
    """Train this many times, from --seed on, and report mean and standard deviation."""
    machine: Annotated[Machine, tyro.conf.arg(name="")] = Machine()

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"seeds: must be at least 1, got {self.seeds}")


def run(arguments: list[str]) -> None:
    """Train, or resume."""
    console = screen.console()
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        screen.list_names(recipe_groups())
    elif "--resume" in arguments:
        if arguments[0] != "--resume" or len(arguments) != 2:
            got = f"capsella train {shlex.join(arguments)}"
            raise ValueError(f"--resume: must stand alone, as in `capsella train --resume RUN`, got `{got}`")
        _finish(resume(Path(arguments[1]), console=console), console)
    else:
        name, images, words = _named(arguments)
        recipe = get_recipe(name) if images is None else _fit(name, images, words, console)
        recipe, words = prepare(recipe, words)
        options = tyro.cli(Train, default=Train(recipe), args=words, prog=f"capsella train {name}")
        folder = options.out or new_run_folder(Path("runs"), name)
        if options.seeds == 1:
            _finish(train(options.recipe, folder, name=name, machine=options.machine, console=console), console)
        else:
            _train_seeds(options, folder, name, console)


def _named(arguments: list[str]) -> tuple[str, Path | None, list[str]]:
    """The recipe's name, the folder of images if one is given, and the flags."""
    first, *words = arguments
    if first not in list_recipes():
        if not Path(first).is_dir():
            recipe_function(first)  # raises, with the nearest name
        return DEFAULT, Path(first), words
    if words and not words[0].startswith("-"):
        return first, Path(words[0]), words[1:]
    return first, None, words


def _fit(name: str, images: Path, words: list[str], console: Console) -> Recipe:
    """The recipe for this folder; says what was chosen and why, but for what the flags set."""
    found = outline(images)
    recipe, reasons = fitted(get_recipe(name), found)
    if not set(words) & {"-h", "--help"}:
        console.print(f"{images}: {found}\nrecipe {name}; chosen for these images:", markup=False, soft_wrap=True)
        given = {word.partition("=")[0].rpartition(".")[2].lstrip("-").replace("_", "-") for word in words}
        for flag, reason in reasons.items():
            if flag.split()[0].lstrip("-") not in given:
                console.print(f"  {flag:<16} {reason}", markup=False, soft_wrap=True)
        changes = f"mirrored, and shifted by up to {recipe.augment.shift} pixels"
        console.print(f"  training images are {changes} (--no-flip, --shift 0)", markup=False, soft_wrap=True)
    return recipe


def _train_seeds(options: Train, folder: Path, name: str, console: Console) -> None:
    """One run a seed, in sub-folders; seeds.json holds mean and spread."""
    if folder.exists():
        raise CapsellaError(f"{folder} exists already; choose another folder with --out")
    errors: dict[int, float] = {}
    for seed in range(options.recipe.seed, options.recipe.seed + options.seeds):
        recipe = dataclasses.replace(options.recipe, seed=seed)
        trained = train(recipe, folder / f"seed{seed}", name=name, machine=options.machine, console=console)
        if (evaluation := _finish(trained, console)) is not None:
            errors[seed] = evaluation.error
    if not is_first_process():
        return
    spread = Spread.of(list(errors.values()))
    write_json(folder / "seeds.json", {"test_error_percent": errors, "mean": spread.mean, "sd": spread.sd})
    where = escape(str(folder / "seeds.json"))
    console.print(f"test error over {len(errors)} seeds: [bold]{spread}[/] %  →  {where}", soft_wrap=True)


def _finish(trained: Run, console: Console) -> Evaluation | None:
    """Evaluate on the test images, write test.json and the report; None where another process does."""
    if not is_first_process():
        return None
    evaluation, splits = finish_run(trained)
    files = RunFolder(trained.folder)
    about = about_training(trained, splits, files.read("summary"))
    facts = run_facts(trained, splits)
    report = write_report(
        trained.folder, trained.model, evaluation, splits.test, files.metrics, trained.name, facts, about
    )
    low, high = evaluation.error_interval
    for warning in evaluation.warnings():
        console.print(f"[bold red]WARNING: {escape(warning)}[/]", soft_wrap=True)
    console.print(
        f"test error [bold]{evaluation.error:.2f} %[/] ({evaluation.errors} of {len(evaluation.labels)}; "
        f"95 % interval {low:.2f} to {high:.2f}), balanced accuracy [bold]{evaluation.balanced_accuracy:.2f} %[/]\n"
        f"run     {escape(str(trained.folder))}\nreport  {escape(str(report))}",
        soft_wrap=True,
    )
    return evaluation
