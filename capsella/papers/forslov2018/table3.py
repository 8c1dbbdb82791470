"""Table 3: the test accuracy of every network on every training set."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from capsella.files import write_json
from capsella.grid import BudgetName, Results, Row
from capsella.papers.forslov2018.base import TableFromRuns, accuracies_of, images_tested, mean_sd, shown
from capsella.papers.forslov2018.paper import ACCURACY, NETWORKS, SETS
from capsella.papers.forslov2018.runs import ThesisRuns
from capsella.papers.forslov2018.supply import Supply, find_supply
from capsella.papers.kinds.published import NOT_RUN, hardware_of, seeds_phrase, table_values


@dataclass(frozen=True)
class AccuracyTable(TableFromRuns):
    """Table 3: a row a network with its INIT-NET, two columns a training set."""

    def trainings(self) -> list[Row]:
        """As `Published.trainings`."""
        return self.runs.grid(find_supply(self.runs.options("hard"), self.runs.sets).sets)

    def made_of(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """As `Published.made_of`: accuracies as shares of 1; the JSON has errors, losses and each run's result."""
        supply = find_supply(self.runs.options("hard"), self.runs.sets)
        every = [result for runs in results.values() for result in runs]
        values = table_values(
            title=self.title,
            note=f"{self.runs.describe()} {supply.sentences()}",
            measured=f"Test accuracy (1 is all right) on {supply.name}, {images_tested(every)}; "
            f"{seeds_phrase(results)}; {hardware_of(results)}.",
            command=command,
            folder=folder,
            labels=self.columns,
            mark=self.runs.mark,
            columns=[f"{name} {whose}" for name in supply.sets for whose in ("paper", "ours")],
            rows=[self._row(network, init, supply, results) for network, init in self.rows],
        )
        write_json(self.path(folder), values)
        return values

    def _row(self, network: str, init: int, supply: Supply, results: Results) -> dict[str, Any]:
        slugs = [self.runs.planned(name, network, init).slug for name in supply.sets]
        sets, cells = {}, [NETWORKS[network], str(init)]
        for name, slug in zip(supply.sets, slugs, strict=True):
            runs = results.get(slug, [])
            paper = ACCURACY[network, init][SETS.index(name)]
            if runs:
                sets[name] = {"paper_accuracy": paper, **_measured(runs)}
            cells += [f"{paper:.3f}", shown(accuracies_of(runs)) if runs else NOT_RUN]
        return {"cells": cells, "slugs": slugs, "network": network, "init": init, "sets": sets}


def _measured(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Accuracy, error and losses over the seeds of one run, and each run's result."""
    accuracy, sd = mean_sd(accuracies_of(runs))
    best = [run["training"]["best"] for run in runs]
    losses = {name: mean_sd([epoch[name] for epoch in best])[0] for name in ("train_loss", "validation_loss")}
    return {"accuracy": accuracy, "sd": sd, "error_percent": 100 * (1 - accuracy), **losses, "runs": list(runs)}


def table_3(budget: BudgetName) -> AccuracyTable:
    """Table 3: seven networks behind two INIT-NETs on six training sets; short of full, INIT-NET 1 on three."""
    return AccuracyTable(ThesisRuns(budget), "table3", "Forslöv 2018, Table 3")
