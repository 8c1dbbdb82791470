"""Runs whose images are no longer those that they trained on: a run must not be tested on what it learned."""

from dataclasses import replace

import pytest
from PIL import Image
from rich.console import Console

from capsella.data import FolderData
from capsella.errors import CapsellaError, CapsellaWarning
from capsella.experiments import evaluate_run
from capsella.training import ComputeOptions, load_run, load_splits, resume, train
from capsella.training.run import RunFolder

QUIET, CPU = Console(quiet=True), ComputeOptions(accelerator="cpu")


@pytest.fixture
def images(tmp_path):
    for kind in range(2):
        for number in range(20):
            path = tmp_path / "images" / "ab"[kind] / f"{number:02}.bmp"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (12, 12), 10 * number + kind).save(path)
    return tmp_path / "images"


@pytest.fixture
def recipe(tiny, images):
    return replace(tiny(epochs=2), data=FolderData(images, size=12, channels=1))


@pytest.fixture
def done(recipe, tmp_path):
    """A trained run, without its images in memory."""
    return load_run(train(recipe, tmp_path / "done", compute=CPU, console=QUIET).folder)


def test_a_file_that_went_and_came_back(recipe, images, done, tmp_path):
    paused = tmp_path / "paused"
    train(recipe, paused, until=1, compute=CPU, console=QUIET)
    assert load_splits(done).digests() == RunFolder(done.folder).images()
    gone = images / "a" / "05.bmp"
    content = gone.read_bytes()
    gone.unlink()
    for function, argument in ((resume, paused), (evaluate_run, done)):
        with pytest.raises(CapsellaError, match="has changed"):
            function(argument)
    assert not RunFolder(done.folder).is_tested
    gone.write_bytes(content)
    assert resume(paused, console=QUIET).folder == paused
    assert evaluate_run(done).evaluation.labels.shape


def test_another_image_of_the_same_name_and_size_in_bytes(images, done):
    learned = images / load_splits(done).train.files[0]
    before = learned.stat()
    Image.new("L", (12, 12), 3).save(learned)
    assert learned.stat().st_size == before.st_size
    with pytest.raises(CapsellaError, match="has changed"):
        load_splits(done)


def test_another_class_at_the_same_number(images, done):
    (images / "a" / "05.bmp").rename(images / "b" / "05.bmp.bmp")
    (images / "b" / "06.bmp").rename(images / "a" / "06.bmp.bmp")
    with pytest.raises(CapsellaError):
        load_splits(done)


def test_a_training_goes_on_without_the_files_that_came(recipe, images, tmp_path):
    folder = tmp_path / "paused"
    train(recipe, folder, until=1, compute=CPU, console=QUIET)
    Image.new("L", (12, 12), 77).save(images / "a" / "00b.bmp")
    with pytest.warns(CapsellaWarning, match="left out 1 file"):
        resume(folder, console=QUIET)
    assert load_splits(load_run(folder)).digests() == RunFolder(folder).images()


def test_a_test_image_that_breaks_is_left_out(images, done):
    test = load_splits(done).test.files
    (images / test[0]).write_bytes(b"")
    with pytest.warns(CapsellaWarning, match="left out 1 broken image"):
        assert load_splits(done).test.files == test[1:]
