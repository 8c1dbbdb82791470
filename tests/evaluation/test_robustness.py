"""Perturbations by hand, and the accuracy of networks under them."""

import pytest
import torch
from torch import nn

from capsella.data import ImageSet
from capsella.evaluation import PERTURBATIONS, measure_robustness, perturbed
from capsella.evaluation.robustness import flips, rotation, translation
from capsella.models import ImageClassifier
from capsella.types import Output

every = pytest.mark.parametrize("name", PERTURBATIONS)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def pictures(batch=6, channels=3, height=9, width=12):
    return torch.rand(batch, channels, height, width, generator=seeded(1))


@every
def test_what_every_change_keeps(name):
    """Shape, range, the images themselves; the same from the same seed, and something else from another."""
    change, strength = PERTURBATIONS[name].change, PERTURBATIONS[name].strengths[-1]
    for channels in (1, 3):
        images = pictures(channels=channels)
        assert torch.equal(change(images, 0.0, seeded()), images)
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


CLASSES = ("left", "right")


class BrightSide(ImageClassifier):
    """Which half is brighter; mistaken where a picture is mirrored. Notes its images."""

    def __init__(self, classes=CLASSES):
        super().__init__((8, 8), 1, classes)
        self.scale = nn.Parameter(torch.ones(1))
        self.seen = []

    def forward(self, images, labels=None):
        self.seen.append(images.clone())
        halves = torch.stack([images[..., :4].mean((1, 2, 3)), images[..., 4:].mean((1, 2, 3))], 1)
        return Output(self.scale * halves)


@pytest.fixture
def images():
    """150 of them, more than are changed at a time: one bright half each."""
    labels = torch.arange(150) % 2
    pixels = torch.full((150, 1, 8, 8), 80, dtype=torch.uint8)
    for image, label in zip(pixels, labels, strict=True):
        image[..., 4 * int(label) : 4 * int(label) + 4] = 170
    return ImageSet(pixels, labels, CLASSES)


def test_every_model_meets_the_same_images_whatever_the_batch_size(images):
    first, second = BrightSide(), BrightSide()
    measure_robustness({"a": first, "b": second}, images, {"noise": [0.1]}, batch_size=50)
    again = BrightSide()
    measure_robustness({"c": again}, images, {"noise": [0.1]}, batch_size=128)
    assert torch.equal(torch.cat(first.seen), torch.cat(second.seen))
    assert torch.equal(torch.cat(first.seen), torch.cat(again.seen))
    assert torch.equal(torch.cat(again.seen)[150:], torch.cat(list(perturbed(images, "noise", 0.1))))


def test_accuracies_and_intervals(images):
    """Mirrored with probability 1 each way, every image is on the wrong side; brightness does no harm."""
    result = measure_robustness(
        {"net": BrightSide()}, images, {"flips": (1.0,), "colour": (0.2, 0.1)}, data="halves", seed=3
    )
    assert [(p.perturbation, p.strength) for p in result.points] == [
        *(("flips", 0.0), ("flips", 1.0), ("colour", 0.0), ("colour", 0.1), ("colour", 0.2))
    ]
    assert [p.accuracy for p in result.points] == [100, 0, 100, 100, 100]
    assert result.points[0].correct == 150
    assert result.points[0].interval == pytest.approx((97.5, 100), abs=0.1)  # Wilson
    assert result.points[1].interval == pytest.approx((0, 2.5), abs=0.1)
    assert (result.data, result.seed, result.networks) == ("halves", 3, ["net"])


def test_arguments_that_do_not_fit(images):
    net = {"net": BrightSide()}
    for arguments, more, argument in [
        (({}, images), {}, "models_and_images"),
        ((net, images, {"noize": (1,)}), {}, "perturbation"),
        ((net, images, {"rotation": (181.0,)}), {}, "strengths"),
        (({"net": BrightSide(("l", "r"))}, images), {}, "models"),
    ]:
        with pytest.raises(ValueError, match=f"^{argument}: "):
            measure_robustness(*arguments, **more)
