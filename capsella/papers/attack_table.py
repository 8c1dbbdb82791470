"""The table type for adversarial attacks: accuracy under each attack, for networks stopped at the same error."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from capsella.data import load_data, single_images
from capsella.errors import ArgumentError, CapsellaError
from capsella.evaluation import AttackOptions, attack_networks, over_seeds
from capsella.experiments import Results, Row
from capsella.files import read_json, write_json
from capsella.papers.table_types import (
    Published,
    diverged_phrase,
    hardware_of,
    seeds_of,
    seeds_phrase,
    table_values,
)
from capsella.training import load_run

_ORDER = ("FGSM", "BIM", "PGD", "vote", "transfer")  # order of the rows; transferred attacks come last, by source


@dataclass(frozen=True, kw_only=True)
class AttackTable(Published):
    """Accuracy under attack: a row per attack and ε, a column per network. All networks see the same images.

    networks: the runs, by column head. options: strength of the attacks; each run's seed replaces the one in them.

    Raises:
        ValueError: no network, or networks of different images.
    """

    networks: Mapping[str, Row]
    options: AttackOptions
    columns: tuple[str, ...] = ("attack", "ε")
    requires_common_seeds: bool = True

    def __post_init__(self) -> None:
        if len({row.recipe.data for row in self.networks.values()}) != 1:
            raise ArgumentError("networks", "be at least one, all of the same images", list(self.networks))

    @property
    def rows(self) -> tuple[Row, ...]:
        """Return the runs."""
        return tuple(self.networks.values())

    def on(self, source: str) -> "AttackTable":
        """Return the table for images of another source."""
        return replace(self, networks={name: row.on(source) for name, row in self.networks.items()})

    def build(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """See `Published.build`.

        Raises:
            CapsellaError: the folder holds attacks with other options, or on networks that were retrained since.
        """
        attacks = [self._attacks(results, folder, seed, console) for seed in seeds_of(results)]
        clean = self._row(attacks, "none", "0", "clean_accuracy_percent")
        clean |= {"runs": {name: results[row.slug] for name, row in self.networks.items()}, "attacks": attacks}
        masked = self._row(attacks, "PGD, check for masked gradients", "1", "pgd_accuracy_at_epsilon_1_percent")
        measured = self._measured(results, attacks) + diverged_phrase(folder, [row.slug for row in self.rows])
        columns = [f"{name}, accuracy %" for name in self.networks]
        values = table_values(self, measured, command, columns, [clean, *self._attack_rows(attacks), masked])
        write_json(self.path(folder), values)
        return values

    def _attacks(self, results: Results, folder: Path, seed: int, console: Console) -> dict[str, Any]:
        """Return the results of every attack on the networks of one seed, from the folder's JSON if it exists."""
        path, options = folder / f"attacks-seed{seed}.json", replace(self.options, seed=seed)
        # The digest of a network's test result changes if the network is retrained.
        tests = {
            name: json.dumps(next(run for run in results[row.slug] if run["seed"] == seed)["test"])
            for name, row in self.networks.items()
        }
        tested = {name: hashlib.sha256(test.encode()).hexdigest() for name, test in tests.items()}
        wanted = json.loads(json.dumps({"options": asdict(options), "tested": tested}))
        if not path.exists():
            console.print(f"attacks on {', '.join(self.networks)}, seed {seed}")
            splits = load_data(self.rows[0].recipe.data)
            images = single_images(splits.test, "attacks")
            models = {name: load_run(row.folder(folder, seed)).model for name, row in self.networks.items()}
            under_attack = attack_networks(models, images, options, progress=console.is_terminal)
            networks = {name: result.to_dict() for name, result in under_attack.items()}
            write_json(path, {"data": splits.name, "images": len(images), **wanted, "networks": networks})
        values: dict[str, Any] = read_json(path)
        if {key: values[key] for key in wanted} != wanted:
            raise CapsellaError(f"{path} holds other attacks, or attacks on other networks; move that file away")
        return values

    def _measured(self, results: Results, attacks: list[dict[str, Any]]) -> str:
        missed = [
            f"; {name} did not reach it with seed {run['seed']}"
            for name, row in self.networks.items()
            for run in results[row.slug]
            if not run["training"]["stopped"]["reached"]
        ]
        masked = [name for name in self.networks if any(attack["networks"][name]["masked"] for attack in attacks)]
        stop = results[self.rows[0].slug][0]["training"]["stopped"]
        return (
            f"Stopped at {stop['at_error']:g} % {stop['on']} error or less{''.join(missed)}. Attacked: "
            f"{attacks[0]['images']} test images of {attacks[0]['data']}, at most ε away per pixel. Masked gradients: "
            f"{', '.join(masked) or 'none'}. {seeds_phrase(results).capitalize()}; {hardware_of(results)}."
        )

    def _row(self, attacks: list[dict[str, Any]], attack: str, epsilon: str, key: str) -> dict[str, Any]:
        by_seed = {name: [of_seed["networks"][name][key] for of_seed in attacks] for name in self.networks}
        cells = [attack, epsilon, *(over_seeds(values) for values in by_seed.values())]
        return {"cells": cells, "accuracy_percent": by_seed}

    def _attack_rows(self, attacks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield a row per attack and ε; a network that this attack does not apply to gets a dash."""
        by_seed: dict[tuple[str | None, str], dict[str, list[list[float]]]] = {}
        for of_seed in attacks:
            for name, network in of_seed["networks"].items():
                for curve in network["attacks"]:
                    kind = by_seed.setdefault((curve["source"], curve["attack"]), {})
                    kind.setdefault(name, []).append(curve["accuracy_percent"])
        sources = [None, *self.networks]
        for source, attack in sorted(by_seed, key=lambda kind: (sources.index(kind[0]), _ORDER.index(kind[1]))):
            curves = by_seed[source, attack]
            label = attack if source is None else f"{attack} from {source}"
            for at, epsilon in enumerate(self.options.epsilons):
                shares = {name: [curve[at] for curve in curves[name]] for name in self.networks if name in curves}
                cells = [over_seeds(shares[name]) if name in shares else "–" for name in self.networks]
                yield {"cells": [label, f"{epsilon:g}", *cells], "accuracy_percent": shares}
