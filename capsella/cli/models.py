"""`capsella models`."""

import inspect
import textwrap
from dataclasses import dataclass
from typing import Annotated

import torch
import tyro

from capsella.cli.network_texts import description, option_texts, summary
from capsella.cli.screen import by_paper, list_entries
from capsella.models import count_parameters, create_model, list_models, model_function


@dataclass(frozen=True)
class Models:
    """List the networks by paper; a full name shows one, and what you can change."""

    pattern: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[PATTERN]")] = "*"
    """A shell pattern, as in 'sabour*', or a full name."""


def run(arguments: list[str]) -> None:
    """List, or show one."""
    pattern = tyro.cli(Models, args=arguments, prog="capsella models").pattern
    names = list_models(pattern)
    if not names:
        model_function(pattern)  # raises, with the nearest name
    if names == [pattern]:
        _show(pattern)
    else:
        list_entries({paper: [(name, _summary(name)) for name in of] for paper, of in by_paper(names).items()})


def _show(name: str) -> None:
    print(f"{name}: {_parameters(name)} parameters with its defaults")
    for paragraph in description(name).split("\n\n"):
        print(f"\n{textwrap.fill(paragraph, 80)}")
    print("\nOptions and defaults:")
    texts = option_texts(name)
    for key, parameter in inspect.signature(model_function(name)).parameters.items():
        print(f"  {key} = {parameter.default}")
        print(textwrap.fill(texts[key], 80, initial_indent=" " * 6, subsequent_indent=" " * 6))


def _parameters(name: str) -> str:
    with torch.device("meta"):  # to be counted, not computed with
        return f"{count_parameters(create_model(name)):,}"


def _summary(name: str) -> str:
    return f"{_parameters(name)} parameters. {summary(name)}"
