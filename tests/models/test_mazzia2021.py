"""Efficient-CapsNet: every layer's parameters as the paper's table has them, and what the authors' code starts from."""

import math

import pytest
import torch
from torch import nn

from capsella.models import count_parameters, create_model
from capsella.routing import SelfAttentionRouting


def test_parameters() -> None:
    with torch.device("meta"):
        model = create_model("mazzia2021_efficient_capsnet")
    own = [sum(p.numel() for p in layer.parameters(recurse=False)) for layer in model.modules()]
    assert [count for count in own if count] == [
        5 * 5 * 1 * 32 + 32,
        2 * 32,  # batch norm: a scale and a shift a channel
        3 * 3 * 32 * 64 + 64,
        2 * 64,
        3 * 3 * 64 * 64 + 64,
        2 * 64,
        3 * 3 * 64 * 128 + 128,
        2 * 128,
        9 * 9 * 128 + 128,  # depthwise: one kernel a channel
        16 * 10 * 8 * 16,
        16 * 10,  # the prior
        10 * 16 * 512 + 512,
        512 * 1024 + 1024,
        1024 * 784 + 784,
    ]
    with torch.device("meta"):
        bare = create_model("mazzia2021_efficient_capsnet", reconstruction=False)
    assert count_parameters(bare) == 161_824  # "161K", Table 1


def test_first_weights() -> None:
    """He's for the convolutions and, as Keras counts their fan-in, for the class capsules; Glorot's for the primary."""
    model = create_model("mazzia2021_efficient_capsnet")
    last = [layer for layer in model.backbone if isinstance(layer, nn.Conv2d)][-1]
    assert float(last.weight.detach().std()) == pytest.approx(math.sqrt(2 / (3 * 3 * 64)), rel=0.05)
    assert float(model.capsule_layers[0].weight.detach().std()) == pytest.approx(math.sqrt(2 / 1280), rel=0.05)
    assert float(model.primary.conv.weight.detach().std()) == pytest.approx(math.sqrt(2 / (81 + 81 * 128)), rel=0.05)
    wide = create_model("mazzia2021_efficient_capsnet", class_weight_sd=0.2)
    assert float(wide.capsule_layers[0].weight.detach().std()) == pytest.approx(0.2, rel=0.05)
    with pytest.raises(ValueError, match=r"weight_sd: must be above 0, got 0\.0"):
        create_model("mazzia2021_efficient_capsnet", class_weight_sd=0.0)


def test_primary_capsules_are_cut_from_the_channels() -> None:
    """Element k of type t is what the kernel of channel 8t + k finds in map 8t + k alone."""
    primary = create_model("mazzia2021_efficient_capsnet").primary
    features = torch.zeros(1, 128, 9, 9)
    features[0, 8 * 5 + 3] = torch.rand(9, 9)
    poses = primary(features).poses[0, 0, 0]
    assert poses.shape == (16, 8)
    assert poses.nonzero().tolist() == [[5, 3]]


def test_the_routing_is_the_papers() -> None:
    model = create_model("mazzia2021_efficient_capsnet")
    assert model.capsule_layers[0].routing == SelfAttentionRouting(prior=True)
