"""Tables 2 to 5 of Forslöv's thesis (2018), and its claims."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from capsella.bench import execution_times
from capsella.data import THESIS_SETS, load_data, load_once, single_images
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
from capsella.papers.forslov2018.runs import SIZE, ThesisItem, accuracies_of, limits_note, mean_sd
from capsella.papers.table_types import NOT_RUN, Claim, Published, few_images_caveat, measured_text
from capsella.training import load_run

CLASSES = (5, 10, 15)  # |C| of basic, medium and hard


@dataclass(frozen=True, kw_only=True)
class WeightsTable(Published):
    """Table 2: the number of weights of each network."""

    def build(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """See `Published.build`: count the weights."""
        decoders = {f"decoder of {kind}": f"DECODER NET, CT = {thick}" for kind, thick in CAPSULE_THICKNESS.items()}
        rows = []
        for part, label in {"init1": "INIT-NET 1", "init2": "INIT-NET 2", **NETWORKS, **decoders}.items():
            thick = CAPSULE_THICKNESS.get(part.removeprefix("decoder of "))
            fixed, each = WEIGHTS[part if thick is None else "decoder"]
            counts = []
            for classes in CLASSES:
                counts += [fixed + each * (classes if thick is None else thick), count_part(part, classes)]
            rows.append({"cells": [label, *(f"{count:,}" for count in counts)], "counts": counts})
        measured = f"Counted in the networks as capsella {environment()['capsella']} builds them."
        heads = [f"{whose}, {classes} classes" for classes in CLASSES for whose in ("paper", "ours")]
        return self.write(folder, command, measured, heads, rows)


def count_part(part: str, classes: int) -> int:
    """Return the number of weights of a part of Table 2 as this package builds it."""
    with torch.device("meta"):  # shapes only, no memory
        if part.startswith("decoder"):
            thick = CAPSULE_THICKNESS[part.removeprefix("decoder of ")]
            return _weights(ConvolutionalDecoder(thick, (3, SIZE, SIZE)))
        init = _weights(init_net(2 if part == "init2" else 1, (SIZE, SIZE), 3, standardise=True, batch_norm=False))
        if part.startswith("init"):
            return init
        return _weights(create_model(f"forslov2018_{part}_init1", classes=classes)) - init


def _weights(module: nn.Module) -> int:
    """Return the number of weights, without biases and β, which have a single axis."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.ndim > 1)


@dataclass(frozen=True, kw_only=True)
class AccuracyTable(ThesisItem):
    """Table 3: test accuracy of each network behind each INIT-NET, two columns per training set."""

    def rows_to_train(self) -> list[Row]:
        """Return a row for every network on every set that the source has."""
        return self.grid([*self.images_by_set()])

    def build(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """See `Published.build`: accuracies as proportions; the JSON has each run's result."""
        sets, rows = self.images_by_set(), []
        for network, init in self.networks:
            slugs = {name: self.row(name, network, init).slug for name in sets}
            runs = {name: results.get(slug, []) for name, slug in slugs.items()}
            cells = [NETWORKS[network], str(init)]
            for name in sets:
                cells += [f"{ACCURACY[network, init][SETS.index(name)]:.3f}", _cell(accuracies_of(runs[name]))]
            rows.append({"cells": cells, "slugs": [*slugs.values()], "runs": runs})
        heads = [f"{name} {whose}" for name in sets for whose in ("paper", "ours")]
        return self.write(folder, command, measured_text("Test accuracy (1 is all right)", results), heads, rows)


def _cell(accuracies: Sequence[float]) -> str:
    """Format proportions, one per seed, as a cell."""
    if not accuracies:
        return NOT_RUN
    mean, sd = mean_sd(accuracies)
    return f"{mean:.3f}" + ("" if sd is None else f" ± {sd:.3f}")


# Our strengths of the changes in Table 4; the thesis gives none. Translated by a quarter of the image's side, networks
# lose about half of their accuracy, as in the thesis.
STRENGTHS = {"translation": 0.25, "rotation": 180.0, "noise": 0.1, "colour": 0.2}
IN_PAPER = ("translation", "rotation", "noise")
LARGEST_FIRST = ("hard", "medium", "basic", "medium-size", "small", "mini")


@dataclass(frozen=True, kw_only=True)
class RobustnessTable(AccuracyTable):
    """Table 4: test accuracy on changed images, two columns per change. Each run's folder keeps its accuracies."""

    def rows_to_train(self) -> list[Row]:
        """Return a row for every network on the set with the most classes; Table 3 has the same runs."""
        return self.grid([self.largest_set()])

    def largest_set(self) -> str:
        """Return the set with the most classes; ties go to the one with the most images."""
        sets = self.images_by_set([name for name in LARGEST_FIRST if name in self.sets])
        classes = len(load_data(self.options("hard")).classes)
        return max(sets, key=lambda name: THESIS_SETS[name].get("first_classes", classes))

    def build(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """See `Published.build`."""
        rows = []
        for (network, init), row in zip(self.networks, self.rows_to_train(), strict=True):
            runs = [row.folder(folder, run["seed"]) for run in results.get(row.slug, [])]
            console.print(f"changed images: {row.slug}", markup=False)
            seeds = [changed_accuracies(run) for run in runs]
            printed = dict(zip(IN_PAPER, ROBUSTNESS[network, init], strict=True))
            unchanged = ACCURACY[network, init][SETS.index("hard")]
            paper = {"unchanged": unchanged} | {name: printed.get(name) for name in STRENGTHS}
            ours = {change: [of_seed[change] for of_seed in seeds] for change in paper}
            cells = [NETWORKS[network], str(init)]
            for change, share in paper.items():
                cells += ["–" if share is None else f"{share:.3f}", _cell(ours[change])]
            rows.append({"cells": cells, "slugs": [row.slug] * len(paper), "accuracy_by_seed": ours})
        heads = [head for name, at in STRENGTHS.items() for head in (f"{name} paper", f"{name} {at:g} ours")]
        return self.write(
            folder,
            command,
            measured_text("Test accuracy (1 is all right)", results),
            ["unchanged paper", "ours", *heads],
            rows,
        )


def changed_accuracies(folder: Path) -> dict[str, float]:
    """Return the accuracy of a finished run on unchanged test images and under each change of `STRENGTHS`.

    The run's folder keeps them in changed-images.json. Every run sees the same changed images.
    """
    path = folder / "changed-images.json"
    if not path.exists():
        trained = load_run(folder)
        images = single_images(load_once(trained.recipe.data).test, "tests of robustness")
        strengths = {change: (strength,) for change, strength in STRENGTHS.items()}
        measured = measure_robustness({"network": trained.model}, images, strengths, batch_size=32).to_dict()
        write_json(
            path,
            {
                "accuracies": {
                    point["perturbation"] if point["strength"] else "unchanged": point["accuracy_percent"] / 100
                    for point in measured["points"]
                }
            },
        )
    return dict(read_json(path)["accuracies"])


BATCHES = (1, 5)
# By budget: minimum number of timed rounds, and minimum number of seconds, for each batch size and pass.
ROUNDS: dict[BudgetName, tuple[int, float]] = {"small": (3, 10.0), "medium": (5, 20.0), "full": (15, 60.0)}
OVERALL = ("paper CPU s", "paper GPU s", "ours s", "paper × CNN", "ours × CNN", "batch 1 forward × CNN")


@dataclass(frozen=True, kw_only=True)
class TimesTable(Published):
    """Table 5: time per batch of each network, all timed in turn on this machine. size: pixels per side."""

    budget: BudgetName
    size: int = SIZE

    def build(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """See `Published.build`: time all networks in turn; those with the decoder, which empty the caches, last."""
        repeats, seconds = ROUNDS[self.budget]
        groups = ([(name, False) for name in NETWORKS], [(name, True) for name in NETWORKS if name in COUNTERPART])
        console.print(f"timing {sum(map(len, groups))} networks in turn; nothing else should run now")
        times: dict[tuple[str, int, bool], float] = {}
        for group in groups:
            networks = {_timed_name(*row): self._network(*row) for row in group}
            measured = execution_times(networks, BATCHES, repeats=repeats, seconds=seconds)
            times |= {(row.network, row.batch, row.backward): row.timing.median for row in measured}
        heads = [*OVERALL, *(f"batch {batch} {passes} ms" for batch in BATCHES for passes in ("forward", "both"))]
        rows = [_times_row(*row, times) for group in groups for row in group]
        text = f"Median of at least {repeats} rounds on {hardware(environment())}."
        return self.write(folder, command, text, heads, rows)

    def _network(self, network: str, decoder: bool) -> ImageClassifier:
        options: dict[str, Any] = {"reconstruction": decoder} if network in COUNTERPART else {}
        return create_model(f"forslov2018_{network}_init1", image_size=(self.size, self.size), **options)


def _timed_name(network: str, decoder: bool) -> str:
    return NETWORKS[network] + (" + decoder" if decoder else "")


def _times_row(network: str, decoder: bool, times: Mapping[tuple[str, int, bool], float]) -> dict[str, Any]:
    """Return a row. "ratios" to the CNN's time: the paper's, ours, and ours for one image forward."""
    name, cnn, paper = _timed_name(network, decoder), COUNTERPART.get(network), TIMES.get((network, decoder))
    ratios: list[float | None] = [None] * 3
    if cnn is not None:
        others = [times[name, *key] / times[NETWORKS[cnn], *key] for key in ((5, True), (1, False))]
        ratios = [None if paper is None else paper[0] / TIMES[cnn, False][0], *others]
    timed = [
        {"batch": batch, "backward": both, "median": times[name, batch, both]}
        for batch in BATCHES
        for both in (False, True)
    ]
    cells = [
        *(["–", "–"] if paper is None else [f"{paper[0]:.2f}", f"{paper[1]:.2f}"]),
        f"{times[name, 5, True]:.3f}",
        *("–" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
        *(f"{1000 * timing['median']:.1f}" for timing in timed),
    ]
    return {"cells": [name, *cells], "ratios": ratios, "seconds": timed}


def table_2(budget: BudgetName) -> WeightsTable:
    """Return Table 2, which is the same at all budgets."""
    note = (
        "Without biases and without β, as the thesis counts. Networks without the INIT-NET before them. The decoder's "
        "published total has a misprint (docs/papers/forslov2018.md)."
    )
    return WeightsTable(note=note, **_shared(2))


def table_3(budget: BudgetName) -> AccuracyTable:
    """Return Table 3: seven networks behind two INIT-NETs on six sets; below the full budget, INIT-NET 1 on three."""
    return AccuracyTable(note=limits_note(budget), budget=budget, caveat_text=few_images_caveat(budget), **_shared(3))


def table_4(budget: BudgetName) -> RobustnessTable:
    """Return Table 4: the networks of Table 3 that have the most classes, tested on changed images."""
    units = "; ".join(f"{change}: {PERTURBATIONS[change].unit}" for change in STRENGTHS)
    note = f"{limits_note(budget)} The thesis gives no strengths of the changes; ours are in the heads ({units})."
    return RobustnessTable(note=note, budget=budget, caveat_text=few_images_caveat(budget), **_shared(4))


def table_5(budget: BudgetName) -> TimesTable:
    """Return Table 5; larger budgets take more rounds."""
    note = (
        "Seconds and × are of forward and backward at batch 5, as in the thesis (i7-7700, GTX 1050 Ti); × compares "
        "with the CNN-NET of the same shape. INIT-NET 1, 15 classes; without the optimizer's step."
    )
    return TimesTable(note=note, budget=budget, **_shared(5))


def _shared(number: int) -> dict[str, Any]:
    return {
        "title": f"Forslöv 2018, Table {number}",
        "columns": ("network", "INIT-NET") if number in (3, 4) else ("network",),
        "family": "forslov2018",
        "file": f"forslov2018-table{number}",
    }


def _claim(text: str, data: str, better: str, worse: str) -> Claim:
    """Return a claim of Table 3: on set `data`, the network `better` has a lower error than `worse` (INIT-NET 1)."""
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
