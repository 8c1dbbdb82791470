"""`compare`: a comparison from its plan to its report, on one split or on every fold in turn."""

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from capsella.compare.folds import Fold
from capsella.compare.options import ComparisonOptions
from capsella.compare.plan import Plan, begun_with, make_plan
from capsella.compare.report import protocol, write_report
from capsella.compare.results import Comparison, train_and_test
from capsella.errors import CapsellaError
from capsella.files import alone_in, write_json


def compare(plan: Plan, console: Console) -> tuple[Comparison, Path]:
    """Train what is missing, test, and write compare.json, test_predictions.csv and report.html.

    Returns:
        The comparison, and the path of the report.

    Raises:
        CapsellaError: every network of a family diverged; a run of another recipe is in the way; another process is at
            work in the folder; no space left.
    """
    with alone_in(plan.folder):
        found = train_and_test(plan, console)
        write_json(plan.folder / "compare.json", {**found.to_dict(), "protocol": protocol(plan, found.tested_before)})
        return found, write_report(found)


def first_plan(options: ComparisonOptions) -> Plan:
    """Return the plan of the first fold; the others take its times, epochs and precision.

    Raises:
        ValueError, CapsellaError: as `make_plan` raises; another comparison is in the folder, or in that of a fold.
    """
    if not options.dry_run and (options.output / "plan.json").exists():
        raise CapsellaError(f"{options.output} holds a comparison of one split; choose another --out")
    if not options.dry_run:
        for fold in range(1, options.folds or 0):  # before anything is trained
            begun_with(_of_fold(options, fold))
    return make_plan(_of_fold(options, 0))


def compare_folds(options: ComparisonOptions, first: Plan, console: Console) -> list[Fold]:
    """Compare for every fold, in fold0, fold1, … of the folder; finished runs are read, as in `compare`.

    Raises:
        CapsellaError: as `compare` raises; the comparison of a fold was begun with other epochs, or of other images.
    """
    folds = []
    for number in range(options.folds or 0):
        console.print(f"fold {number}: {number + 1} of {options.folds}", markup=False)
        plan = first if number == 0 else make_plan(_of_fold(options, number), first)
        _check_same_images(plan, first)
        for name in ("epochs", "precision", "balance"):
            mine, firsts = getattr(plan, name), getattr(first, name)
            if mine != firsts:
                raise CapsellaError(
                    f"{plan.folder}: must have the {name} of the first fold, {firsts}, got {mine}; move it away"
                )
        folds.append(Fold.of(compare(plan, console)[0]))
    return folds


def _check_same_images(plan: Plan, first: Plan) -> None:
    """Check that folds do not overlap: else an image would be tested twice or never."""
    came, went = plan.table.rows.keys() - first.table.rows.keys(), first.table.rows.keys() - plan.table.rows.keys()
    if came or went:
        change = f"{min(map(str, came or went))} {'came' if came else 'went'}"
        raise CapsellaError(
            f"{plan.folder}: must have the images of the first fold, but {change} since that was begun; "
            "put the files back as they were, or choose another --out"
        )


def _of_fold(options: ComparisonOptions, fold: int) -> ComparisonOptions:
    """Return the options of one fold, with its share of the time."""
    minutes = None if options.minutes is None else options.minutes / (options.folds or 1)
    return replace(options, fold=fold, minutes=minutes, out=options.output / f"fold{fold}")
