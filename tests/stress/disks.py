"""Disks that are full, read-only or gone, two processes in one folder, and clocks that jump. Needs root, for mounts."""

import os
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.stress.ground import Ended, forked, fresh, import_all, learned, make_images, make_run
from tests.stress.kills import Victim, all_victims
from tests.stress.tally import Tally
from tests.stress.whole import half_written

VICTIMS = ("train", "predict", "share", "export")


def campaign(tally: Tally, folder: Path) -> None:
    """Each trouble for each command, in turn, until the time is up."""
    import_all()
    if os.geteuid() != 0:
        tally.measured["left out"] = "disks: only root may mount them"
        return
    rng = random.Random(tally.seed)
    images = make_images(folder / "images")
    victims = {
        name: one
        for name, one in all_victims(images, make_run(images, folder / "run"), folder).items()
        if name in VICTIMS
    }
    needs = {}
    for name, victim in victims.items():
        whole = fresh(folder / f"{name}-whole")
        assert learned(lambda whole=whole, victim=victim: victim.start(whole), 600).code == 0
        needs[name] = sum(path.stat().st_size for path in whole.rglob("*") if path.is_file()), victim.end(whole)
    number, troubles = 0, rng.sample(TROUBLES, len(TROUBLES))  # a short run does not always try the same
    while tally.has_time:
        name = list(victims)[number % len(victims)]
        trouble = troubles[number // len(victims) % len(troubles)]
        place = fresh(folder / "disk")
        if wrong := trouble(rng, victims[name], place, *needs[name]):
            tally.found(f"{name}, {trouble.__name__}: {wrong}")
        tally.counts[f"{trouble.__name__}"] += 1
        number += 1


def full(rng: random.Random, victim: Victim, place: Path, need: int, end: object) -> str | None:
    """A disk of any share of what is needed; then it has room, and the command goes on."""
    with Disk(place, int(need * rng.choice([0.01, 0.2, 0.5, 0.8, 0.95, 1.0]) * rng.uniform(0.7, 1))) as disk:
        ended = forked(lambda: victim.start(place), 600)
        said = ended.said.lower()
        if ended.code and "no space left" not in said and "disk" not in said:
            return f"exit {ended.code}, and no word of the disk: {ended.said[-300:]}"
        if wrong := _wrong(ended) or _half(place):
            return wrong
        disk.mount(f"remount,size={2 * need + 10**7}")
        return _goes_on(victim, place, end) if ended.code else None


def read_only(rng: random.Random, victim: Victim, place: Path, need: int, end: object) -> str | None:
    """From the start, or from a moment on."""
    return _at_a_moment(rng, victim, place, need, end, Disk.seal, Disk.unseal)


def gone(rng: random.Random, victim: Victim, place: Path, need: int, end: object) -> str | None:
    """The folder is removed while the command works."""
    work = _slowly(lambda: victim.start(place), lambda: subprocess.run(["rm", "-rf", *map(str, place.iterdir())]), rng)
    ended = forked(work, 600)
    return _wrong(ended) or _half(place)


def together(rng: random.Random, victim: Victim, place: Path, need: int, end: object) -> str | None:
    """Two at once: one ends as if alone, the other too, or with a sentence."""
    first = os.fork()
    if first == 0:
        os._exit(0 if forked(lambda: victim.start(place), 600).code == 0 else 1)
    time.sleep(rng.uniform(0, 1))
    second = forked(lambda: victim.start(place), 600)
    one = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
    if one and second.code:
        return f"neither ended: {second.said[-300:]}"
    if victim.end(place) != end:
        return "two together made something else"
    return _wrong(second) or _half(place)


def clocks(rng: random.Random, victim: Victim, place: Path, need: int, end: object) -> str | None:
    """The clock of the wall jumps by days, to and fro; the monotonic one may not by its nature."""

    def work() -> None:
        real = time.time
        time.time = lambda: real() + rng.choice([-1, 1]) * rng.uniform(0, 10**6)
        victim.start(place)

    ended = forked(work, 600)
    if ended.code:
        return f"exit {ended.code}: {ended.said[-300:]}"
    return None if victim.end(place) == end else "it made something else"


TROUBLES = (full, together, read_only, full, clocks, gone)


class Disk:
    """A disk in memory."""

    def __init__(self, place: Path, size: int) -> None:
        self.place, self.size = place, max(4096, size)

    def __enter__(self) -> "Disk":
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self.size}", "stress", self.place], check=True)
        return self

    def mount(self, options: str) -> None:
        subprocess.run(["mount", "-o", options, self.place], check=True)

    def seal(self) -> None:
        """Nothing new can be written: the same disk, read-only, over itself, as one with open files cannot turn so."""
        subprocess.run(["mount", "--bind", self.place, self.place], check=True)
        self.mount("remount,bind,ro")

    def unseal(self) -> None:
        """As before; nothing, where the command ended before it was sealed."""
        places = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        if places.count(str(self.place)) > 1:
            subprocess.run(["umount", "--lazy", self.place], check=True)

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "--lazy", self.place], check=True)


def _at_a_moment(
    rng: random.Random, victim: Victim, place: Path, need: int, end: object,
    harm: Callable[[Disk], object], mend: Callable[[Disk], object],
) -> str | None:  # fmt: skip
    with Disk(place, 2 * need + 10**7) as disk:
        ended = forked(_slowly(lambda: victim.start(place), lambda: harm(disk), rng), 600)
        if wrong := _wrong(ended) or _half(place):
            return wrong
        mend(disk)
        return _goes_on(victim, place, end) if ended.code else None


def _slowly(work: Callable[[], object], harm: Callable[[], object], rng: random.Random) -> Callable[[], None]:
    """The harm comes before one of the command's renames of a finished file."""
    nth, real, seen = rng.choice([1, 1, 2, 4, 7]), os.replace, 0

    def harmed() -> None:
        def replace(*given: object) -> None:
            nonlocal seen
            seen += 1
            if seen == nth:
                harm()
            real(*given)

        os.replace = replace
        work()

    return harmed


def _wrong(ended: Ended) -> str | None:
    return ended.complaint


def _half(place: Path) -> str | None:
    wrong = half_written(place)
    return f"half written: {wrong}" if wrong else None


def _goes_on(victim: Victim, place: Path, end: object) -> str | None:
    ended = forked(lambda: victim.again(place), 600)
    if ended.code:
        return f"does not go on: exit {ended.code}: {ended.said[-300:]}"
    return None if victim.end(place) == end else "ended otherwise than unharmed"
