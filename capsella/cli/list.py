"""`capsella list`."""

import inspect
import textwrap
from dataclasses import dataclass
from typing import Annotated, Literal

from capsella.cli.flags import parse, positional
from capsella.cli.screen import by_paper, list_entries


@dataclass(frozen=True, kw_only=True)
class List:
    """List models, recipes or data sets; a full name shows one, with all its options."""

    what: Annotated[Literal["models", "recipes", "data"], *positional("models|recipes|data", "What to list.")]
    pattern: Annotated[str, *positional("[PATTERN]", "A shell pattern, e.g. 'sabour*', or a full name.")] = "*"


def run(arguments: list[str]) -> None:
    """List, or show one."""
    options = parse(List, arguments or ["--help"], "list")
    {"models": _models, "recipes": _recipes, "data": _data}[options.what](options.pattern)


def _models(pattern: str) -> None:
    from capsella.models import list_models, model_function

    names = list_models(pattern)
    if not names:
        model_function(pattern)  # raises, with the nearest name
    if names == [pattern]:
        _show_model(pattern)
        return
    texts = {name: " ".join(_docstring(name).partition("\n\n")[0].split()) for name in names}
    groups = {paper: [(name, f"{_parameters(name)} parameters. {texts[name]}") for name in of]
              for paper, of in by_paper(names).items()}  # fmt: skip
    list_entries(groups)


def _show_model(name: str) -> None:
    from capsella.models import model_function

    print(f"{name}: {_parameters(name)} parameters with its defaults\n")
    print(_docstring(name))
    print("\nDefaults (set by --model-kwargs NAME=VALUE):")
    for key, parameter in inspect.signature(model_function(name)).parameters.items():
        print(f"  {key}={parameter.default}")


def _docstring(name: str) -> str:
    from capsella.models import model_function

    return inspect.getdoc(model_function(name)) or ""


def _parameters(name: str) -> str:
    import torch

    from capsella.models import count_parameters, create_model

    with torch.device("meta"):  # counts without memory
        return f"{count_parameters(create_model(name)):,}"


def _recipes(pattern: str) -> None:
    from capsella.papers import get_recipe, list_recipes, recipe_group, recipe_summary, recipe_text
    from capsella.training.recipe import flatten

    names = list_recipes(pattern)
    if not names:
        get_recipe(pattern)  # raises, with the nearest name
    if names == [pattern]:
        print(f"{pattern}: {textwrap.fill(recipe_text(pattern), 100)}\n\nfields:")
        for path, value in flatten(get_recipe(pattern).complete()).items():
            print(f"  {path} = {value}")
        return
    groups: dict[str, list[tuple[str, str]]] = {}
    for name in names:
        groups.setdefault(recipe_group(name), []).append((name, recipe_summary(name)))
    list_entries(dict(sorted(groups.items())))


def _data(pattern: str) -> None:
    from fnmatch import fnmatch

    from capsella.data import data_root, source_table

    rows = [(row.name, f"{row.images}; {row.size}; {row.classes} classes; {row.found}") for row in source_table()]
    print(f"data root: {data_root()}\n")
    heading = "train / validation / test images; height × width × channels"
    list_entries({heading: [row for row in rows if fnmatch(row[0], pattern)]})
    print("\nyour own images: a folder with one subfolder per class, or an .npz file")
    print("pairs of the images of a source: --data pairs --of SOURCE")
