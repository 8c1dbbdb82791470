"""What a run that is not as it was says: interrupted, or its folder of images changed since."""

import json

import pytest
from PIL import Image

from capsella.training.loop import Trainer
from capsella.training.run import RunFolder

SHORT = ("--size", 17, "--batch-size", 4, "--accelerator", "cpu")


@pytest.fixture
def images(tmp_path):
    for number, kind in enumerate(("a", "b")):
        for k in range(12):
            path = tmp_path / "own" / kind / f"{k}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (17, 17), 100 * number + 5 * k).save(path)
    return tmp_path / "own"


@pytest.fixture
def interrupted(cli, images, tmp_path, monkeypatch):
    """After one of three epochs; the answer, and the folder."""
    finish, ended = Trainer._finish_epoch, []

    def stop(self):
        if ended:
            raise KeyboardInterrupt
        ended.append(True)
        return finish(self)

    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_finish_epoch", stop)
        answer = cli("train", "images-resnet", "--path", images, *SHORT, "--epochs", 3, "--out", folder)
    return answer, folder


def test_an_interrupted_training_is_told_wherever_it_is_used(cli, interrupted, images):
    _, folder = interrupted
    said = f"WARNING: this training was interrupted after epoch 1 of 3; capsella train --resume {folder} goes on"
    for words in (("evaluate", folder), ("predict", folder, images / "a" / "0.png")):
        answer = cli(*words)
        assert answer.code == 0, answer.err
        assert said in answer.err
    assert cli("train", "--resume", folder, "--epochs", 9).code == 2
    assert cli("train", "--resume", folder, "--threads", 1).code == 0
    assert RunFolder(folder).read_compute().threads == 1
    assert "interrupted" not in cli("evaluate", folder).err


class TestChangedImages:
    @pytest.fixture
    def run(self, cli, images, tmp_path):
        folder = tmp_path / "run"
        assert cli("train", "images-resnet", "--path", images, *SHORT, "--epochs", 1, "--out", folder).code == 0
        (images / "a" / "3.png").unlink()
        return folder

    def test_an_export_goes_on_and_says_what_its_errors_are_not(self, cli, run):
        pytest.importorskip("onnxscript", reason="needs the extra `export`")
        answer = cli("export", run)
        assert answer.code == 0, answer.err
        assert "note: the errors below say nothing of new images: " in answer.err
        (about,) = [json.loads(path.read_text()) for path in run.glob("*.onnx.json")]
        assert about["description"]["images"].startswith("others than those of the training")

    def test_no_network_is_tested_on_images_that_it_may_have_learned(self, cli, run, images, tmp_path):
        other = tmp_path / "other"
        for kind in ("a", "b"):
            for k in range(8):
                path = other / kind / f"{k}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("L", (17, 17), 11 * k + 90 * (kind == "b")).save(path)
        words = ("adapt", run, other, "--per-class", 2, "--how", "last", "--steps", 2)
        answer = cli(*words, "--out", tmp_path / "adapted")
        assert answer.code == 0, answer.err
        assert "own laboratory" not in answer.out
        assert "has changed since this training began" in answer.out
        answer = cli(*words, "--replay", "--out", tmp_path / "replayed")
        assert answer.code == 1
        assert "replay: needs the images that the run was trained on, and they are not at hand" in answer.err


def test_a_run_finds_its_images_from_another_folder(cli, images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("train", "images-resnet", "--path", "own", *SHORT, "--epochs", 1, "--out", "run")
    assert cli(*words).code == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    answer = cli("evaluate", tmp_path / "run")
    assert answer.code == 0, answer.err
    (tmp_path / "elsewhere" / "own").mkdir()  # another folder of this name is not passed over
    answer = cli("evaluate", tmp_path / "run")
    assert answer.code == 1
    assert "own" in answer.err


class TestFilesThatCame:
    @pytest.fixture
    def run(self, cli, images, tmp_path):
        folder = tmp_path / "run"
        assert cli("train", "images-resnet", "--path", images, *SHORT, "--epochs", 1, "--out", folder).code == 0
        return folder

    def test_they_are_left_out_and_every_number_is_as_before(self, cli, run, images):
        before = json.loads((run / "test.json").read_text())
        for k in range(5):
            Image.new("L", (17, 17), 50 * k).save(images / "a" / f"new{k}.png")
        (images / "c").mkdir()
        Image.new("L", (17, 17), 7).save(images / "c" / "x.png")
        answer = cli("evaluate", run)
        assert answer.code == 0, answer.err
        assert "left out 6 files that came to" in answer.err
        assert json.loads((run / "test.json").read_text()) == before
        assert cli("calibrate", run).code == 0

    def test_one_that_went_is_named(self, cli, run, images):
        Image.new("L", (17, 17), 7).save(images / "a" / "new.png")
        (images / "b" / "3.png").unlink()
        answer = cli("evaluate", run)
        assert answer.code == 1
        assert "has changed since this training began: b/3.png is gone; put it back, or train anew" in answer.err

    @pytest.mark.parametrize("repeat", [("--folds", 2), ("--seeds", 2)])
    def test_folds_and_seeds_of_changed_images_are_not_put_together(self, cli, images, tmp_path, monkeypatch, repeat):
        words = ("train", "images-resnet", "--path", images, *SHORT, "--epochs", 1, *repeat, "--out", tmp_path / "many")
        finish, ended = Trainer.run, []

        def stop(self, *arguments):
            if ended:
                raise KeyboardInterrupt
            ended.append(True)
            return finish(self, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "run", stop)
            assert cli(*words).code == 130
        for k in range(12, 20):
            Image.new("L", (17, 17), 5 * k + 3).save(images / "a" / f"{k}.png")
        answer = cli(*words)
        assert answer.code == 1
        assert "own has changed since this training began" in answer.err
