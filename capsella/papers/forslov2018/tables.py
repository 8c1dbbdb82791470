"""Tables 2 to 5 of Forslöv's thesis (2018), and its claims."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from rich.console import Console
from torch import nn

from capsella.bench import ExecutionTime, execution_times
from capsella.data import load_once, single_images
from capsella.environment import environment, hardware
from capsella.evaluation import PERTURBATIONS, measure_robustness
from capsella.experiments import Results, Row
from capsella.files import read_json, write_json
from capsella.layers import ConvolutionalDecoder
from capsella.models import ImageClassifier, create_model
from capsella.models.forslov2018 import init_net
from capsella.papers.budget import BudgetName
from capsella.papers.forslov2018.paper import (
    ACCURACY,
    CAPSULE_THICKNESS,
    COUNTERPART,
    NETWORKS,
    ROBUSTNESS,
    SETS,
    TIMES,
    WEIGHTS,
)
from capsella.papers.forslov2018.runs import (
    SIZE,
    AvailableSets,
    FromRuns,
    ThesisRuns,
    accuracies_of,
    images_tested,
    mean_sd,
)
from capsella.papers.table_types import NOT_RUN, Claim, Published, hardware_of, seeds_phrase, table_values
from capsella.training import load_run

CLASSES = (5, 10, 15)  # |C| of basic, medium and hard
WEIGHTS_NOTE = (
    "Without biases and without β, as the thesis counts. Networks without the INIT-NET before them. DECODER NET: the "
    "thesis's total has 256·256 channels in a layer that receives 128 (docs/papers/forslov2018.md); its columns are "
    "for one class capsule of 96 or 16 numbers, whatever the number of classes."
)


@dataclass(frozen=True, kw_only=True)
class WeightsTable(Published):
    """Table 2: the number of weights in each network, counted."""

    columns: ClassVar[tuple[str, ...]] = ("network",)

    @property
    def parts(self) -> dict[str, str]:
        """Return the parts that the table lists: a key of `WEIGHTS`, or a decoder with its family, and a label."""
        decoders = {f"decoder of {kind}": f"DECODER NET, CT = {thick}" for kind, thick in CAPSULE_THICKNESS.items()}
        return {"init1": "INIT-NET 1", "init2": "INIT-NET 2", **NETWORKS, **decoders}

    def path(self, folder: Path) -> Path:
        """Return the path of the JSON."""
        return folder / f"{self.family}-table2.json"

    def build(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """See `Published.build`: count the weights."""
        rows = []
        for part, label in self.parts.items():
            kind = part.removeprefix("decoder of ")
            paper = WEIGHTS["decoder"].at(CAPSULE_THICKNESS[kind]) if kind != part else None
            counts = [
                {"classes": n, "paper": paper or WEIGHTS[part].at(n), "ours": count_part(part, n)} for n in CLASSES
            ]
            cells = [f"{number:,}" for count in counts for number in (count["paper"], count["ours"])]
            rows.append({"cells": [label, *cells], "counts": counts})
        measured = f"Counted in the networks as capsella {environment()['capsella']} builds them."
        heads = [f"{whose}, {classes} classes" for classes in CLASSES for whose in ("paper", "ours")]
        values = table_values(self, measured, command, heads, rows)
        write_json(self.path(folder), values)
        return values


def count_part(part: str, classes: int) -> int:
    """Return the weights of a part of Table 2 as this package builds it."""
    with torch.device("meta"):  # shapes only, no memory
        if part.startswith("decoder"):
            thick = CAPSULE_THICKNESS[part.removeprefix("decoder of ")]
            return _weights(ConvolutionalDecoder(thick, (3, SIZE, SIZE)))
        init = _weights(init_net(2 if part == "init2" else 1, (SIZE, SIZE), 3, standardise=True, batch_norm=False))
        if part.startswith("init"):
            return init
        return _weights(create_model(f"forslov2018_{part}_init1", classes=classes)) - init


def _weights(module: nn.Module) -> int:
    """Return the elements of all parameters but biases and β, which have one axis."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.ndim > 1)


@dataclass(frozen=True, kw_only=True)
class NetworkTable(FromRuns):
    """A table with a row per network and INIT-NET."""

    suffix: ClassVar[str] = ".json"
    columns: ClassVar[tuple[str, ...]] = ("network", "INIT-NET")


@dataclass(frozen=True, kw_only=True)
class AccuracyTable(NetworkTable):
    """Table 3: test accuracy, two columns per training set."""

    def rows_to_train(self) -> list[Row]:
        """Return every network on every set that the source has."""
        return self.runs.grid(self.runs.available_sets().sets)

    def build(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """See `Published.build`: accuracies as shares of 1; the JSON has errors, losses and each run's result."""
        available = self.runs.available_sets()
        every = [result for runs in results.values() for result in runs]
        values = table_values(
            self,
            f"Test accuracy (1 is all right) on {available.name}, {images_tested(every)}; "
            f"{seeds_phrase(results)}; {hardware_of(results)}.",
            command,
            [f"{name} {whose}" for name in available.sets for whose in ("paper", "ours")],
            [self._row(network, init, available.sets, results) for network, init in self.runs.networks],
            note=f"{self.runs.describe()} {available.describe()}",
            folder=folder,
            caveat=self.caveat(""),
        )
        write_json(self.path(folder), values)
        return values

    def _row(self, network: str, init: int, sets: Sequence[str], results: Results) -> dict[str, Any]:
        slugs = [self.runs.row(name, network, init).slug for name in sets]
        measured, cells = {}, [NETWORKS[network], str(init)]
        for name, slug in zip(sets, slugs, strict=True):
            runs = results.get(slug, [])
            paper = ACCURACY[network, init][SETS.index(name)]
            if runs:
                measured[name] = {"paper_accuracy": paper, **_summary(runs)}
            cells += [f"{paper:.3f}", _cell(accuracies_of(runs)) if runs else NOT_RUN]
        return {"cells": cells, "slugs": slugs, "network": network, "init": init, "sets": measured}


def _cell(shares: Sequence[float]) -> str:
    """Return shares of 1, one per seed, as a cell."""
    mean, sd = mean_sd(shares)
    return f"{mean:.3f}" + ("" if sd is None else f" ± {sd:.3f}")


def _summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return accuracy, error and losses over the seeds of a row, and each run's result."""
    accuracy, sd = mean_sd(accuracies_of(runs))
    best = [run["training"]["best"] for run in runs]
    losses = {name: mean_sd([epoch[name] for epoch in best])[0] for name in ("train_loss", "validation_loss")}
    return {"accuracy": accuracy, "sd": sd, "error_percent": 100 * (1 - accuracy), **losses, "runs": list(runs)}


# The strength of each change in Table 4, as the thesis gives none. With translation by a quarter of the side its
# networks lose about half of their accuracy, as the thesis's did.
STRENGTHS = {"translation": 0.25, "rotation": 180.0, "noise": 0.1, "colour": 0.2}
IN_PAPER = ("translation", "rotation", "noise")
LARGEST_FIRST = ("hard", "medium", "basic", "medium-size", "small", "mini")
ROBUSTNESS_SEED = 0  # every run sees the same changed images
CHANGED = "changed-images.json"  # in a run's folder


@dataclass(frozen=True, kw_only=True)
class RobustnessTable(NetworkTable):
    """Table 4: test accuracy on changed images, two columns per change; a run's accuracies are kept in its folder."""

    def rows_to_train(self) -> list[Row]:
        """Return every network on the set with the most classes, which Table 3 shares."""
        return self.runs.grid([self._available()[0]])

    def _available(self) -> tuple[str, AvailableSets]:
        """Return the set with the most classes and, among equal ones, the most images; and all sets."""
        available = self.runs.available_sets([name for name in LARGEST_FIRST if name in self.runs.sets])
        order = sorted(available.sets, key=lambda name: (-available.classes_of(name), LARGEST_FIRST.index(name)))
        return order[0], available

    def build(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """See `Published.build`."""
        largest, available = self._available()
        plan = self.rows_to_train()
        todo = [(row, run["seed"]) for row in plan for run in results.get(row.slug, [])]
        points: dict[str, list[list[dict[str, Any]]]] = {row.slug: [] for row in plan}
        for number, (row, seed) in enumerate(todo, start=1):
            if not (row.folder(folder, seed) / CHANGED).exists():
                console.print(f"changed images {number} of {len(todo)}: {row.slug}, seed {seed}", markup=False)
            points[row.slug].append(changed_accuracies(row.slug, row.folder(folder, seed), self._strengths()))
        tested = [run for runs in results.values() for run in runs]
        changed = [head for name, at in STRENGTHS.items() for head in (f"{name} paper", f"{name} {at:g} ours")]
        mirrored = "Training images were mirrored at random; the thesis changes none. " if self.runs.limits else ""
        units = "; ".join(f"{change}: {PERTURBATIONS[change].unit}" for change in STRENGTHS)
        values = table_values(
            self,
            f"Test accuracy (1 is all right) on {available.name}, {images_tested(tested[:1])}; "
            f"{seeds_phrase(results)}; {hardware_of(results)}.",
            command,
            ["unchanged paper", "ours", *changed],
            [
                _robustness_row(*key, row.slug, points[row.slug])
                for key, row in zip(self.runs.networks, plan, strict=True)
            ],
            note=f"{self.runs.describe()} {mirrored}Trained on {largest}, {available.classes_of(largest)} classes; the "
            "thesis on hard, 15 classes. It names the changes and gives no strengths; ours are in the heads "
            f"({units}). Colour is in its text, not in its table.",
            folder=folder,
            caveat=self.caveat(""),
        )
        write_json(self.path(folder), values)
        return values

    def _strengths(self) -> dict[str, Sequence[float]]:
        """Return the strengths to measure: those of the table, and whole curves at the full budget."""
        if self.runs.budget != "full":
            return {change: (strength,) for change, strength in STRENGTHS.items()}
        return {change: sorted({strength, *PERTURBATIONS[change].strengths}) for change, strength in STRENGTHS.items()}


def changed_accuracies(name: str, folder: Path, strengths: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Return the accuracies of a finished run on changed test images, one dict per point.

    Args:
        name: of the network, in messages.
        folder: of the run; changed-images.json in it is read if it has these strengths.
        strengths: by change.
    """
    path, wanted = folder / CHANGED, {change: list(at) for change, at in strengths.items()}
    kept: dict[str, Any] = read_json(path) if path.exists() else {}
    if (kept.get("strengths"), kept.get("seed")) != (wanted, ROBUSTNESS_SEED):
        trained = load_run(folder)
        splits = load_once(trained.recipe.data)
        images = single_images(splits.test, "tests of robustness")
        robustness = measure_robustness(
            {name: trained.model}, images, strengths, data=splits.name, seed=ROBUSTNESS_SEED, batch_size=32
        )
        kept = {"strengths": wanted, **robustness.to_dict()}
        write_json(path, kept)
    return list(kept["points"])


def _robustness_row(network: str, init: int, slug: str, seeds: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    printed = dict(zip(IN_PAPER, ROBUSTNESS[network, init], strict=True))
    paper = {"unchanged": ACCURACY[network, init][SETS.index("hard")]} | {name: printed.get(name) for name in STRENGTHS}
    accuracy = {change: [_share(points, change) for points in seeds] for change in paper if seeds}
    cells = []
    for change, share in paper.items():
        cells += ["–" if share is None else f"{share:.3f}", _cell(accuracy[change]) if seeds else NOT_RUN]
    return {
        "cells": [NETWORKS[network], str(init), *cells],
        "slugs": [slug] * len(paper),
        "network": network,
        "init": init,
        "paper_accuracy": paper,
        "accuracy_by_seed": accuracy,
        "points_by_seed": [list(points) for points in seeds],
    }


def _share(points: Sequence[Mapping[str, Any]], change: str) -> float:
    """Return the accuracy under a change at its strength; strength 0 of any change leaves images unchanged."""
    strength = STRENGTHS.get(change, 0.0)
    of_change = [point for point in points if change in ("unchanged", point["perturbation"])]
    return float(next(point["accuracy_percent"] for point in of_change if point["strength"] == strength)) / 100


BATCHES = (1, 5)
# At least so many rounds, and more until so many seconds have passed, of each batch size and pass.
REPEATS: dict[BudgetName, int] = {"small": 3, "medium": 5, "full": 15}
SECONDS: dict[BudgetName, float] = {"small": 10.0, "medium": 20.0, "full": 60.0}
OVERALL = ("paper CPU s", "paper GPU s", "ours s", "paper × CNN", "ours × CNN", "batch 1 forward × CNN")
TIMES_NOTE = (
    "Seconds and × are of forward and backward at batch 5, as in the thesis (i7-7700, GTX 1050 Ti); × compares with "
    "the CNN-NET of the same shape: CNN-NET 3 for CAPSNET 1 and EM-NET 1, CNN-NET 2 for CAPSNET 2 and EM-NET 2; the "
    "last × is of one image, forward, with packed weights. Both: forward and backward. INIT-NET 1, 15 classes; medians "
    "of random images, without the optimizer's step. Networks with the decoder, which empty the processor's caches, "
    "are timed after the others. An instrument needs less than 50 ms an image at batch 1."
)


@dataclass(frozen=True, kw_only=True)
class TimesTable(Published):
    """Table 5: how long a batch takes in each network, all timed in turn on this machine. size: pixels a side."""

    budget: BudgetName
    size: int = SIZE
    columns: ClassVar[tuple[str, ...]] = ("network",)

    @property
    def networks(self) -> list[tuple[str, bool]]:
        """Return (network, whether it has the decoder) of each row."""
        return [(n, decoder) for decoder in (False, True) for n in NETWORKS if not decoder or n in COUNTERPART]

    def path(self, folder: Path) -> Path:
        """Return the path of the JSON."""
        return folder / f"{self.family}-table5-{self.budget}.json"

    def build(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """See `Published.build`: time all networks in turn."""
        console.print(
            f"timing {len(self.networks)} networks in turn, batches of {BATCHES}; nothing else should run now"
        )
        times = [
            execution_times(
                {_timed_name(*row): self._network(*row) for row in self.networks if row[1] == decoder},
                BATCHES,
                repeats=REPEATS[self.budget],
                seconds=SECONDS[self.budget],
            )
            for decoder in (False, True)
        ]
        every = [row for group in times for row in group.rows]
        values = table_values(
            self,
            f"Median of at least {REPEATS[self.budget]} rounds on {hardware(environment())}.",
            command,
            [*OVERALL, *(f"batch {batch} {passes} ms" for batch in BATCHES for passes in ("forward", "both"))],
            [_times_row(network, decoder, every) for network, decoder in self.networks],
        )
        values["times"] = [group.to_dict() for group in times]
        write_json(self.path(folder), values)
        return values

    def _network(self, network: str, decoder: bool) -> ImageClassifier:
        options: dict[str, Any] = {"reconstruction": decoder} if network in COUNTERPART else {}
        return create_model(f"forslov2018_{network}_init1", image_size=(self.size, self.size), **options)


def _timed_name(network: str, decoder: bool) -> str:
    return NETWORKS[network] + (" + decoder" if decoder else "")


def _times_row(network: str, decoder: bool, times: Sequence[ExecutionTime]) -> dict[str, Any]:
    name = _timed_name(network, decoder)
    other = _timed_name(COUNTERPART[network], False) if network in COUNTERPART else None
    ours = {(row.batch, row.backward): row.timing.median for row in times if row.network == name}
    cnn = {(row.batch, row.backward): row.timing.median for row in times if row.network == other}
    paper = TIMES.get((network, decoder))
    paper_ratio = paper.cpu / TIMES[COUNTERPART[network], False].cpu if paper is not None and cnn else None
    ratio, one_image = (ours[key] / cnn[key] if cnn else None for key in ((5, True), (1, False)))
    cells = [
        *(["–", "–"] if paper is None else [f"{paper.cpu:.2f}", f"{paper.gpu:.2f}"]),
        f"{ours[5, True]:.3f}",
        *("–" if number is None else f"{number:.2f}" for number in (paper_ratio, ratio, one_image)),
        *(f"{1000 * ours[batch, both]:.1f}" for batch in BATCHES for both in (False, True)),
    ]
    return {
        "cells": [name, *cells],
        "paper_seconds": None if paper is None else paper._asdict(),
        "paper_times_as_long_as_cnn": paper_ratio,
        "times_as_long_as_cnn": ratio,
        "one_image_forward_times_as_long_as_cnn": one_image,
        "seconds": [
            {"batch": batch, "backward": both, "median": seconds} for (batch, both), seconds in sorted(ours.items())
        ],
    }


def table_2(budget: BudgetName) -> WeightsTable:
    """Return Table 2, which is the same at all budgets."""
    return WeightsTable(title="Forslöv 2018, Table 2", note=WEIGHTS_NOTE, family="forslov2018")


def table_3(budget: BudgetName) -> AccuracyTable:
    """Return Table 3: seven networks behind two INIT-NETs on six sets; below the full budget, INIT-NET 1 on three."""
    return AccuracyTable(title="Forslöv 2018, Table 3", runs=ThesisRuns(budget), item="table3")


def table_4(budget: BudgetName) -> RobustnessTable:
    """Return Table 4: the runs of Table 3 on the set with the most classes, on changed test images."""
    return RobustnessTable(title="Forslöv 2018, Table 4", runs=ThesisRuns(budget), item="table4")


def table_5(budget: BudgetName) -> TimesTable:
    """Return Table 5; larger budgets take more rounds."""
    return TimesTable(title="Forslöv 2018, Table 5", note=TIMES_NOTE, family="forslov2018", budget=budget)


def _claim(text: str, data: str, better: str, worse: str) -> Claim:
    """Return a claim of Table 3: one network behind INIT-NET 1 against another on one set; errors in per cent."""
    errors = [round(100 * (1 - ACCURACY[network, 1][SETS.index(data)]), 1) for network in (better, worse)]
    return Claim(
        text=f"{text} ({NETWORKS[better]} against {NETWORKS[worse]}, the thesis's best of each kind there).",
        where="forslov2018-table3",
        better=f"{data}-{better}-init1",
        worse=f"{data}-{worse}-init1",
        paper=(errors[0], errors[1]),
    )


CLAIMS = (
    _claim("From 100 images per class, capsules learn more than CNNs", "mini", "capsnet2", "cnnnet2"),
    _claim("From 300 images per class, capsules learn more than CNNs", "small", "capsnet1", "cnnnet2"),
    _claim("On five classes, EM routing beats the CNNs", "basic", "emnet1", "cnnnet2"),
    _claim("On five classes, EM routing beats dynamic routing", "basic", "emnet1", "capsnet2"),
    Claim(
        text="Reconstruction helps CAPSNET 1.",
        where="forslov2018-37",
        better="mini-capsnet1-init1-decoder",
        worse="mini-capsnet1-init1-no-decoder",
        paper=None,
    ),
)
