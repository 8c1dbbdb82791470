"""Several runs on one command line."""

from collections.abc import Sequence
from pathlib import Path

from capsella.training import Run, load_run


def load_runs(folders: Sequence[Path]) -> dict[str, Run]:
    """Runs by the names of their folders, or by their whole paths where two are called the same.

    Raises:
        ValueError: no folder, or one twice.
        CapsellaError: a folder is no run's.
    """
    if not folders:
        raise ValueError("runs: must name the folder of at least one run")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ValueError(f"runs: must each be named once, got {', '.join(map(str, folders))}")
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    return dict(zip(names, map(load_run, folders), strict=True))
