"""Commands killed at random moments, and in the middle of every kind of write: gone on with, they end as if never."""

import contextlib
import csv
import json
import os
import random
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from capsella.cli import main
from capsella.experiments.search import Search
from tests.reproduce.made import registered
from tests.search.made import opened as opened_search
from tests.stress.ground import Ended, command, forked, fresh, import_all, learned, make_images, make_run
from tests.stress.tally import Tally
from tests.stress.whole import half_written

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
WRITES = ("fsync", "replace")
"""Where `capsella.files` is in the middle of a write."""
KILLS = (1, 2, 3, 4)
"""Of one command before it is let go on to its end."""


class Victim(NamedTuple):
    """A command that writes into a folder. again: what goes on with it after a kill. end: what it must come to; equal
    of any two that ended."""

    start: Callable[[Path], object]
    again: Callable[[Path], object]
    end: Callable[[Path], object]
    share: int = 1
    """Of the rounds."""


def campaign(tally: Tally, folder: Path) -> None:
    """Each command is once let run, and then killed until it ends; by turns, until the time is up.

    STRESS_COMMANDS="predict share" in the environment: only these.
    """
    import_all()
    images = make_images(folder / "images")
    victims = all_victims(images, make_run(images, folder / "run"), folder)
    if only := os.environ.get("STRESS_COMMANDS", "").split():
        victims = {name: victims[name] for name in only}
    rng, known = random.Random(tally.seed), {}
    while tally.has_time:
        name = min(victims, key=lambda name: tally.counts[f"{name} rounds"] / victims[name].share)
        if name not in known:
            known[name] = unharmed(tally, name, victims[name], folder)
        try_to_kill(tally, rng, name, victims[name], fresh(folder / f"{name}-killed"), *known[name])
        tally.counts[f"{name} rounds"] += 1


def unharmed(tally: Tally, name: str, victim: Victim, folder: Path) -> tuple[float, object]:
    """How long a command takes, and what it comes to: the same twice."""
    ends = []
    for run in (learned, forked):
        whole = fresh(folder / f"{name}-whole")
        ended = run(partial(victim.start, whole), 600)
        if ended.complaint or ended.code:
            raise RuntimeError(f"{name} does not even end unharmed: {ended.code} {ended.said[-300:]}")
        ends.append(victim.end(whole))
    if ends[0] != ends[1]:
        tally.found(f"{name}: two that nobody harmed came to different ends")
    return ended.seconds, ends[1]


def try_to_kill(
    tally: Tally, rng: random.Random, name: str, victim: Victim, folder: Path, seconds: float, end: object
) -> None:
    """Kill it a few times, see that nothing is half written, and let it end."""
    kills, code = rng.choice(KILLS), None
    for number in range(kills + 1):
        work = victim.again if number else victim.start
        last = number == kills
        seed = rng.randrange(10**9)
        ended = forked(partial(work, folder), 600) if last else killed(partial(work, folder), seed, seconds)
        code = ended.code
        if not last and code not in (0, None):
            tally.counts[f"{name} killed"] += 1
        if wrong := half_written(folder):
            tally.found(f"{name}, kill {seed}: half written: {wrong}")
        if (at := ended.said.find("Traceback")) >= 0 and code != -signal.SIGKILL:
            tally.found(f"{name}, kill {seed}, exit {code}: {ended.said[max(0, at - 200) : at + 1500]}")
        if code == 0 and not last:
            break
    if code != 0:
        tally.found(f"{name}: does not go on: exit {code}: {ended.said[-300:]}")
    elif victim.end(folder) != end:
        tally.found(f"{name}: ended otherwise than unharmed")


def killed(work: Callable[[], object], seed: int, seconds: float) -> Ended:
    """By a signal at a random moment, or in the middle of one of its writes."""
    rng = random.Random(seed)
    if rng.random() < 0.5:
        return forked(lambda: _die_in_a_write(rng, work), 600)
    how, moment = rng.choice(SIGNALS), rng.uniform(0.01, 1.0) * seconds
    return forked(lambda: _die_after(how, moment, work), 600)


def _die_after(how: signal.Signals, moment: float, work: Callable[[], object]) -> None:
    """After so many seconds of the processor; SIGINT as Ctrl-C raises KeyboardInterrupt wherever Python stands."""
    signal.signal(signal.SIGPROF, lambda *_: os.kill(os.getpid(), how))
    signal.setitimer(signal.ITIMER_PROF, moment)
    work()


def _die_in_a_write(rng: random.Random, work: Callable[[], object]) -> None:
    """Before or after one of the first writes' calls of the system."""
    where, nth, before = rng.choice(WRITES), rng.choice([1, 2, 3, 5, 8, 13, 21]), rng.random() < 0.5
    real, seen = getattr(os, where), 0

    def deadly(*given: object, **options: object) -> object:
        nonlocal seen
        seen += 1
        if seen == nth and before:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*given, **options)
        if seen == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(os, where, deadly)
    work()


TRAIN = ["--size", "20", "--epochs", "2", "--batch-size", "6", "--accelerator", "cpu", "--precision", "32-true",
         "--deterministic", "--checkpoint-seconds", "0"]  # fmt: skip


def all_victims(images: Path, run: Path, folder: Path) -> dict[str, Victim]:
    """Every command that writes for more than a moment."""

    def train(out: Path) -> None:
        main(["train", "images-efficient", str(images), *TRAIN, "--out", str(out / "run")])

    def go_on(out: Path) -> None:
        """As a user would: resume where there is a checkpoint, else begin anew elsewhere, or here."""
        if (out / "run" / "last.ckpt").exists():
            return main(["train", "--resume", str(out / "run")])
        (out / "run" / "config.json").unlink(missing_ok=True)
        return train(out)

    def predict(out: Path) -> None:
        command("predict", run, images, "--out", out / "p.csv", "--batch-size", 2, "--workers", 0, "--resume")()

    compare = ["compare", str(images), "--models", "mazzia2021_efficient_capsnet", "hinton2018_cnn", "--seeds", "1",
               "--rates", "1", "--epochs", "1", "--sizes", "1", "--size", "20", "--accelerator", "cpu",
               "--out"]  # fmt: skip

    def night(out: Path) -> None:
        with registered():
            main(["papers", "reproduce", "--budget", "small", "--seeds", "1", "--out", str(out / "night")])

    def search(out: Path) -> None:
        from capsella.experiments.search import run_search, trials

        trials.ATTEMPTS = max(KILLS) + 1  # a trial that three processes died of is given up, and rightly so
        with contextlib.suppress(KeyboardInterrupt):  # the command turns it into a sentence
            return run_search(study_in(out))
        sys.exit(130)

    share = ["share", str(run), "--images", "6", "--out"]
    export = ["export", str(run), "--out"]
    return {
        "train": Victim(train, go_on, weights_of, share=10),
        "predict": Victim(predict, predict, rows_of, share=2),
        "compare": Victim(*[lambda out: main([*compare, str(out / "c")])] * 2, results_of),
        "reproduce": Victim(night, night, results_of),
        "search": Victim(search, search, study_of),
        "share": Victim(*[lambda out: main([*share, str(out / "p.html")])] * 2, names_of),
        "export": Victim(*[lambda out: main([*export, str(out / "m.onnx")])] * 2, names_of),
    }


def weights_of(folder: Path) -> object:
    """Weights, and the table of the epochs but for its times."""
    with open(folder / "run" / "metrics.csv") as file:
        rows = [{k: v for k, v in row.items() if "second" not in k} for row in csv.DictReader(file)]
    return (folder / "run" / "model.safetensors").read_bytes(), rows


def rows_of(folder: Path) -> object:
    """All lines, each once."""
    return sorted((folder / "p.csv").read_text().splitlines()), names_of(folder)


def names_of(folder: Path) -> list[str]:
    """Files, but those whose names begin with a dot: a killed process cannot remove its temporary one."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(str(path) for path in found if not path.name.startswith("."))


def results_of(folder: Path) -> object:
    """What all runs found on the test images."""
    return {
        str(path.parent.relative_to(folder)): json.loads(path.read_text())["test"]
        for path in sorted(folder.rglob("result.json"))
    }


def study_in(folder: Path) -> Search:
    return opened_search(folder / "study", trials=3, finalists=1, seeds=1)


def study_of(folder: Path) -> object:
    """How many candidates there are, and the recipe's errors at each rung."""
    trials = [trial for trial in study_in(folder).trials() if trial.state.name in ("COMPLETE", "PRUNED")]
    base = [trial.user_attrs["errors"] for trial in trials if trial.user_attrs["candidate"] == 0]
    return len(trials), base
