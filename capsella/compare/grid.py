"""The runs of a comparison: what is missing is trained, what was interrupted resumed, what is there read."""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from capsella.compare.networks import Candidate, Family
from capsella.compare.plan import Plan
from capsella.errors import CapsellaError
from capsella.files import write_json
from capsella.grid.run import trained_run
from capsella.training import TrainingDivergedError


class Validated(NamedTuple):
    """The best epoch of a run by its validation images; error in per cent, infinite where the training diverged."""

    folder: Path
    error: float
    loss: float
    epoch: int
    seconds: float

    @property
    def rank(self) -> tuple[float, float]:
        """Less is better: the error, then the loss."""
        return self.error, self.loss


@dataclass
class Trained:
    """A network of the comparison. tried: the first seed's run by learning rate. rate: the best of them by validation.

    by_seed: runs at that rate; none where every rate diverged. by_share: the same for shares of the training images.
    """

    candidate: Candidate
    tried: dict[float, Validated] = field(default_factory=dict)
    rate: float = 0.0
    by_seed: dict[int, Validated] = field(default_factory=dict)
    by_share: dict[float, dict[int, Validated]] = field(default_factory=dict)

    @property
    def validation_error(self) -> float:
        """Mean over seeds, in per cent."""
        return sum(run.error for run in self.by_seed.values()) / len(self.by_seed)

    @property
    def best_seed(self) -> int:
        """The one that is shipped: the lowest validation error, then loss."""
        return min(self.by_seed, key=lambda seed: self.by_seed[seed].rank)


@dataclass
class Grid:
    """All runs of a plan, and how long the rest takes."""

    plan: Plan
    console: Console
    number: int = 0
    spent: float = 0.0
    expected: float = 0.0
    """Seconds that the runs trained in this call took, and were estimated to take."""
    done: float = 0.0
    """Seconds that all runs so far were estimated to take."""

    def run(self) -> tuple[list[Trained], dict[Family, Trained]]:
        """Train everything.

        Returns:
            The networks, and the best of each kind by validation: its mean error over seeds, then the fewer parameters.

        Raises:
            CapsellaError: no network of a kind could be trained; and what `train` raises.
        """
        networks = [Trained(candidate) for candidate in self.plan.candidates]
        self._search(networks)
        for seed in self.plan.options.seeds[1:]:
            for network in networks:
                network.by_seed[seed] = self._train(network.candidate, network.rate, seed)
        champions: dict[Family, Trained] = {family: _champion(networks, family) for family in ("capsules", "CNN")}
        for share in self.plan.options.shares:
            for network in champions.values():
                network.by_share[share] = {
                    seed: self._train(network.candidate, network.rate, seed, share) for seed in network.by_seed
                }
        return networks, champions

    def _search(self, networks: list[Trained]) -> None:
        """Every learning rate with the first seed."""
        first = self.plan.options.seeds[0]
        for position in range(len(self.plan.rates(networks[0].candidate))):
            for network in networks:
                rate = self.plan.rates(network.candidate)[position]
                network.tried[rate] = self._train(network.candidate, rate, first)
        for network in networks:
            network.rate = min(network.tried, key=lambda rate: network.tried[rate].rank)
            network.by_seed[first] = network.tried[network.rate]

    def _train(self, candidate: Candidate, rate: float, seed: int, share: float = 1.0) -> Validated:
        """One run; a training that diverges is a result, not an error."""
        part = "" if share == 1 else f", {100 * share:g} % of the training images"
        what = f"{candidate.network}, learning rate {rate:g}, seed {seed}{part}"
        self._tell(what)
        slug = f"{candidate.network}-rate{rate:g}-seed{seed}" + ("" if share == 1 else f"-share{share:g}")
        folder = self.plan.folder / "runs" / slug
        was_trained = (folder / "summary.json").exists() or (folder / "diverged.json").exists()
        began, estimate = time.monotonic(), self.plan.seconds(candidate.network)
        found = self._validated(candidate, rate, seed, share, folder)
        self.done += estimate
        if not was_trained:
            self.spent += time.monotonic() - began
            self.expected += estimate
        return found

    def _validated(self, candidate: Candidate, rate: float, seed: int, share: float, folder: Path) -> Validated:
        diverged = Validated(folder, float("inf"), float("inf"), 0, 0.0)
        if (folder / "diverged.json").exists():
            return diverged
        recipe = self.plan.recipe(candidate, rate, seed, share)
        try:
            trained_run(recipe, folder, candidate.network, self.console)
        except TrainingDivergedError as error:
            self.console.print(f"diverged: {error}", markup=False, soft_wrap=True)
            write_json(folder / "diverged.json", {"reason": str(error)})
            return diverged
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        best = summary["best"]
        return Validated(folder, best["validation_error"], best["validation_loss"], best["epoch"], summary["seconds"])

    def _tell(self, what: str) -> None:
        """One line a run: which it is, and the time left, corrected by how long the runs so far took."""
        self.number += 1
        given = self.plan.options
        total = len(self.plan.candidates) * self.plan.runs_each + 2 * len(given.shares) * len(given.seeds)
        whole = self.plan.total_seconds()
        trust = 0.1 * whole  # in the estimate: a first run that is short says little
        pace = (self.spent + trust) / (self.expected + trust)
        left = duration(max(0.0, whole - self.done) * pace)
        self.console.print(f"run {self.number} of {total}, about {left} left: {what}", soft_wrap=True, markup=False)


def _champion(networks: list[Trained], family: Family) -> Trained:
    """The best of a kind by validation, of those whose every run came to an end."""
    whole = [one for one in networks if one.candidate.family == family and one.validation_error < float("inf")]
    if not whole:
        raise CapsellaError(f"every network of the {family} diverged in training; there is nothing to compare")
    return min(whole, key=lambda one: (one.validation_error, one.candidate.parameters))


def duration(seconds: float) -> str:
    """Hours and minutes, or seconds where it is less than two minutes.

    >>> duration(45), duration(600), duration(9000)
    ('45 s', '10 min', '2 h 30 min')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
