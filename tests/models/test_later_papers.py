"""Networks of later papers: what `test_parameters.py` and the battery do not see."""

import math

import pytest
import torch
from torch import nn

from capsella.losses import cross_entropy
from capsella.models import create_model
from capsella.models.he2016 import ResidualBlock
from capsella.routing import (
    DynamicRouting,
    HeinsenRouting,
)


def sd_of(weight: torch.Tensor) -> float:
    return float(weight.detach().std())


class TestHeinsen2019:
    def test_grids_of_the_paper(self):
        model = create_model("heinsen2019_capsnet", channels=2).eval()
        assert model.primary(model.backbone(torch.rand(1, 2, 96, 96))).poses.shape == (1, 9 * 9, 64, 1, 16)
        routings = [layer.routing for layer in model.capsule_layers]
        assert routings == [HeinsenRouting(shared=True), HeinsenRouting()]
        for layer in model.capsule_layers:
            assert sd_of(layer.weight) == pytest.approx(0.25, rel=0.1)
            assert not any(parameter.any() for parameter in layer.routing_parameters.values())

    def test_scores_are_the_logits(self):
        """Also where the activation of every class is 1 in float32."""
        model = create_model("heinsen2019_capsnet", image_size=29).eval()
        nn.init.constant_(model.capsule_layers[1].routing_parameters["beta_use"], 40.0)
        output = model(torch.rand(2, 1, 29, 29))
        torch.testing.assert_close(output.logits.sigmoid(), output.activations)
        assert output.logits.min() > 20
        labels = torch.tensor([0, 4])
        expected = -output.logits.log_softmax(1)[[0, 1], labels].mean()
        torch.testing.assert_close(cross_entropy(output, labels), expected)
        other = create_model("heinsen2019_capsnet", image_size=29, routing=DynamicRouting())
        assert other(torch.rand(2, 1, 29, 29)).logits is None


class TestRibeiro2020:
    def test_first_weights(self):
        model = create_model("ribeiro2020_capsnet", channels=2)
        assert sd_of(model.backbone[1].weight) == pytest.approx(math.sqrt(2 / 50), rel=0.05)
        poses, activations = model.primary.conv.weight.split([8 * 16, 8])
        assert sd_of(poses) == pytest.approx(math.sqrt(2 / (64 + 8 * 16)), rel=0.05)
        assert sd_of(activations) == pytest.approx(math.sqrt(2 / (64 + 8)), rel=0.15)
        first = model.capsule_layers[0].weight.detach()
        assert sd_of(first) == pytest.approx(math.sqrt(2 / (9 * 16 * (8 + 16))), rel=0.05)
        assert abs(float(first.diagonal(dim1=-2, dim2=-1).mean())) < 0.002  # around zero, and not the identity

    def test_coordinates_of_the_authors(self):
        """(k + 1)/100n of n rows, or columns, in the last column of the pose: elements 3 and 7."""
        offset = create_model("ribeiro2020_capsnet").capsule_layers[2].vote_offset
        torch.testing.assert_close(offset[:, 1, 3], torch.tensor([0.0025, 0.005, 0.0075, 0.01]))
        torch.testing.assert_close(offset[2, :, 7], torch.tensor([0.0025, 0.005, 0.0075, 0.01]))
        assert offset.count_nonzero() == 2 * 16
        assert create_model("ribeiro2020_capsnet", coordinate_addition=False).capsule_layers[2].vote_offset is None


class TestTsai2020:
    def test_first_weights(self):
        layers = create_model("tsai2020_resnet").capsule_layers
        for layer, parents, children in zip(layers, (32, 32, 10), (9 * 32, 9 * 32, 25 * 32), strict=True):
            expected = math.sqrt(parents / (4 * children))
            assert sd_of(layer.weight) == pytest.approx(expected, rel=0.02)
            assert abs(float(layer.weight.detach().mean())) < 0.02 * expected  # not around the identity


class TestMazzia2021:
    def test_first_weights(self):
        """He's for the convolutions and, as Keras counts their fan-in, the class capsules; Glorot's for the primary."""
        model = create_model("mazzia2021_efficient_capsnet")
        last = [layer for layer in model.backbone if isinstance(layer, nn.Conv2d)][-1]
        assert sd_of(last.weight) == pytest.approx(math.sqrt(2 / (3 * 3 * 64)), rel=0.05)
        assert sd_of(model.capsule_layers[0].weight) == pytest.approx(math.sqrt(2 / 1280), rel=0.05)
        assert sd_of(model.primary.conv.weight) == pytest.approx(math.sqrt(2 / (81 + 81 * 128)), rel=0.05)


@pytest.mark.parametrize(
    ("size", "options", "side"),
    [(48, {}, 48), (64, {}, 16), (64, {"pool_from": 128}, 32), (48, {"pool_from": 48}, 24)],
)
def test_a_resnet_halves_images_before_its_first_block(size: int, options: dict[str, int], side: int) -> None:
    network = create_model("he2016_resnet10", image_size=size, channels=3, classes=2, **options).network
    assert isinstance(network, nn.Sequential)
    first = next(k for k, layer in enumerate(network) if isinstance(layer, ResidualBlock))
    assert network[:first](torch.rand(2, 3, size, size)).shape == (2, 24, side, side)
