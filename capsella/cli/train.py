"""`capsella train`."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console

from capsella.cli.flags import Group, parse, part_of, positional, settings
from capsella.cli.screen import console
from capsella.errors import ArgumentError, check_argument, check_minimum, pluralize
from capsella.ray_cluster import ClusterOptions, ray_session

if TYPE_CHECKING:
    Common = dict[str, Any]
    All = dict[str, Any]
else:
    Common = settings(
        *("model", "data", "data.size", "data.fit", "epochs", "batch_size", "optimizer.learning_rate", "data.folds"),
        *("data.group", "data.skip_broken", "precision", "compute.accelerator"),
    )
    All = settings()


@dataclass(frozen=True, kw_only=True)
class TrainCommon:
    """Train a network, test it once, and write a report.

        capsella train IMAGES            on your images: one subfolder per class
        capsella train RECIPE [IMAGES]   a recipe (capsella list recipes)
        capsella train FILE.json         a recipe from a file

    For your images, size, batch and epochs are chosen unless flags set them.
    """

    words: Annotated[tuple[str, ...], *positional("[RECIPE] [IMAGES]", "A recipe, or its JSON file; your images.")] = ()
    out: Path | None = None
    """Folder of the run. Default: runs/RECIPE, with a number if that exists."""
    seeds: int = 1
    """Train this many times, with the seeds from --seed on, and report mean and standard deviation."""
    resume: Path | None = None
    """Continue the interrupted training of this run, perhaps on another machine."""
    given: Common = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Train(TrainCommon):
    """All flags: every field of a recipe, where to compute, and on which cluster."""

    given: All = field(default_factory=dict)
    cluster: Annotated[ClusterOptions, Group] = ClusterOptions()

    def __post_init__(self) -> None:
        check_minimum(1, seeds=self.seeds)
        many = self.seeds > 1 or self.all_folds
        check_argument(self.cluster.on is None or many, "come with --folds or --seeds", on=self.cluster.on)
        check_argument(self.seeds == 1 or not self.all_folds, "be 1 with --folds", seeds=self.seeds)
        check_argument(len(self.words) <= 2, "be at most a recipe and a folder", words=self.words)

    @property
    def all_folds(self) -> bool:
        """True if each fold is tested in turn."""
        return self.given.get("data.folds") is not None and self.given.get("data.fold") is None


def run(arguments: list[str]) -> None:
    """Train, or resume; of processes that train together, only the first prints."""
    options = parse(Train, arguments or ["--help"], "train")

    from capsella.cli.recipes import choose_recipe, describe_augmentation
    from capsella.experiments.fit import fit
    from capsella.experiments.repeats import finish, train_folds, train_seeds
    from capsella.training import ComputeOptions, is_launched_first, new_run_folder

    out = console() if is_launched_first() else Console(quiet=True)
    if options.resume is not None:
        _resume(options, out)
        return
    name, recipe, chosen = choose_recipe(options.words, options.given, out)
    compute = ComputeOptions(**part_of(options.given, "compute"))
    folder = options.out or new_run_folder(Path("runs"), name)
    if chosen is not None:
        out.print(describe_augmentation(recipe.augment), markup=False, soft_wrap=True)
        if 2 * recipe.epochs < chosen:
            out.print(f"note: {chosen} epochs are usual for these images; {recipe.epochs} may be too few to converge")
    with _how_to_continue(folder, options, out), ray_session(options.cluster):
        if options.all_folds:
            train_folds(recipe, folder, name, compute, out)
        elif options.seeds > 1:
            train_seeds(recipe, options.seeds, folder, name, compute, out)
        else:
            finish(fit(recipe, folder, name=name, compute=compute, console=out), out)


def _resume(options: Train, out: Console) -> None:
    from capsella.experiments.repeats import finish
    from capsella.training import ComputeOptions, RunFolder, resume

    assert options.resume is not None
    changes = part_of(options.given, "compute")
    others = [*options.words, *(path for path in options.given if not path.startswith("compute."))]
    if others or options.out is not None or options.seeds > 1:
        raise ArgumentError("resume", "come alone, or with --accelerator, --devices and --threads", others)
    files = RunFolder(options.resume)
    before = files.read_compute() if (options.resume / "config.json").exists() else ComputeOptions()
    if files.is_trained:
        out.print(f"{options.resume} is trained to its end; it is tested again", soft_wrap=True, markup=False)
    finish(resume(options.resume, compute=replace(before, **changes), console=out), out)


@contextmanager
def _how_to_continue(folder: Path, options: Train, out: Console) -> Iterator[None]:
    """Print how to continue if the training is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        from capsella.training import RunFolder
        from capsella.training.checkpoint import read_progress

        checkpoint = RunFolder(folder).checkpoint
        if options.all_folds or options.seeds > 1:
            more = "" if options.out is not None else f" with --out {shlex.quote(str(folder))}"
            out.print(f"run the same command{more} to continue", soft_wrap=True, markup=False)
        elif checkpoint.exists():
            epochs = pluralize(read_progress(checkpoint).epoch, "complete epoch")
            resume = f"capsella train --resume {shlex.quote(str(folder))}"
            out.print(f"{folder} has {epochs}; continue with {resume}", soft_wrap=True, markup=False)
        raise
