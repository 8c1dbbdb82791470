"""Runs whose images are no longer those that they trained on."""

import dataclasses
import json

import pytest
from PIL import Image
from rich.console import Console

from capsella.data import DataOptions
from capsella.errors import CapsellaWarning
from capsella.grid import finish_run
from capsella.training import (
    Machine,
    calibrate_run,
    images_of,
    own_splits,
    resume,
    train,
)
from capsella.training.run import RunFolder
from tests.training.made import message_of


class TestImagesThatChange:
    """One file more, and nearly every image is in another split: a run must not be tested on what it learned."""

    @pytest.fixture
    def images(self, tmp_path):
        for kind in range(2):
            for number in range(20):
                path = tmp_path / "images" / "ab"[kind] / f"{number:02}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("L", (12, 12), 10 * number + kind).save(path)
        return tmp_path / "images"

    @pytest.fixture
    def recipe(self, tiny, images):
        data = DataOptions(name="folder", path=images, size=12, channels=1)
        return dataclasses.replace(tiny(epochs=2), data=data)

    def test_more_files(self, recipe, images, tmp_path):
        paused = tmp_path / "paused"
        quiet, machine = Console(quiet=True), Machine(accelerator="cpu")
        train(recipe, paused, until=1, machine=machine, console=quiet)
        done = train(recipe, tmp_path / "done", machine=machine, console=quiet)
        assert own_splits(done).digests() == RunFolder(done.folder).images()
        for folder in (paused, done.folder):
            RunFolder(folder).split.unlink()  # of before it was kept
        new = images / "a" / "00b.png"
        Image.new("L", (12, 12), 77).save(new)
        for function, folder in ((resume, paused), (calibrate_run, done.folder)):
            text = message_of(function, folder)
            assert text.startswith(f"{folder}: images has changed since this training began (")
            assert "put back the files as they were, or train anew" in text
        assert "images that it learned from would be tested" in message_of(finish_run, done)
        assert not RunFolder(done.folder).is_tested
        new.unlink()
        assert resume(paused, console=quiet).folder == paused
        assert finish_run(done)[0].labels.shape

    def test_a_training_goes_on_without_the_files_that_came(self, recipe, images, tmp_path):
        folder = tmp_path / "paused"
        train(recipe, folder, until=1, machine=Machine(accelerator="cpu"), console=Console(quiet=True))
        Image.new("L", (12, 12), 77).save(images / "a" / "00b.png")
        with pytest.warns(CapsellaWarning, match="left out 1 file that came to .*images since this training began"):
            done = resume(folder, console=Console(quiet=True))
        assert own_splits(done).digests() == RunFolder(folder).images()

    def test_a_limit_is_not_kept_in_the_split(self, recipe, images, tmp_path):
        few = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, test_per_class=2, per_class=9))
        done = train(few, tmp_path / "done", machine=Machine(accelerator="cpu"), console=Console(quiet=True))
        all_of_them = dataclasses.replace(few.data, test_per_class=None)
        before = [images_of(RunFolder(done.folder), data).test.files for data in (few.data, all_of_them)]
        assert [len(files) for files in before] == [4, 8]
        Image.new("L", (12, 12), 77).save(images / "a" / "00b.png")
        with pytest.warns(CapsellaWarning, match="left out 1 file"):
            after = [images_of(RunFolder(done.folder), data).test.files for data in (few.data, all_of_them)]
        assert after == before

    def test_a_test_image_that_breaks_is_left_out(self, recipe, images, tmp_path):
        done = train(recipe, tmp_path / "done", machine=Machine(accelerator="cpu"), console=Console(quiet=True))
        test = own_splits(done).test.files
        (images / test[0]).write_bytes(b"")
        with pytest.warns(CapsellaWarning, match="left out 1 broken image"):
            assert own_splits(done, skip_broken=True).test.files == test[1:]

    def test_a_file_that_was_in_no_split_may_go(self, recipe, images, tmp_path):
        broken = images / "a" / "broken.png"
        broken.write_bytes(b"")
        own = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, skip_broken=True))
        done = train(own, tmp_path / "done", machine=Machine(accelerator="cpu"), console=Console(quiet=True))
        broken.unlink()
        assert own_splits(done).digests() == RunFolder(done.folder).images()

    def test_another_class_at_the_same_number(self, recipe, images, tmp_path):
        done = train(recipe, tmp_path / "done", machine=Machine(accelerator="cpu"), console=Console(quiet=True))
        RunFolder(done.folder).split.unlink()
        (images / "a" / "05.png").rename(images / "b" / "05b.png")
        (images / "b" / "06.png").rename(images / "a" / "06b.png")
        assert "28 train, 4 validation images, but others" in message_of(own_splits, done)

    def test_runs_of_before_are_not_checked(self, recipe, images, tmp_path):
        done = train(recipe, tmp_path / "done", machine=Machine(accelerator="cpu"), console=Console(quiet=True))
        config = json.loads((done.folder / "config.json").read_text())
        del config["images"]
        RunFolder(done.folder).split.unlink()
        (done.folder / "config.json").write_text(json.dumps(config))
        (images / "a" / "05.png").unlink()
        assert len(own_splits(done).train) == 28
