"""What a paper claims of two rows of its own tables, as a value that measurements can be held against."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One row errs less than another.

    text: the claim in a sentence. where: name of the table or figure whose runs decide it. better, worse: slugs of the
    rows. better_rates, worse_rates: slugs of the same networks at other learning rates, where the table has them; each
    side is compared at the rate that validation chooses. paper: their errors in per cent, as printed; None where the
    paper shows a curve alone. on: which of a `StoppedTable`'s two sets of test images it is about, by its head; None
    for the runs' own test images.
    """

    text: str
    where: str
    better: str
    worse: str
    paper: tuple[float, float] | None
    on: str | None = None
    better_rates: tuple[str, ...] = ()
    worse_rates: tuple[str, ...] = ()

    @property
    def slugs(self) -> set[str]:
        """Of every row that it needs."""
        return {self.better, self.worse, *self.better_rates, *self.worse_rates}
