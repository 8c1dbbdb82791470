"""Preparation of images inside a network, coordinates of pixels and of votes; initial weights of ordinary layers."""

import pytest
import torch
from torch import nn

from capsella.layers import (
    CropImages,
    DenseCapsules,
    JitterImages,
    PrepareImages,
    StandardiseImages,
    coordinate_addition,
    receptive_field_centres,
)
from capsella.routing import RoutingInputs, UniformRouting, capsule_votes, squash
from capsella.types import Capsules


def test_standardised_images_have_no_mean_and_unit_variance() -> None:
    images = torch.rand(3, 2, 5, 7) * torch.tensor([0.01, 0.1, 1.0])[:, None, None, None] + 0.3
    out = StandardiseImages()(images)
    torch.testing.assert_close(out.mean((1, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0.0)
    torch.testing.assert_close(out.square().mean((1, 2, 3)), torch.ones(3), atol=1e-4, rtol=0.0)


def test_a_blank_image_gives_zeros_and_finite_gradients() -> None:
    images = torch.full((2, 1, 4, 4), 0.5, requires_grad=True)
    out = StandardiseImages()(images)
    torch.testing.assert_close(out, torch.zeros_like(out), atol=1e-3, rtol=0.0)
    out.sum().backward()
    assert images.grad.isfinite().all()


def test_centre_crop_in_evaluation() -> None:
    images = torch.arange(48.0).repeat(1, 1, 48, 1)
    out = CropImages((48, 48), 32).eval()(images)
    assert torch.equal(out, torch.arange(8.0, 40.0).repeat(1, 1, 32, 1))


def test_random_crops_in_training_are_whole_pieces_of_their_own_image() -> None:
    rows, columns = torch.meshgrid(torch.arange(6.0), torch.arange(5.0), indexing="ij")
    images = torch.stack([rows, columns]).repeat(400, 1, 1, 1) + 100 * torch.arange(400.0)[:, None, None, None]
    out = CropImages((6, 5), 3).train()(images) - 100 * torch.arange(400.0)[:, None, None, None]
    top, left = out[:, 0, 0, 0], out[:, 1, 0, 0]
    assert {(int(r), int(c)) for r, c in zip(top, left, strict=True)} == {(r, c) for r in range(4) for c in range(3)}
    piece = torch.stack([rows[:3, :3], columns[:3, :3]])
    assert torch.equal(out, piece + torch.stack([top, left], 1)[:, :, None, None])


def test_jitter_draws_a_brightness_and_a_contrast_for_each_image() -> None:
    images = torch.rand(1, 2, 3, 4).repeat(2000, 1, 1, 1)
    jitter = JitterImages(brightness=0.5, contrast=0.25)
    assert torch.equal(jitter.eval()(images), images)
    out = jitter.train()(images)
    delta = out.mean((1, 2, 3)) - images.mean((1, 2, 3))
    factor = out.std((1, 2, 3)) / images.std((1, 2, 3))
    mean = images.mean((1, 2, 3), keepdim=True)
    torch.testing.assert_close(out, factor[:, None, None, None] * (images - mean) + mean + delta[:, None, None, None])
    for drawn, centre, reach in ((delta, 0.0, 0.5), (factor, 1.0, 0.25)):
        assert (drawn - centre).abs().max() <= reach + 1e-5
        assert (drawn - centre).max() > 0.95 * reach
        assert (drawn - centre).min() < -0.95 * reach
        assert (drawn - centre).mean().abs() < 0.1 * reach
    assert torch.corrcoef(torch.stack([delta, factor]))[0, 1].abs() < 0.1


def test_images_are_changed_after_they_were_standardised() -> None:
    """The other way round, standardising would undo the change."""
    prepare = PrepareImages((8, 8), 6, standardise=True, brightness=0.5, contrast=0.5).train()
    assert (prepare.image_size, prepare.size) == ((8, 8), (6, 6))
    out = prepare(torch.rand(50, 1, 8, 8))
    assert out.shape == (50, 1, 6, 6)
    assert out.mean((1, 2, 3)).std() > 0.1
    assert out.std((1, 2, 3)).std() > 0.1
    assert PrepareImages((8, 8), None, standardise=True, brightness=0.0, contrast=0.0).size == (8, 8)


@pytest.mark.parametrize("convolutions", [[(5, 2), (3, 2), (3, 1)], [(3, 1)], [(4, 3), (2, 2)]])
def test_centres_match_the_pixels_that_really_matter(convolutions: list[tuple[int, int]]) -> None:
    """The centre of mass of each unit's gradient on the image, for convolutions of ones: pixel k counts as k + 1/2."""
    size = (25, 31)
    network = nn.Sequential(*(nn.Conv2d(1, 1, kernel, stride, bias=False) for kernel, stride in convolutions))
    for layer in network:
        nn.init.ones_(layer.weight)
    image = torch.zeros(1, 1, *size, requires_grad=True)
    centres = receptive_field_centres(size, convolutions)
    output = network(image)[0, 0]
    assert output.shape == centres.shape[:2]
    for row, column in [(0, 0), (output.shape[0] - 1, output.shape[1] - 1), (0, output.shape[1] - 1)]:
        (mass,) = torch.autograd.grad(output[row, column], image, retain_graph=True)
        rows, columns = mass[0, 0].sum(1), mass[0, 0].sum(0)
        expected = [(part @ (torch.arange(len(part)) + 0.5) / part.sum() / len(part)) for part in (rows, columns)]
        torch.testing.assert_close(centres[row, column], torch.stack(expected))


def test_the_first_two_elements_of_the_right_most_column() -> None:
    centres = torch.tensor([[[0.25, 0.75]]])
    four = coordinate_addition(centres, 16).reshape(4, 4)
    assert four[:, 3].tolist() == [0.25, 0.75, 0.0, 0.0]
    assert four[:, :3].eq(0).all()
    assert coordinate_addition(centres, 9).reshape(3, 3)[:, 2].tolist() == [0.25, 0.75, 0.0]
    assert coordinate_addition(centres, 5, "vector").tolist() == [[[0.25, 0.75, 0.0, 0.0, 0.0]]]


def test_added_to_the_votes_after_the_weights() -> None:
    offset = torch.rand(2, 3, 4)
    layer = DenseCapsules((2, 3), 2, 4, 3, 4, tied=True, pose="matrix", vote_offset=offset, routing=UniformRouting())
    children = Capsules(torch.randn(1, 2, 3, 2, 4), torch.rand(1, 2, 3, 2))
    conv = RoutingInputs(*children, layer.weight, layer.geometry)
    votes, _ = capsule_votes(conv)  # [1, (row column type), parent, element]
    moved = votes.reshape(2, 3, 2, 3, 4) + offset[:, :, None, None]
    expected = squash(moved.sum((0, 1, 2)) / 3)
    torch.testing.assert_close(layer(children).poses[0, 0, 0], expected)
