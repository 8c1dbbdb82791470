"""Runs whose images are no longer those that they trained on."""

import dataclasses

import pytest
from PIL import Image
from rich.console import Console

from capsella.data import FolderData
from capsella.errors import CapsellaError, CapsellaWarning
from capsella.experiments import evaluate_run
from capsella.training import ComputeOptions, load_run, load_splits, resume, train
from capsella.training.run import RunFolder

QUIET, CPU = Console(quiet=True), ComputeOptions(accelerator="cpu")


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
        data = FolderData(images, size=12, channels=1)
        return dataclasses.replace(tiny(epochs=2), data=data)

    def test_other_images_are_refused(self, recipe, images, tmp_path):
        paused = tmp_path / "paused"
        train(recipe, paused, until=1, compute=CPU, console=QUIET)
        done = train(recipe, tmp_path / "done", compute=CPU, console=QUIET)
        assert load_splits(load_run(done.folder)).digests() == RunFolder(done.folder).images()
        gone = images / "a" / "05.png"
        content = gone.read_bytes()
        gone.unlink()
        for function, argument in (
            (resume, paused),
            (evaluate_run, load_run(tmp_path / "done")),
        ):
            with pytest.raises(CapsellaError, match="has changed"):
                function(argument)
        assert not RunFolder(done.folder).is_tested
        gone.write_bytes(content)
        assert resume(paused, console=QUIET).folder == paused
        assert evaluate_run(load_run(done.folder)).evaluation.labels.shape

    def test_an_image_of_the_same_name_and_size_in_bytes_is_noticed(self, recipe, images, tmp_path):
        for file in images.rglob("*.png"):
            Image.open(file).save(file.with_suffix(".bmp"))
            file.unlink()
        done = train(recipe, tmp_path / "done", compute=CPU, console=QUIET)
        learned = images / (done.splits or load_splits(done)).train.files[0]
        before = learned.stat()
        Image.new("L", (12, 12), 3).save(learned)
        assert learned.stat().st_size == before.st_size
        with pytest.raises(CapsellaError, match="has changed"):
            load_splits(load_run(done.folder))

    def test_a_training_goes_on_without_the_files_that_came(self, recipe, images, tmp_path):
        folder = tmp_path / "paused"
        train(recipe, folder, until=1, compute=CPU, console=QUIET)
        Image.new("L", (12, 12), 77).save(images / "a" / "00b.png")
        with pytest.warns(CapsellaWarning, match="left out 1 file"):
            done = resume(folder, console=QUIET)
        assert load_splits(load_run(done.folder)).digests() == RunFolder(folder).images()

    def test_a_test_image_that_breaks_is_left_out(self, recipe, images, tmp_path):
        done = train(recipe, tmp_path / "done", compute=CPU, console=QUIET)
        test = load_splits(load_run(done.folder)).test.files
        (images / test[0]).write_bytes(b"")
        with pytest.warns(CapsellaWarning, match="left out 1 broken image"):
            assert load_splits(load_run(done.folder)).test.files == test[1:]

    def test_another_class_at_the_same_number(self, recipe, images, tmp_path):
        done = train(recipe, tmp_path / "done", compute=CPU, console=QUIET)
        (images / "a" / "05.png").rename(images / "b" / "05.png.png")
        (images / "b" / "06.png").rename(images / "a" / "06.png.png")
        with pytest.raises(CapsellaError):
            load_splits(load_run(done.folder))
