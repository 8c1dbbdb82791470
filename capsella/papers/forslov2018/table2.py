"""Table 2: the number of weights in each network, counted."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from rich.console import Console
from torch import nn

from capsella.environment import environment
from capsella.files import write_json
from capsella.grid import BudgetName, Results
from capsella.layers import ConvolutionalDecoder
from capsella.models import create_model
from capsella.models.forslov2018.parts import init_net
from capsella.papers.forslov2018.base import Untrained
from capsella.papers.forslov2018.paper import CAPSULE_THICKNESS, NETWORKS, WEIGHTS
from capsella.papers.forslov2018.runs import SIZE
from capsella.papers.kinds.published import table_values

CLASSES = (5, 10, 15)
"""|C| of basic, medium and hard."""
NOTE = (
    "Without biases and without β, as the thesis counts. Networks without the INIT-NET before them. DECODER NET: the "
    "thesis's total has 256·256 channels in a layer that receives 128 (docs/papers/forslov2018.md); its columns are "
    "for one class "
    "capsule of 96 or 16 numbers, whatever the number of classes."
)


@dataclass(frozen=True)
class WeightsTable(Untrained):
    """Table 2 as a table of `PublishedTable`: a row a network, the paper's number and ours for each of `CLASSES`."""

    title: str = "Forslöv 2018, Table 2"
    needs: ClassVar[str] = "needs no images"

    @property
    def rows(self) -> list[str]:
        """The parts that the table lists."""
        return [*_parts()]

    def path(self, folder: Path) -> Path:
        """Where `run` writes the table's JSON."""
        return folder / f"{self.family}-table2.json"

    def made_of(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """As `Published.made_of`: count, and write the numbers, the paper's beside ours."""
        values = table_values(
            title=self.title,
            note=NOTE,
            measured=f"Counted in the networks as capsella {environment()['capsella']} builds them.",
            command=command,
            labels=self.columns,
            columns=[f"{whose}, {classes} classes" for classes in CLASSES for whose in ("paper", "ours")],
            rows=[_row(part, names) for part, names in _parts().items()],
        )
        write_json(self.path(folder), values)
        return values


def weights(module: nn.Module) -> int:
    """Elements of all parameters but biases and β, which have one axis alone.

    >>> weights(nn.Linear(3, 4))
    12
    """
    return sum(parameter.numel() for parameter in module.parameters() if parameter.ndim > 1)


def table_2(budget: BudgetName) -> WeightsTable:
    """Table 2; there is nothing to train, so all budgets are the same."""
    return WeightsTable()


def _parts() -> dict[str, str]:
    """What the table lists, by the key of `WEIGHTS`, or a decoder's by the family it belongs to."""
    decoders = {f"decoder of {kind}": f"DECODER NET, CT = {thick}" for kind, thick in CAPSULE_THICKNESS.items()}
    return {"init1": "INIT-NET 1", "init2": "INIT-NET 2", **NETWORKS, **decoders}


def _row(part: str, name: str) -> dict[str, Any]:
    counts = [{"classes": classes, "paper": _paper(part, classes), "ours": _ours(part, classes)} for classes in CLASSES]
    cells = [f"{number:,}" for count in counts for number in (count["paper"], count["ours"])]
    return {"cells": [name, *cells], "counts": counts}


def _paper(part: str, classes: int) -> int:
    kind = part.removeprefix("decoder of ")
    return WEIGHTS[part].at(classes) if kind == part else WEIGHTS["decoder"].at(CAPSULE_THICKNESS[kind])


def _ours(part: str, classes: int) -> int:
    with torch.device("meta"):  # shapes only, no memory
        if part.startswith("decoder"):
            thick = CAPSULE_THICKNESS[part.removeprefix("decoder of ")]
            return weights(ConvolutionalDecoder(thick, (3, SIZE, SIZE)))
        init = weights(init_net(2 if part == "init2" else 1, (SIZE, SIZE), 3, standardise=True, batch_norm=False))
        if part.startswith("init"):
            return init
        return weights(create_model(f"forslov2018_{part}_init1", classes=classes)) - init
