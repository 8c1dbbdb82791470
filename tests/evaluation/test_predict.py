"""Predictions for files: which files, the columns of a table, and kills that lose and double nothing."""

import csv
import json
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
from PIL import Image

from capsella.data import ImageSet
from capsella.errors import ArgumentError, BusyError, CapsellaError
from capsella.evaluation import (
    Prediction,
    PredictOptions,
    find_images,
    passed_over,
    predict_files,
    predict_table,
)
from capsella.evaluation.tables import PredictionTable, open_table
from capsella.models import create_model
from capsella.report.prose import prediction_lines
from capsella.uncertainty import fit_calibration, fit_ood_detector

FORMATS = pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])


def read(path):
    """The rows of a table, by file, with the values of each format in one form."""
    if path.suffix == ".csv":
        with open(path, newline="", encoding="utf-8", errors="surrogateescape") as file:
            rows = list(csv.DictReader(file))
        rows = [{name: value or None for name, value in row.items()} for row in rows]
    elif path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows = [{**row, **(row.pop("activations") or {})} for row in rows]
    else:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    by_file = {row["file"]: row for row in rows}
    assert len(by_file) == len(rows)
    return by_file


class TestFiles:
    def test_folders_files_and_lists_name_each_file_once(self, folder, tmp_path, save):
        (tmp_path / "list.txt").write_text(f"{folder / 'b.png'}\n\n{folder / 'notes.txt'}\n")
        names = [str(path.relative_to(folder)) for path in find_images([folder])]
        assert names == ["a.PNG", "b.png", "deeper/c.bmp"]
        twice = [path.name for path in find_images([folder / "b.png", tmp_path / "list.txt", folder])]
        assert twice == ["b.png", "notes.txt", "a.PNG", "c.bmp"]
        (tmp_path / "wide.txt").write_text("caf\u00e9.png\n", encoding="utf-16")  # as PowerShell writes it
        assert find_images([tmp_path / "wide.txt"]) == [Path("caf\u00e9.png")]
        save(folder / ".other.png", 1)
        (folder / "._b.png").write_bytes(b"written by macOS")
        assert ".txt" in passed_over([folder])[0]

    def test_what_names_no_image(self, tmp_path):
        (tmp_path / "list.txt").write_text("\n")
        (tmp_path / "empty").mkdir()
        for path in (tmp_path / "nowhere", tmp_path / "list.txt", tmp_path / "empty"):
            with pytest.raises(CapsellaError, match=path.name):
                find_images([path])

    def test_the_iterator_raises_for_what_cannot_be_read(self, darkness, folder):
        rows = list(predict_files(darkness, [folder], PredictOptions(batch_size=2)))
        assert [(row.file.name, row.class_name) for row in rows] == [
            ("a.PNG", "light"),
            ("b.png", "dark, plain"),
            ("c.bmp", "dark, plain"),
        ]
        assert [row.class_name for row in predict_files(darkness, [folder / "a.PNG"], PredictOptions(classes=2))] == [
            "light + dark, plain"
        ]
        (folder / "broken.png").write_bytes(b"no image")
        with pytest.raises(CapsellaError, match=r"broken\.png"):
            list(predict_files(darkness, [folder]))

    def test_arguments_and_broken_weights(self, darkness, folder):
        with pytest.raises(ArgumentError):
            list(predict_files(darkness, [folder], PredictOptions(classes=3)))
        darkness.scale.data.fill_(torch.nan)
        with pytest.raises(CapsellaError, match=r"a\.PNG"):
            list(predict_files(darkness, [folder]))


def test_what_is_not_seen_of_a_file_is_told(darkness, tmp_path):
    """Sides that are cropped away, and values of more than 8 bits outside the range of the training."""
    darkness.value_range = (0.0, 4095.0)
    Image.new("L", (30, 6)).save(tmp_path / "wide.png")
    for name, bright in (("few", 4), ("most", 30)):
        values = np.full((6, 6), 2000, np.uint16)
        values.flat[:bright] = 60_000
        Image.fromarray(values).save(tmp_path / f"{name}.png")
    summary = predict_table(darkness, [tmp_path], tmp_path / "p.csv")
    assert (summary.rows, summary.unreadable) == (3, 1)
    assert sorted(summary.losses) == [(0, pytest.approx(4 / 36)), (pytest.approx(0.8), 0)]
    assert "4095" in read(tmp_path / "p.csv")[str(tmp_path / "most.png")]["error"]
    assert len(prediction_lines(summary, darkness, PredictOptions())) == 3
    assert predict_table(darkness, [tmp_path], tmp_path / "q.csv", PredictOptions(most_outside=1.0)).unreadable == 0


class TestTables:
    @FORMATS
    def test_every_file_has_one_row(self, darkness, folder, tmp_path, ending):
        (folder / "broken.png").write_bytes(b"no image")
        out = tmp_path / "sub" / f"p{ending}"
        summary = predict_table(darkness, [folder], out, PredictOptions(batch_size=2))
        rows = read(out)
        assert (summary.rows, summary.unreadable) == (4, 1)
        light, broken = rows[str(folder / "a.PNG")], rows[str(folder / "broken.png")]
        assert (light["class"], float(light["light"]), float(light["dark, plain"])) == ("light", 1, 0)
        assert light["error"] is None
        assert broken["error"]
        assert broken["class"] is broken["probability"] is None
        names = ["file", "class", "probability", "in_distribution", "ood_reason", "error", "model", *darkness.classes]
        assert set(light) - {"activations"} == set(names)

    @FORMATS
    def test_resuming_adds_the_missing_files(self, darkness, folder, tmp_path, save, ending):
        out = tmp_path / f"p{ending}"
        predict_table(darkness, [folder], out)
        first = read(out)
        save(folder / "new.png", 200)
        with pytest.raises(CapsellaError):
            predict_table(darkness, [folder], out)
        summary = predict_table(darkness, [folder], out, resume=True)
        assert summary.rows == len(read(out)) == 4
        assert {name: row for name, row in read(out).items() if name in first} == first
        darkness.scale.data.fill_(0.5)  # another model
        with pytest.raises(CapsellaError):
            predict_table(darkness, [folder], out, resume=True)
        assert len(read(out)) == 4
        assert predict_table(darkness, [folder / "a.PNG"], out, overwrite=True).rows == len(read(out)) == 1

    @pytest.mark.parametrize("ending", [".csv", ".jsonl"])
    @pytest.mark.parametrize("lost", [1, 9, 60, 100_000])
    def test_a_row_cut_off_anywhere_is_predicted_again(self, darkness, folder, tmp_path, ending, lost):
        (folder / "two\nlines, quoted.png").write_bytes((folder / "b.png").read_bytes())
        out = tmp_path / f"p{ending}"
        predict_table(darkness, [folder], out)
        whole = out.read_bytes()
        out.write_bytes(whole[:-lost])
        assert predict_table(darkness, [folder], out, resume=True).rows == 4
        assert sorted(out.read_bytes().splitlines()) == sorted(whole.splitlines())

    @pytest.mark.parametrize("text", ["no row\n", "[1]\n", '{"model": "MODEL"}\n'])
    def test_a_damaged_table_is_named_when_resumed(self, darkness, folder, tmp_path, text):
        for out in (tmp_path / "p.jsonl", tmp_path / "p.parquet"):
            predict_table(darkness, [folder], out)
            damaged = out if out.is_file() else next(out.glob("*.parquet"))
            damaged.write_text(text.replace("MODEL", PredictionTable(darkness, PredictOptions()).model))
            with pytest.raises(CapsellaError, match=rf"{damaged.name}.*--overwrite"):
                predict_table(darkness, [folder], out, resume=True)
            assert predict_table(darkness, [folder], out, overwrite=True).rows == 3

    def test_what_cannot_be_written(self, darkness, folder, tmp_path):
        (tmp_path / "there.csv").mkdir()
        for out, options in ((tmp_path / "p.txt", {}), (tmp_path / "p.csv", {"resume": True, "overwrite": True})):
            with pytest.raises(ArgumentError):
                predict_table(darkness, [folder], out, **options)
        with pytest.raises(CapsellaError):
            predict_table(darkness, [folder], tmp_path / "there.csv")
        darkness.classes = ("error", "light")
        with pytest.raises(ArgumentError):
            predict_table(darkness, [folder], tmp_path / "p.csv")
        assert predict_table(darkness, [folder], tmp_path / "p.jsonl").rows == 3

    def test_two_processes_do_not_write_one_table(self, darkness, folder, tmp_path):
        table = PredictionTable(darkness, PredictOptions())
        with open_table(tmp_path / "p.csv", table, resume=False, overwrite=False), pytest.raises(BusyError):
            predict_table(darkness, [folder], tmp_path / "p.csv", resume=True)


@FORMATS
def test_killed_at_random_nothing_is_lost_and_nothing_twice(darkness, tmp_path, ending):
    """Each job is a fork, because a start costs seconds."""
    folder, out, numbers = tmp_path / "images", tmp_path / f"p{ending}", random.Random(0)
    folder.mkdir()
    for k in range(120):
        Image.new("L", (4, 4), 2 * k).save(folder / f"{k:03}.png")
    plain = type(darkness).forward

    def slow(self, images, labels=None):
        time.sleep(0.004)
        return plain(self, images)

    rounds = 4 if ending == ".csv" else 2
    for _ in range(rounds):
        job = os.fork()
        if job == 0:
            type(darkness).forward = slow
            predict_table(darkness, [folder], out, PredictOptions(batch_size=3), resume=True)
            os._exit(0)
        time.sleep(numbers.uniform(0.02, 0.12))
        os.kill(job, signal.SIGKILL)
        os.waitpid(job, 0)
    predict_table(darkness, [folder], out, resume=True)
    assert sorted(read(out)) == [str(folder / f"{k:03}.png") for k in range(120)]


class TestUncertaintyColumns:
    @pytest.fixture
    def calibrated(self):
        generator = torch.Generator().manual_seed(0)
        logits = 2 * torch.randn(200, 3, generator=generator)
        labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
        model = create_model("sabour2017_cnn", image_size=2, classes=("a", "b", "c"))
        model.calibration = fit_calibration(logits.softmax(1), labels)
        return model

    def test_values(self, calibrated):
        table = PredictionTable(calibrated, PredictOptions(coverage=0.9, unsure_below=0.6))
        activations = torch.tensor([[0.98, 0.01, 0.01], [0.4, 0.35, 0.25]])
        sure, unsure = (table.record(Prediction(Path("x.png"), "a", row)) for row in activations)
        assert table.uncertainty == ("probability", "prediction_set", "unsure", "in_distribution", "ood_reason")
        assert (sure["prediction_set"], sure["unsure"], sure["in_distribution"]) == (["a"], False, None)
        expected = calibrated.calibration.probabilities(activations[0])[0]
        assert sure["probability"] == pytest.approx(float(expected), abs=1e-6)
        assert unsure["unsure"] is True
        assert unsure["prediction_set"][:2] == ["a", "b"]

    def test_images_unlike_the_training_images_have_a_reason(self, tmp_path):
        torch.manual_seed(0)
        model = create_model("hinton2018_cnn", image_size=17, classes=3).eval()
        pixels = torch.randint(256, (100, 1, 17, 17), dtype=torch.uint8)
        images = ImageSet(pixels, torch.arange(100) % 3, model.classes)
        fit_ood_detector(model, images, images)
        for name, image in {"usual": pixels[0, 0].numpy(), "grey": pixels[0, 0].numpy() * 0 + 128}.items():
            Image.fromarray(image).save(tmp_path / f"{name}.png")
        summary = predict_table(model, [tmp_path], tmp_path / "p.csv")
        rows = {Path(file).stem: row for file, row in read(tmp_path / "p.csv").items()}
        assert (rows["usual"]["in_distribution"], rows["usual"]["ood_reason"]) == ("true", None)
        assert rows["grey"]["in_distribution"] == "false"
        assert "sharpness" in rows["grey"]["ood_reason"]
        assert summary.ood == 1

    def test_what_cannot_be(self, darkness):
        for options in ({"coverage": 1.5}, {"unsure_below": 0.0}, {"false_positive_rate": 1.0}):
            with pytest.raises(ArgumentError):
                PredictOptions(**options)
        with pytest.raises(CapsellaError):
            PredictionTable(darkness, PredictOptions(coverage=0.9))
