"""A tiny source of 64×64 images of five classes, and budgets of a few images, so that every command runs in seconds."""

import dataclasses
from collections.abc import Callable, Iterator

import pytest
import torch

from capsella.data import ImageSet, catalogue
from capsella.data.sources.base import Source
from capsella.data.splits import SourceSplits
from capsella.models import forslov2018
from capsella.papers.budget import Budget, Budgets
from capsella.papers.forslov2018 import paper, runs

PER_CLASS = 102  # two more than mini takes
CLASSES = ("a", "b", "c", "d", "e")
TINY = Budget(epochs=2, epoch_images=2, batch_size=2, validation_per_class=1, decays_once=True)


def image_set(per_class: int) -> ImageSet:
    """Grey levels tell the classes apart."""
    labels = torch.arange(len(CLASSES)).repeat(per_class)
    noise = torch.randint(20, (len(labels), 3, 64, 64), generator=torch.Generator().manual_seed(per_class))
    return ImageSet((noise + 40 * labels[:, None, None, None]).to(torch.uint8), labels, CLASSES)


def source(name: str) -> Source:
    parts = SourceSplits(name, image_set(PER_CLASS), image_set(1), image_set(1))
    return Source(name=name, read=lambda _: parts, images="", size="", classes=5, files=(), get="", citation="")


@pytest.fixture
def only() -> Iterator[Callable[..., None]]:
    """`only("emnet1")` leaves that network alone in the tables, until the test is over; the order is kept."""
    every = dict(paper.NETWORKS)

    def leave(*names: str) -> None:
        paper.NETWORKS.clear()
        paper.NETWORKS.update({name: every[name] for name in every if name in names})

    yield leave
    leave(*every)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, only: Callable[..., None]) -> str:
    """The name of the source; only EM-NET 1 and CNN-NET 1 are left, the quick ones, on grids of 2×2 for 6×6."""
    monkeypatch.setitem(catalogue._SOURCES, "tiny", source("tiny"))
    monkeypatch.setattr(runs, "SIZE", 64)
    once = dataclasses.replace(TINY, epochs=1, epoch_images=2)
    for name, budget in (("TABLE_BUDGETS", TINY), ("RATE_BUDGETS", once), ("DECODER_BUDGETS", once)):
        monkeypatch.setattr(runs, name, Budgets(budget, budget))
    monkeypatch.setattr(forslov2018, "PUBLISHED_SIZE", 160)
    # A training here sees two images; what a network knows would else be fitted on all 500 of the set.
    monkeypatch.setattr("capsella.uncertainty.fit.MOST_TRAINING_IMAGES", 12)
    only("emnet1", "cnnnet1")
    monkeypatch.setenv("COLUMNS", "160")
    return "tiny"
