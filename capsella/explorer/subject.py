"""A run as the page needs it: the network, some of its test images, and what it makes of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.data import load_data
from capsella.data.split.sets import LabelledImages
from capsella.evaluation import Evaluation, evaluate
from capsella.explain.reconstruction import pair_name
from capsella.explorer.view import View, look_at
from capsella.models import CapsuleClassifier, ImageClassifier
from capsella.training import Run, load_run

Outcome = Literal["all", "right", "wrong"]


@dataclass(frozen=True, eq=False)
class Subject:
    """What the page is about.

    name: of the run. images: the test images on the page; numbers: their places in the test set, of `of` images.
    evaluation: of `images`. classes_shown: how many classes an image shows, 1, or 2 for pairs.
    """

    name: str
    model: ImageClassifier
    images: LabelledImages
    numbers: tuple[int, ...]
    of: int
    evaluation: Evaluation

    @property
    def classes_shown(self) -> int:
        """1, or 2 where an image overlays two."""
        return self.evaluation.labels[0].numel()

    @property
    def has_capsules(self) -> bool:
        """Whether anything is routed."""
        return isinstance(self.model, CapsuleClassifier)

    def image(self, place: int) -> Float[Tensor, "c h w"]:
        """The image at a place on the page, in [0, 1].

        Raises:
            ValueError: there is no such place.
        """
        if not 0 <= place < len(self.numbers):
            raise ValueError(f"place: must be in 0…{len(self.numbers) - 1}, got {place}")
        return self.images.take(torch.tensor([place])).images[0].float() / 255

    def truth(self, place: int) -> tuple[int, ...]:
        """The class, or both, that the image at a place shows."""
        return tuple(self.evaluation.labels[place].flatten().tolist())

    def caption(self, place: int) -> str:
        """In words: "test image 17: is 3, taken for 8"."""
        said = self.evaluation.labels, self.evaluation.predictions
        is_, taken = (pair_name(self.model.classes, of_all[place]) for of_all in said)
        verdict = "right" if self.evaluation.correct[place] else f"taken for {taken}"
        return f"test image {self.numbers[place]}: is {is_}, {verdict}"

    def look_at(self, place: int) -> View:
        """Let the network see the image at a place; raises as `image`."""
        return look_at(self.model, self.image(place), self.caption(place), self.truth(place))

    def places(self, class_name: str | None = None, outcome: Outcome = "all") -> list[int]:
        """Places of the images of one true class (None: of all), that the network got right or wrong.

        Raises:
            ValueError: an unknown class or outcome.
        """
        if outcome not in ("all", "right", "wrong"):
            raise ValueError(f"outcome: must be 'all', 'right' or 'wrong', got {outcome!r}")
        if class_name is not None and class_name not in self.model.classes:
            raise ValueError(f"class_name: must be one of the model's classes, got {class_name!r}")
        wanted = torch.ones(len(self.numbers), dtype=torch.bool)
        if class_name is not None:
            labels = self.evaluation.labels.reshape(len(wanted), -1)
            wanted &= (labels == self.model.classes.index(class_name)).any(1)
        if outcome != "all":
            wanted &= self.evaluation.correct == (outcome == "right")
        return wanted.nonzero().flatten().tolist()


def subject_of(run: Run, test: LabelledImages, most: int = 500) -> Subject:
    """A run with `most` of its test images, evenly spread through the set; all where there are no more.

    Raises:
        ValueError: `most` below 1.
    """
    if most < 1:
        raise ValueError(f"images: must be at least 1, got {most}")
    # A set of pairs can hold ten million: only these are drawn.
    numbers = torch.linspace(0, len(test) - 1, min(most, len(test)), dtype=torch.float64).round().long()
    images = test.subset(numbers)
    evaluation = evaluate(run.model, images, progress=True)
    name = run.folder.resolve().name
    return Subject(name, run.model, images, tuple(numbers.tolist()), len(test), evaluation)


def open_run(folder: Path, most: int = 500) -> Subject:
    """The run in a folder, with `most` of its test images.

    Raises:
        ValueError: `most` below 1.
        CapsellaError: no run is there, or its images are not.
    """
    run = load_run(folder)
    return subject_of(run, load_data(run.recipe.data).test, most)
