"""A run as the server needs it: the network, its test images, and what it makes of some of them."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from capsella.data.splits import LabelledImages
from capsella.errors import ArgumentError, check_minimum
from capsella.models import CapsuleClassifier, ImageClassifier
from capsella.share.beside import Beside, choose_features
from capsella.share.choice import choose_images
from capsella.share.pool import Pool, look, make_pool
from capsella.share.shared import MOST_IMAGES, capsules_of
from capsella.training import Run, load_splits


@dataclass(frozen=True, eq=False)
class Subject:
    """What the page is about. name: of the run. test: its test images. pool: some of them, seen by the network.

    beside: a CNN that sees the same changed images, if there is one.
    """

    name: str
    model: CapsuleClassifier
    test: LabelledImages
    pool: Pool
    beside: Beside | None = None

    def image(self, number: int) -> Pool:
        """A test image by its place in the test set, seen by the network.

        Raises:
            ValueError: there is no such image.
        """
        if not 0 <= number < len(self.test):
            raise ArgumentError("image", f"be from 0 to {len(self.test) - 1}", number)
        batch = self.test.take(torch.tensor([number]))
        return look(self.model, batch.images, batch.labels, (number,), len(self.test))


def open_subject(run: Run, name: str, most: int = 500, cnns: Mapping[str, ImageClassifier] | None = None) -> Subject:
    """A run with `most` of its test images looked at, evenly spread through the set; all where there are no more.

    Args:
        run: of a capsule network.
        name: what the page calls it.
        most: test images that are looked at.
        cnns: the CNN beside it by the name of its run, as `parted` gives it; at most one.

    Raises:
        ValueError: `most` below 1.
        CapsellaError: its images are not there, or it is a CNN.
    """
    check_minimum(1, images=most)
    model, test = capsules_of(run), load_splits(run, skip_broken=True).test
    pool = make_pool(model, test, most)
    beside = None
    for called, cnn in (cnns or {}).items():
        beside = choose_features(called, cnn, pool.take(choose_images(pool, MOST_IMAGES)).images)
    return Subject(name, model, test, pool, beside)
