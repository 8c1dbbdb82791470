"""A run as the server needs it: the network, its test images, and what it makes of some of them."""

from dataclasses import dataclass

import torch

from capsella.data import load_data
from capsella.data.split.sets import LabelledImages
from capsella.errors import at_least
from capsella.models import CapsuleClassifier
from capsella.share.pool import Pool, look, make_pool
from capsella.share.shared import capsules_of
from capsella.training import Run


@dataclass(frozen=True, eq=False)
class Subject:
    """What the page is about. name: of the run. test: its test images. pool: some of them, seen by the network."""

    name: str
    model: CapsuleClassifier
    test: LabelledImages
    pool: Pool

    def image(self, number: int) -> Pool:
        """A test image by its place in the test set, seen by the network.

        Raises:
            ValueError: there is no such image.
        """
        if not 0 <= number < len(self.test):
            raise ValueError(f"image: must be from 0 to {len(self.test) - 1}, got {number}")
        batch = self.test.take(torch.tensor([number]))
        return look(self.model, batch.images, batch.labels, (number,), len(self.test))


def open_run(run: Run, name: str, most: int = 500) -> Subject:
    """A run with `most` of its test images looked at, evenly spread through the set; all where there are no more.

    Raises:
        ValueError: `most` below 1.
        CapsellaError: its images are not there, or it is a CNN.
    """
    at_least(1, images=most)
    model, test = capsules_of(run), load_data(run.recipe.data).test
    return Subject(name, model, test, make_pool(model, test, most))
