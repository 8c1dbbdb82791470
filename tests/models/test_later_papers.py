"""Networks of later papers: what `test_parameters.py` and the battery do not see."""

import math

import pytest
import torch
from torch import nn

from capsella.layers.images import CoordinateChannels
from capsella.losses import cross_entropy
from capsella.models import create_model
from capsella.models.he2016 import ResidualBlock
from capsella.routing import (
    DynamicRouting,
    HeinsenRouting,
    InvertedAttentionRouting,
)


def sd_of(weight: torch.Tensor) -> float:
    return float(weight.detach().std())


class TestHe2016:
    @pytest.mark.parametrize(("size", "grid"), [(224, (7, 7)), (64, (2, 2)), (63, (8, 8)), (8, (1, 1))])
    def test_grid_before_the_mean(self, size, grid):
        model = create_model("he2016_resnet10", image_size=size, classes=3, width=1).eval()
        assert tuple(model.network[:-4](torch.rand(2, 3, size, size)).shape) == (2, 8, *grid)

    def test_a_block_adds_to_its_input(self):
        block = ResidualBlock(4, 4, 1).eval()
        nn.init.zeros_(block.residual[3].weight)
        x = torch.randn(2, 4, 5, 6)
        assert torch.equal(block(x), x.relu())
        assert tuple(ResidualBlock(4, 6, 2)(x).shape) == (2, 6, 3, 3)


class TestHeinsen2019:
    def test_grids_of_the_paper(self):
        model = create_model("heinsen2019_capsnet", channels=2).eval()
        assert model.primary(model.backbone(torch.rand(1, 2, 96, 96))).poses.shape == (1, 9 * 9, 64, 1, 16)
        routings = [layer.routing for layer in model.capsule_layers]
        assert routings == [HeinsenRouting(shared=True), HeinsenRouting()]
        for layer in model.capsule_layers:
            assert sd_of(layer.weight) == pytest.approx(0.25, rel=0.1)
            assert not any(parameter.any() for parameter in layer.routing_parameters.values())

    def test_part_capsules_are_made_of_channels_of_one_position(self):
        """Element e of type t at position k is channel 16t + e at that position."""
        primary = create_model("heinsen2019_capsnet", image_size=45).primary.eval()
        features = torch.randn(2, 64, 3, 3)
        maps, scores = primary.poses(features), primary.scores(features)
        capsules = primary(features)
        torch.testing.assert_close(capsules.poses[1, 5, 7, 0], maps[1, 7 * 16 : 8 * 16, 1, 2])
        torch.testing.assert_close(capsules.activations[1, 5, 7, 0], scores[1, 7, 1, 2].sigmoid())

    def test_coordinates(self):
        images = torch.rand(2, 3, 4, 5)
        out = CoordinateChannels((4, 5))(images)
        assert torch.equal(out[:, :3], images)
        torch.testing.assert_close(out[1, 3, :, 2], torch.tensor([-1, -1 / 3, 1 / 3, 1]))
        torch.testing.assert_close(out[0, 4, 3], torch.tensor([-1, -0.5, 0, 0.5, 1]))

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

    def test_concurrent_or_not(self):
        """Layers that are routed at once differ from layers in turn, unless there is one round."""
        images = torch.rand(2, 3, 13, 14)
        model = create_model("tsai2020_resnet", image_size=(13, 14), types=4).eval()
        other = create_model("tsai2020_resnet", image_size=(13, 14), types=4, concurrent=False).eval()
        other.load_state_dict(model.state_dict())
        output = model(images)
        assert not torch.allclose(output.activations, other(images).activations, atol=1e-4)
        unit = model.scores.linear
        torch.testing.assert_close(output.logits, output.capsules.poses[:, 0, 0] @ unit.weight[0] + unit.bias)
        for network in (model, other):
            for layer in network.capsule_layers:
                layer.routing = InvertedAttentionRouting(iterations=1)
            network.capsule_layers.rounds = 1
        torch.testing.assert_close(model(images).activations, other(images).activations)


class TestMazzia2021:
    def test_first_weights(self):
        """He's for the convolutions and, as Keras counts their fan-in, the class capsules; Glorot's for the primary."""
        model = create_model("mazzia2021_efficient_capsnet", class_weight_sd=None)
        last = [layer for layer in model.backbone if isinstance(layer, nn.Conv2d)][-1]
        assert sd_of(last.weight) == pytest.approx(math.sqrt(2 / (3 * 3 * 64)), rel=0.05)
        assert sd_of(model.capsule_layers[0].weight) == pytest.approx(math.sqrt(2 / 1280), rel=0.05)
        assert sd_of(model.primary.conv.weight) == pytest.approx(math.sqrt(2 / (81 + 81 * 128)), rel=0.05)
        wide = create_model("mazzia2021_efficient_capsnet", class_weight_sd=0.2)
        assert sd_of(wide.capsule_layers[0].weight) == pytest.approx(0.2, rel=0.05)

    def test_primary_capsules_are_cut_from_the_channels(self):
        """Element k of type t is what the kernel of channel 8t + k finds in map 8t + k alone."""
        primary = create_model("mazzia2021_efficient_capsnet").primary
        features = torch.zeros(1, 128, 9, 9)
        features[0, 8 * 5 + 3] = torch.rand(9, 9)
        poses = primary(features).poses[0, 0, 0]
        assert poses.shape == (16, 8)
        assert poses.nonzero().tolist() == [[5, 3]]


class TestZhao2021:
    def test_other_sizes(self):
        """The authors' network takes multiples of 4; here halves are rounded up, as their convolutions do."""
        model = create_model("zhao2021_cluster_capsnet", image_size=(9, 6), types=2, votes=3, pose=4, channels=1)
        output = model(torch.rand(2, 1, 9, 6))
        assert output.capsules.poses.shape == (2, 1, 1, 5, 4 * 3 * 2)
        unit = model.scores.linear
        torch.testing.assert_close(output.logits, output.capsules.poses[:, 0, 0] @ unit.weight[0] + unit.bias)
