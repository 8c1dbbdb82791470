"""A search in one process: what is trained, refused, found, and never looked at."""

import dataclasses
import errno
import io
import json
import time
from concurrent.futures import ThreadPoolExecutor

import optuna
import pytest
from PIL import Image
from rich.console import Console
from sklearn.datasets import load_digits

from capsella.data import DataOptions, load_data, read_split_file
from capsella.errors import CapsellaError
from capsella.search import Choice, Range, Space, open_search, work, worker
from capsella.search.candidate import Images, SealedError, Trained, candidate_folder, sealed
from capsella.search.cost import Costs
from capsella.search.final import save_finalists, train_winner, winning_recipe
from capsella.search.schedule import ATTEMPTS, BASE, Job, candidates, done
from capsella.training import Machine, RunFolder, read_recipe, save_recipe, train
from tests.papers.tiny import QUIET
from tests.search.made import OPTIONS, RECIPE, SPACE, an_epoch_takes, opened, read


def test_every_candidate_is_trained_once_to_each_rung(searched):
    search, outcome = searched
    assert search.rules.rungs == (1, 3, 9)
    jobs = [record.job for record in outcome.records if record.state == "done"]
    assert len(set(jobs)) == len(jobs)
    assert len(done(outcome.records, 0)) == 6
    assert {record.state for record in outcome.records} == {"done"}


def test_a_promotion_goes_on_from_the_checkpoint(searched):
    search, outcome = searched
    for record in outcome.records:
        before = search.rules.rungs[record.job.rung - 1] if record.job.rung and not record.job.seed else 0
        assert record.epochs == search.rules.rungs[record.job.rung] - before
    rows = (candidate_folder(search.folder, Job(BASE, 2)) / "metrics.csv").read_text().splitlines()
    assert [line.split(",")[:2] for line in rows[1:]] == [[str(epoch), str(epoch)] for epoch in range(1, 10)]


def test_in_rungs_or_in_one_go_a_training_computes_the_same(searched, tmp_path):
    search, outcome = searched
    (base,) = [one for one in done(outcome.records, search.rules.top) if one.job.candidate == BASE]
    train(RECIPE, tmp_path / "whole", console=QUIET, splits=search.images.of(RECIPE.data))
    best = RunFolder(tmp_path / "whole").read("summary")["best"]
    assert (best["validation_error"], best["validation_loss"]) == (base.values[0], base.loss)


def test_the_recipe_and_the_best_are_repeated_with_every_seed(searched):
    search, outcome = searched
    assert len(outcome.finalists) == 3
    assert {len(one.errors) for one in outcome.finalists} == {2}
    assert outcome.base is not None
    assert outcome.base.point == SPACE.labels_of(RECIPE)
    assert outcome.winner.error == min(one.error for one in outcome.finalists)
    written = json.loads((search.folder / "outcome.json").read_text())
    assert written["verdict"] == outcome.verdict
    assert [one["candidate"] for one in written["finalists"]] == [one.candidate for one in outcome.finalists]


def test_a_finished_study_has_nothing_to_do(searched):
    search, outcome = searched
    again = work(opened(search.folder))
    assert [record.number for record in again.records] == [record.number for record in outcome.records]


def test_a_study_of_something_else_is_not_mixed_in(searched):
    search, _ = searched
    with pytest.raises(CapsellaError, match="begun with other settings: limit_parameters None, not "):
        opened(search.folder, limit_parameters=10**6)
    with pytest.raises(CapsellaError, match="begun with other objectives"):
        opened(search.folder, objectives=("error", "parameters"))


def test_test_images_are_never_touched(tmp_path):
    splits = sealed(read(RECIPE.data))
    with pytest.raises(SealedError):
        len(splits.test)
    with pytest.raises(SealedError):
        _ = splits.test.images
    with pytest.raises(SealedError):
        splits.named()["test"].counts()
    assert isinstance(opened(tmp_path).images.of(RECIPE.data), type(splits))
    with pytest.raises(SealedError):
        len(Images(read).of(RECIPE.data).test)


def test_images_of_a_folder_are_searched_and_their_split_is_kept(tmp_path):
    for number, (image, label) in enumerate(zip(*load_digits(return_X_y=True), strict=True)):
        if number < 200 and label < 2:
            folder = tmp_path / "cells" / str(label)
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray((image.reshape(8, 8) * 15).astype("uint8")).save(folder / f"{number}.png")
    data = DataOptions(name="folder", path=tmp_path / "cells", size=17)
    recipe, options = dataclasses.replace(RECIPE, data=data), {"trials": 1, "finalists": 1, "seeds": 1}
    space = Space({"optimizer.learning_rate": Range(1e-4, 1e-2, log=True)})
    search = open_search(recipe, "tiny", dataclasses.replace(OPTIONS, out=tmp_path / "study", **options), space)
    outcome = work(search)
    assert {record.state for record in outcome.records} == {"done"}
    kept = read_split_file(candidate_folder(search.folder, Job(BASE, 0)) / "split.csv")
    whole = load_data(data)
    assert {file for file, row in kept.rows.items() if row.split == "test"} == set(whole.test.files)
    assert {row.split for row in kept.rows.values()} == {"train", "validation", "test"}


def test_a_recipe_that_looks_at_the_test_is_refused(tmp_path):
    looks = dataclasses.replace(RECIPE, stop_at_error=1.0, stop_on="test")
    with pytest.raises(CapsellaError, match="never looks at test images"):
        opened(tmp_path, looks)


def test_too_few_minutes_leave_no_study_behind(tmp_path, monkeypatch):
    an_epoch_takes(monkeypatch, 6000.0)
    rule = "here for 6 candidates and 2 finalists with 2 seeds"
    with pytest.raises(ValueError, match=rule):
        opened(tmp_path / "study", minutes=1.0)
    assert not (tmp_path / "study").exists()


def test_no_point_is_trained_twice(tmp_path, monkeypatch):
    """Of four points there are four candidates, and the search ends."""
    monkeypatch.setattr(worker, "train_to", lambda recipe, *_: Trained(float(recipe.augment.shift), 1, 1, 1))
    space = Space({"augment.shift": Range(0, 1), "model.pose_elements": Choice(9, 16)})
    options = dataclasses.replace(OPTIONS, out=tmp_path, trials=30)
    search, lines = open_search(RECIPE, "tiny", options, space, images=Images(read)), io.StringIO()
    records = work(search, Console(file=lines, width=200)).records
    assert candidates(records) == {record.job.candidate for record in records if record.state == "done"}
    assert len(candidates(records)) == 4
    assert lines.getvalue().count("the space has no more points") == 1


def test_minutes_count_for_all_calls_together(tmp_path, monkeypatch):
    def slow(*_):
        time.sleep(1.5)  # long beside what the database takes on a busy machine
        return Trained(50.0, 1.0, 1, 1.5)

    monkeypatch.setattr(worker, "train_to", slow)
    an_epoch_takes(monkeypatch, 1e-6)
    first = work(opened(tmp_path, trials=None, minutes=0.05)).records
    assert first
    assert len(work(opened(tmp_path, trials=None, minutes=0.05)).records) == len(first)
    assert len(work(opened(tmp_path, trials=None, minutes=0.1)).records) > len(first)


def test_at_the_end_of_its_time_a_worker_waits_for_what_others_still_train(tmp_path, monkeypatch):
    """All of them then name the same winner."""
    monkeypatch.setattr(worker, "POLL", 0.05)
    ours, theirs = opened(tmp_path, trials=None), opened(tmp_path, trials=None)
    claim = theirs.study.ask(None)
    late = worker.Worker(ours, Costs(ours.options, ours.images), print, print, deadline=time.monotonic())
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(late.run)
        time.sleep(0.5)
        assert not found.done()
        claim.finish([40.0], loss=1.0, epochs=1, seconds=1.0, parameters=9.0)
        assert [record.state for record in found.result(30)] == ["done"]


def test_a_machine_that_lacks_the_device_takes_no_work(tmp_path):
    """Every training would fail there, and its candidate be refused for all workers."""
    search = dataclasses.replace(opened(tmp_path), machine=Machine(accelerator="cuda"))
    with pytest.raises(ValueError, match="accelerator, devices: must be there on this machine"):
        work(search)
    assert [record.state for record in search.study.records()] == ["waiting"]


def test_too_little_memory_is_no_fault_of_the_candidate(tmp_path, monkeypatch):
    def hungry(recipe, folder, *_):
        if not folder.name.startswith("0000"):
            raise MemoryError
        return Trained(50.0, 1.0, 1, 0.01)

    monkeypatch.setattr(worker, "train_to", hungry)
    for call in range(1, ATTEMPTS + 2):  # a process takes it once
        records = work(opened(tmp_path, trials=2, finalists=1, seeds=1)).records
        others = [record.state for record in records if record.job.candidate != BASE]
        assert others == ["lost"] * min(call, ATTEMPTS)


def test_a_full_disk_is_no_fault_of_the_candidate(tmp_path, monkeypatch):
    def full(*_):
        raise CapsellaError("no space left") from OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(worker, "train_to", full)
        for _ in range(ATTEMPTS):
            with pytest.raises(CapsellaError, match="no space left"):
                work(opened(tmp_path, trials=1, finalists=1, seeds=1))
    monkeypatch.setattr(worker, "train_to", lambda *_: Trained(50.0, 1.0, 1, 0.01))
    assert work(opened(tmp_path, trials=1, finalists=1, seeds=1)).base is not None


def test_a_candidate_that_cannot_go_on_is_given_up(tmp_path, monkeypatch):
    """As of a checkpoint that is damaged: the others go on."""

    others = set()

    def damaged(recipe, folder, *_):
        others.update({folder.name} - {"0000-seed0"})
        if folder.name == min(others, default=None):
            raise CapsellaError("last.ckpt is damaged or cut off")
        return Trained(50.0, 1.0, 1, 0.01)

    monkeypatch.setattr(worker, "train_to", damaged)
    for _ in range(ATTEMPTS):
        with pytest.raises(CapsellaError, match="damaged or cut off"):
            work(opened(tmp_path, trials=3, finalists=1, seeds=1))
    records = work(opened(tmp_path, trials=3, finalists=1, seeds=1)).records
    ended = {record.job.candidate for record in records if record.state == "done"}
    assert len(ended) == 2
    assert int(min(others)[:4]) not in ended


def test_a_point_that_was_one_too_many_may_be_drawn_again(tmp_path):
    study = opened(tmp_path).study
    study.ask(None).finish([50.0], loss=1.0, epochs=1, seconds=1.0)
    surplus = study.ask(None)
    study.records()
    surplus.leave()
    again = study.ask(Job(BASE, 1))
    study.records()
    assert not study.is_repeated(dataclasses.replace(again, job=Job(9, 0), point=surplus.point))
    assert study.is_repeated(dataclasses.replace(again, job=Job(9, 0)))


def test_other_settings_are_named_one_by_one(tmp_path):
    opened(tmp_path)
    with pytest.raises(
        CapsellaError, match=r"other settings: recipe\.batch_size 20, not 10; recipe\.seed 0, not 7; call"
    ):
        opened(tmp_path, dataclasses.replace(RECIPE, seed=7, batch_size=10))


def test_a_candidate_of_another_study_is_not_gone_on_with(tmp_path, monkeypatch):
    """Its folder is there, but the study that trained it is not, as where study.db was deleted."""
    first, trained = opened(tmp_path), []
    train_to = worker.train_to

    def two(*arguments):
        if len(trained) == 2:
            raise KeyboardInterrupt
        trained.append(train_to(*arguments))
        return trained[-1]

    with monkeypatch.context() as patch:
        patch.setattr(worker, "train_to", two)
        with pytest.raises(KeyboardInterrupt):
            work(first)
    (tmp_path / "study.db").unlink()
    other = dataclasses.replace(RECIPE, seed=7, batch_size=10)
    again = open_search(other, "tiny", dataclasses.replace(OPTIONS, out=tmp_path), SPACE, images=Images(read))
    with pytest.raises(CapsellaError, match="holds a run of another recipe; choose another folder, or move that one"):
        work(again)


def test_other_images_are_not_mixed_in(tmp_path):
    opened(tmp_path)
    few = dataclasses.replace(OPTIONS, out=tmp_path)

    def fewer(options):
        splits = read(options)
        return dataclasses.replace(splits, validation=splits.validation.subset(range(10)))

    with pytest.raises(CapsellaError, match="was begun with other settings: another set of images"):
        open_search(RECIPE, "tiny", few, SPACE, images=Images(fewer))
    study = opened(tmp_path).study
    study.trials.set_user_attr("settings", {k: v for k, v in study.settings.items() if k != "set of images"})
    open_search(RECIPE, "tiny", few, SPACE, images=Images(fewer))  # of an earlier version, which kept none


def test_a_database_that_does_not_answer_is_said_so(tmp_path, monkeypatch):
    search = opened(tmp_path)

    def busy(*_, **__):
        raise optuna.exceptions.StorageInternalError("database is locked")

    monkeypatch.setattr(type(search.study), "seconds_spent", busy)
    with pytest.raises(CapsellaError, match="the study's database does not answer; call the command again"):
        work(search)


def test_a_worker_that_was_taken_for_dead_in_the_first_job_has_nothing_to_tell(tmp_path):
    search, said = opened(tmp_path), []
    one = worker.Worker(search, Costs(search.options, search.images), said.append, print)
    one._tell(Job(BASE, 0), Trained(50.0, 1.0, 1, 0.01))
    assert said == []


def test_the_winner_is_trained_on_all_images_and_tested_once(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "train_to", lambda recipe, *_: Trained(3000 * recipe.optimizer.learning_rate, 1, 1, 1))
    search = opened(tmp_path, trials=2, finalists=1)
    outcome = work(search)
    recipe = winning_recipe(search, outcome.winner)
    save_recipe(recipe, tmp_path / "mine.json")
    assert read_recipe(tmp_path / "mine.json") == recipe.complete()
    for one in outcome.finalists:
        saved = read_recipe(save_finalists(search, outcome) / f"candidate-{one.candidate}.json")
        assert saved == winning_recipe(search, one).complete()
    tested = train_winner(search, outcome.winner, QUIET)
    assert len(tested.errors) == 2
    assert json.loads((tmp_path / "test.json").read_text())["test_error_percent"] == list(tested.errors)
    assert train_winner(search, outcome.winner, QUIET) == tested


def test_a_file_that_is_no_recipe(tmp_path):
    for text in ("", "[]", '{"recipe": 3}', '{"recipe": {"model": 3}}'):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(CapsellaError, match=r"bad\.json"):
            read_recipe(tmp_path / "bad.json")
    with pytest.raises(CapsellaError, match=r"gone\.json"):
        read_recipe(tmp_path / "gone.json")


def test_a_space_of_numbers_that_can_be_counted_is_searched_to_its_last_point(tmp_path, monkeypatch):
    """TPE likes its best points again and again: then one is drawn that no candidate has."""
    monkeypatch.setattr(worker, "train_to", lambda recipe, *_: Trained(float(recipe.augment.shift), 1, 1, 1))
    space = Space({"augment.shift": Range(0, 8), "model.pose_elements": Choice(9, 16)})
    options = dataclasses.replace(OPTIONS, out=tmp_path, trials=18, finalists=1, seeds=1)
    search = open_search(RECIPE, "tiny", options, space, images=Images(read))
    records = work(search, QUIET).records
    assert len({record.job.candidate for record in records if record.state == "done"}) == 18
    assert len({tuple(point.items()) for point in search.study.points.values()}) == 18


def test_recipes_of_former_finalists_are_removed(searched, tmp_path):
    search, outcome = searched
    folder = tmp_path / "finalists"
    folder.mkdir()
    (folder / "candidate-99.json").write_text("{}")
    (folder / "notes.txt").write_text("mine")
    assert save_finalists(dataclasses.replace(search, folder=tmp_path), outcome) == folder
    names = {f"candidate-{one.candidate}.json" for one in outcome.finalists}
    assert {path.name for path in folder.iterdir()} == {*names, "notes.txt"}
