"""Limits of a search: what is refused before it is trained, and how its time is measured."""

import pytest

from capsella.bench import Latency
from capsella.errors import CapsellaError
from capsella.search import work, worker
from capsella.search.candidate import Trained
from capsella.search.latency import Stopwatch
from capsella.search.schedule import BASE
from tests.search.made import opened


def test_limits_refuse_before_training(tmp_path, monkeypatch):
    trained = []

    def fake(recipe, folder, *others):
        trained.append((recipe.model.options["pose_elements"], folder.name))
        return Trained(50.0 - 1000 * recipe.optimizer.learning_rate, 1.0, 1, 0.01)

    monkeypatch.setattr(worker, "train_to", fake)
    outcome = work(opened(tmp_path, limit_parameters=50_000, objectives=("error", "parameters")))
    sizes = {pose for pose, folder in trained if not folder.startswith("0000")}
    assert sizes == {9}  # with 16 there are 68,444
    assert any(record.state == "refused" for record in outcome.records)
    assert len({record.job.candidate for record in outcome.records if record.state == "done"}) == 6
    assert len({one.candidate for one in outcome.front}) <= 2
    assert outcome.winner.candidate != BASE  # which is over the limit, however good it is
    assert outcome.verdict.endswith("The recipe is over a limit: 68,444 parameters, more than 50,000.")


def test_draws_lead_away_from_what_limits_refuse(tmp_path, monkeypatch):
    """Over its parameters, a candidate's time is not measured; so it has no objectives, but it must count."""
    monkeypatch.setattr(worker, "train_to", lambda recipe, *_: Trained(3000 * recipe.optimizer.learning_rate, 1, 1, 1))
    monkeypatch.setattr(Stopwatch, "milliseconds", lambda *_: 1.0)
    options = {"limit_parameters": 50_000, "objectives": ("error", "ms", "parameters"), "trials": 30}
    records = work(opened(tmp_path, **options)).records
    refused = [record.number for record in records if record.state == "refused"]
    assert 0 < len(refused) < 15
    assert len([number for number in refused if number > max(records, key=lambda one: one.number).number // 2]) <= 3


def test_a_network_is_timed_once(tmp_path, monkeypatch):
    """Candidates that differ in training alone have the same milliseconds, whatever noise a second look would see."""
    timed = []
    monkeypatch.setattr(worker, "train_to", lambda recipe, *_: Trained(3000 * recipe.optimizer.learning_rate, 1, 1, 1))
    monkeypatch.setattr(Stopwatch, "milliseconds", lambda *_: timed.append(1) or float(len(timed)))
    search = opened(tmp_path, objectives=("error", "ms"), trials=12)
    records = work(search).records
    assert len(timed) == 2  # of two poses
    sizes = {search.study.points[record.job.candidate]["model.pose_elements"] for record in records}
    assert sizes == {9, 16}
    assert len({record.values[1] for record in records}) == 2


def test_a_refused_network_is_timed_once_and_refused_again(tmp_path, monkeypatch):
    timed = []
    monkeypatch.setattr(worker, "train_to", lambda recipe, *_: Trained(3000 * recipe.optimizer.learning_rate, 1, 1, 1))
    monkeypatch.setattr(Stopwatch, "milliseconds", lambda *_: timed.append(1) or [9.0, 1.0][len(timed) - 1])
    records = work(opened(tmp_path, objectives=("error", "ms"), limit_ms=5.0)).records  # the recipe's own is over it
    refused = [record for record in records if record.state == "refused"]
    assert refused
    assert len(timed) == 2


def test_limits_that_nothing_keeps_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "train_to", lambda *_: Trained(50.0, 1.0, 1, 0.01))
    monkeypatch.setattr(worker, "MOST_REFUSED", 3)
    with pytest.raises(
        CapsellaError,
        match=r"too little of the space can be trained within .*; the last was refused: .* parameters",
    ):
        work(opened(tmp_path, limit_parameters=10))


def test_time_is_measured_and_limits_refuse_by_it(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "train_to", lambda recipe, *_: Trained(3000 * recipe.optimizer.learning_rate, 1, 1, 1))
    monkeypatch.setattr("capsella.search.latency.BACKENDS", ("packed",))
    monkeypatch.setattr("capsella.search.latency.MOST_SECONDS", 0.1)
    outcome = work(opened(tmp_path, trials=2, finalists=1, seeds=1, objectives=("error", "ms")))
    assert all(0 < one.costs["ms"] < 1000 for one in outcome.finalists)
    monkeypatch.setattr(worker, "MOST_REFUSED", 1)
    with pytest.raises(CapsellaError, match="the last was refused: "):
        work(opened(tmp_path / "fast", limit_ms=1e-3))


def test_a_worker_on_a_busy_machine_knows_how_fast_it_is_when_quiet(tmp_path, monkeypatch):
    """Another worker found the yardstick's best: times are scaled to it, and all rounds count until there is one."""
    load, rounds = [1.0], []

    def latencies(steps, calls, most_seconds):
        rounds.append(load[0])
        return {name: Latency(load[0] * (1.0 if name == "yardstick" else 5.0), 0.0, 0.0, 100) for name in steps}

    monkeypatch.setattr("capsella.search.latency.latencies", latencies)
    monkeypatch.setattr("capsella.search.latency._steps", lambda *_: {"packed": None})
    monkeypatch.setattr(worker, "train_to", lambda recipe, *_: Trained(3000 * recipe.optimizer.learning_rate, 1, 1, 1))
    search = opened(tmp_path, objectives=("error", "ms"), trials=1)
    assert {record.values[1] for record in work(search).records} == {5.0}
    assert len(rounds) == 5
    load[0] = 3.0
    busy = opened(tmp_path, objectives=("error", "ms"), trials=12)
    assert {record.values[1] for record in work(busy).records} == {5.0}
    assert rounds[5:] == [3.0] * 5  # for the other network of the space; none of them is quiet
