"""Runs as the explorer's server shows them: the page, and the JSON that answers requests of its script."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from capsella.data import LabelledImages
from capsella.errors import ArgumentError, check_argument, check_minimum
from capsella.models import CapsuleClassifier, ImageClassifier
from capsella.training import Run, load_splits
from capsella.web.arrays import Arrays
from capsella.web.images import (
    EncodedImages,
    add_changes,
    add_images,
    add_routing,
    encode,
    encode_test_images,
)
from capsella.web.page import page_content, page_html, page_title
from capsella.web.share import MAX_IMAGES, capsules_of
from capsella.web.uploads import MAX_BYTES, read_sketch, read_upload


@dataclass(frozen=True, eq=False)
class ServedRun:
    """A run that the server shows on its page.

    Attributes:
        name: name of the run.
        model: its network.
        test: its test images.
        seen: the test images that were encoded at the start.
        cnn: name and network of a CNN that looks at the same changed images, if there is one.
    """

    name: str
    model: CapsuleClassifier
    test: LabelledImages
    seen: EncodedImages
    cnn: tuple[str, ImageClassifier] | None = None

    def answer_image(self, number: int) -> dict[str, Any]:
        """Return the JSON of a test image, by its index in the test set; raises `ArgumentError` if there is none."""
        check_argument(0 <= number < len(self.test), f"be from 0 to {len(self.test) - 1}", image=number)
        batch = self.test.take(torch.tensor([number]))
        return self._answer(encode(self.model, batch.images, batch.labels, (number,), len(self.test)), None)

    def answer_file(self, content: bytes, name: str) -> dict[str, Any]:
        """Return the JSON of an uploaded file; raises what `read_upload` raises."""
        image, said = read_upload(content, name, self.model)
        return self._answer(self._encode_own(image), name, said)

    def answer_sketch(self, content: bytes) -> dict[str, Any]:
        """Return the JSON of a drawing made on the page; raises what `read_sketch` raises."""
        return self._answer(self._encode_own(read_sketch(content, self.model)), "Your drawing")

    def answer_changes(self, pixels: bytes, predicted: int) -> dict[str, Any]:
        """Return activations and poses for changed versions of an image.

        Args:
            pixels: the image, [c h w] of 0..255.
            predicted: index of the class whose pose is returned.

        Raises:
            ArgumentError: another number of pixels, or no such class.
        """
        shape = (1, self.model.channels, *self.model.image_size)
        count = shape[1] * shape[2] * shape[3]
        check_argument(len(pixels) == count, f"be {count} bytes", pixels=len(pixels))
        last = len(self.model.classes) - 1
        check_argument(0 <= predicted <= last, f"be from 0 to {last}", **{"class": predicted})
        images = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).reshape(shape).float() / 255
        arrays = Arrays()
        add_changes(self.model, images, torch.tensor([predicted]), arrays, "0", self.cnn and self.cnn[1])
        return {"arrays": arrays.table, "data": arrays.packed()}

    def _encode_own(self, image: UInt8[Tensor, "c h w"]) -> EncodedImages:
        """Encode a reader's image, whose class is unknown."""
        labels = torch.zeros(1, 0, dtype=torch.long)
        return encode(self.model, image.unsqueeze(0), labels, (-1,), self.seen.test_size)

    def _answer(self, seen: EncodedImages, title: str | None, said: Sequence[str] = ()) -> dict[str, Any]:
        """Return the JSON of one image in the page's format. said: sentences on how it was changed."""
        arrays = Arrays()
        (facts,) = add_images(self.model, seen, arrays, "0")
        add_routing(self.model, seen, arrays, "0")
        image = {**facts, "title": title, "said": list(said)}
        return {"image": image, "arrays": arrays.table, "data": arrays.packed()}


def open_served_run(run: Run, name: str, most: int = 500, cnn: tuple[str, ImageClassifier] | None = None) -> ServedRun:
    """Prepare a run for the server: encode at most `most` of its test images, spread evenly over the set.

    Args:
        run: a run of a capsule network.
        name: its name on the page.
        most: maximum number of test images to encode.
        cnn: the CNN to show beside it, as `split_cnn` returns it.

    Raises:
        ValueError: `most` below 1.
        CapsellaError: its images are missing, or it is a CNN.
    """
    check_minimum(1, images=most)
    model, test = capsules_of(run), load_splits(run).test
    return ServedRun(name, model, test, encode_test_images(model, test, most), cnn)


def explorer_page(served_runs: Sequence[ServedRun]) -> tuple[str, bytes]:
    """Return the HTML page about some runs, and its arrays, which its script requests as bytes for a faster start.

    Raises:
        ArgumentError: no runs, or two with the same name.
    """
    if not served_runs:
        raise ArgumentError("runs", "be at least one run", None)
    named = {served_run.name: served_run.model for served_run in served_runs}
    if len(named) < len(served_runs):
        raise ArgumentError("runs", "have names of their own", ", ".join(served_run.name for served_run in served_runs))
    arrays, seen = Arrays(), [served_run.seen for served_run in served_runs]
    facts, _ = page_content(named, seen, MAX_IMAGES, arrays, live=True, cnn=served_runs[0].cnn)
    # By these the page's reader can find test images.
    tests = [
        {"numbers": list(images.numbers), "truth": images.labels.tolist(), "right": images.correct.tolist()}
        for images in seen
    ]
    everything = {**facts, "arrays": arrays.table, "server": {"bytes": MAX_BYTES, "tests": tests}}
    return page_html(page_title(named), everything, ""), arrays.content()
