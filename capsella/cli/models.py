"""`capsella models`."""

import inspect
from dataclasses import dataclass
from typing import Annotated

import torch
import tyro
from rich.console import Console
from rich.table import Table

from capsella.models import count_parameters, create_model, list_models, model_function


@dataclass(frozen=True)
class Models:
    """List the registered networks; a full name shows what one is and what can be changed."""

    pattern: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[PATTERN]")] = "*"
    """A shell pattern, as in 'sabour*', or a full name."""


def run(arguments: list[str]) -> None:
    """List, or show one."""
    console = Console(highlight=False)
    pattern = tyro.cli(Models, args=arguments, prog="capsella models").pattern
    names = list_models(pattern)
    if not names:
        model_function(pattern)  # raises, with the nearest name
    if names == [pattern]:
        _show(pattern, console)
        return
    table = Table("network", "parameters", "what it is")
    for name in names:
        table.add_row(name, _parameters(name), _summary(name))
    console.print(table)


def _show(name: str, console: Console) -> None:
    function = model_function(name)
    console.print(f"[bold]{name}[/]: {_parameters(name)} parameters as published\n")
    console.print(inspect.getdoc(function) or "", markup=False)
    console.print("\ndefaults:")
    for key, parameter in inspect.signature(function).parameters.items():
        console.print(f"  {key} = {parameter.default}", markup=False)


def _parameters(name: str) -> str:
    with torch.device("meta"):  # to be counted, not computed with
        return f"{count_parameters(create_model(name)):,}"


def _summary(name: str) -> str:
    return (inspect.getdoc(model_function(name)) or "").partition("\n\n")[0].replace("\n", " ")
