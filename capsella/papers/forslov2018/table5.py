"""Table 5: how long a batch takes in each network, all timed in turn on this machine's processor."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console

from capsella.bench import ExecutionTime, execution_times
from capsella.environment import environment, hardware
from capsella.files import write_json
from capsella.grid import BudgetName, Results
from capsella.models import ImageClassifier, create_model
from capsella.papers.forslov2018.base import Untrained
from capsella.papers.forslov2018.paper import COUNTERPART, NETWORKS, TIMES
from capsella.papers.forslov2018.runs import SIZE
from capsella.papers.kinds.published import table_values

BATCHES = (1, 5)
# At least so many rounds, and more until so many seconds have passed, of each batch size and pass.
REPEATS: dict[BudgetName, int] = {"small": 3, "night": 5, "full": 15}
SECONDS: dict[BudgetName, float] = {"small": 10.0, "night": 20.0, "full": 60.0}
OVERALL = ("paper CPU s", "paper GPU s", "ours s", "paper × CNN", "ours × CNN", "batch 1 forward × CNN")
NOTE = (
    "Seconds and × are of forward and backward at batch 5, as in the thesis (i7-7700, GTX 1050 Ti); × compares with "
    "the CNN-NET of the same shape: CNN-NET 3 for CAPSNET 1 and EM-NET 1, CNN-NET 2 for CAPSNET 2 and EM-NET 2; the "
    "last × is of one image, forward, with packed weights. Both: forward and backward. INIT-NET 1, 15 classes; medians "
    "of random images, without the optimizer's step. Networks with the decoder, which empty the processor's caches, "
    "are timed after the others. An instrument needs less than 50 ms an image at batch 1."
)


@dataclass(frozen=True)
class TimesTable(Untrained):
    """Table 5 as a table of `PublishedTable`: a row a network, with and without the decoder where it can have one.

    size: pixels a side.
    """

    budget: BudgetName
    size: int = SIZE
    title: str = "Forslöv 2018, Table 5"
    needs: ClassVar[str] = "times random images"

    @property
    def rows(self) -> list[tuple[str, bool]]:
        """(network, whether it has the decoder) of each row."""
        return [
            (network, decoder)
            for decoder in (False, True)
            for network in NETWORKS
            if not decoder or network in COUNTERPART
        ]

    def path(self, folder: Path) -> Path:
        """Where `run` writes the table's JSON."""
        return folder / f"{self.family}-table5-{self.budget}.json"

    def made_of(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """As `Published.made_of`: time all networks in turn, and write the times, the paper's beside ours."""
        console.print(
            f"timing {len(self.rows)} networks in turn, batches of {BATCHES}; nothing else should compute now"
        )
        times = [
            execution_times(
                {_name(*row): self._network(*row) for row in self.rows if row[1] == decoder},
                BATCHES,
                repeats=REPEATS[self.budget],
                seconds=SECONDS[self.budget],
            )
            for decoder in (False, True)
        ]
        values = table_values(
            title=self.title,
            note=NOTE,
            measured=f"Median of at least {REPEATS[self.budget]} rounds on {hardware(environment())}.",
            command=command,
            labels=self.columns,
            columns=[*OVERALL, *(f"batch {batch} {passes} ms" for batch in BATCHES for passes in ("forward", "both"))],
            rows=[
                _row(network, decoder, [row for group in times for row in group.rows]) for network, decoder in self.rows
            ],
        )
        values["times"] = [group.to_dict() for group in times]
        write_json(self.path(folder), values)
        return values

    def _network(self, network: str, decoder: bool) -> ImageClassifier:
        options: dict[str, Any] = {"reconstruction": decoder} if network in COUNTERPART else {}
        return create_model(f"forslov2018_{network}_init1", image_size=(self.size, self.size), **options)


def table_5(budget: BudgetName) -> TimesTable:
    """Table 5; larger budgets take more rounds."""
    return TimesTable(budget)


def _name(network: str, decoder: bool) -> str:
    return NETWORKS[network] + (" + decoder" if decoder else "")


def _row(network: str, decoder: bool, times: Sequence[ExecutionTime]) -> dict[str, Any]:
    ours = {(row.batch, row.backward): row.timing.median for row in times if row.network == _name(network, decoder)}
    other = _name(COUNTERPART[network], False) if network in COUNTERPART else None
    cnn = {(row.batch, row.backward): row.timing.median for row in times if row.network == other}
    paper = TIMES.get((network, decoder))
    paper_ratio = paper.cpu / TIMES[COUNTERPART[network], False].cpu if paper is not None and cnn else None
    ratio, of_one_image = (ours[key] / cnn[key] if cnn else None for key in ((5, True), (1, False)))
    cells = [
        *(["–", "–"] if paper is None else [f"{paper.cpu:.2f}", f"{paper.gpu:.2f}"]),
        f"{ours[5, True]:.3f}",
        *("–" if number is None else f"{number:.2f}" for number in (paper_ratio, ratio, of_one_image)),
        *(f"{1000 * ours[batch, both]:.1f}" for batch in BATCHES for both in (False, True)),
    ]
    return {
        "cells": [_name(network, decoder), *cells],
        "paper_seconds": None if paper is None else paper._asdict(),
        "paper_times_as_long_as_cnn": paper_ratio,
        "times_as_long_as_cnn": ratio,
        "one_image_forward_times_as_long_as_cnn": of_one_image,
        "seconds": [
            {"batch": batch, "backward": both, "median": seconds} for (batch, both), seconds in sorted(ours.items())
        ],
    }
