"""`capsella list`."""

import inspect
import textwrap
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Annotated, Literal

from capsella.cli.flags import parse, positional
from capsella.cli.screen import by_paper, list_entries


@dataclass(frozen=True, kw_only=True)
class List:
    """List models, recipes or data sets, or show one with all its options."""

    what: Annotated[Literal["models", "recipes", "data"], *positional("models|recipes|data", "What to list.")]
    pattern: Annotated[str, *positional("[PATTERN]", "A shell pattern such as 'sabour*', or a full name.")] = "*"


def run(arguments: list[str]) -> None:
    """List, or show one."""
    options = parse(List, arguments or ["--help"], "list")
    {"models": _models, "recipes": _recipes, "data": _data}[options.what](options.pattern)


def _models(pattern: str) -> None:
    import torch

    from capsella.models import count_parameters, create_model, list_models, model_function

    def size(name: str) -> str:
        with torch.device("meta"):  # counts without memory
            return f"{count_parameters(create_model(name)):,} parameters"

    names = list_models(pattern)
    if not names:
        model_function(pattern)  # raises, with the nearest name
    if names != [pattern]:
        texts = {name: inspect.getdoc(model_function(name)) or "" for name in names}
        summaries = {name: " ".join(text.partition("\n\n")[0].split()) for name, text in texts.items()}
        list_entries({paper: [(name, f"{size(name)}. {summaries[name]}") for name in group]
                      for paper, group in by_paper(names).items()})  # fmt: skip
        return
    function = model_function(pattern)
    print(f"{pattern}: {size(pattern)} with its default options\n\n{inspect.getdoc(function)}")
    print("\noptions and their defaults (set them with --model-kwargs NAME=VALUE):")
    for key, parameter in inspect.signature(function).parameters.items():
        print(f"  {key}={parameter.default}")


def _recipes(pattern: str) -> None:
    from capsella.papers import get_recipe, list_recipes, recipe_group, recipe_summary, recipe_text
    from capsella.training.recipe import flatten

    names = list_recipes(pattern)
    if not names:
        get_recipe(pattern)  # raises, with the nearest name
    if names != [pattern]:
        groups: dict[str, list[tuple[str, str]]] = {}
        for name in names:
            groups.setdefault(recipe_group(name), []).append((name, recipe_summary(name)))
        list_entries(dict(sorted(groups.items())))
        return
    print(f"{pattern}: {textwrap.fill(recipe_text(pattern), 100)}\n\nfields:")
    for path, value in flatten(get_recipe(pattern).complete()).items():
        print(f"  {path} = {value}")


def _data(pattern: str) -> None:
    from capsella.data import data_root, source_table

    rows = [(row.name, f"{row.images}; {row.size}; {row.classes} classes; {row.found}") for row in source_table()]
    print(f"data folder: {data_root()} (set CAPSELLA_DATA to change it)\n")
    heading = "training / validation / test images; height × width × channels"
    list_entries({heading: [row for row in rows if fnmatch(row[0], pattern)]})
    print("\nyour own images: a folder with one subfolder per class, or an .npz file")
    print("pairs of overlapping images: --data pairs --of NAME")
