"""Scores of strangeness, against values by hand."""

import math

import pytest
import torch

from capsella.models.novelty.scores import (
    appearance,
    change_when_turned,
    class_logits,
    doubt,
    energy,
    map_statistics,
    reconstruction_distance,
)
from capsella.types import Output


def test_appearance_by_hand():
    """Columns of 0 and 1: half bright, no difference downwards, 1 across, and none of both."""
    images = torch.tensor([0.0, 1.0]).repeat(2, 1, 4, 2)
    mean, deviation, down, across, both = appearance(images)[0].tolist()
    assert (mean, deviation) == (0.5, pytest.approx(0.5))
    assert (down, both) == (pytest.approx(math.log(1e-3)),) * 2
    assert across == pytest.approx(math.log(1.001), abs=1e-6)


def test_appearance_of_one_pixel_is_finite():
    assert appearance(torch.zeros(2, 3, 1, 1)).shape == (2, 15)
    assert appearance(torch.zeros(2, 3, 1, 1)).isfinite().all()


def test_flat_maps_have_a_gradient():
    maps = torch.ones(1, 2, 3, 3, requires_grad=True)
    map_statistics(maps).sum().backward()
    assert maps.grad.isfinite().all()


def test_reconstruction_distance():
    distance = reconstruction_distance(torch.zeros(2, 1, 2, 2), torch.full((2, 1, 2, 2), 0.5))
    assert distance.tolist() == pytest.approx([0.5, 0.5])


def test_change_when_turned_is_the_largest():
    change = change_when_turned(torch.tensor([[0.9, 0.1, 0.5]]), torch.tensor([[0.7, 0.8, 0.5]]))
    assert change.tolist() == pytest.approx([0.7])


def test_doubt_and_energy_by_hand():
    logits = torch.tensor([[math.log(6), math.log(3), 0.0]], dtype=torch.float64)  # 0.6, 0.3 and 0.1
    assert float(doubt(logits)) == pytest.approx(math.log(0.4 / 0.6))
    assert float(energy(logits)) == pytest.approx(-math.log(10))
    assert float(doubt(torch.tensor([[900.0, 0.0]]))) == -900  # where the probability is 1 in any precision


def test_logits_are_a_networks_own_or_log_odds():
    activations = torch.tensor([[0.9, 0.5]])
    assert class_logits(Output(activations)).tolist()[0] == pytest.approx([math.log(9), 0], abs=1e-6)
    assert class_logits(Output(activations, logits=torch.ones(1, 2))).tolist() == [[1, 1]]
