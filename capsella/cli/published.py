"""What `capsella table` and `capsella figure` read alike: a name, a budget, seeds, data and a folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from capsella.papers.kinds.published import BudgetName


@dataclass(frozen=True)
class Call:
    """A published table or figure on the data asked for, where its runs go, and the command that says all of it."""

    published: Any
    folder: Path
    seeds: tuple[int, ...]
    command: str

    def run(self, console: Console) -> dict[str, Any]:
        """Run what is missing; the values as JSON."""
        values: dict[str, Any] = self.published.run(self.folder, self.seeds, self.command, console)
        return values


def usage(verb: str) -> str:
    """How the command is called, in a line."""
    return f"usage: capsella {verb} NAME [--budget small|full] [--seeds 0 1 …] [--data SOURCE] [--folder FOLDER]\n"


def read_call(verb: str, registered: Mapping[str, Any], options_type: type, arguments: list[str]) -> Call:
    """What `capsella VERB NAME …` asks for.

    Args:
        verb: table or figure.
        registered: functions from a budget to a table or figure, by name; the first argument is one of them.
        options_type: dataclass with budget, seeds, data and folder, whose texts are those of --help.
        arguments: the words after the verb.
    """
    name, words = arguments[0], arguments[1:]
    options: Any = tyro.cli(options_type, args=words, prog=f"capsella {verb} {name}")
    budget: BudgetName = options.budget
    published = registered[name](budget)
    command = f"capsella {verb} {name} --budget {budget} --seeds {' '.join(map(str, options.seeds))}"
    parts = [published.family or name, budget]
    if options.data is not None:
        published = published.on(options.data)
        command += f" --data {options.data}"
        parts.append(options.data)
    return Call(published, options.folder or Path("runs", "-".join(parts)), options.seeds, command)
