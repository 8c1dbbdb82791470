"""A search in one process: what is trained, rejected, found, and never looked at."""

import dataclasses
import json
import shutil

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from PIL import Image
from sklearn.datasets import load_digits

from capsella.data import FolderData, load_data, read_split_file
from capsella.errors import CapsellaError
from capsella.experiments.search import SearchOptions, Space, finish_search, open_search, run_search, trials
from capsella.experiments.search.report import read_tests, winner_test
from capsella.training import OptimizerOptions, RunFolder, TrainingDivergedError, read_recipe, train
from tests.papers.tiny import QUIET
from tests.search.made import OPTIONS, RECIPE, SPACE, images, opened, states


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    search = opened(tmp_path_factory.mktemp("study"))
    return search, run_search(search)


@pytest.fixture
def untrained(monkeypatch):
    """A candidate's error is its learning rate, and nothing is trained."""

    def rungs(search, trial, candidate, recipe, files):
        trial.set_user_attr("errors", [3e3 * recipe.optimizer.learning_rate])
        return 3e3 * recipe.optimizer.learning_rate

    monkeypatch.setattr(trials, "_train_rungs", rungs)


class TestSearched:
    def test_each_candidate_is_trained_or_stopped_at_a_rung(self, searched):
        search, _ = searched
        assert search.rungs == (1, 3, 9)
        assert len(search.trials()) == 6
        for trial in search.trials():
            rungs = len(trial.user_attrs["errors"])
            assert trial.user_attrs["epochs"] == search.rungs[rungs - 1]
            assert trial.state.name == ("COMPLETE" if rungs == 3 else "PRUNED")
        assert search.trials()[0].state.name == "COMPLETE"  # the recipe
        assert search.trials()[0].params == SPACE.point_of(RECIPE)

    def test_training_in_rungs_computes_the_same_as_in_one_go(self, searched, tmp_path):
        search, _ = searched
        train(RECIPE, tmp_path / "whole", console=QUIET, splits=search.splits)
        assert RunFolder(tmp_path / "whole").read("summary")["best"]["validation_error"] == pytest.approx(
            search.trials()[0].value, abs=1e-4
        )

    def test_the_recipe_and_the_best_have_every_seed(self, searched):
        search, outcome = searched
        assert outcome.base is not None
        assert {len(finalist.errors) for finalist in outcome.finalists} == {2}
        written = json.loads((search.folder / "outcome.json").read_text())
        assert written["winner"] == outcome.winner.candidate

    def test_no_checkpoint_is_left_and_only_complete_candidates_keep_weights(self, searched):
        search, _ = searched
        assert not list(search.folder.rglob("last.ckpt"))
        kept = {path.parent.name for path in (search.folder / "candidates").rglob("model.safetensors")}
        assert kept == {
            search.run_folder(trial.number).name for trial in search.trials() if trial.state.name == "COMPLETE"
        }

    def test_a_finished_search_has_nothing_to_do(self, searched):
        search, outcome = searched
        again = run_search(opened(search.folder))
        assert len(again.trials) == len(outcome.trials)
        assert again.finalists == outcome.finalists

    def test_other_settings_are_not_mixed_in(self, searched):
        search, _ = searched
        for changes in ({"limit_parameters": 10**6}, {"seeds": 3}):
            with pytest.raises(CapsellaError, match=next(iter(changes)).split("_")[0]):
                opened(search.folder, **changes)
        with pytest.raises(CapsellaError, match="recipe"):
            opened(search.folder, dataclasses.replace(RECIPE, seed=7))
        fewer = images()
        fewer = dataclasses.replace(fewer, validation=fewer.validation.subset(range(10)))
        with pytest.raises(CapsellaError, match="images"):
            open_search(RECIPE, "tiny", dataclasses.replace(OPTIONS, out=search.folder), SPACE, splits=fewer)

    def test_the_winner_is_tested_once_and_its_recipe_saved(self, searched):
        search, outcome = searched
        assert read_tests(search, outcome.winner) == []
        page, path = finish_search(search, outcome)
        assert len(read_tests(search, outcome.winner)) == 2
        results = {path: path.stat().st_mtime_ns for path in search.folder.rglob("result.json")}
        assert len(results) == 2
        finish_search(search, outcome)
        assert {path: path.stat().st_mtime_ns for path in search.folder.rglob("result.json")} == results
        assert read_recipe(path) == search.space.recipe_at(RECIPE, outcome.winner.point)
        assert all(path in page.read_text() for path in SPACE.fields)
        candidates = search.folder / "candidates"
        shutil.copytree(search.run_folder(outcome.winner.candidate), candidates / "candidate-0099")
        assert "candidate 99" in winner_test(search, outcome.winner)  # won when the search was shorter


def test_test_images_are_never_used(tmp_path):
    splits = opened(tmp_path).splits
    for use in (len, lambda test: test.images, lambda test: test.labels, lambda test: test.counts()):
        with pytest.raises((AttributeError, TypeError)):
            use(splits.test)
    with pytest.raises(CapsellaError, match="validation"):
        opened(tmp_path / "looks", dataclasses.replace(RECIPE, stop_at_error=1.0, stop_on="test"))


def test_the_split_of_a_folder_is_kept(tmp_path):
    for number, (image, label) in enumerate(zip(*load_digits(return_X_y=True), strict=True)):
        if number < 200 and label < 2:
            folder = tmp_path / "cells" / str(label)
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray((image.reshape(8, 8) * 15).astype("uint8")).save(folder / f"{number}.png")
    data = FolderData(tmp_path / "cells", size=17)
    space = Space({"optimizer.learning_rate": FloatDistribution(1e-4, 1e-2, log=True)})
    options = SearchOptions(trials=1, finalists=1, seeds=1, out=tmp_path / "study")
    search = open_search(dataclasses.replace(RECIPE, data=data, epochs=1), "tiny", options, space)
    run_search(search)
    kept = read_split_file(search.run_folder(0) / "split.csv")
    assert {file for file, row in kept.rows.items() if row.split == "test"} == set(load_data(data).test.files)


@pytest.mark.usefixtures("untrained")
class TestUntrained:
    def test_limits_reject_before_training_and_draws_lead_away(self, tmp_path, monkeypatch):
        timed = []
        monkeypatch.setattr(trials, "latency_of", lambda *_: timed.append(1) or 1.0)
        search = opened(tmp_path, limit_parameters=30_000, limit_ms=5.0, trials=15, seeds=1)
        outcome = run_search(search)
        over = [trial for trial in outcome.trials if "over_limit" in trial.user_attrs]
        assert over  # with a width of 6 there are 44,068 parameters
        assert all(trial.params["model.width"] == 6 for trial in over)
        complete = [trial for trial in outcome.trials if trial.state.name == "COMPLETE"]
        assert {trial.params["model.width"] for trial in complete[1:]} == {4}
        assert len(complete) == 15
        assert len(timed) == 2  # each network once
        assert outcome.winner.candidate != 0  # the recipe is over the limit
        assert outcome.base_excess == {"parameters": pytest.approx(44_068 / 30_000 - 1)}

    @pytest.mark.parametrize("end", [{"trials": 5}, {"trials": 30}, {"trials": None, "minutes": 1e6}])
    def test_a_finite_space_is_searched_to_its_end(self, tmp_path, end):
        rates = [RECIPE.optimizer.learning_rate * factor for factor in (0.25, 0.5, 1, 2, 4)]
        space = Space({"optimizer.learning_rate": CategoricalDistribution(rates)})
        outcome = run_search(opened(tmp_path, space=space, seeds=1, **end))
        complete = [trial for trial in outcome.trials if trial.state.name == "COMPLETE"]
        assert sorted(trial.params["optimizer.learning_rate"] for trial in complete) == rates
        assert len(outcome.trials) < 200

    def test_minutes_end_a_search(self, tmp_path):
        search = opened(tmp_path, trials=None, minutes=1e6, seeds=1)
        trials.run_trials(search, QUIET, deadline=0.0)
        assert states(search) == ["WAITING"]


def test_a_candidate_that_fails_is_rejected_and_others_go_on(tmp_path, monkeypatch):
    failures = iter([TrainingDivergedError("the loss is nan"), ValueError("no such kernel"), MemoryError()])

    def rungs(search, trial, candidate, *_):
        trial.set_user_attr("errors", [50.0])
        if candidate and (failure := next(failures, None)):
            raise failure
        return 50.0

    monkeypatch.setattr(trials, "_train_rungs", rungs)
    search = opened(tmp_path, trials=5, seeds=1)
    run_search(search)
    assert states(search) == ["COMPLETE", *["PRUNED"] * 3, "COMPLETE"]


def test_an_interrupted_trial_is_taken_up_again_and_one_that_never_ends_is_given_up(tmp_path, monkeypatch):
    def stop(*_):
        raise failure

    monkeypatch.setattr(trials, "_train_rungs", stop)
    for failure in (KeyboardInterrupt(), *[CapsellaError("last.ckpt is damaged")] * 3):
        with pytest.raises(type(failure)):
            run_search(opened(tmp_path, trials=2, seeds=1))
    search = opened(tmp_path, trials=1, seeds=1)
    assert {trial.user_attrs["candidate"] for trial in search.trials()} == {0}
    assert states(search) == ["FAIL"] * 4


def test_rungs_within_the_warm_up_of_the_largest_batch_are_left_out(tmp_path):
    recipe = dataclasses.replace(RECIPE, optimizer=OptimizerOptions(schedule="cosine", warmup_steps=2))
    assert opened(tmp_path / "one step an epoch", recipe).rungs == (3, 9)
    recipe = dataclasses.replace(recipe, batch_size=5)
    assert opened(tmp_path / "four", recipe).rungs == (1, 3, 9)
