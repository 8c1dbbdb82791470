"""Coordinate addition: exact centres, the right elements, and votes rather than poses."""

import pytest
import torch
from torch import nn

from capsella.layers import DenseCapsules, coordinate_addition, receptive_field_centres
from capsella.routing import RoutingInputs, UniformRouting, capsule_votes, squash
from capsella.types import Capsules


def test_centres_of_the_paper_s_network() -> None:
    """32×32 through 5/2, 1/1, 3/2, 3/1: fields of 17 pixels, 4 apart, the first over pixels 0–16, centred at 8.5."""
    centres = receptive_field_centres((32, 32), [(5, 2), (1, 1), (3, 2), (3, 1)])
    expected = torch.tensor([8.5, 12.5, 16.5, 20.5]) / 32
    torch.testing.assert_close(centres[:, :, 0], expected[:, None].expand(4, 4))
    torch.testing.assert_close(centres[:, :, 1], expected[None, :].expand(4, 4))


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


def test_the_offset_moves_with_the_module_but_is_not_saved() -> None:
    layer = DenseCapsules((2, 3), 2, 4, 3, 4, vote_offset=torch.rand(2, 3, 4))
    assert "vote_offset" not in layer.state_dict()
    assert layer.double().vote_offset.dtype == torch.float64


def test_poses_without_room() -> None:
    for elements, pose in ((8, "matrix"), (1, "vector")):
        with pytest.raises(ValueError, match=r"^pose_elements: must"):
            coordinate_addition(torch.rand(2, 2, 2), elements, pose)
