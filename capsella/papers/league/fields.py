"""On which images the league is held, what changed images are tested beside them, and who takes part."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from capsella.data import DataOptions, LabelledImages, load_data, read_laboratory
from capsella.errors import ArgumentError, unknown_name
from capsella.grid import Budget, BudgetName, Row
from capsella.losses import Classification
from capsella.papers.ribeiro2020.recipes import WIDE
from capsella.routing import ROUTINGS, EMRouting, InvertedAttentionRouting, LogisticRouting, Routing, VariationalRouting
from capsella.training import ModelOptions, Recipe
from capsella.training.registry import get_recipe

OTHER_LABORATORY = "segmentation-wbc"
BEST: Mapping[str, Routing] = {
    "em": EMRouting(cost_scale=100.0, early_sharpness=1 / 64),
    "variational": VariationalRouting(bias=False, precision=WIDE),
}
"""Routings whose options are not their defaults. EM: costs that do not grow with the children, and soft couplings
before the last iteration. Variational: no β that batch normalisation takes away again, and a prior as wide as the votes
are. With their papers' options, both harden their couplings before the votes mean anything (LOG.md, L065)."""
OTHERS = {"cluster": "league_cluster", "average pooling": "league_pooling", "CNN": "league_cnn"}
"""Rows that are no routing of single votes, by their networks."""

SMALL = Budget(
    epochs=4, epoch_images=960, batch_size=32, validation_per_class=20, test_per_class=100, cosine=True, ema=0.98
)
SMALL_STOPPED = Budget(epochs=6, epoch_images=640, batch_size=32, validation_per_class=20, test_per_class=100, ema=0.98)
NIGHT = Budget(
    epochs=10, epoch_images=8_000, batch_size=32, validation_per_class=100, cosine=True, ema=0.999, precision="auto"
)
HALF_NIGHT = replace(NIGHT, epoch_images=4_000)
"""For images that networks have nearly learned by then."""
NIGHT_STOPPED = Budget(
    epochs=80, epoch_images=2_000, batch_size=32, validation_per_class=100, ema=0.999, precision="auto"
)
STOPS: Mapping[BudgetName, float] = {"small": 40.0, "night": 7.0, "full": 7.0}
"""Per cent of error on familiar elevations of other toys at which networks are compared on novel ones. Three toys of
each category train: lower ones are not reached, and at 15 % nothing was to be seen (LOG.md, L055)."""


@dataclass(frozen=True)
class Changed:
    """Test images that are unlike the training's. head: what they are. images: their name, and they themselves."""

    head: str
    images: Callable[[DataOptions], tuple[str, LabelledImages]]


@dataclass(frozen=True)
class Field:
    """One set of images.

    recipe: registered. sources: that may be named for it. changed: images that are tested beside its own, if any.
    stops: whether networks are compared on the changed images at an equal error on the others. budgets: by their names;
    without one, the recipe's whole training.
    """

    label: str
    recipe: str
    sources: tuple[str, ...]
    changed: Changed | None = None
    stops: bool = False
    budgets: Mapping[str, Budget] = field(default_factory=lambda: {"small": SMALL, "night": NIGHT})

    def base(self, budget: BudgetName, source: str) -> Recipe:
        """The recipe within a budget, on the images of a source."""
        recipe = get_recipe(self.recipe)
        recipe = replace(recipe, data=replace(recipe.data, name=source))
        if budget == "small":  # as the cosine's: the recipe's own would be most of so few steps
            recipe = replace(recipe, optimizer=replace(recipe.optimizer, warmup_steps=2))
        return self.budgets[budget].limit(recipe) if budget in self.budgets else recipe


def _novel(data: DataOptions) -> tuple[str, LabelledImages]:
    return _loaded(replace(data, test_viewpoints="novel"))


def _affine(data: DataOptions) -> tuple[str, LabelledImages]:
    return _loaded(replace(data, name="affnist-like"))


def _elsewhere(data: DataOptions) -> tuple[str, LabelledImages]:
    laboratory = read_laboratory(OTHER_LABORATORY, data)
    return laboratory.name, laboratory.of_classes(load_data(data).test.classes).images


def _loaded(data: DataOptions) -> tuple[str, LabelledImages]:
    splits = load_data(data)
    return splits.name, splits.test


FIELDS = (
    Field("smallNORB", "league-smallnorb", ("smallnorb", "smallnorb-jpeg")),
    Field(
        "smallNORB, a third of the elevations", "league-elevation", ("smallnorb-jpeg-poses",),
        Changed("novel elevations", _novel), stops=True, budgets={"small": SMALL_STOPPED, "night": NIGHT_STOPPED},
    ),
    Field(
        "MNIST", "league-digits", ("mnist40",),
        Changed("affine digits", _affine), budgets={"small": SMALL, "night": HALF_NIGHT},
    ),
    Field(
        "blood cells", "league-cells", ("pbc",),
        Changed("another laboratory", _elsewhere), budgets={"small": SMALL, "night": HALF_NIGHT},
    ),
    Field("CIFAR-10", "league-photographs", ("cifar10", "cifar10-jpeg")),
)  # fmt: skip
SOURCE_OF = {"mnist": "mnist40"}
"""Sources that stand for another one."""


def fields_on(sources: str) -> tuple[tuple[Field, str], ...]:
    """Fields and their sources, from names with commas between them.

    Raises:
        ValueError: the league has no such source (suggests the nearest), or it is named twice.
    """
    by_source = {source: one for one in FIELDS for source in one.sources}
    names = [SOURCE_OF.get(name, name) for name in sources.split(",")]
    if len(set(names)) < len(names):
        raise ArgumentError("data", "name each source once", sources)
    for name in names:
        if name not in by_source:
            raise unknown_name("data", name, by_source)
    return tuple((by_source[name], name) for name in names)


@dataclass(frozen=True, kw_only=True)
class Entrant(Row):
    """One network on one set of images.

    label: the images and the routing. even: the slug of the row that is the same with even couplings, where there is
    one.
    """

    label: tuple[str, str]
    even: str | None = None


def entrants(on: Field, source: str, budget: BudgetName) -> tuple[Entrant, ...]:
    """Every registered routing, the same with even couplings, and networks without any."""
    base = on.base(budget, source)
    usual: dict[str, Any] = {name: value for name, value in base.model.options.items() if name != "routing"}
    routings = {name: BEST.get(name, kind()) for name, kind in sorted(ROUTINGS.items())}
    evens = {name: even for name, routing in routings.items() if (even := _even(routing)) is not None}
    twins = {name: f"{name}, even" for name in evens} | ({"dynamic": "uniform"} if "uniform" in routings else {})
    routings |= {twins[name]: even for name, even in evens.items()}
    models: dict[str, tuple[ModelOptions, Classification]] = {
        name: (ModelOptions(base.model.name, {**usual, "routing": routing}), _loss(routing))
        for name, routing in sorted(routings.items())
    }
    models |= {label: (ModelOptions(name, usual), "cross_entropy") for label, name in OTHERS.items()}
    return tuple(
        Entrant(
            slug=_slug(source, label),
            recipe_name=on.recipe,
            recipe=replace(base, model=model, loss=replace(base.loss, name=loss)),
            label=(on.label, label.replace("_", " ")),
            even=_slug(source, twins[label]) if label in twins else None,
        )
        for label, (model, loss) in models.items()
    )


def _slug(source: str, label: str) -> str:
    return f"{source}-{label.replace(', ', '-').replace(' ', '-')}"


def _even(routing: Routing) -> Routing | None:
    """The same with even couplings, where no other routing is that: dynamic's is the uniform one."""
    if isinstance(routing, LogisticRouting):
        return routing.once()
    return replace(routing, iterations=1) if isinstance(routing, InvertedAttentionRouting) else None


def _loss(routing: Routing) -> Classification:
    """Lengths are no logits: where all are long, as at first, their cross-entropy has no slope."""
    return "margin" if routing.activation_kind == "lengths" else "cross_entropy"
