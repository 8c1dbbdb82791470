import pytest
import torch

from capsella.evaluation.robustness.changes import PERTURBATIONS, colour, flips, noise, rotation, translation

every = pytest.mark.parametrize("name", PERTURBATIONS)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def pictures(batch=6, channels=3, height=9, width=12):
    return torch.rand(batch, channels, height, width, generator=seeded(1))


@every
def test_nothing_changes_at_strength_zero(name):
    images = pictures()
    assert torch.equal(PERTURBATIONS[name].change(images, 0.0, seeded()), images)


@every
def test_what_every_change_keeps(name):
    """Shape, range, the images themselves; the same from the same seed, and something else from another."""
    change, strength = PERTURBATIONS[name].change, PERTURBATIONS[name].strengths[-1]
    for channels in (1, 2, 3):
        images = pictures(channels=channels)
        before = images.clone()
        changed = change(images, strength, seeded())
        assert changed.shape == images.shape
        assert (changed >= 0).all()
        assert (changed <= 1).all()
        assert torch.equal(images, before)
        assert not torch.equal(changed, images)
        assert torch.equal(changed, change(images, strength, seeded()))
        assert not torch.equal(changed, change(images, strength, seeded(5)))


def test_flips_mirror_each_way():
    images = pictures(batch=64)
    for image, flipped in zip(images, flips(images, 1.0, seeded()), strict=True):
        assert torch.equal(flipped, image.flip(1, 2))
    kinds = [
        next(k for k, way in enumerate([(), (1,), (2,), (1, 2)]) if torch.equal(flipped, image.flip(way)))
        for image, flipped in zip(images, flips(images, 0.5, seeded()), strict=True)
    ]
    assert set(kinds) == {0, 1, 2, 3}


def test_rotation_turns_within_the_angle_and_flips():
    """A bright spot right of the centre: its angle, up to the flips, is within the strength."""
    images = torch.zeros(64, 1, 41, 41)
    images[:, :, 20, 35] = 1
    changed = rotation(images, 30.0, seeded())
    place = changed.flatten(1).argmax(1)
    down, right = place // 41 - 20, place % 41 - 20
    assert set(right.sign().tolist()) == {-1, 1}  # flipped left to right, or not
    angles = torch.rad2deg(torch.atan2(down.float(), right.abs().float())).abs()
    assert 20 < angles.max() < 34
    assert ((down**2 + right**2).float().sqrt() - 15).abs().max() < 1.5


def test_rotation_leaves_no_black_corners():
    grey = torch.full((8, 3, 16, 16), 0.6)
    torch.testing.assert_close(rotation(grey, 90.0, seeded()), grey)


def test_translation_moves_whole_pixels_and_repeats_the_border():
    images = pictures(batch=100)
    changed = translation(images, 0.25, seeded())
    moves = set()
    for image, moved in zip(images, changed, strict=True):
        rows, columns = torch.arange(9), torch.arange(12)
        fits = [
            (down, right)
            for down in range(-3, 4)
            for right in range(-4, 5)
            if torch.equal(moved, image[:, (rows - down).clamp(0, 8)][:, :, (columns - right).clamp(0, 11)])
        ]
        assert len(fits) == 1
        moves.add(fits[0])
    assert {down for down, _ in moves} == {-2, -1, 0, 1, 2}  # a quarter of 9 is 2.25, of 12 is 3
    assert {right for _, right in moves} == {-3, -2, -1, 0, 1, 2, 3}


def test_colour_adds_one_constant_a_channel():
    images = 0.4 + 0.2 * pictures(batch=200)
    added = colour(images, 0.3, seeded()) - images
    constants = added.mean((2, 3))
    torch.testing.assert_close(added, constants[:, :, None, None].expand_as(added))
    assert 0.29 < constants.abs().max() <= 0.3
    assert constants.mean().abs() < 0.03
    assert constants.std(1).min() > 0  # the channels of one image differ


def test_noise_has_its_standard_deviation():
    grey = torch.full((20, 3, 16, 16), 0.5)
    added = noise(grey, 0.05, seeded()) - grey
    assert added.std() == pytest.approx(0.05, rel=0.03)
    assert added.mean().abs() < 0.002


def test_a_curve_scales_one_draw():
    """The same directions at each strength, so that a curve shows the strength alone."""
    grey = torch.full((4, 3, 8, 8), 0.5)
    for change in (noise, colour):
        little, much = (change(grey, strength, seeded()) - grey for strength in (0.01, 0.05))
        torch.testing.assert_close(5 * little, much, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "strength", "message"),
    [
        ("rotation", -1.0, "strength: must be from 0 to 180 for rotation, got -1.0"),
        ("rotation", 181.0, "strength: must be from 0 to 180 for rotation, got 181.0"),
        ("translation", 1.5, "strength: must be from 0 to 1 for translation, got 1.5"),
        ("colour", float("nan"), "strength: must be from 0 to 1 for colour, got nan"),
        ("noise", float("inf"), "strength: must be a finite number of at least 0 for noise, got inf"),
        ("flips", 2.0, "strength: must be from 0 to 1 for flips, got 2.0"),
    ],
)
def test_strengths_outside_their_range(name, strength, message):
    with pytest.raises(ValueError, match=message):
        PERTURBATIONS[name].change(pictures(), strength, seeded())


def test_images_of_another_shape():
    with pytest.raises(ValueError, match=r"images: must have shape \[b c h w\], got \(3, 4, 4\)"):
        noise(torch.rand(3, 4, 4), 0.1, seeded())
