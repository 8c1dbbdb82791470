"""Train in one or several laboratories, test in another, each left out in turn: does a network travel?

Classes are those that all laboratories have, by name. Each network sees as many images, and each class of each
laboratory as often (`capsella.training.balance`). Every image of a laboratory that was left out is tested; none of them
chooses anything.
"""

import hashlib
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import tyro
from rich.console import Console

from capsella.data import (
    Domain,
    DomainData,
    ImageSet,
    common_classes,
    copies_among,
    load_data,
    read_domain,
    similar_names,
    single_images,
)
from capsella.errors import ArgumentError, CapsellaError, check_argument, check_minimum, near_names, pluralize
from capsella.evaluation import Groups, Interval, accuracy_interval, balanced_interval, evaluate
from capsella.experiments import Row, Runner, check_none_diverged
from capsella.files import write_json, write_text
from capsella.image_options import Cells
from capsella.papers.own_images import CHOSEN_ON
from capsella.training import ComputeOptions, Recipe, RunFolder, load_run
from capsella.training.recipes import get_recipe


@dataclass(frozen=True)
class TransferOptions:
    """Train in one or several laboratories and test in another, each left out in turn.

    Classes are those that all of them have, by name.

    Each class of each laboratory is drawn as often as the others.

    Interrupted and called again, it goes on.

    Raises:
        ValueError: a field is outside its range.
    """

    laboratories: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="LABORATORY …")]
    """Two or more: folders with one sub-folder a class, .npz files, or named sources."""
    recipes: tuple[str, ...] = ("images-efficient", "images-resnet")
    """What is trained: recipes for images of one's own; those for stained cells, as images-cells-efficient, cut each
    cell out."""
    seeds: int = 3
    """Each is trained with so many seeds, from 0 on."""
    train_on: Literal["one", "others"] | None = None
    """others: train in all laboratories but one, and test in that. one: train in each alone, and test in every other.
    Default: others for three or more laboratories."""
    epochs: int | None = None
    """Of 1,503 images each, whatever the laboratories have; default: the recipe's."""
    size: int = 64
    """Crop the centre to a square and resize to this many pixels a side."""
    channels: Literal[1, 3] = 3
    """3 converts to RGB, 1 to grey."""
    classes: tuple[str, ...] = ()
    """Only these classes; default: those that all laboratories have."""
    group: str | None = None
    """A regular expression whose one capture group, found in the path, names the patient or slide, as
    'patient([0-9]+)': of every folder; of an .npz file, an array of integers. No patient is then both learned from and
    tested, and intervals are over patients."""
    skip_broken: bool = False
    """Leave out images that cannot be read, and list them, instead of stopping at the first."""
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train."""
    out: Path = Path("runs") / "transfer"
    """Folder for the runs, transfer.json and transfer.txt."""

    def __post_init__(self) -> None:
        places = {Path(one).resolve() for one in self.laboratories}
        different = len(places) == len(self.laboratories) > 1
        check_argument(different, "be two or more different ones", laboratories=self.laboratories)
        check_minimum(1, seeds=self.seeds, epochs=self.epochs, recipes=len(self.recipes))

    @property
    def data(self) -> DomainData:
        """How images are read."""
        return DomainData(
            self.laboratories,
            size=self.size,
            channels=self.channels,
            group=self.group,
            skip_broken=self.skip_broken,
        )

    @property
    def trainings(self) -> list[tuple[str, ...]]:
        """The laboratories that networks are trained in, together."""
        every = self.laboratories
        if (self.train_on or ("others" if len(every) > 2 else "one")) == "one":
            return [(one,) for one in every]
        return [tuple(one for one in every if one != left_out) for left_out in every]


class Tested(NamedTuple):
    """A network of one recipe on the images of a laboratory that it never saw: shares of hits, with 95 % intervals.

    own: accuracy on the test images of the laboratories it was trained in. each: error of each seed, in per cent.
    """

    recipe: str
    trained_in: tuple[str, ...]
    tested_in: str
    images: int
    accuracy: Interval
    balanced: Interval
    own: Interval
    each: list[float]


def transfer(options: TransferOptions, console: Console) -> tuple[list[Tested], str]:
    """Train what is missing, test, and write transfer.json and transfer.txt; returns the results and the text.

    Raises:
        CapsellaError: laboratories without two classes in common, or that cannot be read, whose images have changed
            since a run, or that `out` lies in; and what `train` raises.
    """
    options.data.check_outside(options.out)
    forms = {name: _usual(name).data.cells for name in options.recipes}
    read = {cells: _read(options, cells) for cells in dict.fromkeys(forms.values())}
    laboratories = next(iter(read.values()))
    classes = next(iter(laboratories.values())).images.classes
    _tell(laboratories, console)
    plan = [(recipe, places) for places in options.trainings for recipe in options.recipes]
    rows = [_row(options, recipe, places, classes) for recipe, places in plan]
    seeds = range(options.seeds)
    trained = Runner(options.out, console, ComputeOptions(accelerator=options.accelerator)).results(rows, seeds)
    check_none_diverged(trained, seeds, options.out)
    found = []
    for row, (recipe, places) in zip(rows, plan, strict=True):
        folders = [row.folder(options.out, seed) for seed in seeds]
        splits = load_data(row.recipe.data)
        for folder in folders:
            RunFolder(folder).check_images(splits)
        own = _Hits.of(folders, "own", single_images(splits.test, "transfers"))
        for place in [one for one in options.laboratories if one not in places]:
            hits = _Hits.of(folders, f"in-{_slug(place, options)}", read[forms[recipe]][place].images)
            found.append(hits.tested(recipe, places, place, own))
    text = as_text(found, {place: laboratory.images for place, laboratory in laboratories.items()})
    write_text(options.out / "transfer.txt", text + "\n")
    write_json(options.out / "transfer.json", {"classes": classes, "results": [_as_dict(one) for one in found]})
    return found, text


def _read(options: TransferOptions, cells: Cells) -> dict[str, Domain]:
    """Every laboratory, with the same classes."""
    every = {place: read_domain(place, replace(options.data, cells=cells)) for place in options.laboratories}
    sets = [one.images for one in every.values()]
    classes = options.classes or common_classes(sets, options.laboratories)
    kept = {place: one.of_classes(classes) for place, one in every.items()}
    for name in classes:
        if not any(one.images.counts()[name] for one in kept.values()):
            known = {name for images in sets for name in images.classes}
            raise CapsellaError(f"classes: no laboratory has images of {name!r}; {near_names(name, known)}")
    return kept


def _tell(laboratories: dict[str, Domain], console: Console) -> None:
    """What each has; a warning where one has copies of another's images, which would make the test too good."""
    for place, laboratory in laboratories.items():
        each = ", ".join(f"{name} {count}" for name, count in laboratory.images.counts().items())
        elsewhere = {name for other, one in laboratories.items() if other != place for name in one.left_out}
        alike = similar_names(place, laboratory.left_out, elsewhere - set(laboratory.left_out))
        console.print(f"{place}: {each}", *laboratory.lines(), *alike, sep="\n", markup=False, soft_wrap=True)
    places = list(laboratories)
    for k, place in enumerate(places):
        for other in places[:k]:
            copies = copies_among(laboratories[place].images, laboratories[other].images)
            if len(copies):
                what = pluralize(len(copies), "image")
                console.print(f"WARNING: {what} of {place} are copies of images of {other}", soft_wrap=True)


def _usual(name: str) -> Recipe:
    recipe = get_recipe(name)
    if recipe.data.name != "folder":
        raise ArgumentError("recipes", "be for images of one's own, as images-efficient", name)
    return recipe


def _row(options: TransferOptions, name: str, places: tuple[str, ...], classes: tuple[str, ...]) -> Row:
    usual = _usual(name)
    data = replace(options.data, cells=usual.data.cells, domains=places, classes=classes)
    epochs = options.epochs or usual.epochs
    recipe: Recipe = replace(usual, data=data, balance="sampling", epochs=epochs, epoch_images=CHOSEN_ON)
    where = "+".join(_slug(place, options) for place in places)
    return Row(slug=f"{name}-{where}", recipe_name=name, recipe=recipe, cost=name)


def _slug(place: str, options: TransferOptions) -> str:
    """A laboratory in the name of a folder."""
    stems = [Path(one).resolve().stem for one in options.laboratories]
    slugs = [stem if stems.count(stem) == 1 else f"{stem}{at}" for at, stem in enumerate(stems, 1)]
    slug = slugs[number := options.laboratories.index(place)]
    return slug if slugs.count(slug) == 1 else f"{slug}-{number + 1}"


class _Hits(NamedTuple):
    """Which images the network of each seed has right, [seeds images], and their labels and groups [images]."""

    right: np.ndarray
    labels: np.ndarray
    groups: Groups | None

    @classmethod
    def of(cls, folders: Sequence[Path], name: str, images: ImageSet) -> "_Hits":
        """Read NAME.json in the folder of each run, or test the run and write it."""
        pixels = hashlib.sha256(images.images.numpy().tobytes()).hexdigest()
        shown, right = {"labels": images.labels.tolist(), "pixels": pixels}, []
        for folder in folders:
            files = RunFolder(folder)
            known = files.read(name) if (folder / f"{name}.json").exists() else {}
            if {key: known.get(key) for key in shown} != shown:  # they are one's own, and may have changed
                known = {**shown, "right": evaluate(load_run(folder).model, images).correct.int().tolist()}
                files.write(name, known)
            right.append(known["right"])
        return cls(np.array(right, bool), images.labels.numpy(), None if images.group is None else images.group.numpy())

    def tested(self, recipe: str, trained_in: tuple[str, ...], tested_in: str, own: "_Hits") -> Tested:
        """With intervals over images, or the groups that they are of, and seeds."""
        accuracy = accuracy_interval(self.right, self.groups)
        balanced = balanced_interval(self.right, self.labels, self.groups)
        each = [100 * float(1 - seed.mean()) for seed in self.right]
        images = len(self.labels)
        return Tested(
            recipe, trained_in, tested_in, images, accuracy, balanced, accuracy_interval(own.right, own.groups), each
        )


def as_text(found: Sequence[Tested], images: Mapping[str, ImageSet]) -> str:
    """A table for each laboratory that was left out, of at most 80 columns."""
    lines = []
    for head in dict.fromkeys(map(_head, found)):
        place, places = head
        lines += [
            *textwrap.wrap(f"tested in {place} ({_numbers(one for one in found if _head(one) == head)})", 80),
            *textwrap.wrap(f"trained in {', '.join(places)}", 80, initial_indent="  ", subsequent_indent="    "),
            f"  {'recipe':<22}{'own error %':>18}{'error %':>18}{'balanced acc. %':>20}",
        ]
        for one in found:
            if _head(one) == head:
                cells = f"{_error(one.own):>18}{_error(one.accuracy):>18}{_percent(one.balanced):>20}"
                lines.append(f"  {one.recipe:<22}{cells}")
        lines.append("")
    seeds = len(found[0].each)
    grouped = {one.group is not None for one in images.values()}
    drawn = "images" if grouped == {False} else "groups of images" if grouped == {True} else "images or groups of them"
    over = f"means of {pluralize(seeds, 'seed')}, with 95 % intervals over {drawn}" + (
        " and seeds" if seeds > 1 else ""
    )
    lines.append(f"{over}; own: test images of the laboratories it was trained in")
    return "\n".join(line for text in lines for line in (textwrap.wrap(text, 80) if len(text) > 80 else [text]))


def _head(one: Tested) -> tuple[str, tuple[str, ...]]:
    """Of the table that it stands in."""
    return one.tested_in, one.trained_in


def _numbers(found: Iterable[Tested]) -> str:
    """Of images: recipes that cut out cells may leave out other files."""
    numbers = sorted({one.images for one in found})
    return pluralize(numbers[0], "image") if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]} images, by recipe"


def _error(accuracy: Interval) -> str:
    return f"{100 - 100 * accuracy.estimate:.1f} ({100 - 100 * accuracy.high:.1f}–{100 - 100 * accuracy.low:.1f})"


def _percent(share: Interval) -> str:
    return f"{100 * share.estimate:.1f} ({100 * share.low:.1f}–{100 * share.high:.1f})"


def _as_dict(one: Tested) -> dict[str, Any]:
    return {
        "recipe": one.recipe,
        "trained_in": one.trained_in,
        "tested_in": one.tested_in,
        "images": one.images,
        "error_percent": 100 - 100 * one.accuracy.estimate,
        "error_percent_by_seed": one.each,
        "accuracy": one.accuracy.to_dict(),
        "balanced_accuracy": one.balanced.to_dict(),
        "own_accuracy": one.own.to_dict(),
    }
