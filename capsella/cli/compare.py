"""`capsella compare`."""

from dataclasses import dataclass, fields, replace
from typing import Annotated

from capsella.cli.flags import Group, check_default, parse, positional
from capsella.cli.screen import console, show
from capsella.errors import check_argument
from capsella.experiments.compare.options import CommonComparisonOptions, ComparisonOptions
from capsella.ray_cluster import ClusterOptions, ray_session

FOR_DOMAINS = ("recipes", "train_on", "epochs")  # flags for several domains only
FOR_BOTH = ("seeds", "size", "channels", "classes", "group", "skip_broken", "accelerator", "out")


@dataclass(frozen=True, kw_only=True)
class CompareCommon:
    """Find the network that serves your images best: capsules, a CNN, or a pretrained one.

        capsella compare IMAGES          on your images, in half an hour
        capsella compare DOMAIN DOMAIN…  on several domains, e.g. laboratories: train
                                         on all but one, and test on that

    Run it again to continue; with more --seeds only the new ones are trained.
    """

    images: Annotated[
        tuple[str, ...],
        *positional("IMAGES…", "A folder of images, an .npz file or a named data set; or several domains."),
    ]
    options: Annotated[CommonComparisonOptions, Group]


@dataclass(frozen=True, kw_only=True)
class Compare(CompareCommon):
    """All flags."""

    options: Annotated[ComparisonOptions, Group]
    recipes: tuple[str, ...] = ("images-efficient", "images-resnet")
    """With several domains: the recipes to train."""
    train_on: str | None = None
    """With several domains: `others` trains on all but one and tests on that; `one` trains on each alone, and the name
    of a domain on that alone. Default: others for three or more domains."""
    epochs: int | None = None
    """With several domains: epochs of each training. Default: those of its recipe."""
    cluster: Annotated[ClusterOptions, Group] = ClusterOptions()


def run(arguments: list[str]) -> None:
    """Print the plan; unless it is a dry run, train, test, and write the report."""
    command = parse(Compare, arguments, "compare")
    check_argument(bool(command.images) and all(command.images), "name a folder", images=command.images)
    if len(command.images) > 1:
        _compare_domains(command)
        return
    check_default(command, FOR_DOMAINS, "be left out for a single folder")

    from capsella.experiments.compare import compare, make_plan, write_report
    from capsella.experiments.compare.results import check_shortcuts
    from capsella.experiments.compare.words import plan_summary, result_summary, shortcut_summary

    plan = make_plan(replace(command.options, images=command.images[0]))
    show(shortcut_summary(check_shortcuts(plan)), plan_summary(plan))
    if not plan.options.dry_run:
        with ray_session(command.cluster):
            found = compare(plan, console())
        report = write_report(found)
        show(result_summary(found))
        print(f"Report: {report}")


def _compare_domains(command: Compare) -> None:
    """Train what is missing, test, and print the table."""
    from capsella.experiments.compare import DomainOptions, compare_domains
    from capsella.experiments.compare.domains import domain_gains, domain_table

    options = command.options
    others = {field.name for field in fields(options)} - {*FOR_BOTH}
    check_default(options, others, "be left out for several domains")
    given = {name: value for name in FOR_BOTH if (value := getattr(options, name)) is not None}
    settings = DomainOptions(command.images, **{name: getattr(command, name) for name in FOR_DOMAINS}, **given)
    with ray_session(command.cluster):
        results = compare_domains(settings, console())
    show(domain_table(results), *domain_gains(results))
    print(f"written to {settings.out / 'domains.json'}")
