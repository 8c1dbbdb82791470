"""Layers that normalise: by the batch, by groups, by each image."""

import pytest
import torch
from torch import nn

from capsella import create_model
from capsella.layers.norms import NormaliseTypes, norm_layer


def test_each_kind_is_the_field_s():
    assert isinstance(norm_layer("batch", 24), nn.BatchNorm2d)
    assert norm_layer("group", 64).num_groups == 4
    assert norm_layer("group", 8).num_groups == 1
    maps = torch.randn(3, 8, 5, 5) * 4 + 2
    expected = nn.functional.instance_norm(maps, eps=1e-3)
    assert torch.allclose(norm_layer("instance", 8, eps=1e-3)(maps), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["mazzia2021_efficient_capsnet", "he2016_resnet10"])
@pytest.mark.parametrize("norm", ["batch", "group", "instance"])
def test_networks_take_each(name, norm):
    model = create_model(name, image_size=32, channels=3, classes=3, norm=norm)
    images = torch.rand(4, 3, 32, 32)
    alone = model(images[:1]).activations if norm != "batch" else None
    together = model(images).activations
    assert together.shape == (4, 3)
    if alone is not None:  # an image is normalised without the others
        assert torch.allclose(alone, together[:1], atol=1e-4)


def test_wrong_kinds():
    with pytest.raises(ValueError, match="norm"):
        norm_layer("layer", 8)
    with pytest.raises(ValueError, match="channels: must be at least 1, got 0"):
        norm_layer("batch", 0)


def test_a_batch_without_images_leaves_what_runs() -> None:
    norm = NormaliseTypes(3)
    norm(torch.randn(4, 3, 5))
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    assert norm(torch.randn(0, 3, 5)).shape == (0, 3, 5)
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())
