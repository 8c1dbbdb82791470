import numpy as np
import torch

from capsella.models import create_model
from capsella.report.vote_distances import (
    VoteDistances,
    class_vote_distances,
    vote_distances,
    vote_distances_figure,
    vote_examples_figure,
)
from capsella.routing import RoutingTrace


def test_histograms_by_hand():
    """Three children, two parents: distances up to 4 in four bins; a vote weighs as much as its coupling."""
    trace = RoutingTrace("em")
    trace.add(
        torch.tensor([[[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]]]),
        torch.zeros(1, 2, 1),
        torch.zeros(1, 2),
        torch.tensor([[[0.5, 3.5], [0.6, 1.5], [4.0, 2.5]]]),
    )
    histograms = vote_distances(trace, bins=4)
    assert histograms.edges.tolist() == [0, 1, 2, 3, 4]
    assert histograms.weights.tolist() == [[[0.75, 0, 0, 1.0], [0, 0.75, 0, 0.5]]]


def test_class_capsules_of_a_model():
    """Couplings sum to 1 over the classes, so that each iteration's histograms hold every child once."""
    model = create_model("hinton2018_matrix_capsnet_small", image_size=20, classes=3)
    model.train()
    histograms = class_vote_distances(model, torch.rand(1, 20, 20), bins=10)
    assert histograms.weights.shape == (3, 3, 10)
    np.testing.assert_allclose(histograms.weights.sum((1, 2)), 16.0, rtol=1e-5)  # one position, 16 types
    assert model.training


def test_identical_votes_have_a_histogram_too():
    trace = RoutingTrace("em")
    trace.add(torch.ones(1, 3, 1), torch.zeros(1, 1, 2), torch.zeros(1, 1), torch.zeros(1, 3, 1))
    assert vote_distances(trace, bins=2).weights.tolist() == [[[3.0, 0.0]]]


def test_figure_has_a_panel_an_iteration_and_parent():
    histograms = VoteDistances(np.linspace(0, 1, 6), np.random.default_rng(0).random((3, 2, 5)))
    figure = vote_distances_figure(histograms, ["car", "a $\\bad{ name"])
    assert len(figure.axes) == 6
    assert [axes.get_title() for axes in figure.axes[:3]] == ["car", "a $\\bad{ name", ""]
    assert figure.axes[2].get_ylabel() == "iteration 2"
    figure.canvas.draw()


def test_examples_beside_their_histograms():
    weights = np.arange(12.0).reshape(2, 3, 2)
    one, other = VoteDistances(np.array([0.0, 1, 2]), weights), VoteDistances(np.array([0.0, 2, 4]), weights)
    for channels in (1, 2, 3):
        figure = vote_examples_figure(
            torch.rand(2, channels, 8, 8), ["right $", "wrong"], [one, other], ["a", "b", "c$"]
        )
        assert len(figure.axes) == 2 * (1 + 2 * 3)
        figure.canvas.draw()
        pictures = [axes for axes in figure.axes if axes.images]
        assert [axes.get_title() for axes in pictures] == ["right $", "wrong"]
        grids = [axes for axes in figure.axes if not axes.images]
        assert [axes.get_xlim()[1] > 3 for axes in grids] == [False] * 6 + [True] * 6
        assert [axes.get_title() for axes in grids[:3]] == ["a", "b", "c$"]
