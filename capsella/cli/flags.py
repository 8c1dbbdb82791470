"""Command-line flags of a recipe: every field, by its full name or by the end of it that is unique."""

import dataclasses
from typing import Any

from capsella.errors import near_names
from capsella.training import Recipe
from capsella.training.recipes import flatten

USUAL = {"lr": "--learning-rate"}
"""Flags that other programs have, and what is meant here."""


def prepare(recipe: Recipe, words: list[str], *options: type) -> tuple[Recipe, list[str]]:
    """The recipe with all options of its network filled in, and the flags with full names.

    `options`: dataclasses whose fields are the command's other flags.

    `--routing.iterations 1` and `--iterations 1` both become `--model.routing.iterations 1`; `--loss spread` becomes
    `--loss.name spread`. `--model NAME` and `--routing NAME` change which options there are, so they are taken first.
    `--data SOURCE` changes which options of data there are.
    """
    network, words = take(words, "--model", "--model.name")
    routing, words = take(words, "--routing", "--model.routing")
    if network is not None:
        recipe = recipe.with_network(network)
    recipe = recipe.complete()
    if routing is not None:
        recipe = dataclasses.replace(recipe, model=recipe.model.with_routing(routing))
    recipe, words = _with_source(recipe, words)
    fields, others = flatten(recipe), ("help", *(field.name for kind in options for field in dataclasses.fields(kind)))
    return recipe, [_full_name(word, fields, others) for word in words]


def _with_source(recipe: Recipe, words: list[str]) -> tuple[Recipe, list[str]]:
    source, others = take(words, "--data", "--data.name")
    return (recipe, words) if source is None else (dataclasses.replace(recipe, data=recipe.data.on(source)), others)


def take(words: list[str], *names: str) -> tuple[str | None, list[str]]:
    """The value of a flag, also as --flag=value, and the words without it."""
    rest, value = [], None
    waiting = iter(words)
    for word in waiting:
        name, equals, given = word.partition("=")
        if name not in names:
            rest.append(word)
            continue
        value = given if equals else next(waiting, None)
        if value is None:
            raise ValueError(f"{name}: must be followed by a value")
    return value, rest


def _full_name(word: str, fields: dict[str, Any], others: tuple[str, ...]) -> str:
    """A flag's short name made long where exactly one field ends so; `fields` maps full names to values."""
    if not word.startswith("--"):
        return word
    flag, equals, value = word[2:].partition("=")
    group, dot, leaf = flag.replace("-", "_").rpartition(".")
    negated = leaf.startswith("no_")
    wanted = f"{group}{dot}{leaf.removeprefix('no_')}"
    if wanted in (*fields, *others):
        return word
    # --no-reconstruction can only mean the switch, not the field of the same name that takes a word.
    ends = [path for path in fields if path.endswith(f".{wanted}") and (isinstance(fields[path], bool) or not negated)]
    ends = ends or [path for path in fields if path == f"{wanted}.name"]
    if len(ends) > 1:
        choices = " or ".join(f"--{path.replace('_', '-')}" for path in ends)
        raise ValueError(f"--{flag}: must name one field, but could be {choices}")
    if not ends:
        meant = {*fields, *(path.rpartition(".")[2] for path in fields), *others}
        if wanted in USUAL:
            raise ValueError(f"--{flag}: no such flag; did you mean {USUAL[wanted]}?")
        hint = near_names(f"--{flag}", (f"--{name.replace('_', '-')}" for name in meant))
        raise ValueError(f"--{flag}: no such flag; {hint}")
    group, _, leaf = ends[0].replace("_", "-").rpartition(".")
    return f"--{group}.{'no-' if negated else ''}{leaf}{equals}{value}"
