"""Measure domain generalisation: train on some domains, e.g. laboratories, and test on another, in turn.

Classes are those that all domains have, by name. Each network sees equally many images, and each class of each domain
equally often. Every image of a domain that was left out is tested; none is used for model selection.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from capsella.data import (
    Domain,
    DomainData,
    FolderData,
    ImageSet,
    common_classes,
    copies_among,
    read_domain,
)
from capsella.errors import ArgumentError, CapsellaError, check_argument, check_minimum, near_names, pluralize
from capsella.evaluation import accuracy_interval, points
from capsella.experiments import (
    CorrectnessTable,
    Row,
    Runner,
    check_images_unchanged,
    reevaluate,
)
from capsella.files import write_json
from capsella.papers.own_images import CHOSEN_ON
from capsella.papers.table_types import with_test
from capsella.training import ComputeOptions, Recipe
from capsella.training.registry import get_recipe


@dataclass(frozen=True)
class DomainOptions:
    """A comparison of several domains.

    domains: two or more folders, .npz files or named sources. recipes: what to train, for your own images. seeds:
    number of seeds. train_on: "others" trains on all domains except one and tests on that, "one" trains on each alone
    and tests on every other, and the name of a domain trains on that alone; default: others for three or more.
    epochs: epochs of 1,503 images each, whatever the domains have; default: the recipe's; a logistic regression has
    one. size: pixels per side; default: the recipe's. The other fields are those of `DomainData`.

    Raises:
        ArgumentError: a field is outside its range.
    """

    domains: tuple[str, ...]
    recipes: tuple[str, ...] = ("images-efficient", "images-resnet")
    seeds: int = 3
    train_on: str | None = None
    epochs: int | None = None
    size: int | None = None
    channels: Literal[1, 3] = 3
    classes: tuple[str, ...] = ()
    group: str | None = None
    skip_broken: bool = False
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    out: Path = Path("runs") / "compare-domains"

    def __post_init__(self) -> None:
        different = len({Path(domain).resolve() for domain in self.domains}) == len(self.domains) > 1
        check_argument(different, "be two or more different ones", domains=self.domains)
        is_known = self.train_on in (None, "one", "others") or self._named(self.train_on) is not None
        rule = f'be "one", "others" or one of the domains ({", ".join(self.domains)})'
        check_argument(is_known, rule, train_on=self.train_on)
        check_minimum(1, seeds=self.seeds, epochs=self.epochs, recipes=len(self.recipes))

    def data(self, recipe: Recipe) -> DomainData:
        """Return the options for reading the images of all domains for a recipe."""
        return DomainData(
            self.domains,
            size=self.size or recipe.data.size,
            channels=self.channels,
            cells=recipe.data.cells,
            group=self.group,
            skip_broken=self.skip_broken,
        )

    @property
    def trainings(self) -> list[tuple[str, ...]]:
        """The sets of domains that a network is trained on together."""
        how = self.train_on or ("others" if len(self.domains) > 2 else "one")
        if (named := self._named(how)) is not None:
            return [(named,)]
        if how == "one":
            return [(domain,) for domain in self.domains]
        return [tuple(domain for domain in self.domains if domain != left_out) for left_out in self.domains]

    def _named(self, name: str) -> str | None:
        """Return the domain with this name, or this path with or without a slash at its end."""
        return next((domain for domain in self.domains if Path(domain).resolve() == Path(name).resolve()), None)

    def slug(self, domain: str) -> str:
        """Return the name of a domain in folder names."""
        stems = [Path(each).resolve().stem for each in self.domains]
        number = self.domains.index(domain)
        return stems[number] if len(set(stems)) == len(stems) else f"{stems[number]}-{number + 1}"


def compare_domains(options: DomainOptions, console: Console) -> list[dict[str, Any]]:
    """Train what is missing, test, write domains.json and return its results: one per network and domain left out.

    A result has the accuracy and balanced accuracy on that domain, and the accuracy on the test images of the domains
    that the network was trained on, each with its 95 % interval, and the error of each seed in per cent. `gain` is the
    gain in accuracy of the first recipe over this one, with its interval and p-value; None for recipes that crop cells
    in another way.

    Raises:
        CapsellaError: the domains have fewer than two common classes, cannot be read, have changed since a run, or
            contain `out`; or as for `train`.
    """
    data = {name: options.data(_recipe(name)) for name in options.recipes}
    data[options.recipes[0]].check_outside(options.out)
    read = {each: _read_domains(each, options.classes) for each in dict.fromkeys(data.values())}
    domains = read[data[options.recipes[0]]]
    classes = next(iter(domains.values())).images.classes
    _print_domains(domains, console)
    plan = [(name, trained_on) for trained_on in options.trainings for name in options.recipes]
    rows = [_row(options, name, trained_on, classes) for name, trained_on in plan]
    seeds = range(options.seeds)
    trained = Runner(options.out, console, ComputeOptions(accelerator=options.accelerator)).results(rows, seeds)
    if diverged := [slug for slug, runs in trained.items() if len(runs) < len(seeds)]:
        raise CapsellaError(f"{options.out}: diverged: {', '.join(diverged)}; remove their folders to train them again")
    results: list[dict[str, Any]] = []
    first: dict[tuple[tuple[str, ...], str], CorrectnessTable] = {}  # of the first recipe
    for row, (name, trained_on) in zip(rows, plan, strict=True):
        tasks = [row.task(options.out, seed) for seed in seeds]
        check_images_unchanged(tasks)
        own = CorrectnessTable.from_tests([run["test"] for run in trained[row.slug]])
        for domain in [domain for domain in options.domains if domain not in trained_on]:
            images = read[data[name]][domain].images
            table = _test_on(images, f"on-{options.slug(domain)}", [task.folder for task in tasks])
            of_first = first.setdefault((trained_on, domain), table)
            accuracy = accuracy_interval(*table)
            # Recipes that crop differently may have left out different images.
            is_paired = of_first is not table and data[name].cells == data[options.recipes[0]].cells
            results.append(
                {
                    "recipe": name,
                    "trained_on": list(trained_on),
                    "tested_on": domain,
                    "images": len(images),
                    "error_percent": 100 - 100 * accuracy.estimate,
                    "error_percent_by_seed": [100 * float(1 - seed.mean()) for seed in table.correct],
                    "accuracy": accuracy.to_dict(),
                    "balanced_accuracy": accuracy_interval(*table, labels=images.labels.numpy()).to_dict(),
                    "in_domain_accuracy": accuracy_interval(*own).to_dict(),
                    "gain": with_test(of_first.difference_from(table)) if is_paired else None,
                }
            )
    write_json(options.out / "domains.json", {"classes": classes, "results": results})
    return results


def _read_domains(data: DomainData, classes: tuple[str, ...]) -> dict[str, Domain]:
    """Read every domain, with these classes; without any, with those that all have."""
    domains = {domain: read_domain(domain, data) for domain in data.domains}
    sets = [domain.images for domain in domains.values()]
    classes = classes or common_classes(sets, data.domains)
    chosen = {name: domain.of_classes(classes) for name, domain in domains.items()}
    for label in classes:
        if not any(domain.images.counts()[label] for domain in chosen.values()):
            known = {name for images in sets for name in images.classes}
            raise CapsellaError(f"classes: no domain has images of {label!r}; {near_names(label, known)}")
    return chosen


def _print_domains(domains: dict[str, Domain], console: Console) -> None:
    """Print the classes of each domain, and warn of images that are in two domains, which make tests too optimistic."""
    for name, domain in domains.items():
        counts = ", ".join(f"{label} {count}" for label, count in domain.images.counts().items())
        console.print(f"{name}: {counts}", *domain.lines(), sep="\n", markup=False, soft_wrap=True)
    for first, second in combinations(domains, 2):
        if copies := len(copies_among(domains[second].images, domains[first].images)):
            text = f"WARNING: {pluralize(copies, 'image')} of {second} are copies of images of {first}"
            console.print(text, soft_wrap=True)


def _recipe(name: str) -> Recipe:
    recipe = get_recipe(name)
    if not isinstance(recipe.data, FolderData):
        raise ArgumentError("recipes", "be for images of one's own, e.g. images-efficient", name)
    return recipe


def _scaled_shift(recipe: Recipe, size: int | None) -> int:
    """Return the recipe's random shift in pixels, as the same fraction of the side."""
    usual = recipe.data.size
    return recipe.augment.shift if size is None or usual is None else round(recipe.augment.shift * size / usual)


def _row(options: DomainOptions, name: str, trained_on: tuple[str, ...], classes: tuple[str, ...]) -> Row:
    default = _recipe(name)
    recipe: Recipe = replace(
        default,
        data=replace(options.data(default), domains=trained_on, classes=classes),
        augment=replace(default.augment, shift=_scaled_shift(default, options.size)),
        balance="sampling",
    )
    if default.optimizer.method != "logistic_regression":
        recipe = replace(recipe, epochs=options.epochs or default.epochs, epoch_images=CHOSEN_ON)
    where = "+".join(map(options.slug, trained_on))
    return Row(slug=f"{name}-{where}", recipe_name=name, recipe=recipe, cost=name)


def _test_on(images: ImageSet, name: str, folders: Sequence[Path]) -> CorrectnessTable:
    """Test runs on another domain's images; the names of the cached results tell changed images apart."""
    shown = [images.images, images.labels, *([] if images.group is None else [images.group])]
    content = hashlib.sha256(b"".join(part.numpy().tobytes() for part in shown)).hexdigest()[:8]
    return CorrectnessTable.from_tests(
        [reevaluate(folder, f"{name}-{content}", lambda: (name, images)) for folder in folders]
    )


def domain_table(results: Sequence[Mapping[str, Any]]) -> Table:
    """Return a row for each network and each domain that was left out."""
    seeds = pluralize(len(results[0]["error_percent_by_seed"]), "seed")
    caption = f"{seeds}; 95 % intervals. in-domain: test images of the domains it was trained on"
    table = Table("tested on", "trained on", "recipe", caption=caption, pad_edge=False, box=None)
    for head in ("in-domain", "accuracy %", "balanced accuracy %"):
        table.add_column(head, justify="right")
    for result in results:
        names = [f"{result['tested_on']} ({pluralize(result['images'], 'image')})", ", ".join(result["trained_on"])]
        numbers = [_percent(result[name]) for name in ("in_domain_accuracy", "accuracy", "balanced_accuracy")]
        table.add_row(*map(Text, [*names, result["recipe"], *numbers]))
    return table


def domain_gains(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each domain and each recipe but the first, which it is compared with."""
    lines, name = [], results[0]["recipe"]
    for result in [result for result in results if result["gain"] is not None]:
        gain, low, high = (points(result["gain"][bound]) for bound in ("estimate", "low", "high"))
        where = f"{result['tested_on']}, trained on {', '.join(result['trained_on'])}"
        lines.append(f"{where}: {name} over {result['recipe']} {gain} points ({low} to {high})")
    return lines


def _percent(interval: Mapping[str, float]) -> str:
    return "{:.1f}\n({:.1f}–{:.1f})".format(*(100 * interval[name] for name in ("estimate", "low", "high")))
