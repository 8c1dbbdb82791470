"""The network of Ribeiro et al. 2020: its parameters against the authors' code, and what it starts from."""

import math

import pytest
import torch
from torch import nn

from capsella.models import count_parameters, create_model
from capsella.routing import DynamicRouting, EMRouting, VariationalRouting

A, B, C, D, CLASSES, POSE = 64, 8, 16, 16, 5, 16


def test_parameters_layer_by_layer() -> None:
    model = create_model("ribeiro2020_capsnet", channels=2)
    parts = [model.backbone, model.primary, *model.capsule_layers]
    assert [count_parameters(part) for part in parts] == [
        5 * 5 * 2 * A + 2 * A,  # no bias, but a scale and a shift a channel
        A * B * (POSE + 1) + 2 * 2 * B,  # a scale and a shift a type, of poses and of activations
        3 * 3 * B * C * POSE,
        3 * 3 * C * D * POSE,
        D * CLASSES * POSE,  # shared by all positions
    ]
    without_effect = 2 * (C + D + CLASSES)  # β_u and β_a of each parent type, in front of a batch normalisation
    assert count_parameters(model) + without_effect == 68_714


def test_first_weights() -> None:
    model = create_model("ribeiro2020_capsnet", channels=2)
    assert float(model.backbone[1].weight.detach().std()) == pytest.approx(math.sqrt(2 / 50), rel=0.05)
    poses, activations = model.primary.conv.weight.split([B * POSE, B])
    assert float(poses.detach().std()) == pytest.approx(math.sqrt(2 / (A + B * POSE)), rel=0.05)
    assert float(activations.detach().std()) == pytest.approx(math.sqrt(2 / (A + B)), rel=0.15)
    first = model.capsule_layers[0].weight
    assert float(first.detach().std()) == pytest.approx(math.sqrt(2 / (9 * POSE * (B + C))), rel=0.05)
    assert abs(float(first.detach().diagonal(dim1=-2, dim2=-1).mean())) < 0.002  # around zero, and not the identity


def test_coordinates_of_the_authors() -> None:
    """(k + 1)/100n of n rows, or columns, in the last column of the pose: elements 3 and 7."""
    offset = create_model("ribeiro2020_capsnet").capsule_layers[2].vote_offset
    assert offset.shape == (4, 4, 16)
    torch.testing.assert_close(offset[:, 1, 3], torch.tensor([0.0025, 0.005, 0.0075, 0.01]))
    torch.testing.assert_close(offset[2, :, 7], torch.tensor([0.0025, 0.005, 0.0075, 0.01]))
    assert offset.count_nonzero() == 2 * 16
    assert create_model("ribeiro2020_capsnet", coordinate_addition=False).capsule_layers[2].vote_offset is None


def test_all_capsules_are_normalised() -> None:
    model = create_model("ribeiro2020_capsnet")
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)]
    assert [norm.num_features for norm in norms] == [A, B, B, C, C, D, D, CLASSES, CLASSES]
    assert [norm.affine for norm in norms] == [True] * 3 + [False] * 6
    assert all(layer.routing == VariationalRouting(bias=False) for layer in model.capsule_layers)


def test_other_routings() -> None:
    create_model("ribeiro2020_capsnet", routing=EMRouting(competition="types"))
    create_model("ribeiro2020_capsnet", routing=DynamicRouting(), norm=None)
    with pytest.raises(ValueError, match="norm: must be None for routing"):
        create_model("ribeiro2020_capsnet", routing=DynamicRouting())


def test_it_learns() -> None:
    """Two classes of noise of another spread, in a few steps."""
    model = create_model("ribeiro2020_capsnet", image_size=20, classes=2, standardise=False)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    labels = torch.arange(16) % 2
    images = 0.5 + (0.02 + 0.2 * labels[:, None, None, None]) * torch.randn(16, 1, 20, 20)
    losses = []
    for _ in range(12):
        loss = nn.functional.cross_entropy(model(images).activations, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 0.1
