"""The table type for adversarial attacks: accuracy under each attack, for networks stopped at the same error."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from capsella.data import load_data, single_images
from capsella.evaluation import AttackOptions, attack_networks, over_seeds
from capsella.experiments import Results
from capsella.files import read_json, write_json
from capsella.papers.table_types import ErrorRow, Published, diverged_phrase, hardware_of, seeds_of, seeds_phrase
from capsella.training import load_run

_ORDER = ("FGSM", "BIM", "PGD", "vote", "transfer")  # order of the rows; transferred attacks come last, by source


@dataclass(frozen=True, kw_only=True)
class AttackTable(Published):
    """Accuracy under attack: a row per attack and ε, a column per network. All networks see the same images.

    rows: the networks, whose labels are the heads. options: strength of the attacks; each run's seed replaces theirs.
    """

    rows: tuple[ErrorRow, ...]
    options: AttackOptions

    def build(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """See `Published.build`. Attacks are kept per seed in the folder."""
        attacks = [self._attacks(results, folder, seed, console) for seed in seeds_of(results)]
        rows = [
            self._row(attacks, "none", "0", "clean_accuracy_percent"),
            *self._attack_rows(attacks),
            self._row(attacks, "PGD, check for masked gradients", "1", "pgd_accuracy_at_epsilon_1_percent"),
        ]
        rows[0]["runs"] = results
        heads = [f"{row.label[0]}, accuracy %" for row in self.rows]
        measured = self._measured(results, attacks) + diverged_phrase(folder, results)
        return self.write(folder, command, measured, heads, rows)

    def _attacks(self, results: Results, folder: Path, seed: int, console: Console) -> dict[str, Any]:
        """Return the attacks on the networks of a seed; other options or networks than the file's are attacked anew."""
        path, options = folder / f"attacks-seed{seed}.json", replace(self.options, seed=seed)
        tests = {row.slug: next(run for run in results[row.slug] if run["seed"] == seed)["test"] for row in self.rows}
        digest = hashlib.sha256(json.dumps([asdict(options), tests]).encode()).hexdigest()
        values: dict[str, Any] = read_json(path) if path.exists() else {}
        if values.get("digest") != digest:
            console.print(f"attacks, seed {seed}")
            splits = load_data(self.rows[0].recipe.data)
            images = single_images(splits.test, "attacks")
            models = {row.label[0]: load_run(row.folder(folder, seed)).model for row in self.rows}
            under_attack = attack_networks(models, images, options, progress=console.is_terminal)
            networks = {name: result.to_dict() for name, result in under_attack.items()}
            values = {"digest": digest, "data": splits.name, "images": len(images), "networks": networks}
            write_json(path, values)
        return values

    def _measured(self, results: Results, attacks: list[dict[str, Any]]) -> str:
        missed = [
            f"; {row.label[0]} did not reach it with seed {run['seed']}"
            for row in self.rows
            for run in results[row.slug]
            if not run["training"]["stopped"]["reached"]
        ]
        masked = dict.fromkeys(
            name for attack in attacks for name, network in attack["networks"].items() if network["masked"]
        )
        stop = results[self.rows[0].slug][0]["training"]["stopped"]
        return (
            f"Stopped at {stop['at_error']:g} % {stop['on']} error or less{''.join(missed)}. Attacked: "
            f"{attacks[0]['images']} test images of {attacks[0]['data']}, at most ε away per pixel. Masked gradients: "
            f"{', '.join(masked) or 'none'}. {seeds_phrase(results).capitalize()}; {hardware_of(results)}."
        )

    def _row(self, attacks: list[dict[str, Any]], attack: str, epsilon: str, key: str) -> dict[str, Any]:
        by_seed = {row.label[0]: [of_seed["networks"][row.label[0]][key] for of_seed in attacks] for row in self.rows}
        cells = [attack, epsilon, *(over_seeds(values) for values in by_seed.values())]
        return {"cells": cells, "accuracy_percent": by_seed}

    def _attack_rows(self, attacks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield a row per attack and ε; a network that this attack does not apply to gets a dash."""
        names = [row.label[0] for row in self.rows]
        by_seed: dict[tuple[str | None, str], dict[str, list[list[float]]]] = {}
        for of_seed in attacks:
            for name, network in of_seed["networks"].items():
                for curve in network["attacks"]:
                    kind = by_seed.setdefault((curve["source"], curve["attack"]), {})
                    kind.setdefault(name, []).append(curve["accuracy_percent"])
        sources = [None, *names]
        for source, attack in sorted(by_seed, key=lambda kind: (sources.index(kind[0]), _ORDER.index(kind[1]))):
            curves = by_seed[source, attack]
            label = attack if source is None else f"{attack} from {source}"
            for at, epsilon in enumerate(self.options.epsilons):
                shares = {name: [curve[at] for curve in curves[name]] for name in names if name in curves}
                cells = [over_seeds(shares[name]) if name in shares else "–" for name in names]
                yield {"cells": [label, f"{epsilon:g}", *cells], "accuracy_percent": shares}
