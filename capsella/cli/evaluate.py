"""`capsella evaluate`."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from capsella.cli.flags import Group, check_default, parse, positional
from capsella.cli.screen import note, show
from capsella.errors import check_argument
from capsella.report.options import CommonEvaluateOptions, EvaluateOptions


@dataclass(frozen=True, kw_only=True)
class EvaluateCommon:
    """Test a trained network, print a table and write JSON.

    With --robustness or --attack, several networks with the same test images can
    be compared.
    """

    runs: Annotated[tuple[Path, ...], *positional("RUN…", "Runs, or a comparison's folder.")]
    test: Annotated[CommonEvaluateOptions, Group] = CommonEvaluateOptions()  # noqa: RUF009  frozen
    robustness: bool = False
    """Measure the accuracy on rotated, shifted, recoloured and noisy test images instead."""
    attack: bool = False
    """Measure the accuracy under adversarial attacks instead."""
    out: Path | None = None
    """The JSON file; with --robustness or --attack a folder. Default: in the run's folder."""


@dataclass(frozen=True, kw_only=True)
class Evaluate(EvaluateCommon):
    """All flags."""

    test: Annotated[EvaluateOptions, Group] = EvaluateOptions()  # noqa: RUF009  frozen
    perturbations: tuple[str, ...] = ("rotation", "translation", "colour", "noise")
    """With --robustness: how images are changed; `flips` is also available."""
    epsilons: tuple[float, ...] | None = None
    """With --attack: maximum changes of a pixel, ascending, where 1 is the range from black to white."""
    steps: int = 20
    """With --attack: steps of PGD and of the vote attack."""
    restarts: int = 3
    """With --attack: random starts of PGD and of the vote attack."""
    seed: int = 0
    """With --robustness or --attack: seed of the random changes."""

    def __post_init__(self) -> None:
        several = self.robustness or self.attack
        check_argument(bool(self.runs), "name a RUN", runs=self.runs)
        check_argument(not (self.robustness and self.attack), "come without --robustness", attack=self.attack)
        check_argument(several or len(self.runs) < 2, "be one without --robustness or --attack", runs=len(self.runs))
        unused = [*(() if self.attack else ("epsilons", "steps", "restarts"))]
        unused += [*(() if self.robustness else ("perturbations",)), *(() if several else ("seed",))]
        check_default(self, unused, "come with --attack or --robustness, as --help-all says")
        if several:
            used = {"per_class", "batch_size", *(("ood_false_positive_rate",) if self.attack else ())}
            others = {field.name for field in fields(self.test)} - used
            check_default(self.test, others, f"be left out with {'--attack' if self.attack else '--robustness'}")


def run(arguments: list[str]) -> None:
    """Evaluate, print and write."""
    options = parse(Evaluate, arguments, "evaluate")

    from capsella.evaluation import AttackOptions
    from capsella.report.studies import study_attacks, study_robustness, study_run
    from capsella.training.trained import run_folder

    test, per_class = options.test, options.test.per_class if isinstance(options.test.per_class, int) else None
    for run in options.runs if test.data is None else ():
        if (final := run_folder(run, final=True)) != (tested := run_folder(run)):
            note(
                f"{tested} is tested, on its fold's test images; export and predict take {final}, trained on all images"
            )
    if options.robustness:
        how: dict[str, Any] = {"seed": options.seed, "batch_size": test.batch_size, "out": options.out}
        show(study_robustness(options.runs, options.perturbations, per_class=per_class, **how))
    elif options.attack:
        asked: dict[str, Any] = {} if options.epsilons is None else {"epsilons": options.epsilons}
        if test.batch_size != EvaluateOptions().batch_size:  # otherwise the smaller default of attacks
            asked["batch_size"] = test.batch_size
        attacks = AttackOptions(steps=options.steps, restarts=options.restarts, seed=options.seed, **asked)
        per_class = 20 if test.per_class is None else per_class
        rate = test.ood_false_positive_rate
        show(study_attacks(options.runs, attacks, per_class=per_class, false_positive_rate=rate, out=options.out))
    else:
        show(study_run(options.runs[0], test, options.out))
