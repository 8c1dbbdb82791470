"""Images that the tests make, a small table and a figure of networks trained on them, and claims about both."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from capsella.data import ImageSet, NamedData, catalogue
from capsella.data.sources.base import Source
from capsella.data.splits import SourceSplits
from capsella.experiments.reproduce import entries, findings
from capsella.papers import published
from capsella.papers.figure_types import RunFigure
from capsella.papers.sabour2017.tables import draw_reconstructions
from capsella.papers.table_types import Claim, ErrorRow, ErrorTable
from capsella.training.registry import RECIPES
from tests.papers.tiny import CAPSNET, CNN

CLASSES = ("left", "middle", "right")
NAME = "made2026"


def image_set(per_class: int, seed: int) -> ImageSet:
    """A bright bar at one of three places, in noise."""
    labels = torch.arange(len(CLASSES)).repeat(per_class)
    pixels = torch.randint(120, (len(labels), 1, 17, 17), generator=torch.Generator().manual_seed(seed))
    for image, label in zip(pixels, labels.tolist(), strict=True):
        image[:, :, 3 + 4 * label : 6 + 4 * label] += 100
    return ImageSet(pixels.to(torch.uint8), labels, CLASSES)


def source() -> Source:
    parts = SourceSplits("bars", image_set(12, 0), image_set(4, 1), image_set(8, 2))
    return Source(name="bars", read=lambda _: parts, images="", size="", classes=3, files=(), get="", citation="")


def rows(budget: str) -> dict[str, ErrorRow]:
    """A CNN, and CapsNet with a decoder and without."""
    data = NamedData("bars")
    changed = {"data": data, "epochs": 3, "batch_size": 12}
    recipes = {
        "cnn": dataclasses.replace(CNN, **changed),
        "caps": dataclasses.replace(CAPSNET, **changed).with_model(reconstruction=True),
        "plain": dataclasses.replace(CAPSNET, **changed).with_model(reconstruction=False),
    }
    papers = {"cnn": 20.0, "caps": 10.0, "plain": None}
    return {
        slug: ErrorRow(slug=slug, recipe_name="bars", recipe=recipe, label=(slug,), paper=papers[slug])
        for slug, recipe in recipes.items()
    }


def table(budget: str) -> ErrorTable:
    every = tuple(rows(budget).values())
    return ErrorTable(title="A paper, Table 1", note="What differs.", columns=("network",), rows=every)


def figure(budget: str) -> RunFigure:
    return RunFigure(
        file=f"{NAME}-2",
        title="A paper, Figure 2",
        rows=(rows(budget)["caps"],),
        draw=draw_reconstructions,
        family=f"{NAME}-1",
    )


CLAIMS = (
    Claim(text="Capsules beat the CNN.", where=f"{NAME}-1", better="caps", worse="cnn", paper=(10.0, 20.0)),
    Claim(text="Reconstruction helps.", where=f"{NAME}-1", better="caps", worse="plain", paper=None),
)


@contextmanager
def registered() -> Iterator[None]:
    """Only these are there: neither the papers' tables nor their claims."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(catalogue._SOURCES, "bars", source())
        patch.setitem(RECIPES, "bars", lambda: rows("small")["cnn"].recipe)
        for found, made in ((published.TABLES, {f"{NAME}-1": table}), (published.FIGURES, {f"{NAME}-2": figure})):
            for name in list(found):
                patch.delitem(found, name)
            for name, make in made.items():
                patch.setitem(found, name, make)
        for module in (entries, findings):
            patch.setattr(module, "CLAIMS", CLAIMS)
        yield
