"""What one does with a run, and with images: evaluate, explain, data, models, info."""

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

    def test_without_images_and_pairs(self, cli, trained):
        answer = cli("explain", trained)
        assert answer.code == 1
        assert "images: must name at least one image or folder" in answer.err

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
