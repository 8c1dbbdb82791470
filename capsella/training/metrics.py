"""Metrics of a training: metrics.csv, TensorBoard, the line per epoch and the progress bar."""

import csv
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from capsella.errors import CapsellaError
from capsella.files import write_csv
from capsella.training.progress import EpochRow

if TYPE_CHECKING:  # takes a tenth of a second to import
    from torch.utils.tensorboard import SummaryWriter


def write_metrics(path: Path, history: list[EpochRow]) -> None:
    """Write metrics.csv, one row per epoch; the file is whole or unchanged."""
    rows = ([row.get(name, "") for name in history[0]] for row in history)
    write_csv(path, history[0], ([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in rows))


def read_metrics(path: Path) -> dict[str, Float[np.ndarray, " rows"]]:
    """Read the columns of metrics.csv as numbers; an empty cell is NaN.

    Raises:
        CapsellaError: the file is missing, has no rows, or holds something that is not a number.
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return {name: np.array([float(row[name] or "nan") for row in rows]) for name in rows[0]}
    except (OSError, ValueError, IndexError, TypeError) as error:
        raise CapsellaError(f"{path}: must hold rows of numbers, as a training writes them: {error!r}") from error


def open_events(folder: Path, step: int) -> "SummaryWriter | None":
    """Open TensorBoard's events after `step`, or return None if TensorBoard (an extra) is not installed.

    Events of later steps, which a killed process left behind, are hidden.
    """
    if importlib.util.find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=step + 1)


def write_events(writer: "SummaryWriter", row: EpochRow) -> None:
    """Write an epoch's metrics to TensorBoard; they are on disk before the epoch's checkpoint is."""
    for key, value in row.items():
        if key not in ("epoch", "step"):
            writer.add_scalar(key.replace("_", "/", 1), value, int(row["step"]))
    writer.flush()


def epoch_line(row: EpochRow, epochs: int, metric: str = "validation_error") -> str:
    """Return the line of at most 80 columns that the console shows for an epoch.

    `metric` is the column that decides which epoch is kept. The loss follows each error.
    """
    balanced = "" if metric == "validation_error" else f" ({row[metric]:.1f} % balanced)"
    test = f" · test {row['test_error']:.2f} %" if "test_error" in row else ""
    return (
        f"epoch {row['epoch']:.0f}/{epochs} · train {row['train_error']:.1f} % {row['train_loss']:.3f} · "
        f"val {row['validation_error']:.1f} %{balanced} {row['validation_loss']:.3f}{test} · "
        f"{row['images_per_second']:.0f}/s"
    )


@contextmanager
def progress_bar(
    console: Console, description: str, total: int, completed: int
) -> Iterator[Callable[[str, int], None]]:
    """Show a bar over all steps of a training, with the time left, if the output is a terminal.

    Yields a function that shows a text beside the bar and advances it by a number of steps.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(description, total=total, completed=completed, state="")
        yield lambda state, steps: progress.update(task, advance=steps, state=state)
