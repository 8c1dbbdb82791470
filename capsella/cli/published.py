"""What `capsella table` and `capsella figure` read alike: a name, a budget, seeds, data and a folder."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from capsella.cli.on_cluster import parse
from capsella.cli.screen import by_paper, console, list_entries, note_one_seed
from capsella.data import source_names
from capsella.errors import unknown_name
from capsella.papers.budget import BudgetName
from capsella.ray_cluster import joined


def run_published(
    verb: str,
    registered: Mapping[str, Callable[[BudgetName], Any]],
    options_type: type,
    describe: Callable[[Any], str],
    arguments: list[str],
) -> tuple[dict[str, Any], Path] | None:
    """Run what `capsella VERB NAME …` asks for: its values, as in JSON, and its file.

    Without a registered name, or for --help, the names are listed instead, and None returned.

    Args:
        verb: table or figure.
        registered: functions from a budget to a table or figure, by name.
        options_type: dataclass with budget, seeds, data and out, whose texts are those of --help.
        describe: a line on a table or figure.
        arguments: the words after the verb.

    Raises:
        ValueError: an unknown name; suggests the nearest.
    """
    if not arguments or arguments[0] not in registered:
        _list(verb, registered, describe)
        if arguments and arguments[0] not in ("-h", "--help"):
            raise unknown_name(verb, arguments[0], registered)
        return None
    name, *words = arguments
    options: Any
    options, place = parse(options_type, words, f"capsella {verb} {name}")
    note_one_seed(options.seeds)
    published = registered[name](options.budget)
    command = f"capsella {verb} {name} --budget {options.budget} --seeds {' '.join(map(str, options.seeds))}"
    if options.data is not None:
        _check_sources(options.data)
        published = published.on(options.data)
        command += f" --data {options.data}"
    parts = (published.family or name, options.budget, options.data)
    folder = options.out or Path("runs", "-".join(part for part in parts if part))
    with joined(place):
        return published.run(folder, options.seeds, command, console()), published.path(folder)


def _check_sources(names: str) -> None:
    for name in names.split(","):
        if name not in source_names():
            raise unknown_name("data", name, source_names())


def _list(verb: str, registered: Mapping[str, Callable[[BudgetName], Any]], describe: Callable[[Any], str]) -> None:
    print(f"usage: capsella {verb} NAME [--budget small|medium|full] [--seeds 0 1 …]")
    print(f"       {' ' * len(f'capsella {verb} NAME')} [--data SOURCE] [--out FOLDER] [--on ray]\n")
    described = {name: describe(registered[name]("full")) for name in registered}
    list_entries({paper: [(name, described[name]) for name in of] for paper, of in by_paper(registered).items()})
