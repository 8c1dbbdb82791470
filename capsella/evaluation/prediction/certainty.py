"""What a table says of a prediction beside its activations: a probability, a prediction set, whether to doubt it."""

from dataclasses import dataclass

from capsella.errors import CapsellaError, require
from capsella.evaluation.prediction.predict import Prediction
from capsella.models.confidence.fitted import Confidence, check_coverage, images_needed

Value = float | list[int] | bool | None


@dataclass(frozen=True)
class Certainty:
    """Which columns there are, and what they hold.

    confidence: of the model, or None where it is not calibrated; then there is no probability.
    coverage: how often a prediction set must hold the true class, in (0, 1); None: no sets.
    unsure_below: the probability below which an answer is called unsure, in (0, 1]; None: none is.

    Raises:
        ValueError: a coverage or probability outside its range.
        CapsellaError: either of a model that is not calibrated.
    """

    confidence: Confidence | None = None
    coverage: float | None = None
    unsure_below: float | None = None

    def __post_init__(self) -> None:
        below = self.unsure_below
        if self.coverage is not None:
            check_coverage(self.coverage)
        require(below is None or 0 < below <= 1, "be above 0 and at most 1, as 0.9", unsure_below=below)
        if self.confidence is None and (self.coverage, below) != (None, None):
            raise CapsellaError(
                "coverage, unsure_below: need calibrated probabilities, and this model has none; "
                "capsella calibrate RUN fits them for a run (not for pairs)"
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns behind the activations; "probability" is always there, and empty if need be."""
        asked = {"prediction_set": self.coverage, "unsure": self.unsure_below}
        return ("probability", *(name for name, value in asked.items() if value is not None))

    def values(self, prediction: Prediction) -> tuple[Value, ...]:
        """A probability, the numbers of the set's classes (the likeliest first), and whether the answer is unsure."""
        if self.confidence is None:
            return (None,)
        probabilities = self.confidence.probabilities(prediction.activations)
        probability = float(probabilities.max())
        found: list[Value] = [round(probability, 6)]
        if self.coverage is not None:
            inside = self.confidence.sets(probabilities, self.coverage)
            order = probabilities.argsort(descending=True, stable=True)
            found.append(order[inside[order]].tolist())
        if self.unsure_below is not None:
            found.append(probability < self.unsure_below)
        return tuple(found)

    def doubts(self, prediction: Prediction) -> bool:
        """Whether the answer is called unsure."""
        return self.unsure_below is not None and self.values(prediction)[-1] is True

    def notes(self) -> list[str]:
        """What a reader must know of columns that are empty, or sets that say nothing."""
        if self.confidence is None:
            return ["the probability column is empty: this model is not calibrated; capsella calibrate RUN does it"]
        if self.coverage is None or self.confidence.images >= (needed := images_needed(self.coverage)):
            return []
        return [
            f"every prediction set holds all classes: a coverage of {self.coverage:g} needs at least {needed} "
            f"validation images, and this model was calibrated on {self.confidence.images}"
        ]
