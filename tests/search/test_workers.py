"""Several processes at one search: they share the work, and one that is killed loses little."""

import collections
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.search import made

ROOT = Path(made.__file__).parents[2]
FEW = {"options": {"trials": 3, "finalists": 1, "seeds": 1}}
pytestmark = pytest.mark.slow


@pytest.fixture
def worker(tmp_path):
    processes = []

    def start(folder=tmp_path, **words):
        command = [sys.executable, "-m", "tests.search.made", str(folder), json.dumps(words)]
        process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"})
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


def wait_until(is_so, seconds=240):
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < seconds
        time.sleep(0.05)


def trained(folder):
    """Process, run, epoch, and epochs trained for it, for each rung of each candidate."""
    path = folder / "trained.txt"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("storage", [None, "sqlite"])
def test_two_processes_share_the_work(tmp_path, worker, storage):
    options = {"trials": 6, "finalists": 1}
    if storage is not None:
        options["storage"] = f"sqlite:///{tmp_path / 'study.db'}"
    pair = [worker(waits=0.3, options=options) for _ in range(2)]
    wait_until(lambda: len(list(tmp_path.glob("*.ready"))) == 2)
    (tmp_path / "go").touch()
    assert [process.wait(240) for process in pair] == [0, 0]
    search = made.opened(tmp_path, **options)
    assert set(made.states(search)) == {"COMPLETE", "PRUNED"}
    assert len(search.trials()) == 6
    rungs = trained(tmp_path)
    assert collections.Counter((run, epoch) for _, run, epoch, _ in rungs).most_common(1)[0][1] == 1
    assert len({process for process, *_ in rungs}) == 2
    outcome = search.outcome()
    assert {len(finalist.errors) for finalist in outcome.finalists} == {2}


def test_a_worker_killed_in_mid_epoch_costs_less_than_a_rung(tmp_path, worker):
    """A worker killed at the second of four steps of the fifth epoch: the search ends like one without a kill."""
    few = {"batch": 5, **FEW}
    ends = []
    for name in ("killed", "whole"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "go").touch()
        if name == "killed":
            assert worker(folder, **few, dies=["candidate-0000", 5, 2]).wait(240) == -signal.SIGKILL
        assert worker(folder, **few).wait(240) == 0
        search = made.opened(folder, dataclasses.replace(made.RECIPE, batch_size=5), **few["options"])
        assert made.states(search).count("FAIL") == (name == "killed")
        base = next(trial for trial in search.trials() if trial.state.name == "COMPLETE")
        ends.append((base.params, base.values, base.user_attrs["errors"]))
    assert ends[0] == ends[1]
    again = [rung for rung in trained(tmp_path / "killed") if rung[1:3] == ["candidate-0000", "9"]]
    assert [rung[3] for rung in again] == ["5"]  # from epoch 5 on, of the rung's six epochs
