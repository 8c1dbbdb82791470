"""A run whose folder of images has changed since, or whose training was interrupted."""

import json
import shutil

from PIL import Image

from capsella.training.loop import Trainer
from tests.trained import SHORT


def read(path):
    return json.loads(path.read_text())


def test_files_that_came_are_left_out_and_every_number_is_as_before(cli, copied):
    images, run = copied
    before = read(run / "test.json")
    for k in range(5):
        Image.new("L", (17, 17), 50 * k).save(images / "rows" / f"new{k}.png")
    (images / "rows" / "broken.png").write_bytes(b"no image")
    (images / "c").mkdir()
    Image.new("L", (17, 17), 7).save(images / "c" / "x.png")
    answer = cli("evaluate", run)
    assert answer.code == 0, answer.err
    assert "left out 7 files" in answer.err
    assert read(run / "test.json") == before


def test_a_run_finds_its_images_from_another_folder(cli, images, tmp_path, monkeypatch):
    shutil.copytree(images, tmp_path / "own")
    monkeypatch.chdir(tmp_path)
    assert cli("train", "images-resnet", "--data", "own", *SHORT, "--out", "run").code == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert cli("evaluate", tmp_path / "run").code == 0
    (tmp_path / "elsewhere" / "own").mkdir()  # another folder of this name is not passed over
    assert cli("evaluate", tmp_path / "run").code == 1


def test_folds_of_changed_images_are_not_put_together(cli, copied, tmp_path, monkeypatch):
    images, _ = copied
    words = ("train", "images-resnet", "--data", images, *SHORT, "--folds", 2, "--out", tmp_path / "many")
    finish, ended = Trainer.run, []

    def stop(self, *arguments):
        if ended:
            raise KeyboardInterrupt
        ended.append(True)
        return finish(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "run", stop)
        assert cli(*words).code == 130
    for k in range(8):
        Image.new("L", (17, 17), 5 * k + 3).save(images / "rows" / f"new{k}.png")
    answer = cli(*words)
    assert (answer.code, "has changed since" in answer.err) == (1, True)


def test_no_network_is_tested_on_images_that_it_may_have_learned(cli, copied, tmp_path):
    images, run = copied
    images.rename(tmp_path / "other")
    words = ("adapt", run, tmp_path / "other", "--per-class", 2, "--how", "last", "--steps", 2)
    answer = cli(*words, "--out", tmp_path / "adapted")
    assert answer.code == 0, answer.err
    assert "own domain" not in read(tmp_path / "adapted" / "adapted.json")["tests"]
