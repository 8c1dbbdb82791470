"""What a table says of a prediction beside its activations: a probability, a prediction set, doubts, and whether the
image is like those that the network was trained on.
"""

from dataclasses import dataclass

from capsella.errors import CapsellaError, check_argument, pluralize
from capsella.evaluation.prediction.predict import Prediction
from capsella.models import Confidence, Novelty, images_needed
from capsella.models.confidence.fitted import check_coverage
from capsella.models.novelty.fitted import REFUSE, check_refuse, images_to_refuse

ENOUGH = 30
"""Validation images for probabilities that can be used as they are."""

Value = float | list[int] | bool | str | None


@dataclass(frozen=True)
class Certainty:
    """Which columns there are, and what they hold.

    confidence: of the model, or None where it is not calibrated; then there is no probability.
    coverage: how often a prediction set must hold the true class, in (0, 1); None: no sets.
    unsure_below: the probability below which an answer is called unsure, in (0, 1]; None: none is.
    novelty: of the model, or None where it was not fitted; then nothing is said of whether an image is known.
    refuse: the share of usual images that may be called unknown, in (0, 1); None: nothing is said of it.

    Raises:
        ValueError: a coverage or probability outside its range.
        CapsellaError: either of a model that is not calibrated.
    """

    confidence: Confidence | None = None
    coverage: float | None = None
    unsure_below: float | None = None
    novelty: Novelty | None = None
    refuse: float | None = REFUSE

    def __post_init__(self) -> None:
        below = self.unsure_below
        if self.coverage is not None:
            check_coverage(self.coverage)
        if self.refuse is not None:
            check_refuse(self.refuse)
        check_argument(below is None or 0 < below <= 1, "be above 0 and at most 1, as 0.9", unsure_below=below)
        if self.confidence is None and (self.coverage, below) != (None, None):
            raise CapsellaError(
                "coverage, unsure_below: need calibrated probabilities, and this model has none; "
                "capsella calibrate RUN fits them for a run (not for pairs)"
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns behind the activations; those of probability and knowledge are empty if need be."""
        asked = {"prediction_set": self.coverage, "unsure": self.unsure_below}
        return ("probability", *(name for name, value in asked.items() if value is not None), "known", "why_unknown")

    @property
    def watched(self) -> Novelty | None:
        """By what each image is judged to be known; None where it is not, as where too few images set a threshold."""
        return self.novelty if self.novelty is not None and self.novelty.can_refuse(self.refuse) else None

    def values(self, prediction: Prediction) -> tuple[Value, ...]:
        """A probability, the numbers of the set's classes (the likeliest first), whether the answer is unsure, whether
        the image is known, and why not.
        """
        return (*self._sure(prediction), *self._known(prediction))

    def _sure(self, prediction: Prediction) -> list[Value]:
        if self.confidence is None:
            return [None]
        probabilities = self.confidence.probabilities(prediction.activations)
        probability = float(probabilities[prediction.activations.argmax()])
        found: list[Value] = [round(probability, 6)]
        if self.coverage is not None:
            inside = self.confidence.sets(prediction.activations, self.coverage)
            order = probabilities.argsort(descending=True, stable=True)
            found.append(order[inside[order]].tolist())
        if self.unsure_below is not None:
            found.append(probability < self.unsure_below)
        return found

    def _known(self, prediction: Prediction) -> tuple[bool | None, str | None]:
        if self.watched is None or self.refuse is None or prediction.surprises is None:
            return None, None
        if float(prediction.surprises.max()) <= self.watched.threshold(self.refuse):
            return True, None
        return False, self.watched.why(prediction.surprises, prediction.class_name)

    def doubts(self, prediction: Prediction) -> bool:
        """Whether the answer is called unsure."""
        return self.unsure_below is not None and self._sure(prediction)[-1] is True

    def refuses(self, prediction: Prediction) -> bool:
        """Whether the image is called unknown."""
        return self._known(prediction)[0] is False

    def notes(self) -> list[str]:
        """What a reader must know of columns that are empty, or sets that say nothing."""
        return [*self._notes_on_confidence(), *self._notes_on_novelty()]

    def _notes_on_confidence(self) -> list[str]:
        if self.confidence is None:
            return [
                "the probability column is empty: this model is not calibrated; "
                "capsella calibrate RUN does it, unless the run was adapted"
            ]
        notes = []
        if self.confidence.images < ENOUGH:
            notes.append(
                f"the probabilities rest on {pluralize(self.confidence.images, 'validation image')}, fewer than "
                f"{ENOUGH}: they may be far too sure; a larger --validation in training makes them firmer"
            )
        if self.coverage is None or self.confidence.images >= (needed := images_needed(self.coverage)):
            return notes
        return [
            *notes,
            f"every prediction set holds all classes: a coverage of {self.coverage:g} needs at least {needed} "
            f"validation images, and this model was calibrated on {self.confidence.images}",
        ]

    def _notes_on_novelty(self) -> list[str]:
        if self.refuse is None:
            return []
        if self.novelty is None:
            return [
                "the known column is empty: it was not fitted for this model; "
                "capsella calibrate RUN does it, unless the run was adapted"
            ]
        if self.novelty.images >= (needed := images_to_refuse(self.refuse)):
            return []
        return [
            f"the known column is empty: to refuse {self.refuse:g} takes at least {needed} validation images, and this "
            f"model was fitted with {self.novelty.images}; a larger --validation, or a larger --refuse, brings it"
        ]
