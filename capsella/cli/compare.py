"""`capsella compare`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from capsella.cli.flags import Group, parse, positional
from capsella.cli.screen import console, show
from capsella.compare.options import CommonComparisonOptions, ComparisonOptions
from capsella.errors import check_argument, pluralize
from capsella.ray_cluster import ClusterOptions, ray_session

if TYPE_CHECKING:
    from capsella.compare import Plan


@dataclass(frozen=True, kw_only=True)
class CompareCommon:
    """Train capsule networks and CNNs, and report which serve better.

        capsella compare IMAGES          on your images: all get the same images,
                                         epochs, batches, seeds and learning rates
        capsella compare DOMAIN DOMAIN…  on several domains, e.g. laboratories: train
                                         on all but one, and test on that

    Call it again to continue; with more --seeds only the new ones are trained.
    """

    images: Annotated[
        tuple[str, ...], *positional("IMAGES…", "A folder of images, or several domains: folders, .npz files, sources.")
    ]
    options: Annotated[CommonComparisonOptions, Group]


@dataclass(frozen=True, kw_only=True)
class Compare(CompareCommon):
    """All flags."""

    options: Annotated[ComparisonOptions, Group]
    recipes: tuple[str, ...] = ("images-efficient", "images-resnet")
    """With several domains: the recipes to train."""
    train_on: str | None = None
    """With several domains: `others` trains on all but one and tests on that; `one` trains on each alone. Default:
    others for three or more domains."""
    classes: tuple[str, ...] = ()
    """With several domains: use only these classes. Default: those that all domains have."""
    cluster: Annotated[ClusterOptions, Group] = ClusterOptions()


def run(arguments: list[str]) -> None:
    """Print the plan; unless it is a dry run, train, test, and write the report."""
    command = parse(Compare, arguments, "compare")
    check_argument(bool(command.images) and all(command.images), "name a folder", images=command.images)
    if len(command.images) > 1:
        _compare_domains(command)
        return
    options, cluster = replace(command.options, folder=Path(command.images[0])), command.cluster

    from capsella.compare import compare, first_plan, make_plan
    from capsella.compare.terminal import plan_summary
    from capsella.data import warn_of_few

    if options.folds is not None and options.fold is None:
        plan = first_plan(options)
        print(f"{options.folds} folds, tested in turn; the first:")
        show(plan_summary(plan))
        warn_of_few(plan.splits)
        _run_folds(plan, options, cluster)
        return
    plan = make_plan(options)
    show(plan_summary(plan))
    warn_of_few(plan.splits)
    if not options.dry_run:
        with ray_session(cluster):
            found, report = compare(plan, console())
        print(f"\n{found.words}\n\nreport  {report}")


def _run_folds(plan: "Plan", options: ComparisonOptions, cluster: ClusterOptions) -> None:
    """Compare once per fold, and report over all of them."""
    from capsella.compare import compare_folds
    from capsella.compare.report import write_folds
    from capsella.experiments import format_duration

    assert options.folds is not None
    runs = options.folds * plan.runs_each * len(plan.candidates)
    seconds = options.folds * plan.total_seconds()
    print(f"All {options.folds} folds: {pluralize(runs, 'run')}, estimated training: {format_duration(seconds)}.")
    if not options.dry_run:
        with ray_session(cluster):
            _, words, report = write_folds(options, plan, compare_folds(options, plan, console()))
        print(f"\n{words}\n\nreport  {report}")


def _compare_domains(command: Compare) -> None:
    """Train what is missing, test, and print the table."""
    from capsella.compare import DomainOptions, compare_domains

    options = command.options
    check_argument(command.train_on in (None, "one", "others"), "be one or others", train_on=command.train_on)
    check_argument(options.folds is None, "be left out for several domains", folds=options.folds)
    settings = DomainOptions(
        command.images,
        recipes=command.recipes,
        seeds=options.seeds or 3,
        train_on=command.train_on,  # type: ignore[arg-type]
        epochs=None if options.epochs == ComparisonOptions.epochs else options.epochs,
        size=options.size or 64,
        channels=options.channels or 3,
        classes=command.classes,
        group=options.group,
        skip_broken=options.skip_broken,
        accelerator=options.accelerator,
        out=options.out or DomainOptions.out,
    )
    with ray_session(command.cluster):
        _, text = compare_domains(settings, console())
    print(f"\n{text}\n\nwritten to {settings.out / 'domains.txt'} and domains.json")
