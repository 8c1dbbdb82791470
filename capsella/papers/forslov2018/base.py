"""What the tables and figures that are made of the shared runs have in common."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from rich.console import Console

from capsella.data import DataOptions
from capsella.errors import ArgumentError
from capsella.evaluation import Spread
from capsella.grid import Results, Row
from capsella.papers.forslov2018.runs import ThesisRuns
from capsella.papers.kinds.published import FromTrainings


@dataclass(frozen=True)
class FromRuns(FromTrainings):
    """A table or figure made of the runs of one budget on one source: `PublishedTable` and `Published`.

    item: of the thesis, as in "table3", for the names of files. title: paper and number. suffix: of the file.
    """

    runs: ThesisRuns
    item: str
    title: str
    suffix: ClassVar[str]
    family: ClassVar[str] = "forslov2018"

    def on(self, source: str) -> Self:
        """The same on the images of another source."""
        return replace(self, runs=replace(self.runs, source=source))

    def mark_of(self, slug: str) -> str:
        """As `Published.mark_of`."""
        return self.runs.mark

    def images(self) -> Iterator[DataOptions]:
        """As `Published.images`."""
        yield self.runs.options("hard")
        yield from super().images()

    def path(self, folder: Path) -> Path:
        """Where `run` writes."""
        return folder / f"{self.family}-{self.item}-{self.runs.budget}-{self.runs.source}{self.suffix}"


class Untrained(ABC):
    """A table for which nothing is trained. title: paper and number. needs: what it does instead, behind "which"."""

    title: str
    needs: ClassVar[str]
    family: ClassVar[str] = "forslov2018"
    columns: ClassVar[tuple[str, ...]] = ("network",)
    needs_all: ClassVar[bool] = False

    def mark_of(self, slug: str) -> str:
        """None."""
        return ""

    def trainings(self) -> tuple[Row, ...]:
        """None."""
        return ()

    def images(self) -> tuple[DataOptions, ...]:
        """None."""
        return ()

    def run(self, folder: Path, seeds: Sequence[int], command: str, console: Console) -> dict[str, Any]:
        """As `Published.run`.

        Raises:
            ValueError: other seeds than the default.
        """
        if tuple(seeds) != (0,):
            raise ArgumentError("seeds", f"not be given for {self.title}, which trains nothing", tuple(seeds))
        return self.made_of({}, folder, command, console)

    @abstractmethod
    def made_of(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """As `Published.made_of`."""

    def on(self, source: str) -> Self:
        """Raises:
        ValueError: always; it takes no images.
        """
        raise ArgumentError("data", f"not be given for {self.title}, which {self.needs}", source)


class TableFromRuns(FromRuns):
    """A table with a row for each network and INIT-NET."""

    suffix: ClassVar[str] = ".json"
    columns: ClassVar[tuple[str, ...]] = ("network", "INIT-NET")

    @property
    def rows(self) -> list[tuple[str, int]]:
        """(network, INIT-NET) of each row."""
        return self.runs.networks


class FigureFromRuns(FromRuns):
    """A figure with its numbers beside it."""

    suffix: ClassVar[str] = ".png"


def mean_sd(numbers: Sequence[float]) -> tuple[float, float | None]:
    """Mean, and standard deviation where there are two or more."""
    return sum(numbers) / len(numbers), Spread.of(list(numbers)).sd if len(numbers) > 1 else None


def shown(numbers: Sequence[float]) -> str:
    """Shares of 1, one a seed, as a table shows them.

    >>> shown([0.5]), shown([0.5, 0.6])
    ('0.500', '0.550 ± 0.071')
    """
    mean, sd = mean_sd(numbers)
    return f"{mean:.3f}" + ("" if sd is None else f" ± {sd:.3f}")


def accuracies_of(runs: Sequence[dict[str, Any]]) -> list[float]:
    """Test accuracy of each run's result, as a share of 1."""
    return [1 - run["test"]["error_percent"] / 100 for run in runs]


def images_tested(results: Sequence[dict[str, Any]]) -> str:
    """How many test images runs had, in words: of sets with fewer classes, fewer.

    >>> images_tested([{"test": {"images": 377}}]), images_tested([{"test": {"images": n}} for n in (377, 221, 377)])
    ('377 images', '221 to 377 images')
    """
    counts = sorted({result["test"]["images"] for result in results})
    return f"{counts[0]} images" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} images"
