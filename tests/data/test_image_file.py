"""How an oblong image becomes square, the same in data sets, in saved networks and in previews."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from capsella.data import FolderData, NpzData, load_data, read_image
from capsella.data.image_file import fit_image
from capsella.data.summary import oblong_sheet
from capsella.models import ImageClassifier, create_model


def wide(shape: tuple[int, ...] = (30, 60)) -> Image.Image:
    """A bright left end on grey."""
    pixels = np.full(shape, 100, np.uint8)
    pixels[5:25, 2:12] = 220
    return Image.fromarray(pixels)


def test_crop_cuts_the_ends_off_pad_and_squash_keep_them():
    crop, pad, squash = (np.asarray(fit_image(wide(), (30, 30), fit)).astype(int) for fit in ("crop", "pad", "squash"))
    assert crop.max() < 130
    assert pad.max() > 190
    assert squash.max() > 190
    assert (pad[:7] == 100).all()  # the median of the border
    assert (pad[23:] == 100).all()
    assert np.abs(pad[8:22, 15:] - 100).max() <= 5
    bright = np.argwhere(squash > 170)
    assert bright[:, 0].min() <= 5 < 24 <= bright[:, 0].max()


@pytest.mark.parametrize("fit", ["crop", "pad", "squash"])
def test_square_images_are_the_same_and_extreme_ones_have_the_size(fit: str):
    square = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8))
    assert np.array_equal(np.asarray(fit_image(square, (16, 16), fit)), np.asarray(fit_image(square, (16, 16), "crop")))
    assert fit_image(Image.new("RGB", (900, 2), "red"), (8, 8), fit).size == (8, 8)
    assert fit_image(wide(), (7, 21), fit).size == (21, 7)


@pytest.fixture
def slides(tmp_path: Path) -> Path:
    for label in range(2):
        (tmp_path / "slides" / "ab"[label]).mkdir(parents=True)
        for number in range(10):
            pixels = np.asarray(wide()).copy()
            pixels[26 + label, 20 + number] = 0
            Image.fromarray(pixels).save(tmp_path / "slides" / "ab"[label] / f"{number}.png")
    return tmp_path / "slides"


@pytest.mark.parametrize("fit", ["crop", "pad", "squash"])
def test_folders_arrays_and_networks_fit_alike(slides: Path, tmp_path: Path, fit: str):
    splits = load_data(FolderData(slides, size=16, fit=fit, duplicates="ignore"))  # type: ignore[arg-type]
    assert any("50%" in note for note in splits.notes) == (fit == "crop")
    file = splits.test.files[0]
    assert torch.equal(splits.test.images[0], read_image(slides / file, (16, 16), fit=fit))  # type: ignore[arg-type]
    files = sorted(slides.rglob("*.png"))
    pixels = np.stack([np.asarray(Image.open(path)) for path in files])
    np.savez(tmp_path / "slides.npz", images=pixels, labels=np.repeat([0, 1], 10), name=[str(path) for path in files])
    packed = load_data(NpzData(tmp_path / "slides.npz", size=16, fit=fit, duplicates="ignore"))  # type: ignore[arg-type]
    assert torch.equal(packed.test.images[packed.test.files.index(str(slides / file))], splits.test.images[0])
    model = create_model("he2016_resnet10", image_size=16, channels=1, classes=splits.classes)
    model.fit = fit  # type: ignore[assignment]
    model.save_pretrained(tmp_path / "model")
    assert ImageClassifier.from_pretrained(tmp_path / "model").preprocessing == model.preprocessing


def test_a_preview_shows_what_each_leaves(slides: Path):
    sheet = oblong_sheet([*slides.rglob("*.png")], 16)
    assert sheet is not None
    assert sheet.height > 4 * 30
    assert sheet.width > 60 + 3 * 16
    for path in slides.rglob("*.png"):
        Image.new("L", (30, 30)).save(path)
    assert oblong_sheet([*slides.rglob("*.png")], 16) is None
