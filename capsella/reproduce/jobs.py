"""The runs that the tables and figures share: which there are, and how far each is."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from capsella.experiments import Row
from capsella.papers.published import CLAIMS, REPEATED
from capsella.reproduce.entries import Entry
from capsella.training import RunFolder


@dataclass(frozen=True, eq=False)
class Job:
    """One training. row: with a cost that no row of another folder has. entries: names of what is made of it."""

    folder: Path
    row: Row
    seed: int
    entries: tuple[str, ...] = ()

    @property
    def run(self) -> RunFolder:
        """Its folder."""
        return RunFolder(self.row.folder(self.folder, self.seed))

    @property
    def is_over(self) -> bool:
        """Whether it is tested, or was given up."""
        return self.run.is_tested or self.run.has_diverged

    @property
    def progress(self) -> float:
        """By the epochs that are complete."""
        return 1.0 if self.is_over else self.run.progress(self.row.recipe.epochs)

    def __str__(self) -> str:
        return f"{self.row.cost}, seed {self.seed}"


def jobs_of(entries: Sequence[Entry], seeds: int) -> list[Job]:
    """Every run of the entries once, in their order: of rows that a claim compares so many seeds, of others the first.

    Raises:
        CapsellaError: a run of another recipe is in a run's folder.

    >>> jobs_of([], 3)
    []
    """
    made_of: dict[tuple[Path, str], list[Entry]] = {}
    rows: dict[tuple[Path, str], Row] = {}
    for entry in entries:
        for row in entry.rows:
            made_of.setdefault((entry.folder, row.slug), []).append(entry)
            rows.setdefault((entry.folder, row.slug), replace(row, cost=f"{entry.folder.name}/{row.slug}"))
    for (folder, _), row in rows.items():
        for seed in range(seeds):
            RunFolder(row.folder(folder, seed)).check_recipe(replace(row.recipe, seed=seed))
    return [
        Job(folder, rows[folder, slug], seed, tuple(entry.name for entry in found))
        for (folder, slug), found in made_of.items()
        for seed in range(seeds if any(slug in compared(entry) for entry in found) else 1)
    ]


def compared(entry: Entry) -> set[str]:
    """Slugs of the rows whose seeds count: a claim compares them."""
    if entry.name in REPEATED:
        return {row.slug for row in entry.rows}
    return {slug for claim in CLAIMS if claim.where == entry.name for slug in claim.slugs}
