"""Commands killed at random moments and in the middle of every kind of write: resumed, they end as if never killed."""

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

import safetensors.torch
import torch

from capsella.cli import main
from tests.experiments.compare.made import call as call_compare
from tests.search.made import opened as opened_search
from tests.stress.ground import Ended, Tally, command, forked, fresh, import_all, learned, make_images, make_run

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
WRITES = ("fsync", "replace")  # where `capsella.files` is in the middle of a write
KILLS = (1, 2, 3, 4)  # of one command before it may end
TRAIN = ["--size", "20", "--epochs", "2", "--batch-size", "6", "--accelerator", "cpu", "--precision", "32-true",
         "--deterministic"]  # fmt: skip


class Victim(NamedTuple):
    """A command that writes into a folder. again: resumes it. end: its result, the same for any two that ended."""

    start: Callable[[Path], object]
    again: Callable[[Path], object]
    end: Callable[[Path], object]
    share: int = 1  # of the rounds


def campaign(tally: Tally, folder: Path) -> None:
    """Let each command run, then kill it until it ends; in turns, until the time is up."""
    import_all()
    images = make_images(folder / "images")
    victims = all_victims(images, make_run(images, folder / "run"))
    rng, known = random.Random(tally.seed), {}
    while tally.has_time:
        name = min(victims, key=lambda name: tally.counts[f"{name} rounds"] / victims[name].share)
        if name not in known:
            known[name] = unharmed(tally, name, victims[name], folder)
        try_to_kill(tally, rng, name, victims[name], fresh(folder / f"{name}-killed"), *known[name])
        tally.counts[f"{name} rounds"] += 1


def unharmed(tally: Tally, name: str, victim: Victim, folder: Path) -> tuple[float, object]:
    """Return how long a command takes, and its result: the same twice."""
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
    """Kill a command a few times, check that no file is half written, and let it end."""
    kills, code = rng.choice(KILLS), None
    for number in range(kills + 1):
        work = victim.again if number else victim.start
        last, seed = number == kills, rng.randrange(10**9)
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
    """Kill by a signal at a random moment of the processor's time, or in the middle of a write."""
    rng = random.Random(seed)
    if rng.random() < 0.5:
        return forked(lambda: _die_in_a_write(rng, work), 600)
    how, moment = rng.choice(SIGNALS), rng.uniform(0.01, 1.0) * seconds

    def die_after() -> None:  # SIGINT raises KeyboardInterrupt, as Ctrl-C does
        signal.signal(signal.SIGPROF, lambda *_: os.kill(os.getpid(), how))
        signal.setitimer(signal.ITIMER_PROF, moment)
        work()

    return forked(die_after, 600)


def _die_in_a_write(rng: random.Random, work: Callable[[], object]) -> None:
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


def all_victims(images: Path, run: Path) -> dict[str, Victim]:
    """Return every command that resumes what it began."""

    def train(out: Path) -> None:
        main(["train", "images-efficient", str(images), *TRAIN, "--out", str(out / "run")])

    def go_on(out: Path) -> None:  # as a user would: resume if there is a checkpoint, else begin anew
        if (out / "run" / "last.ckpt").exists():
            return main(["train", "--resume", str(out / "run")])
        (out / "run" / "config.json").unlink(missing_ok=True)
        return train(out)

    def predict(out: Path) -> None:
        command("predict", run, images, "--out", out / "p.csv", "--batch-size", 2, "--workers", 0, "--resume")()

    def compare(out: Path) -> None:
        networks = ("--networks", "mazzia2021_efficient_capsnet", "hinton2018_cnn", "--folds", 1, "--seeds", 1)
        short = ("--size", 20, "--minutes", 0.01, "--accelerator", "cpu", "--no-curve")
        call_compare(images, *networks, *short, "--out", out / "c")

    def search(out: Path) -> None:
        from capsella.experiments.search import run_search, study, trials

        study.ATTEMPTS = trials.ATTEMPTS = max(KILLS) + 1  # a trial of which three processes died is given up
        with contextlib.suppress(KeyboardInterrupt):  # the command turns it into a sentence
            return run_search(opened_search(out / "study", trials=3, finalists=1, seeds=1))
        sys.exit(130)

    return {
        "train": Victim(train, go_on, weights_of, share=10),
        "predict": Victim(predict, predict, rows_of, share=2),
        "compare": Victim(compare, compare, results_of),
        "search": Victim(search, search, study_of),
    }


def weights_of(folder: Path) -> object:
    """Return the weights, and the table of the epochs without its times."""
    with open(folder / "run" / "metrics.csv") as file:
        rows = [{k: v for k, v in row.items() if "second" not in k} for row in csv.DictReader(file)]
    return (folder / "run" / "model.safetensors").read_bytes(), rows


def rows_of(folder: Path) -> object:
    """Return all lines, and the names of files; those of temporary ones begin with a dot."""
    names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name[0] != "."]
    return sorted((folder / "p.csv").read_text().splitlines()), sorted(names)


def results_of(folder: Path) -> object:
    """Return the test results of all runs."""
    paths = sorted(folder.rglob("result.json"))
    return {str(path.parent.relative_to(folder)): json.loads(path.read_text())["test"] for path in paths}


def study_of(folder: Path) -> object:
    """Return how many candidates there are, and the recipe's errors at each rung."""
    search = opened_search(folder / "study", trials=3, finalists=1, seeds=1)
    trials = [trial for trial in search.trials() if trial.state.name in ("COMPLETE", "PRUNED")]
    return len(trials), [trial.user_attrs["errors"] for trial in trials if trial.user_attrs["candidate"] == 0]


def half_written(folder: Path) -> list[str]:
    """Return the files that are not whole, without temporary ones, whose names begin with a dot."""
    wrong = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
            try:
                READERS.get(path.suffix, lambda _: None)(path)
            except Exception as error:
                wrong.append(f"{path.relative_to(folder)}: {type(error).__name__} {str(error)[:100]}")
    return wrong


def _read_csv(path: Path) -> None:
    widths = {len(row) for row in csv.reader(path.read_text().splitlines())}
    if len(widths) != 1 or not path.read_text().endswith("\n"):
        raise ValueError(f"lines of {sorted(widths)} cells")


READERS: dict[str, Callable[[Path], object]] = {
    ".json": lambda path: json.loads(path.read_text()),
    ".csv": _read_csv,
    ".safetensors": lambda path: safetensors.torch.load_file(path),
    ".ckpt": lambda path: torch.load(path, weights_only=True),
}
