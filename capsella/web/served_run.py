"""A run as the server needs it: its network, its test images, and the encoded ones."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from capsella.data import LabelledImages
from capsella.errors import ArgumentError, check_minimum
from capsella.models import CapsuleClassifier, ImageClassifier
from capsella.training import Run, load_splits
from capsella.web.cnn import CnnFeatures, choose_features
from capsella.web.images import EncodedImages, choose_images, encode, encode_test_images
from capsella.web.share import MAX_IMAGES, capsules_of


@dataclass(frozen=True, eq=False)
class ServedRun:
    """A run that the server shows on its page.

    Attributes:
        name: name of the run.
        model: its network.
        test: its test images.
        seen: the test images that were encoded at the start.
        cnn: a CNN whose features for the same changed images are shown beside it, if there is one.
    """

    name: str
    model: CapsuleClassifier
    test: LabelledImages
    seen: EncodedImages
    cnn: CnnFeatures | None = None

    def image(self, number: int) -> EncodedImages:
        """Return a test image, encoded by the network, by its index in the test set.

        Raises:
            ValueError: there is no such image.
        """
        if not 0 <= number < len(self.test):
            raise ArgumentError("image", f"be from 0 to {len(self.test) - 1}", number)
        batch = self.test.take(torch.tensor([number]))
        return encode(self.model, batch.images, batch.labels, (number,), len(self.test))


def open_served_run(
    run: Run, name: str, most: int = 500, cnns: Mapping[str, ImageClassifier] | None = None
) -> ServedRun:
    """Prepare a run for the server: encode at most `most` of its test images, spread evenly over the set.

    Args:
        run: a run of a capsule network.
        name: its name on the page.
        most: maximum number of test images to encode.
        cnns: the CNN to show beside it, by the name of its run, as `split_cnns` returns it; at most one.

    Raises:
        ValueError: `most` below 1.
        CapsellaError: its images are missing, or it is a CNN.
    """
    check_minimum(1, images=most)
    model, test = capsules_of(run), load_splits(run, skip_broken=True).test
    seen = encode_test_images(model, test, most)
    features = None
    for called, cnn in (cnns or {}).items():
        features = choose_features(called, cnn, seen.take(choose_images(seen, MAX_IMAGES)).images)
    return ServedRun(name, model, test, seen, features)
