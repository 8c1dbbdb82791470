"""What one does with a run, and with images: evaluate, predict, explain, data, models, info."""

import csv
import io
import json

import pytest
from PIL import Image

from capsella.models import list_models
from capsella.routing import ROUTINGS
from capsella.training.environment import environment
from capsella.version import __version__


@pytest.fixture
def broken(tmp_path):
    path = tmp_path / "new" / "broken.png"
    path.parent.mkdir()
    path.write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    return path


def table(text):
    return list(csv.reader(io.StringIO(text)))


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

    def test_another_split_to_another_file(self, cli, trained, tmp_path):
        answer = cli("evaluate", trained, "--split", "train", "--batch-size", 5, "--out", tmp_path / "t.json")
        assert answer.code == 0
        assert json.loads((tmp_path / "t.json").read_text())["images"] == 24
        assert not (trained / "train.json").exists()

    def test_images_that_have_moved_since(self, cli, trained, images):
        hidden = images.rename(images.with_name("elsewhere"))
        answer = cli("evaluate", trained)
        hidden.rename(images)
        assert answer.code == 1
        assert f"{images}: no such folder" in answer.err

    def test_a_batch_size_of_zero(self, cli, trained):
        assert "batch_size: must be at least 1, got 0" in cli("evaluate", trained, "--batch-size", 0).err


class TestPredict:
    def test_to_standard_output(self, cli, trained, images):
        answer = cli("predict", trained, images / "rows", images / "rings" / "rings03.png")
        head, *rows = table(answer.out)
        assert answer.code == 0
        assert head == ["file", "class", "columns", "rings", "rows"]
        assert rows[0][0] == str(images / "rows" / "rows00.png")
        assert len(rows) == 12
        for row in rows:
            activations = dict(zip(head[2:], map(float, row[2:]), strict=True))
            assert row[1] == max(activations, key=activations.get)
            assert all(0 <= value <= 1 for value in activations.values())

    def test_to_a_file(self, cli, trained, images, tmp_path):
        answer = cli("predict", trained, images, "--out", tmp_path / "sub" / "p.csv", "--batch-size", 7)
        assert (answer.code, answer.out) == (0, "")
        assert f"33 predictions written to {tmp_path / 'sub' / 'p.csv'}" in answer.err
        assert (tmp_path / "sub" / "p.csv").read_text() == cli("predict", trained, images).out

    def test_a_broken_image_is_named_and_the_older_table_kept(self, cli, trained, images, broken, tmp_path):
        (tmp_path / "p.csv").write_text("older")
        answer = cli("predict", trained, images, broken, "--out", tmp_path / "p.csv")
        assert answer.code == 1
        assert f"{broken}: cannot be read as an image" in answer.err
        assert (tmp_path / "p.csv").read_text() == "older"

    def test_skip_broken_counts_and_lists(self, cli, trained, images, broken):
        answer = cli("predict", trained, images / "rows", broken.parent, "--skip-broken")
        assert answer.code == 0
        assert len(table(answer.out)) == 12
        assert "left out 1 broken images:" in answer.err
        assert str(broken) in answer.err

    def test_nothing_that_can_be_read(self, cli, trained, broken):
        answer = cli("predict", trained, broken, "--skip-broken")
        assert answer.code == 1
        assert "none of the 1 images could be read" in answer.err

    def test_a_path_that_is_not_there(self, cli, trained, tmp_path):
        assert (
            f"{tmp_path / 'x.png'}: there is no such file or folder" in cli("predict", trained, tmp_path / "x.png").err
        )


class TestExplain:
    def test_a_picture_of_an_image(self, cli, trained, images, tmp_path):
        answer = cli("explain", trained, images / "rows" / "rows00.png", "--out", tmp_path / "why")
        picture = tmp_path / "why" / "rows00_explained.png"
        assert (answer.code, answer.out) == (0, f"{picture}\n")
        with Image.open(picture) as image:
            assert min(image.size) > 300

    def test_the_default_folder_is_the_runs(self, cli, trained, images):
        cli("explain", trained, images / "rows" / "rows00.png")
        assert (trained / "explain" / "rows00_explained.png").exists()

    def test_a_broken_image(self, cli, trained, broken):
        answer = cli("explain", trained, broken)
        assert answer.code == 1
        assert str(broken) in answer.err


class TestData:
    def test_list_names_the_sources_and_where_they_are(self, cli, monkeypatch, tmp_path):
        monkeypatch.setenv("CAPSELLA_DATA", str(tmp_path / "sets"))
        answer = cli("data", "list")
        assert answer.code == 0
        assert all(name in answer.out for name in ("digits", "mnist", "fashion-mnist", "kmnist", "cifar10"))
        assert str(tmp_path / "sets") in answer.out
        assert "comes with scikit-learn" in answer.out

    def test_show_counts_and_draws(self, cli, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        answer = cli("data", "show", "digits", "--split", "test")
        assert answer.code == 0
        assert "digits: 8×8×1" in answer.out
        with Image.open(tmp_path / "digits.png") as sheet:
            assert sheet.size[1] > 10 * 40

    def test_show_a_folder_with_a_broken_image(self, cli, images, tmp_path):
        odd = images / "rows" / "[red]odd.png"
        odd.write_bytes(b"no image")
        answer = cli("data", "show", "folder", "--path", images, "--skip-broken", "--out", tmp_path / "sheet.png")
        odd.unlink()
        assert answer.code == 0
        assert "my images: 17×17×1" in answer.out
        assert "left out 1 broken images:" in answer.out
        assert str(odd) in answer.out
        assert (tmp_path / "sheet.png").exists()

    def test_split_writes_a_file_that_training_reads(self, cli, images, tmp_path):
        out = tmp_path / "split.csv"
        answer = cli("data", "split", "folder", "--path", images, "--per-class", 3, "--split-seed", 4, "--out", out)
        assert answer.code == 0
        assert str(out) in answer.out
        assert out.read_text().count(",train\n") == 9
        shown = cli("data", "show", "folder", "--path", images, "--split-file", out, "--out", tmp_path / "s.png").out
        assert [line.split() for line in shown.splitlines() if "rings" in line][0][3] == "3"

    def test_split_writes_the_sets_of_the_thesis(self, cli, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        answer = cli("data", "split", "digits", "--thesis-sets")
        assert answer.code == 0
        assert "split files written to digits-sets" in answer.out
        assert (tmp_path / "digits-sets" / "mini.csv").read_text().count(",train\n") == 1000

    def test_sets_of_too_many_classes_are_named(self, cli, images, tmp_path):
        answer = cli("data", "split", "folder", "--path", images, "--thesis-sets", "--out", tmp_path / "sets")
        assert "left out basic: it has 5 classes, more than folder" in answer.out
        assert "left out medium: it has 10 classes" in answer.out

    def test_split_without_a_source(self, cli):
        answer = cli("data", "split", "--per-class", 3)
        assert answer.code == 1
        assert "split: must be followed by the name of a source" in answer.err
        assert "list, by show NAME or by split NAME" in cli("data", "part").err


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
    answer = cli("info")
    assert answer.code == 0
    assert __version__ in answer.out
    assert environment()["torch"] in answer.out
    assert str(tmp_path) in answer.out
    assert all(name in answer.out for name in ROUTINGS)
    assert "eager" in answer.out
