"""Changes that another laboratory makes: what each changes, and what it leaves."""

import math

import pytest
import torch

from capsella.errors import CapsellaError
from capsella.training import AugmentOptions
from capsella.training.augment import Augment
from capsella.training.microscope import COLOUR_SHARE, Camera, Focus, Light, StainJitter, Zoom

CELLS = torch.rand(64, 3, 16, 16, generator=torch.Generator().manual_seed(1)) * 0.8 + 0.1


CHANGES = [
    {"zoom": 2.0},
    {"stain": 0.5},
    {"white_balance": 0.3},
    {"gamma": 0.3},
    {"blur": 1.0},
    {"noise": 0.1},
]


def test_jpeg_takes_grey_and_colour_alone():
    with pytest.raises(CapsellaError, match="jpeg: only for images that are grey or in colour, got 2 channels"):
        Camera(1.0, 50)(torch.rand(2, 2, 16, 16))


@pytest.mark.parametrize("change", CHANGES)
def test_each_changes_images_and_keeps_them_in_range(change):
    torch.manual_seed(0)
    changed = Augment(AugmentOptions(**change), (16, 16))(CELLS)
    assert changed.shape == CELLS.shape
    assert 0 <= float(changed.min()) <= float(changed.max()) <= 1
    assert ((changed - CELLS).abs().amax((1, 2, 3)) > 1e-3).float().mean() > 0.6


def test_without_strength_nothing_changes():
    assert torch.equal(Augment(AugmentOptions(), (16, 16))(CELLS), CELLS)
    for step in (StainJitter(0.0), Light(0.0, 0.0), Zoom(1.0), Focus(0.0, 0.0)):
        assert torch.allclose(step(CELLS), CELLS, atol=1e-5)


def test_stains_leave_white_and_change_as_amounts_do():
    torch.manual_seed(0)
    assert torch.allclose(StainJitter(0.9)(torch.ones(8, 3, 2, 2)), torch.ones(8, 3, 2, 2))
    one = torch.tensor([0.650, 0.704, 0.286])
    haematoxylin = (-one / one.norm()).exp()[None, :, None, None].expand(4096, 3, 1, 1)
    density = -StainJitter(0.5)(haematoxylin).log().flatten(1)
    along = density @ (one / one.norm())
    other_colour = COLOUR_SHARE * 0.5 * float(one.sum() / one.norm())  # the most that it adds, or takes away
    assert 0.5 * (1 - other_colour) < float(along.min()) < 0.55
    assert 1.45 < float(along.max()) < 1.5 * (1 + other_colour)
    assert float(along.mean()) == pytest.approx(1, abs=0.02)


def test_zoom_magnifies_and_shrinks_as_often():
    torch.manual_seed(0)
    square = torch.zeros(2000, 1, 33, 33)
    square[:, :, 12:21, 12:21] = 1
    sides = Zoom(2.0)(square).sum((1, 2, 3)).sqrt() / 9
    assert 0.49 < float(sides.min()) < 0.6
    assert 1.9 < float(sides.max()) < 2.1
    assert float((sides > 1).float().mean()) == pytest.approx(0.5, abs=0.05)


def test_light_keeps_black_and_moves_colours_apart():
    torch.manual_seed(0)
    assert float(Light(0.5, 0.5)(torch.zeros(4, 3, 2, 2)).abs().max()) == 0
    grey = Light(0.3, 0.0)(torch.full((2000, 3, 1, 1), 0.5)).flatten(1)
    assert float(grey.min()) == pytest.approx(0.5 * math.exp(-0.3), abs=2e-3)
    assert float((grey[:, 0] - grey[:, 1]).abs().max()) > 0.2


def test_blur_keeps_the_mean_and_noise_has_its_deviation():
    torch.manual_seed(0)
    point = torch.zeros(4, 2, 21, 21)
    point[:, :, 10, 10] = 1
    blurred = Focus(1.5, 0.0)(point)
    assert torch.allclose(blurred.sum((2, 3)), torch.ones(4, 2), atol=1e-3)
    assert torch.equal(blurred, blurred.flip(2))
    noisy = Focus(0.0, 0.1)(torch.full((500, 1, 8, 8), 0.5))
    assert float(noisy.std((1, 2, 3)).max()) == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize(
    ("change", "text"),
    [({"zoom": 0.5}, "zoom: must be a factor from 1 to 4"), ({"stain": 2.0}, "stain"), ({"blur": -1.0}, "blur")],
)
def test_errors(change, text):
    with pytest.raises(ValueError, match=text):
        AugmentOptions(**change)


def test_a_coarse_camera_loses_detail_and_leaves_half_of_the_batches():
    torch.manual_seed(0)
    fine = torch.arange(32)[None, None, :, None].remainder(2).float().expand(4, 3, 32, 32)
    camera = Camera(4.0, 100)
    contrasts = torch.stack([camera(fine).std() for _ in range(200)])
    untouched = contrasts == fine.std()
    assert 0.35 < float(untouched.float().mean()) < 0.65
    assert float(contrasts.min()) < 0.1 * float(fine.std())


@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_leaves_its_traces(channels):
    torch.manual_seed(0)
    images = torch.rand(4, channels, 24, 24)
    changed = [Augment(AugmentOptions(jpeg=20), (24, 24))(images) for _ in range(8)]
    moved = torch.stack([(one - images).abs().mean() for one in changed])
    assert all(one.shape == images.shape for one in changed)
    assert float(moved.min()) == 0
    assert 0.02 < float(moved.max()) < 0.3


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"coarse": 0.5}, "coarse: must be a factor from 1 to 8, got 0.5"),
        ({"jpeg": 0}, "jpeg: must be a quality from 1 to 100, got 0"),
        ({"noise": -0.1}, "noise: must be from 0 to 1, got -0.1"),
    ],
)
def test_wrong_strengths(wrong, text):
    with pytest.raises(ValueError, match=text):
        AugmentOptions(**wrong)


def test_grey_images_have_no_stains():
    with pytest.raises(CapsellaError, match="stain: must be 0 for images that are not RGB, got 1 channels"):
        StainJitter(0.5)(CELLS[:, :1])


def test_a_share_keeps_its_own_microscope():
    torch.manual_seed(0)
    images = CELLS.repeat(8, 1, 1, 1)
    changed = Augment(AugmentOptions(white_balance=0.5, own_microscope=0.25), (16, 16))(images)
    kept = (changed == images).flatten(1).all(1)
    assert float(kept.float().mean()) == pytest.approx(0.25, abs=0.06)
    with pytest.raises(ValueError, match="own_microscope: must be a share in"):
        AugmentOptions(own_microscope=1.0)
