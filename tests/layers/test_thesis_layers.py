"""Enlarged images, and the first weights of ordinary layers."""

import pytest
import torch

from capsella.layers import EnlargeImages, start_for_relus


@pytest.mark.parametrize(
    ("before", "least", "after"),
    [((4, 6), 8, (8, 12)), ((8, 9), 8, (8, 9)), ((20, 30), 8, (20, 30)), ((5, 7), 8, (8, 11))],
)
def test_small_images_are_enlarged_in_proportion(before: tuple[int, int], least: int, after: tuple[int, int]) -> None:
    layer = EnlargeImages(before, least)
    images = torch.rand(2, 3, *before)
    larger = layer(images)
    assert layer.size == after
    assert larger.shape == (2, 3, *after)
    torch.testing.assert_close(larger.mean(), images.mean(), rtol=0.1, atol=0)
    assert (larger is images) == (before == after)


def test_an_empty_image_cannot_be_enlarged() -> None:
    with pytest.raises(ValueError, match="image_size: must be at least 1×1, got 0×3"):
        EnlargeImages((0, 3), 8)


def test_relu_networks_keep_the_size_of_their_signal() -> None:
    network = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(400, 400), torch.nn.ReLU()) for _ in range(6)])
    start_for_relus(network)
    x = torch.randn(50, 400)
    assert 0.5 < network(x).square().mean() / x.square().mean() < 2
    assert all((layer[0].bias == 0).all() for layer in network)
