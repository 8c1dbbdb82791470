"""The trained networks of a comparison, and the best of each kind by validation."""

from dataclasses import dataclass, field

from rich.console import Console

from capsella.compare.networks import Candidate, Family
from capsella.compare.options import RATES
from capsella.compare.plan import Plan
from capsella.errors import CapsellaError
from capsella.experiments import LearningRateSearch, Row, Runner, Stopwatch, ValidationResult
from capsella.training import ComputeOptions

FAMILIES: tuple[Family, Family] = ("capsules", "CNN")


@dataclass
class Trained:
    """A network of the comparison. by_share: the runs by seed of the best learning rate on shares of the images."""

    candidate: Candidate
    search: LearningRateSearch
    by_share: dict[float, dict[int, ValidationResult]] = field(default_factory=dict)

    @property
    def by_seed(self) -> dict[int, ValidationResult]:
        """The runs at the best learning rate."""
        return self.search.by_seed

    @property
    def validation_error(self) -> float:
        """Mean over seeds, in per cent; infinite where a training diverged."""
        return sum(run.error for run in self.by_seed.values()) / len(self.by_seed)

    @property
    def best_seed(self) -> int:
        """The one that is shipped: the lowest validation error, then loss."""
        return min(self.by_seed, key=lambda seed: self.by_seed[seed].rank)


def train_all(plan: Plan, console: Console) -> tuple[list[Trained], dict[Family, Trained]]:
    """Train what is missing of a plan.

    Returns:
        The networks, and the best of each kind by validation: its mean error over seeds, then the fewer parameters.

    Raises:
        CapsellaError: no network of a kind could be trained; and what `train` raises.
    """
    seeds, shares = plan.options.asked_seeds, plan.options.shares
    estimates = {one.network: plan.seconds(one.network) for one in plan.candidates}
    for family in FAMILIES:  # which networks the data-size curve is of is not known yet
        each = [estimates[one.network] for one in plan.candidates if one.family == family]
        estimates[_share_cost(family)] = sum(each) / len(each)
    compute = ComputeOptions(accelerator=plan.options.accelerator)
    grid = Runner(plan.folder / "runs", console, compute, Stopwatch(estimates))
    rows = [
        Row(slug=one.network, recipe_name=one.recipe_name, recipe=plan.recipe(one), cost=one.network)
        for one in plan.candidates
    ]
    later = [_share_cost(family) for family in FAMILIES for _ in range(len(shares) * len(seeds))]
    found = grid.search_learning_rates(rows, seeds, RATES[plan.options.rates], later)
    networks = [Trained(one, search) for one, search in zip(plan.candidates, found, strict=True)]
    champions = {family: _champion(networks, family) for family in FAMILIES}
    for share in shares:
        parts = [_on_share(plan, one, share) for one in champions.values()]
        for one, runs in zip(champions.values(), grid.validate(parts, seeds), strict=True):
            one.by_share[share] = runs
    return networks, champions


def _on_share(plan: Plan, one: Trained, share: float) -> Row:
    """The network at its best rate on a share of the training images."""
    candidate, rate = one.candidate, one.search.best
    slug = f"{candidate.network}-rate{rate:g}-share{share:g}"
    recipe = plan.recipe(candidate, rate, share)
    return Row(slug=slug, recipe_name=candidate.recipe_name, recipe=recipe, cost=_share_cost(candidate.family))


def _share_cost(family: Family) -> str:
    return f"share of {family}"


def _champion(networks: list[Trained], family: Family) -> Trained:
    """The best of a kind by validation, of those whose every run came to an end."""
    whole = [one for one in networks if one.candidate.family == family and one.validation_error < float("inf")]
    if not whole:
        raise CapsellaError(f"every network of the {family} diverged in training; there is nothing to compare")
    return min(whole, key=lambda one: (one.validation_error, one.candidate.parameters))
