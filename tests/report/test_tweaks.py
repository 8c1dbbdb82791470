import pytest
import torch

from capsella.report import OFFSETS, dimension_tweaks, largest_elements
from capsella.types import Capsules


@pytest.fixture
def image(capsnet):
    return torch.rand(1, *capsnet.image_size)


def test_every_row_moves_one_element_of_the_winner(capsnet, image):
    grid = dimension_tweaks(capsnet, image)
    assert grid.shape == (16, 11, 1, *capsnet.image_size)
    with torch.no_grad():
        capsules = capsnet.encode(image.unsqueeze(0))
        winner = capsules.activations.flatten().argmax().view(1)
        for element, column in ((0, 0), (7, 10), (15, 3)):
            poses = capsules.poses.clone()
            poses[0, 0, 0, winner, element] += OFFSETS[column]
            expected = capsnet.decode(Capsules(poses, capsules.activations), winner)[0]
            torch.testing.assert_close(grid[element, column], expected)
    assert not grid[0, 0].equal(grid[0, 10])
    assert not grid[0, 0].equal(grid[1, 0])


def test_no_offset_is_the_plain_reconstruction(capsnet, image):
    grid = dimension_tweaks(capsnet, image)
    plain = capsnet(image.unsqueeze(0)).reconstruction[0].detach()
    for row in grid[:, 5]:
        torch.testing.assert_close(row, plain)


def test_another_class_can_be_moved(capsnet, image):
    grids = [dimension_tweaks(capsnet, image, target, [0.0, 1.0]) for target in range(3)]
    assert grids[0].shape[1] == 2
    plain = [capsnet(image.unsqueeze(0), torch.tensor([k])).reconstruction[0].detach() for k in range(3)]
    for grid, expected in zip(grids, plain, strict=True):
        torch.testing.assert_close(grid[4, 0], expected)


def test_chosen_elements_are_rows_of_the_whole(capsnet, image):
    grid = dimension_tweaks(capsnet, image)
    torch.testing.assert_close(dimension_tweaks(capsnet, image, elements=[3, 11]), grid[[3, 11]])


def test_the_largest_elements_of_the_winner_or_the_target(capsnet, image):
    capsules = capsnet.encode(image.unsqueeze(0))
    for target in (None, 0, 2):
        pose = capsules.poses[0, 0, 0, capsules.activations.argmax() if target is None else target].abs()
        chosen = largest_elements(capsnet, image, target, most=5)
        others = [k for k in range(16) if k not in chosen]
        assert len(chosen) == 5
        assert chosen == sorted(chosen)
        assert pose[chosen].min() >= pose[others].max()
    assert largest_elements(capsnet, image) == list(range(16))
