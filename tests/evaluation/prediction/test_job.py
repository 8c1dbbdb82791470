"""Tables of many files: the flags, and processes that are killed at random."""

import csv
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from capsella.errors import CapsellaError
from capsella.evaluation import find_images, predict_files, predict_table
from capsella.evaluation.prediction import job as prediction_job

JOB = Path(__file__).with_name("killed_job.py")


def rows(path):
    with open(path, newline="") as file:
        return list(csv.reader(file))


def left(tmp_path):
    return sorted(path.name for path in tmp_path.iterdir() if path.is_file())


class Interruption(BaseException):
    """Nobody catches this."""


@pytest.fixture
def interrupted(monkeypatch):
    """After this many images, whatever runs ends."""

    def after(images):
        usual = prediction_job.predict_batches

        def batches(*arguments, **options):
            seen = 0
            for outcomes in usual(*arguments, **options):
                if seen >= images:
                    raise Interruption
                seen += len(outcomes)
                yield outcomes

        monkeypatch.setattr(prediction_job, "predict_batches", batches)

    yield after
    monkeypatch.undo()


@pytest.mark.parametrize("named", [".", "list.txt"])
def test_files_named_from_here_are_gone_on_with_once(folder, tmp_path, darkness, interrupted, monkeypatch, named):
    monkeypatch.chdir(folder)
    files = [str(path.relative_to(folder)) for path in find_images([folder])]
    (folder / "list.txt").write_text("".join(f"./{name}\n" for name in files))
    out = tmp_path / "t.csv"
    interrupted(1)
    with pytest.raises(Interruption):
        predict_table(darkness, [Path(named)], out, batch_size=1)
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    predict_table(darkness, [Path(named)], out, batch_size=1, resume=True)
    assert sorted(row[0] for row in rows(out)[1:]) == sorted(files)


def test_tables_of_images_and_of_broken_files(folder, tmp_path, darkness):
    (folder / "b.png").write_bytes(b"no image")
    written = predict_table(darkness, [folder], tmp_path / "t.csv", batch_size=2)
    assert (written.rows, written.broken, written.broken_table) == (2, 1, tmp_path / "t.csv.broken.csv")
    assert rows(tmp_path / "t.csv")[0] == [
        "file",
        "class",
        "dark, plain",
        "light",
        "probability",
        "known",
        "why_unknown",
    ]
    assert [row[0] for row in rows(tmp_path / "t.csv")[1:]] == [str(folder / "a.PNG"), str(folder / "deeper/c.bmp")]
    assert rows(tmp_path / "t.csv.broken.csv")[1][0] == str(folder / "b.png")
    assert left(tmp_path) == ["t.csv", "t.csv.broken.csv"]


def test_a_finished_table_is_neither_replaced_nor_gone_on_with(folder, tmp_path, darkness):
    out = tmp_path / "t.csv"
    predict_table(darkness, [folder], out)
    first = out.read_text()
    with pytest.raises(CapsellaError, match=r"t\.csv is finished already: --overwrite replaces it, or choose another"):
        predict_table(darkness, [folder], out)
    with pytest.raises(CapsellaError, match="is finished already: there is nothing to resume; --overwrite predicts"):
        predict_table(darkness, [folder], out, resume=True)
    assert out.read_text() == first
    (tmp_path / "t.csv.broken.csv").write_text("of an older table")
    (folder / "b.png").unlink()
    assert predict_table(darkness, [folder], out, overwrite=True).broken_table is None
    assert len(rows(out)) == 3
    assert left(tmp_path) == ["t.csv"]
    with pytest.raises(ValueError, match="resume: must not be set together with overwrite"):
        predict_table(darkness, [folder], out, resume=True, overwrite=True)


def test_an_interrupted_table_is_gone_on_with_when_asked(folder, tmp_path, darkness, interrupted):
    out = tmp_path / "t.csv"
    interrupted(2)
    with pytest.raises(Interruption):
        predict_table(darkness, [folder], out, batch_size=1, resume=True)
    assert left(tmp_path) == ["t.csv.journal"]
    with pytest.raises(CapsellaError, match=r"t\.csv was begun and is not finished \(.*t\.csv\.journal\): --resume"):
        predict_table(darkness, [folder], out)
    interrupted(99)
    (folder / "a.PNG").unlink()  # known already
    assert predict_table(darkness, [folder], out, resume=True).rows == 3
    assert left(tmp_path) == ["t.csv"]


def test_another_model_or_other_paths_do_not_go_on(folder, tmp_path, darkness, interrupted, monkeypatch):
    out = tmp_path / "t.csv"
    interrupted(1)
    with pytest.raises(Interruption):
        predict_table(darkness, [folder], out, batch_size=1)
    with pytest.raises(CapsellaError, match="was begun with another list of paths"):
        predict_table(darkness, [folder, folder / "b.png"], out, resume=True)
    monkeypatch.chdir(folder)
    with pytest.raises(CapsellaError, match="was begun with another working folder"):
        predict_table(darkness, [folder], out, resume=True)
    darkness.scale.data.fill_(2)
    with pytest.raises(CapsellaError, match="was begun with another model"):
        predict_table(darkness, [folder], out, resume=True)


@pytest.mark.parametrize("where", ["write_broken", "write_table", "delete"])
def test_ended_while_the_tables_are_written(folder, tmp_path, darkness, monkeypatch, where):
    """Before the first, between the two, and after both."""
    (folder / "b.png").write_bytes(b"no image")

    def stop(*arguments):
        raise Interruption

    owner = prediction_job.Journal if where == "delete" else prediction_job
    monkeypatch.setattr(owner, where, stop)
    with pytest.raises(Interruption):
        predict_table(darkness, [folder], tmp_path / "t.csv")
    monkeypatch.undo()
    assert predict_table(darkness, [folder], tmp_path / "t.csv", resume=True).rows == 2
    assert len(rows(tmp_path / "t.csv")) == 3
    assert len(rows(tmp_path / "t.csv.broken.csv")) == 2
    assert left(tmp_path) == ["t.csv", "t.csv.broken.csv"]


def test_nothing_but_broken_files_leaves_their_table_and_the_older_one(folder, tmp_path, darkness):
    (tmp_path / "t.csv").write_text("older")
    for file in find_images([folder]):
        file.write_bytes(b"")
    with pytest.raises(CapsellaError, match=r"none of the 3 images could be read; .*t\.csv\.broken\.csv says why"):
        predict_table(darkness, [folder], tmp_path / "t.csv", overwrite=True)
    assert (tmp_path / "t.csv").read_text() == "older"
    assert left(tmp_path) == ["t.csv", "t.csv.broken.csv"]


def test_arguments_are_checked_before_anything_is_written(folder, tmp_path, darkness):
    for options in ({"batch_size": 0}, {"workers": -1}):
        with pytest.raises(ValueError, match="must be at least"):
            predict_table(darkness, [folder], tmp_path / "t.csv", **options)
    with pytest.raises(CapsellaError, match="there is no such file or folder"):
        predict_table(darkness, [folder / "x.png"], tmp_path / "t.csv")
    with pytest.raises(ValueError, match="out: must end in"):
        predict_table(darkness, [folder], tmp_path / "t.txt")
    assert left(tmp_path) == []


def test_worker_processes_change_nothing(folder, tmp_path, darkness):
    (folder / "b.png").write_bytes(b"no image")
    torch.ones(300, 300) @ torch.ones(300, 300)  # threads that a fork of this process would leave without a hand
    predict_table(darkness, [folder], tmp_path / "t.csv", batch_size=1, workers=2)
    predict_table(darkness, [folder], tmp_path / "u.csv", workers=0)
    assert (tmp_path / "t.csv").read_text() == (tmp_path / "u.csv").read_text()
    assert [p.file for p in predict_files(darkness, [folder / "a.PNG"], workers=1)] == [folder / "a.PNG"]


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """210 images, ten of them broken."""
    folder = tmp_path_factory.mktemp("many")
    numbers = np.random.default_rng(0)
    for k in range(210):
        path = folder / f"sub {k % 7}" / f"{k}, and\n more.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(numbers.integers(0, 256, (6, 6), dtype=np.uint8)).save(path)
        if k % 21 == 5:
            path.write_bytes(path.read_bytes()[: k // 3])
    return folder


def test_killed_at_random_nothing_is_lost_and_nothing_twice(many, tmp_path):
    job = [sys.executable, JOB, "kill", many, tmp_path / "t.csv", "1"]
    done = subprocess.run(job, check=True, capture_output=True, text=True)
    sizes = [int(word) for word in done.stdout.split()]
    assert len(sizes) == 10
    assert sizes == sorted(sizes)
    files, broken = rows(tmp_path / "t.csv")[1:], rows(tmp_path / "t.csv.broken.csv")[1:]
    assert (len(files), len(broken)) == (200, 10)
    assert Counter(row[0] for row in files + broken) == Counter(map(str, find_images([many])))
    assert {int(Path(row[0]).name.partition(",")[0]) % 21 for row in broken} == {5}
    assert left(tmp_path) == ["t.csv", "t.csv.broken.csv"]


@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss is the system's")
def test_memory_does_not_grow_with_the_number_of_files(tmp_path):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    for number in (300, 3000):
        folder = tmp_path / "images" / f"{number:04}"
        folder.mkdir(parents=True)
        image.save(folder / "0.png")
        for k in range(1, number):
            (folder / f"{k}.png").hardlink_to(folder / "0.png")
    job = [sys.executable, JOB, "peak", tmp_path / "images", tmp_path / "t.csv"]
    few, more = map(int, subprocess.run(job, check=True, capture_output=True, text=True).stdout.split())
    assert more - few < 16_000  # KiB; the bytes of 2,700 images are 32,400
