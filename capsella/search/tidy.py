"""What a study keeps on the disk: checkpoints that a training may still go on from, and the finalists' weights."""

from collections.abc import Callable, Sequence
from pathlib import Path

from capsella.errors import CapsellaError
from capsella.files import alone_in
from capsella.search.schedule import BASE, FACTOR, Job, Record, Rules, at_the_end, done, finalists, ranked, taken
from capsella.training import RunFolder

WEIGHTS = ("model.safetensors", "novelty.safetensors")
"""Of a run, beside its checkpoint."""
RunNumber = tuple[int, int]
"""A candidate and one of the seeds, both by their number."""


def tidy(
    folder_of: Callable[[Job], Path],
    read: Callable[[], Sequence[Record]],
    rules: Rules,
    trials: int | None,
    is_over: bool = False,
) -> int:
    """Remove what no training goes on from; returns how many files went. What another process works at is left alone.

    Args:
        folder_of: where the run of a job is.
        read: the study's trials of now.
        rules: of the study.
        trials: candidates in all; None where the time decides.
        is_over: nothing is left to do.
    """

    def needless(folder: Path, run: RunNumber, records: Sequence[Record]) -> list[Path]:
        """The files of a run that may go."""
        if run in at_work(records) | (set() if is_over else waiting(records, rules, trials)):
            return []
        # A finalist that diverges with another seed makes room for the next one, until nothing is left to do.
        last = {record.job.candidate for record in done(records, rules.top)}
        weights = [folder / name for name in WEIGHTS]
        weights = [] if run[0] in (finalists(records, rules) if is_over else last) else weights
        return [RunFolder(folder).checkpoint, *weights]

    records, gone = read(), 0
    for run in sorted({(record.job.candidate, record.job.seed) for record in records}):
        folder = folder_of(Job(run[0], 0, run[1]))
        if not any(path.exists() for path in needless(folder, run, records)):
            continue
        try:
            with alone_in(folder):  # whoever takes a job says so in the study before he looks for its checkpoint
                for path in needless(folder, run, read()):
                    gone += path.exists()
                    path.unlink(missing_ok=True)
        except CapsellaError:  # somebody trains there
            continue
    return gone


def at_work(records: Sequence[Record]) -> set[RunNumber]:
    """The runs that somebody trains, or takes up again."""
    gone = taken(records)
    return {
        (record.job.candidate, record.job.seed)
        for record in records
        if record.state in ("waiting", "running") or (record.state == "lost" and record.job not in gone)
    }


def waiting(records: Sequence[Record], rules: Rules, trials: int | None) -> set[RunNumber]:
    """The runs that may be called to their next rung: as many of each rung as can still go on from it, and as many of
    the best as finalists are missing. One more for each that is at work: while one process trains a finalist, another
    may call the next candidate up.

    Where the number of candidates is open, the better half of a rung. New candidates may push another one up again,
    seldom; that one is trained anew.
    """
    gone = taken(records)
    missing, busy, found = rules.finalists - len(at_the_end(records, rules)), len(at_work(records)), set[int]()
    for rung in reversed(range(rules.top)):
        there = [record.job.candidate for record in ranked(done(records, rung), rules)]
        left = [candidate for candidate in there if Job(candidate, rung + 1) not in gone]
        room = (len(there) + 1) // 2 if trials is None else trials // FACTOR ** (rung + 1) + 1
        better = {*there[:room], BASE}
        called = left[: missing + busy] if missing > 0 else []
        found |= {*called, *(candidate for candidate in left if candidate in better)}
        missing -= len(left)
    return {(candidate, 0) for candidate in found}
