"""The network of Heinsen 2019: its parameters against the author's code, its shared weights, and its scores."""

import pytest
import torch

from capsella.layers.coordinates import CoordinateChannels
from capsella.losses import cross_entropy
from capsella.models import count_parameters, create_model
from capsella.routing import DynamicRouting, HeinsenRouting

CONV = 3 * 3 * 64 * 64 + 64


def test_parameters_layer_by_layer() -> None:
    model = create_model("heinsen2019_capsnet", channels=2)
    parts = [model.backbone, model.primary, *model.capsule_layers]
    assert [count_parameters(part) for part in parts] == [
        2 * 4 + 3 * 3 * 4 * 64 + 64 + 5 * (2 * 64 + CONV),
        2 * 2 * 64 + 64 * 64 + 64 + 64 * 1024 + 1024,
        64 * (16 + 16 + 2),  # W, B and both β of each part, for all children
        64 * 5 * (16 + 16 + 2),
    ]
    assert count_parameters(model) == 271_688  # "272 K"
    assert count_parameters(create_model("heinsen2019_capsnet", channels=2, image_size=64)) == 271_688


def test_grids_of_the_paper() -> None:
    model = create_model("heinsen2019_capsnet", channels=2).eval()
    parts = model.primary(model.backbone(torch.rand(1, 2, 96, 96)))
    assert parts.poses.shape == (1, 9 * 9, 64, 1, 16)
    assert model.capsule_layers[0].routing == HeinsenRouting(shared=True)
    assert model.capsule_layers[1].routing == HeinsenRouting()


def test_part_capsules_are_made_of_channels_of_one_position() -> None:
    """Element e of type t at position k is channel 16t + e at that position."""
    primary = create_model("heinsen2019_capsnet", image_size=45).primary.eval()
    features = torch.randn(2, 64, 3, 3)
    maps, scores = primary.poses(features), primary.scores(features)
    capsules = primary(features)
    torch.testing.assert_close(capsules.poses[1, 5, 7, 0], maps[1, 7 * 16 : 8 * 16, 1, 2])
    torch.testing.assert_close(capsules.activations[1, 5, 7, 0], scores[1, 7, 1, 2].sigmoid())


def test_coordinates() -> None:
    images = torch.rand(2, 3, 4, 5)
    out = CoordinateChannels((4, 5))(images)
    assert torch.equal(out[:, :3], images)
    torch.testing.assert_close(out[1, 3, :, 2], torch.tensor([-1, -1 / 3, 1 / 3, 1]))
    torch.testing.assert_close(out[0, 4, 3], torch.tensor([-1, -0.5, 0, 0.5, 1]))


def test_scores_are_the_logits() -> None:
    """Also where the activation of every class is 1 in float32."""
    model = create_model("heinsen2019_capsnet", image_size=29).eval()
    torch.nn.init.constant_(model.capsule_layers[1].routing_parameters["beta_use"], 40.0)
    output = model(torch.rand(2, 1, 29, 29))
    assert output.logits is not None
    torch.testing.assert_close(output.logits.sigmoid(), output.activations)
    assert output.logits.min() > 20
    labels = torch.tensor([0, 4])
    expected = -output.logits.log_softmax(1)[[0, 1], labels].mean()
    torch.testing.assert_close(cross_entropy(output, labels), expected)


def test_first_weights() -> None:
    model = create_model("heinsen2019_capsnet")
    for layer in model.capsule_layers:
        assert float(layer.weight.detach().std()) == pytest.approx(0.25, rel=0.1)
        assert abs(float(layer.weight.detach().diagonal(dim1=-2, dim2=-1).mean())) < 0.1
        assert not any(parameter.any() for parameter in layer.routing_parameters.values())


def test_other_routings() -> None:
    model = create_model("heinsen2019_capsnet", image_size=29, routing=DynamicRouting())
    assert model(torch.rand(2, 1, 29, 29)).logits is None
