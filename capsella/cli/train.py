"""`capsella train`."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from capsella.cli import screen
from capsella.cli.chosen import changes_line, chosen_recipe, recipe_groups
from capsella.cli.flags import prepare
from capsella.cli.repeated import finish, train_folds, train_seeds
from capsella.data import DataOptions, FolderData
from capsella.errors import check_argument, check_minimum, pluralize
from capsella.experiments.fit import fit
from capsella.papers.own_images import UNNAMED
from capsella.ray_cluster import Place, joined
from capsella.training import ComputeOptions, Recipe, RunFolder, is_launched_first, new_run_folder, resume
from capsella.training.checkpoint import read_progress

USAGE = """usage: capsella train IMAGES [--out FOLDER] [--seeds N] [--FIELD VALUE …]
       capsella train RECIPE [IMAGES] [--out FOLDER] [--FIELD VALUE …]
       capsella train RECIPE.json [IMAGES] [--FIELD VALUE …]
       capsella train IMAGES --folds 5 [--out FOLDER] [--FIELD VALUE …]
       capsella train --resume RUN [--accelerator A] [--devices N] [--threads N]

IMAGES is a folder with one sub-folder a class. Size, batch and epochs are
chosen for it, unless flags set them. Without a RECIPE it is images-efficient.

Trains a recipe and keeps the epoch with the lowest validation error (with
--keep last, the last; where rare classes are balanced, the lowest balanced
error). Tests that once, and writes report.html.

--folds N, for few images: trains N times, each time without another part of the
images, and tests that part. So every image is tested once. Interrupted and
called again with the same flags and --out, it goes on.

Every field of a recipe is a flag: `capsella train RECIPE --help` lists them.
--model NAME takes another network. If both networks have the same options, it
keeps the recipe's, or else takes its own defaults (`capsella models NAME`).

Class capsules on a network that was trained before: a run, or a backbone.
  capsella train images-backbone-capsules IMAGES --backbone RUN

Recipes by paper; `capsella recipes` says what each is:
"""


@dataclass(frozen=True)
class Train:
    """Train a recipe. Of a field's name the unique end is enough, as --iterations."""

    recipe: Annotated[Recipe, tyro.conf.arg(name="")]
    out: Path | None = None
    """Folder of the run; default: runs/RECIPE, numbered where that exists."""
    seeds: int = 1
    """Train this many times, from --seed on, and report mean and standard deviation. With the same --out, an
    interrupted call goes on."""
    compute: Annotated[ComputeOptions, tyro.conf.arg(name="")] = ComputeOptions()
    place: Annotated[Place, tyro.conf.arg(name="")] = Place()

    def __post_init__(self) -> None:
        on = self.place.on
        many = self.all_folds or self.seeds > 1
        check_argument(on is None or many, "come with --folds or --seeds: a run is computed by one machine", on=on)
        check_minimum(1, seeds=self.seeds)
        if self.seeds > 1 and self.all_folds:
            raise ValueError(
                f"seeds: must be 1 with folds, which are trained once each, got {self.seeds}; for several seeds call "
                "it with each --seed and another --out"
            )

    @property
    def all_folds(self) -> bool:
        """Whether each fold of the images is trained on in turn."""
        return self.recipe.data.folds is not None and self.recipe.data.fold is None


def run(arguments: list[str]) -> None:
    """Train, or resume; of processes that train together, only the first prints."""
    console = screen.console() if is_launched_first() else Console(quiet=True)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        screen.list_names(recipe_groups())
    elif "--resume" in arguments:
        _resume(arguments, console)
    else:
        name, recipe, images, words = chosen_recipe(arguments, console)
        recipe, words = prepare(recipe, words, Train, ComputeOptions, Place)
        options = tyro.cli(Train, default=Train(recipe), args=words, prog=f"capsella train {name}")
        _check_images(name, options.recipe.data)
        if images is not None:
            console.print(changes_line(options.recipe.augment), markup=False, soft_wrap=True)
            _warn_of_few_epochs(options.recipe.epochs, recipe.epochs, console)
        folder, compute = options.out or new_run_folder(Path("runs"), name), options.compute
        if options.all_folds:
            with _told_how_to_repeat(options, folder, console), joined(options.place):
                train_folds(options.recipe, folder, name, compute, console)
        elif options.seeds > 1:
            with _told_how_to_repeat(options, folder, console), joined(options.place):
                train_seeds(options.recipe, options.seeds, folder, name, compute, console)
        else:
            with _told_how_to_go_on(folder, console):
                finish(fit(options.recipe, folder, name=name, compute=compute, console=console), console)


def _resume(arguments: list[str], console: Console) -> None:
    """Go on with a run, perhaps on another machine."""
    if arguments[0] != "--resume" or len(arguments) == 1 or arguments[1].startswith("-"):
        got = f"capsella train {shlex.join(arguments)}"
        raise ValueError(f"--resume: must come first and name a run, as in `capsella train --resume RUN`, got `{got}`")
    folder = Path(arguments[1])
    before = RunFolder(folder).read_compute() if (folder / "config.json").exists() else ComputeOptions()
    compute = tyro.cli(ComputeOptions, default=before, args=arguments[2:], prog=f"capsella train --resume {folder}")
    if RunFolder(folder).is_trained:
        console.print(f"{folder} is trained to its end; it is tested again", soft_wrap=True, markup=False)
    finish(resume(folder, compute=compute, console=console), console)


@contextmanager
def _told_how_to_repeat(options: Train, folder: Path, console: Console) -> Iterator[None]:
    """Where trainings with several seeds, or on folds, are interrupted, say what goes on with them."""
    try:
        yield
    except KeyboardInterrupt:
        out = "" if options.out is not None else f" with --out {shlex.quote(str(folder))}"
        console.print(f"the same command{out} goes on", soft_wrap=True, markup=False)
        raise


@contextmanager
def _told_how_to_go_on(folder: Path, console: Console) -> Iterator[None]:
    """Where the training is interrupted, say what goes on with it."""
    try:
        yield
    except KeyboardInterrupt:
        if (checkpoint := RunFolder(folder).checkpoint).exists():
            done = read_progress(checkpoint).epoch
            console.print(
                f"{folder} has {pluralize(done, 'whole epoch')}; capsella train --resume {shlex.quote(str(folder))} "
                "goes on from its last checkpoint",
                soft_wrap=True,
                markup=False,
            )
        raise


def _check_images(name: str, data: DataOptions) -> None:
    """A recipe for a folder of images was given one."""
    if isinstance(data, FolderData) and data.path == UNNAMED and not UNNAMED.exists():
        raise ValueError(f"IMAGES: must be named for this recipe, as in `capsella train {name} IMAGES`")


def _warn_of_few_epochs(asked: int, chosen: int, console: Console) -> None:
    if 2 * asked < chosen:
        console.print(
            f"note: {chosen} epochs are usual for these images; after {asked} a network is seldom trained to the end",
            soft_wrap=True,
        )
