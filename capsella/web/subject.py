"""A run as the server needs it: the network, its test images, and what it makes of some of them."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from capsella.data import LabelledImages
from capsella.errors import ArgumentError, check_minimum
from capsella.models import CapsuleClassifier, ImageClassifier
from capsella.training import Run, load_splits
from capsella.web.cnn import CnnFeatures, choose_features
from capsella.web.images import SeenImages, choose_images, see, see_test_images
from capsella.web.share import MAX_IMAGES, capsules_of


@dataclass(frozen=True, eq=False)
class Subject:
    """A run on the page.

    Attributes:
        name: of the run.
        test: its test images.
        seen: some of them, seen by the network.
        cnn: a CNN that sees the same changed images, if there is one.
    """

    name: str
    model: CapsuleClassifier
    test: LabelledImages
    seen: SeenImages
    cnn: CnnFeatures | None = None

    def image(self, number: int) -> SeenImages:
        """Return a test image by its number, seen by the network.

        Raises:
            ValueError: there is no such image.
        """
        if not 0 <= number < len(self.test):
            raise ArgumentError("image", f"be from 0 to {len(self.test) - 1}", number)
        batch = self.test.take(torch.tensor([number]))
        return see(self.model, batch.images, batch.labels, (number,), len(self.test))


def open_subject(run: Run, name: str, most: int = 500, cnns: Mapping[str, ImageClassifier] | None = None) -> Subject:
    """Return a run with at most `most` of its test images seen by the network, spread evenly over the set.

    Args:
        run: of a capsule network.
        name: what the page calls it.
        most: number of test images to see.
        cnns: the CNN beside it by the name of its run, as `split_cnns` returns it; at most one.

    Raises:
        ValueError: `most` below 1.
        CapsellaError: its images are not there, or it is a CNN.
    """
    check_minimum(1, images=most)
    model, test = capsules_of(run), load_splits(run, skip_broken=True).test
    seen = see_test_images(model, test, most)
    features = None
    for called, cnn in (cnns or {}).items():
        features = choose_features(called, cnn, seen.take(choose_images(seen, MAX_IMAGES)).images)
    return Subject(name, model, test, seen, features)
