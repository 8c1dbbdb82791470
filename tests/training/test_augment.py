"""Random changes of the training images: their distribution, and what they leave as it is."""

import pytest
import torch

from capsella.errors import CapsellaError
from capsella.training import AugmentOptions
from capsella.training.augment import COLOUR_SHARE, Augment, random_stain, random_zoom

SIZE = 7
CELLS = torch.rand(64, 3, 16, 16, generator=torch.Generator().manual_seed(1)) * 0.8 + 0.1


def augmented(images, **options):
    return Augment(AugmentOptions(**options), tuple(images.shape[2:]))(images)


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


def test_without_options_nothing_changes(images):
    assert torch.equal(augmented(images), images)
    for step in (random_stain(CELLS, 0.0), random_zoom(CELLS, 1.0)):
        assert torch.allclose(step, CELLS, atol=1e-5)


def test_a_shift_moves_whole_pixels_and_zeros_move_in(images):
    steps = [(down, right) for down in range(-2, 3) for right in range(-2, 3)]
    after = augmented(images, shift=2)
    matches = [[step for step in steps if torch.equal(moved(a, *step), b)] for a, b in zip(images, after, strict=True)]
    assert all(len(match) == 1 for match in matches)
    # Each image has its own shift, and with 64 images the extremes of each direction occur.
    assert {match[0][0] for match in matches} == {match[0][1] for match in matches} == set(range(-2, 3))


@pytest.mark.parametrize(("option", "kinds"), [("mirror", [(), (2,)]), ("flip", [(), (1,), (2,), (1, 2)])])
def test_flips_of_each_axis(images, option, kinds):
    after = augmented(images, **{option: True})
    matches = {
        next(axes for axes in kinds if torch.equal(image.flip(axes), changed))
        for image, changed in zip(images, after, strict=True)
    }
    assert matches == set(kinds)


def test_a_rotation_stays_within_its_limit():
    # A dot right of the centre of an odd image: its angle after the rotation can be read off.
    images = torch.zeros(200, 1, 41, 41)
    images[:, :, 20, 36:39] = 1.0
    after = augmented(images, rotation=30.0)
    rows, columns = torch.meshgrid(torch.arange(41.0) - 20, torch.arange(41.0) - 20, indexing="ij")
    down, right = ((after[:, 0] * axis).sum((1, 2)) for axis in (rows, columns))
    angles = torch.rad2deg(torch.atan2(down, right))
    assert 20 < angles.max() <= 31
    assert -31 <= angles.min() < -20


def block(rows, columns, size=20):
    """One image with a bright block at these rows and columns."""
    image = torch.zeros(1, 1, size, size)
    image[..., slice(*rows), slice(*columns)] = 0.1 + 0.9 * torch.rand(rows[1] - rows[0], columns[1] - columns[0])
    return image


def box(image):
    """First and last row and column that are not black."""
    rows, columns = ((image[0] > 0.5 / 255).any(axis).nonzero() for axis in (1, 0))
    return int(rows[0]), int(rows[-1]), int(columns[0]), int(columns[-1])


def test_a_shift_within_the_margins_reaches_the_border_and_cuts_nothing():
    image = block((2, 15), (3, 19))  # margins of 2, 5, 3 and 1
    after = augmented(image.expand(2000, -1, -1, -1), margin_shift=True)
    boxes = [box(changed) for changed in after]
    assert {top for top, *_ in boxes} == set(range(8))
    assert {left for _, _, left, _ in boxes} == set(range(5))
    for changed, (top, bottom, left, right) in zip(after[:50], boxes, strict=False):
        assert torch.equal(changed[0, top : bottom + 1, left : right + 1], image[0, 0, 2:15, 3:19])
    shares = [abs(top - 2) / (5 if top > 2 else 2) for top, *_ in boxes]
    assert 0.1 < sum(shares) / len(shares) < 0.4  # a half-normal's mean is 0.27; whole pixels round down


def test_half_of_the_images_turn_by_normal_angles():
    """Angles are read off a bright line through the centre, by its second moments."""
    size = 41
    image = torch.zeros(1, 1, size, size)
    image[..., size // 2, 5:36] = 1.0
    turned = augmented(image.expand(1000, -1, -1, -1), rotation_sd=10.0)[:, 0]
    y, x = torch.meshgrid(*[torch.arange(size) - size // 2.0] * 2, indexing="ij")
    angles = torch.rad2deg(0.5 * torch.atan2(2 * (turned * x * y).sum((1, 2)), (turned * (x * x - y * y)).sum((1, 2))))
    still = angles.abs() < 1e-3
    assert 0.44 < still.double().mean() < 0.56
    assert angles.abs().max() <= 30.1
    assert 8.5 < float(angles[~still].std()) < 11.5
    assert abs(float(angles[~still].mean())) < 1.5


def test_what_augmentation_must_not_do():
    """Blacken corners, light up a black image, or brighten a blurred one."""
    grey, black = torch.full((50, 2, 9, 9), 0.4), torch.zeros(3, 1, 20, 20)
    torch.testing.assert_close(augmented(grey, rotation=45.0, stretch=0.4), grey)
    assert torch.equal(augmented(black, margin_shift=True, rotation_sd=10.0, narrow=0.25, erase=2), black)
    assert torch.equal(augmented(black, gamma=0.5, white_balance=0.5), black)
    point = torch.zeros(4, 2, 21, 21)
    point[:, :, 10, 10] = 1
    blurred = augmented(point, blur=1.5)
    assert torch.allclose(blurred.sum((2, 3)), torch.ones(4, 2), atol=1e-3)
    torch.testing.assert_close(blurred, blurred.flip(2))


def test_erased_squares():
    black = augmented(torch.ones(500, 1, 12, 14), erase=3)[:, 0] == 0
    assert (black.sum((1, 2)) == 9).all()
    expected = torch.zeros(12, 14, dtype=torch.bool)
    expected[3:9, 3:11] = True
    assert torch.equal(black.any(0), expected)
    with pytest.raises(ValueError, match=r"^erase:"):
        Augment(AugmentOptions(erase=5), (12, 14))


@pytest.mark.parametrize(
    "change",
    [{"zoom": 2.0}, {"stain": 0.5}, {"white_balance": 0.3}, {"gamma": 0.3}, {"blur": 1.0}, {"noise": 0.1}],
)
def test_changes_of_another_microscope_keep_images_in_range(change):
    changed = augmented(CELLS, **change)
    assert changed.shape == CELLS.shape
    assert 0 <= float(changed.min()) <= float(changed.max()) <= 1
    assert ((changed - CELLS).abs().amax((1, 2, 3)) > 1e-3).float().mean() > 0.6


def test_stains_leave_white_and_change_as_amounts_do():
    assert torch.allclose(random_stain(torch.ones(8, 3, 2, 2), 0.9), torch.ones(8, 3, 2, 2))
    colour = torch.tensor([0.650, 0.704, 0.286])
    colour = colour / colour.norm()
    haematoxylin = (-colour).exp()[None, :, None, None].expand(4096, 3, 1, 1)
    along = -random_stain(haematoxylin, 0.5).log().flatten(1) @ colour
    other_colour = COLOUR_SHARE * 0.5 * float(colour.sum())  # the most that it adds, or takes away
    assert 0.5 * (1 - other_colour) < float(along.min()) < 0.55
    assert 1.45 < float(along.max()) < 1.5 * (1 + other_colour)
    assert float(along.mean()) == pytest.approx(1, abs=0.02)


def test_zoom_magnifies_and_shrinks_equally_often():
    square = torch.zeros(2000, 1, 33, 33)
    square[:, :, 12:21, 12:21] = 1
    sides = random_zoom(square, 2.0).sum((1, 2, 3)).sqrt() / 9
    assert 0.49 < float(sides.min()) < 0.6
    assert 1.9 < float(sides.max()) < 2.1
    assert float((sides > 1).float().mean()) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_coarse_camera_and_jpeg_leave_their_traces_in_half_of_the_batches(channels):
    fine = torch.arange(32)[None, None, :, None].remainder(2).float().expand(4, channels, 32, 32)
    contrasts = torch.stack([augmented(fine, downscale=4.0).std() for _ in range(200)])
    assert 0.35 < float((contrasts == fine.std()).float().mean()) < 0.65
    assert float(contrasts.min()) < 0.1 * float(fine.std())
    noise = torch.rand(4, channels, 24, 24)
    errors = torch.stack([(augmented(noise, jpeg=20) - noise).abs().mean() for _ in range(8)])
    assert float(errors.min()) == 0
    assert 0.02 < float(errors.max()) < 0.3


def test_stain_and_jpeg_need_grey_or_colour():
    for option in ({"stain": 0.5}, {"jpeg": 50}):
        with pytest.raises(CapsellaError):
            augmented(torch.rand(2, 2, 16, 16), **option)


def test_a_share_of_the_images_keeps_its_microscope():
    images = CELLS.repeat(8, 1, 1, 1)
    changed = augmented(images, white_balance=0.5, microscope_keep_prob=0.25)
    kept = (changed == images).flatten(1).all(1)
    assert float(kept.float().mean()) == pytest.approx(0.25, abs=0.06)
