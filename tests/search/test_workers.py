"""Several processes at one study: they share the work, and one that is killed loses little."""

import collections
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import optuna
import pytest

from capsella.search.schedule import done
from tests.search import made

ROOT = Path(made.__file__).parents[2]
pytestmark = pytest.mark.slow


FEW = {"options": {"trials": 3, "finalists": 1, "seeds": 1}}


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
    """Process, run, epoch, and epochs trained for it, of every job."""
    path = folder / "trained.txt"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def test_two_processes_share_the_work(tmp_path, worker):
    four = {"trials": 4, "finalists": 1}
    two = [
        worker(waits=0.5, grace=120, options=four) for _ in range(2)
    ]  # a busy machine may hold one up for more than 8 s
    wait_until(lambda: len(list(tmp_path.glob("*.ready"))) == 2)
    (tmp_path / "go").touch()
    assert [process.wait(240) for process in two] == [0, 0]
    assert "lost" not in {record.state for record in made.opened(tmp_path, **four).study.records()}
    jobs = trained(tmp_path)
    assert collections.Counter((run, epoch) for _, run, epoch, _ in jobs).most_common(1)[0][1] == 1
    by_process = collections.Counter(process for process, *_ in jobs)
    assert len(by_process) == 2
    assert min(by_process.values()) >= len(jobs) // 4
    assert sum(int(epochs) for *_, epochs in jobs) == len(jobs_of_all(tmp_path)) * 9 + early(tmp_path)


def test_two_that_ask_at_once_are_given_different_trials(tmp_path):
    """Forty trials wait, in a file; in SQLite's own transactions some were given twice in most rounds."""
    studies = [made.opened(tmp_path).study for _ in range(2)]
    point = {"optimizer.learning_rate": 1e-3, "augment.shift": 1, "model.pose_elements": 9}
    for number in range(40):
        studies[0].trials.enqueue_trial(point, user_attrs={"candidate": number, "rung": 0, "seed": 0})
    with ThreadPoolExecutor(2) as both:
        found = both.map(lambda study: [study.ask(None).number for _ in range(20)], studies)
    assert sorted(number for numbers in found for number in numbers) == list(range(40))


def test_a_worker_that_died_as_it_took_a_trial_is_not_waited_for(tmp_path):
    """Before its first sign of life, and before the trial had its point."""
    study = made.opened(tmp_path).study
    (trial,) = study.trials.get_trials()
    study.storage.set_trial_state_values(trial._trial_id, optuna.trial.TrialState.RUNNING)
    assert [record.state for record in study.records()] == ["running"]
    with study.storage.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE trial_heartbeats SET heartbeat = '2020-01-01 00:00:00'")
    records = study.records()
    assert [record.state for record in records] == ["lost"]
    claim = study.ask(records[0].job)
    assert claim.job == records[0].job
    assert claim.point == made.SPACE.labels_of(made.RECIPE)


def jobs_of_all(folder):
    """The runs that were trained to the end."""
    return {run for _, run, epoch, _ in trained(folder) if epoch == "9"}


def early(folder):
    """Epochs of the runs that were not."""
    last = {run: int(epoch) for _, run, epoch, _ in sorted(trained(folder), key=lambda job: int(job[2]))}
    return sum(epoch for epoch in last.values() if epoch < 9)


def test_a_killed_workers_trial_is_taken_up(tmp_path, worker):
    first = worker(waits=1000.0, **FEW)  # hangs after its first rung, which its checkpoint has
    (tmp_path / "go").touch()
    wait_until(lambda: trained(tmp_path))
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert worker(**FEW).wait(240) == 0
    jobs = trained(tmp_path)
    again = [job for job in jobs[1:] if job[1:3] == jobs[0][1:3]]
    assert [job[3] for job in again] == ["0"]  # taken up, with nothing to train anew
    records = made.opened(tmp_path, **FEW["options"]).study.records()
    assert [record.state for record in records].count("lost") == 1
    assert len(done(records, 0)) == 3


def test_one_that_is_killed_in_mid_epoch_costs_less_than_a_rung(tmp_path, worker):
    """A real worker, killed at the second of four steps of the fifth epoch: the study ends as one without a kill."""
    few = {"batch": 5, **FEW}
    ends = []
    for name in ("killed", "whole"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "go").touch()
        if name == "killed":
            assert worker(folder, **few, dies=["0000-seed0", 5, 2]).wait(240) == -signal.SIGKILL
        assert worker(folder, **few).wait(240) == 0
        recipe = dataclasses.replace(made.RECIPE, batch_size=5)
        search = made.opened(folder, recipe, **few["options"])
        records, points = search.study.records(), search.study.points
        assert [record.state for record in records].count("lost") == (name == "killed")
        finished = [record for record in records if record.state == "done"]
        assert len({record.job for record in finished}) == len(finished)
        point = {candidate: json.dumps(point, sort_keys=True) for candidate, point in points.items()}
        ends.append({(point[r.job.candidate], r.job.rung, r.job.seed): (r.values, r.loss) for r in finished})
    assert ends[0] == ends[1]
    assert len(ends[0]) == len(trained(tmp_path / "whole")) == len(trained(tmp_path / "killed"))
    again = [job for job in trained(tmp_path / "killed") if job[1:3] == ["0000-seed0", "9"]]
    assert [job[3] for job in again] == ["5"]  # from epoch 5 on, of the rung's six epochs
