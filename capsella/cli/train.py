"""`capsella train`."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from rich.console import Console

from capsella.cli.flags import Group, parse, part_of, positional, settings
from capsella.cli.screen import console
from capsella.errors import ArgumentError, check_argument, check_minimum
from capsella.plugins import load_plugin
from capsella.ray_cluster import ClusterOptions, ray_session

COMMON = (
    *("model", "data", "data.size", "data.fit", "epochs", "batch_size", "optimizer.learning_rate", "data.folds"),
    *("data.group", "data.skip_broken", "compute.accelerator"),
)


@dataclass(frozen=True, kw_only=True)
class TrainCommon:
    """Train a network, test it once and write a report.

        capsella train IMAGES            your images, one subfolder per class
        capsella train RECIPE [IMAGES]   a recipe (see capsella list recipes)
        capsella train FILE.json         a recipe from a file

    Size, batch size and epochs are chosen for your images unless flags set them.
    """

    words: Annotated[tuple[str, ...], *positional("[RECIPE] [IMAGES]", "A recipe or its JSON file; your images.")] = ()
    out: Path | None = None
    """Folder of the run. Default: runs/RECIPE, numbered if that exists."""
    seeds: int = 1
    """Number of seeds to train, from --seed on; the mean and standard deviation are reported."""
    resume: Path | None = None
    """Continue the interrupted training of this run."""
    plugin: Path | None = None
    """A Python file that registers a routing, network or recipe of your own."""
    given: settings(*COMMON) = field(default_factory=dict)  # type: ignore[valid-type]


@dataclass(frozen=True, kw_only=True)
class Train(TrainCommon):
    """All flags: every field of a recipe, the device, and the cluster."""

    given: settings() = field(default_factory=dict)  # type: ignore[valid-type]
    cluster: Annotated[ClusterOptions, Group] = ClusterOptions()

    def __post_init__(self) -> None:
        check_minimum(1, seeds=self.seeds)
        check_argument(self.cluster.on is None or self.is_repeated, "come with --folds or --seeds", on=self.cluster.on)
        check_argument(self.cluster.on is None or self.plugin is None, "come without --on", plugin=self.plugin)
        check_argument(self.seeds == 1 or not self.all_folds, "be 1 with --folds", seeds=self.seeds)
        check_argument(len(self.words) <= 2, "be at most a recipe and a folder", words=self.words)

    @property
    def all_folds(self) -> bool:
        """True if each fold is tested in turn."""
        return self.given.get("data.folds") is not None and self.given.get("data.fold") is None

    @property
    def is_repeated(self) -> bool:
        """True for several folds or seeds, whose runs are subfolders of --out."""
        return self.seeds > 1 or self.all_folds


def run(arguments: list[str]) -> None:
    """Train or resume. In distributed training, only the first process prints."""
    options = parse(Train, arguments or ["--help"], "train")
    if options.plugin is not None:
        load_plugin(options.plugin)

    from capsella.experiments.fit import fit
    from capsella.experiments.repeats import finish, resume_run, train_folds, train_seeds
    from capsella.papers.own_images import choose_recipe
    from capsella.training import ComputeOptions, is_launched_first, new_run_folder

    out = console() if is_launched_first() else Console(quiet=True)
    if options.resume is not None:
        others = [*options.words, *(path for path in options.given if not path.startswith("compute."))]
        if others or options.out is not None or options.seeds > 1:
            raise ArgumentError("resume", "come alone or with --accelerator, --devices and --threads", others)
        resume_run(options.resume, part_of(options.given, "compute"), out)
        return
    name, recipe = choose_recipe(options.words, options.given, out)
    compute = ComputeOptions(**part_of(options.given, "compute"))
    folder = options.out or new_run_folder(Path("runs"), name)
    with _how_to_continue(folder, options, out), ray_session(options.cluster):
        if options.all_folds:
            train_folds(recipe, folder, name, compute, out)
        elif options.seeds > 1:
            train_seeds(recipe, options.seeds, folder, name, compute, out)
        else:
            finish(fit(recipe, folder, name=name, compute=compute, console=out), out)


@contextmanager
def _how_to_continue(folder: Path, options: Train, out: Console) -> Iterator[None]:
    """Print how to continue if the training is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        from capsella.training import RunFolder

        where = shlex.quote(str(folder))
        if options.is_repeated:
            out.print(f"run the same command with --out {where} to continue", soft_wrap=True, markup=False)
        elif RunFolder(folder).checkpoint.exists():
            out.print(f"continue with: capsella train --resume {where}", soft_wrap=True, markup=False)
        raise
