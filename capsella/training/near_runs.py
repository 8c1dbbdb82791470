"""What to say where a run was asked for, and is not there."""

from pathlib import Path

from capsella.errors import near_names, pluralize

_MOST_NAMED = 3


def no_run(folder: Path) -> str:
    """The error for a folder that is no run's: names the runs that it holds, or one of a name like its own."""
    said = f"{folder} is not a run folder: it has no config.json"
    if inside := _runs_in(folder):
        more = ", …" if len(inside) > _MOST_NAMED else ""
        return f"{said}; it holds {pluralize(len(inside), 'run')}: {', '.join(map(str, inside[:_MOST_NAMED]))}{more}"
    if beside := _runs_in(folder.parent):
        holds = f"{folder.parent} holds {pluralize(len(beside), 'run')}"
        return f"{said}; {near_names(folder.name, [run.name for run in beside], holds)}"
    return said


def _runs_in(folder: Path) -> list[Path]:
    return sorted(file.parent for file in folder.glob("*/config.json"))
