"""Which of the thesis's training sets a source of images has, and what to say about the others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from capsella.data import THESIS_SETS, DataOptions, load_data
from capsella.errors import CapsellaError


@dataclass(frozen=True)
class Supply:
    """What a source has of the thesis's sets.

    name: what its images are called. classes: how many it has. counts: training images of each of its sets, in order.
    reasons: why each of the others is not among them.
    """

    name: str
    classes: int
    counts: dict[str, int]
    reasons: dict[str, str]

    @property
    def sets(self) -> tuple[str, ...]:
        """The sets that it has, in order."""
        return tuple(self.counts)

    def classes_of(self, name: str) -> int:
        """How many classes one of its sets has."""
        return THESIS_SETS[name].get("first_classes", self.classes)

    def sentences(self) -> str:
        """For the note of a table: the sets that are there, and those that are not."""
        sizes = ", ".join(f"{name} {count:,}" for name, count in self.counts.items())
        text = (
            f"The thesis's sets hold 15 classes of one laboratory (basic 5, medium 10); here mini, small and "
            f"medium-size hold the {self.classes} classes of {self.name}. Training images: {sizes}."
        )
        if "small" in self.counts and "basic" in self.counts and self.classes == 5:
            text += (
                " With five classes in all, small and basic are of the same classes, and differ in their size alone."
            )
        for name, reason in self.reasons.items():
            text += f" Left out {name}: {reason}."
        return text


def find_supply(options: DataOptions, wanted: Sequence[str]) -> Supply:
    """Which of the `wanted` sets the source in `options` has: its training images are counted.

    A set of n images a class is there where at least half of the classes have n training images; the others give all
    they have, as in the thesis. A set of the first classes is there where the source has so many; hard, which is all of
    them, where it is not the same as basic or medium.

    Raises:
        CapsellaError: none is there; and what `load_data` raises.
    """
    splits = load_data(options)
    counts = splits.train.counts()
    found, reasons = {}, {}
    for name in wanted:
        reason = _reason(name, counts, splits.name)
        if reason is None:
            found[name] = _images(name, counts)
        else:
            reasons[name] = reason
    if not found:
        why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise CapsellaError(f"{splits.name} has none of the thesis's sets {', '.join(wanted)}: {why}")
    return Supply(splits.name, len(counts), found, reasons)


def _reason(name: str, counts: Mapping[str, int], source: str) -> str | None:
    """Why `source` does not have the set, or None where it has."""
    chosen, classes = THESIS_SETS[name], len(counts)
    if "per_class" in chosen:
        enough = sum(count >= chosen["per_class"] for count in counts.values())
        if 2 * enough < classes:
            return f"{enough} of the {classes} classes of {source} have {chosen['per_class']} training images, not half"
    elif "first_classes" in chosen:
        if classes < chosen["first_classes"]:
            return f"it has {chosen['first_classes']} classes, {source} has {classes}"
    else:
        for other in ("basic", "medium"):
            if classes == THESIS_SETS[other]["first_classes"]:
                return f"all {classes} classes of {source} are {other} already"
    return None


def _images(name: str, counts: Mapping[str, int]) -> int:
    chosen = THESIS_SETS[name]
    kept = list(counts.values())[: chosen.get("first_classes")]
    return sum(min(count, chosen.get("per_class", count)) for count in kept)
