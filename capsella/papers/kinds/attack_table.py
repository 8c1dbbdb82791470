"""A table of networks that were stopped at one error and then attacked: how right each is still, attack by attack."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console

from capsella.data import load_data, single_images
from capsella.errors import ArgumentError, CapsellaError
from capsella.evaluation import AttackOptions, attack_networks
from capsella.files import read_json, write_json
from capsella.grid import Results, Row
from capsella.papers.kinds.published import (
    FolderTable,
    diverged_phrase,
    hardware_of,
    mean_cell,
    seeds_of,
    seeds_phrase,
    table_values,
)
from capsella.training import load_run

_ORDER = ("FGSM", "BIM", "PGD", "vote", "transfer")  # of the rows; transfers stand last, by their source


@dataclass(frozen=True)
class AttackTable(FolderTable):
    """Accuracy under attack, a row an attack and ε, a column a network; all networks of the same images.

    title: paper and section. note: what a reader of the numbers must know. networks: their runs by their heads.
    options: how hard to attack; their seed is that of the runs.

    Raises:
        ValueError: no network, or networks of different images.
    """

    title: str
    note: str
    networks: Mapping[str, Row]
    options: AttackOptions
    columns: tuple[str, ...] = ("attack", "ε")
    needs_all: ClassVar[bool] = True

    def __post_init__(self) -> None:
        data = {run.recipe.data for run in self.networks.values()}
        if len(data) != 1:
            raise ArgumentError("networks", "be at least one, all of the same images", list(self.networks))

    @property
    def rows(self) -> tuple[Row, ...]:
        """The runs."""
        return tuple(self.networks.values())

    def on(self, source: str) -> "AttackTable":
        """The same table on the images of another source."""
        return replace(self, networks={name: run.on(source) for name, run in self.networks.items()})

    def trainings(self) -> tuple[Row, ...]:
        """As `Published.trainings`."""
        return self.rows

    def made_of(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """Attack what is not attacked yet and write `path(folder)`; as `Published.made_of`.

        Raises:
            CapsellaError: also where the folder holds attacks of other options.
        """
        attacks = [self._attacked(results, folder, seed, console) for seed in seeds_of(results)]
        values = table_values(
            title=self.title,
            note=self.note,
            measured=self._measured(results, attacks) + diverged_phrase(folder, [row.slug for row in self.rows]),
            command=command,
            labels=self.columns,
            columns=[f"{name}, accuracy %" for name in self.networks],
            rows=[self._clean(attacks, results), *self._under_attack(attacks), self._full_reach(attacks)],
        )
        write_json(self.path(folder), values)
        return values

    def _attacked(self, results: Results, folder: Path, seed: int, console: Console) -> dict[str, Any]:
        """The networks of one seed under every attack: read where it is there.

        Raises:
            CapsellaError: what is there is of other attacks, or of networks that were trained anew since.
        """
        path, options = folder / f"attacks-seed{seed}.json", replace(self.options, seed=seed)
        wanted, tested = json.loads(json.dumps(asdict(options))), self._tested(results, seed)
        if not path.exists():
            console.print(f"attacks on {', '.join(self.networks)}, seed {seed}")
            splits = load_data(self.rows[0].recipe.data)
            images = single_images(splits.test, "attacks")
            models = {name: load_run(run.folder(folder, seed)).model for name, run in self.networks.items()}
            under_attack = attack_networks(models, images, options, progress=console.is_terminal)
            networks = {name: result.to_dict() for name, result in under_attack.items()}
            about = {"data": splits.name, "images": len(images), "options": wanted, "tested": tested}
            write_json(path, about | {"networks": networks})
        values: dict[str, Any] = read_json(path)
        if values["options"] != wanted or list(values["networks"]) != list(self.networks):
            raise CapsellaError(f"{path} holds other attacks; choose another folder, or move that file away")
        if values.get("tested", tested) != tested:  # files of earlier versions do not say it
            raise CapsellaError(
                f"{path} is of networks that were trained anew since; move that file away to attack these"
            )
        if not all("masked" in one for one in values["networks"].values()):
            raise CapsellaError(f"{path} is of an earlier version of capsella; move that file away to attack anew")
        return values

    def _tested(self, results: Results, seed: int) -> dict[str, str]:
        """By network: which test images it has right, as a digest, which another training would not repeat."""
        runs = {
            name: next(run for run in results[row.slug] if run["seed"] == seed) for name, row in self.networks.items()
        }
        return {name: hashlib.sha256(json.dumps(run["test"]).encode()).hexdigest() for name, run in runs.items()}

    def _measured(self, results: Results, attacks: list[dict[str, Any]]) -> str:
        """Where the networks stopped, what was attacked, and whether an attack's gradients can be trusted."""
        stops = {
            name: [run["training"]["stopped"] for run in results[planned.slug]]
            for name, planned in self.networks.items()
        }
        missed = [
            f"{name} did not reach it with seed {attack['options']['seed']}"
            for name, of_seeds in stops.items()
            for stop, attack in zip(of_seeds, attacks, strict=True)
            if not stop["reached"]
        ]
        masked = [
            name
            for name in self.networks
            for attacked in [[attack["networks"][name] for attack in attacks]]
            if any(one["masked"] for one in attacked)
        ]
        stop = results[self.rows[0].slug][0]["training"]["stopped"]
        return (
            f"Stopped at {stop['at_error']:g} % {stop['on']} error or less"
            f"{''.join(f'; {text}' for text in missed)}. Attacked: {attacks[0]['images']} test images of "
            f"{attacks[0]['data']}, at most ε away a pixel. Masked gradients: {', '.join(masked) or 'none'}. "
            f"{seeds_phrase(results).capitalize()}; {hardware_of(results)}."
        )

    def _clean(self, attacks: list[dict[str, Any]], results: Results) -> dict[str, Any]:
        """Without an attack; and here the runs, which every row is made of."""
        runs = {name: results[planned.slug] for name, planned in self.networks.items()}
        return {**self._row(attacks, "none", "0", "clean_accuracy_percent"), "runs": runs, "attacks": attacks}

    def _full_reach(self, attacks: list[dict[str, Any]]) -> dict[str, Any]:
        """Above 0 only where gradients are masked: see `UnderAttack.at_full_reach`."""
        return self._row(attacks, "PGD, check for masked gradients", "1", "pgd_accuracy_at_epsilon_1_percent")

    def _row(self, attacks: list[dict[str, Any]], attack: str, epsilon: str, key: str) -> dict[str, Any]:
        by_seed = {name: [one["networks"][name][key] for one in attacks] for name in self.networks}
        return {
            "cells": [attack, epsilon, *(mean_cell(values) for values in by_seed.values())],
            "accuracy_percent": by_seed,
        }

    def _under_attack(self, attacks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """A row an attack and ε; no number where a network has no such attack."""
        curves = [
            {
                name: {(curve["attack"], curve["source"]): curve["accuracy_percent"] for curve in network["attacks"]}
                for name, network in of_seed["networks"].items()
            }
            for of_seed in attacks
        ]
        kinds = dict.fromkeys(kind for curve in curves[0].values() for kind in curve)
        sources = [None, *self.networks]
        for attack, source in sorted(kinds, key=lambda kind: (sources.index(kind[1]), _ORDER.index(kind[0]))):
            for place, epsilon in enumerate(self.options.epsilons):
                by_seed = {
                    name: [of_seed[name][attack, source][place] for of_seed in curves]
                    for name in self.networks
                    if (attack, source) in curves[0][name]
                }
                cells = [mean_cell(by_seed[name]) if name in by_seed else "–" for name in self.networks]
                label = attack if source is None else f"{attack} from {source}"
                yield {"cells": [label, f"{epsilon:g}", *cells], "accuracy_percent": by_seed}
