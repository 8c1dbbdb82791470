"""What one does with a run, and with images: evaluate, explain, data, models, info."""

import json
import shutil

import pytest
from PIL import Image

from capsella.environment import environment
from capsella.models import list_models
from capsella.routing import ROUTINGS
from capsella.version import __version__


@pytest.fixture
def broken(tmp_path):
    path = tmp_path / "new" / "broken.png"
    path.parent.mkdir()
    path.write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    return path


class TestEvaluate:
    def test_a_table_and_the_same_numbers_as_json(self, cli, trained):
        (trained / "test.json").unlink()
        answer = cli("evaluate", trained)
        assert answer.code == 0
        values = json.loads((trained / "test.json").read_text())
        assert f"{values['error_percent']:.2f}" in answer.out
        assert all(name in answer.out for name in ("columns", "rows", "rings", "precision", "recall", "calibration"))
        assert str(trained / "test.json") in answer.out
        assert json.loads(cli("evaluate", trained, "--json").out) == values
        assert sum(map(sum, values["confusion"]["counts"])) == values["images"] == 6

    def test_another_number_of_test_images(self, cli, trained, tmp_path):
        run = shutil.copytree(trained, tmp_path / "run")

        def images(*words: object) -> int:
            answer = cli("evaluate", run, "--json", *words)
            assert answer.code == 0, answer.err
            return int(json.loads(answer.out)["images"])

        assert images("--test-per-class", 1) == 3
        assert json.loads((run / "test-per-class1.json").read_text())["images"] == 3
        config = json.loads((run / "config.json").read_text())
        config["recipe"]["data"]["test_per_class"] = 1
        (run / "config.json").write_text(json.dumps(config))
        assert (images(), images("--test-per-class", "all")) == (3, 6)
        assert "test_per_class: must be at least 1, got 0" in cli("evaluate", run, "--test-per-class", 0).err
        answer = cli("evaluate", run, "--split", "train", "--test-per-class", 1)
        assert "test_per_class: only for the split test, got 1 with train" in answer.err

    def test_several_cuts(self, cli, trained, tmp_path):
        folder = tmp_path / "cuts"
        network = ("--model", "hinton2018_cnn", "--model.crop", "12", "--size", "20")
        short = ("--per-class", "2", "--epochs", "1", "--test-per-class", "5", "--accelerator", "cpu")
        assert cli("train", "demo", *network, *short, "--out", folder).code == 0
        answer = cli("evaluate", folder, "--crops")
        assert answer.code == 0, answer.err
        one, several = (json.loads((folder / f"{name}.json").read_text()) for name in ("test", "test-crops"))
        assert one["images"] == several["images"] == 50
        assert one["calibration"] != several["calibration"]
        assert "model: must be created with a crop for multiple crops" in cli("evaluate", trained, "--crops").err


class TestExplain:
    def test_a_picture_of_an_image(self, cli, trained, images, tmp_path):
        answer = cli("explain", trained, images / "rows" / "rows00.png", "--out", tmp_path / "why")
        picture = tmp_path / "why" / "rows00_explained.png"
        views = ("explained", "layer1", "graph", "votes")
        assert (answer.code, answer.out) == (0, "".join(f"{picture.with_name(f'rows00_{v}.png')}\n" for v in views))
        with Image.open(picture) as image:
            assert min(image.size) > 300

    def test_a_broken_image_is_passed_over_where_asked(self, cli, trained, images, broken, tmp_path):
        good = images / "rows" / "rows00.png"
        answer = cli("explain", trained, broken, good, "--skip-broken", "--out", tmp_path / "why")
        assert answer.code == 0
        assert "rows00_graph.png" in answer.out
        assert f"left out {broken}: " in answer.err
        answer = cli("explain", trained, broken, "--skip-broken", "--out", tmp_path / "none")
        assert answer.code == 1
        assert "none of the images could be read" in answer.err


class TestData:
    def test_show_counts_and_draws(self, cli, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        answer = cli("data", "show", "digits", "--split", "test")
        assert answer.code == 0
        assert "digits: 8×8×1" in answer.out
        with Image.open(tmp_path / "digits-sheet.png") as sheet:
            assert sheet.size[1] > 10 * 40

    def test_show_a_folder_with_a_broken_image(self, cli, images, tmp_path):
        odd = images / "rows" / "[red]odd.png"
        odd.write_bytes(b"no image")
        answer = cli("data", "show", "folder", "--path", images, "--skip-broken", "--out", tmp_path / "sheet.png")
        odd.unlink()
        assert answer.code == 0
        assert "my images: 17×17×1" in answer.out
        assert "left out 1 broken image:" in answer.out
        assert str(odd) in answer.out
        assert (tmp_path / "sheet.png").exists()

    def test_a_folder_stands_for_its_source(self, cli, images, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        answer = cli("data", "show", images)
        assert answer.code == 0
        assert "my images: 17×17×1" in answer.out
        assert (tmp_path / "my images-sheet.png").exists()
        assert "split written to my images-split.csv" in cli("data", "split", images, "--size", 16).out
        again = cli("data", "split", images, "--size", 16)
        assert again.code == 1
        assert "my images-split.csv is there already; give it another name with --out" in again.err

    def test_split_writes_a_file_that_training_reads(self, cli, images, tmp_path):
        out = tmp_path / "split.csv"
        answer = cli("data", "split", "folder", "--path", images, "--per-class", 3, "--split-seed", 4, "--out", out)
        assert answer.code == 0
        assert str(out) in answer.out
        assert out.read_text().count(",train\n") == 9
        shown = cli("data", "show", "folder", "--path", images, "--split-file", out, "--out", tmp_path / "s.png").out
        assert next(line.split() for line in shown.splitlines() if "rings" in line)[3] == "3"

    def test_split_writes_the_sets_of_the_thesis(self, cli, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        answer = cli("data", "split", "digits", "--thesis-sets")
        assert answer.code == 0
        assert "split files written to digits-sets" in answer.out
        assert (tmp_path / "digits-sets" / "mini.csv").read_text().count(",train\n") == 1000


def test_models_lists_and_shows(cli):
    answer = cli("models")
    assert all(name in answer.out for name in list_models())
    assert "8,215,568" in answer.out
    assert "35,445,522" in answer.out
    assert "sabour2017_capsnet" not in cli("models", "hinton*").out
    one = cli("models", "sabour2017_capsnet").out
    assert "8,215,568 parameters" in one
    assert "primary_relu = False" in one


def test_info_names_versions_and_the_backend(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("CAPSELLA_DATA", str(tmp_path))
    monkeypatch.setattr("capsella.training.precision.measure_ratio", lambda: 2.1)
    monkeypatch.setattr("capsella.training.precision.MEMORY", tmp_path / "precision.json")
    answer = cli("info")
    assert answer.code == 0
    assert __version__ in answer.out
    assert environment()["torch"] in answer.out
    assert str(tmp_path) in answer.out
    assert all(name in answer.out for name in ROUTINGS)
    assert "eager" in answer.out
    assert "auto → bf16-mixed: bfloat16 is 2.1 times as fast as float32 here" in " ".join(answer.out.split())


class TestRobustness:
    @pytest.fixture
    def quick(self):
        return ["--rotation", "45", "--noise", "0.1", "--translation", "--colour"]

    def test_table_json_csv_and_curves(self, cli, trained, quick, tmp_path):
        answer = cli("robustness", trained, *quick, "--out", tmp_path / "r")
        assert answer.code == 0
        assert "6 test images of my images" in answer.out
        assert "rotation (degrees, with flips)" in answer.out
        assert "translation" not in answer.out
        values = json.loads((tmp_path / "r" / "robustness.json").read_text())
        unchanged = values["points"][0]
        test = json.loads(cli("evaluate", trained, "--json").out)
        assert unchanged["accuracy_percent"] == pytest.approx(100 - test["error_percent"])
        assert f"{unchanged['accuracy_percent']:.1f}" in answer.out
        assert len((tmp_path / "r" / "robustness.csv").read_text().splitlines()) == 1 + len(values["points"]) == 5
        with Image.open(tmp_path / "r" / "robustness.png") as picture:
            assert min(picture.size) > 300

    def test_two_runs_beside_each_other(self, cli, trained, quick, tmp_path):
        copies = [tmp_path / name / "run" for name in ("a", "b")]
        for copy in copies:
            shutil.copytree(trained, copy)
        answer = cli("robustness", *copies, *quick)
        assert answer.code == 0
        points = json.loads((tmp_path / "a" / "robustness" / "robustness.json").read_text())["points"]
        assert [point["network"] for point in points[::4]] == ["a/run", "b/run"]
        assert [point["correct"] for point in points[:4]] == [point["correct"] for point in points[4:]]

    def test_runs_on_other_test_images(self, cli, trained, tmp_path):
        shutil.copytree(trained, tmp_path / "other")
        (tmp_path / "other" / "split.csv").unlink()
        config = json.loads((tmp_path / "other" / "config.json").read_text())
        config["recipe"]["data"]["split_seed"] = 7
        del config["images"]  # as if it had been trained so
        (tmp_path / "other" / "config.json").write_text(json.dumps(config))
        answer = cli("robustness", trained, tmp_path / "other")
        assert answer.code == 1
        assert "other: its test images must be those of run-capsnet, but of 6 there and 6 here" in answer.err
        config["recipe"]["data"] |= {"split_seed": 0, "per_class": 5}  # other training images are no hindrance
        (tmp_path / "other" / "config.json").write_text(json.dumps(config))
        assert cli("robustness", trained, tmp_path / "other", "--noise", "--colour", "--rotation").code == 0
