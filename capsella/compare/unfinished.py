"""Whether a training ended while its network still learned."""

from capsella.compare.trained import Trained
from capsella.grid import still_learned


def is_unfinished(one: Trained) -> bool:
    """Whether its training loss, or its training error, still fell when the trainings with every seed ended.

    Raises:
        CapsellaError: unreadable metrics of a run.
    """
    return still_learned([run.folder for run in one.by_seed.values()])
