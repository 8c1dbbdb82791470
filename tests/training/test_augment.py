import pytest
import torch

from capsella.training import AugmentOptions
from capsella.training.augment import Augment

SIZE = 7


@pytest.fixture
def images():
    """64 images whose pixels all differ and none is zero, so that a shift can be read off."""
    return torch.rand(64, 1, SIZE, SIZE) * 0.9 + 0.1


def moved(image, down, right):
    """The image shifted, zeros moving in."""
    out = torch.zeros_like(image)
    for row in range(SIZE):
        for column in range(SIZE):
            if 0 <= row - down < SIZE and 0 <= column - right < SIZE:
                out[:, row, column] = image[:, row - down, column - right]
    return out


def shifts(before, after, most):
    """(down, right) of each image."""
    steps = [(down, right) for down in range(-most, most + 1) for right in range(-most, most + 1)]
    found = [[step for step in steps if torch.equal(moved(a, *step), b)] for a, b in zip(before, after, strict=True)]
    assert all(len(matches) == 1 for matches in found)
    return [matches[0] for matches in found]


def test_without_options_nothing_changes(images):
    assert torch.equal(Augment(AugmentOptions(), (SIZE, SIZE))(images), images)


@pytest.mark.parametrize("most", [1, 2])
def test_a_shift_moves_whole_pixels_and_zeros_move_in(images, most):
    found = shifts(images, Augment(AugmentOptions(shift=most), (SIZE, SIZE))(images), most)
    # Each image has its own shift, and with 64 images each direction's extremes occur.
    assert {down for down, _ in found} == {right for _, right in found} == set(range(-most, most + 1))


def test_the_generator_decides(images):
    augment = Augment(AugmentOptions(shift=2, flip=True, rotation=20.0), (SIZE, SIZE))
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append(augment(images))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_a_flip_mirrors_either_way_or_not_at_all(images):
    after = Augment(AugmentOptions(flip=True), (SIZE, SIZE))(images)
    kinds = {"none": (), "rows": (1,), "columns": (2,), "both": (1, 2)}
    found = [
        next(kind for kind, axes in kinds.items() if torch.equal(image.flip(axes), changed))
        for image, changed in zip(images, after, strict=True)
    ]
    assert set(found) == set(kinds)


def test_a_rotation_stays_within_its_limit():
    # A dot right of the centre of an odd image: its angle after the rotation can be read off.
    images = torch.zeros(200, 1, 41, 41)
    images[:, :, 20, 36:39] = 1.0
    after = Augment(AugmentOptions(rotation=30.0), (41, 41))(images)
    rows, columns = torch.meshgrid(torch.arange(41.0) - 20, torch.arange(41.0) - 20, indexing="ij")
    down, right = ((after[:, 0] * axis).sum((1, 2)) for axis in (rows, columns))
    angles = torch.rad2deg(torch.atan2(down, right))
    assert angles.abs().max() <= 31
    assert angles.max() > 20
    assert angles.min() < -20


def test_images_of_other_shapes(images):
    wide = torch.rand(3, 3, 6, 9)
    assert Augment(AugmentOptions(shift=2, flip=True, rotation=5.0), (6, 9))(wide).shape == wide.shape
