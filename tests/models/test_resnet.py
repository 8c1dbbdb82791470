"""The residual network: its parameters by hand, its grids, and the sum that gives it its name."""

import pytest
import torch

from capsella.models import count_parameters, create_model
from capsella.models.resnet import ResidualBlock


def test_parameters_by_hand():
    """Convolutions without biases; batch normalisation has two numbers a channel."""

    def block(before: int, after: int) -> int:
        shortcut = 0 if before == after else before * after + 2 * after
        return 9 * before * after + 9 * after * after + 4 * after + shortcut

    blocks = block(24, 24) + block(24, 48) + block(48, 96) + block(96, 192)
    assert count_parameters(create_model("he2016_resnet10", classes=5)) == 7 * 7 * 3 * 24 + 48 + blocks + 192 * 5 + 5
    small = create_model("he2016_resnet10", image_size=32, channels=1, classes=10)
    assert count_parameters(small) == 3 * 3 * 1 * 24 + 48 + blocks + 192 * 10 + 10


@pytest.mark.parametrize(("size", "grid"), [(224, (7, 7)), (64, (2, 2)), (63, (8, 8)), (8, (1, 1))])
def test_grid_before_the_mean(size, grid):
    model = create_model("he2016_resnet10", image_size=size, classes=3, width=1).eval()
    assert tuple(model.network[:-4](torch.rand(2, 3, size, size)).shape) == (2, 8, *grid)
    activations = model(torch.rand(2, 3, size, size)).activations
    assert torch.allclose(activations.sum(1), torch.ones(2))


def test_a_block_adds_to_its_input():
    block = ResidualBlock(4, 4, 1).eval()
    torch.nn.init.zeros_(block.residual[3].weight)
    x = torch.randn(2, 4, 5, 6)
    assert torch.equal(block(x), x.relu())
    assert tuple(ResidualBlock(4, 6, 2)(x).shape) == (2, 6, 3, 3)


def test_no_channels():
    with pytest.raises(ValueError, match="width: must be at least 1, got 0"):
        create_model("he2016_resnet10", width=0)
