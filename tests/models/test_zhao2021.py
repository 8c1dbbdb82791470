"""The network of cluster routing: every layer's parameters as in the authors' code, and what its classes are."""

import torch

from capsella.models import count_parameters, create_model
from capsella.report.routing_views import routed_layers
from capsella.routing import record


def test_parameters() -> None:
    with torch.device("meta"):
        model = create_model("zhao2021_cluster_capsnet")
    own = [sum(p.numel() for p in layer.parameters(recurse=False)) for layer in model.modules()]
    channels, clusters, pixels = (2, 24, 24, 24, 24), (4 * 8 * 24,) * 4 + (5 * 8 * 24,), (32, 16, 16, 8, 8)
    expected = []
    for below, votes, side in zip(channels, clusters, pixels, strict=True):
        expected += [4 * (9 * below + 1) * votes, 2 * 24 * side * side]
    assert [count for count in own if count] == [*expected, 24 * 8 * 8 + 1]
    assert count_parameters(model) == 2_972_929


def test_other_sizes() -> None:
    """The authors' network takes multiples of 4; here halves are rounded up, as their convolutions do."""
    model = create_model("zhao2021_cluster_capsnet", image_size=(9, 6), types=2, votes=3, pose=4, channels=1)
    output = model(torch.rand(2, 1, 9, 6))
    assert output.capsules.poses.shape == (2, 1, 1, 5, 4 * 3 * 2)
    unit = model.scores.linear
    torch.testing.assert_close(output.logits, output.capsules.poses[:, 0, 0] @ unit.weight[0] + unit.bias)


def test_no_couplings_are_shown() -> None:
    """Its weights are of children among themselves: none says how much of a child goes to a parent."""
    model = create_model("zhao2021_cluster_capsnet", image_size=8, types=2, votes=3, pose=4).eval()
    with record() as traces:
        model(torch.rand(1, 2, 8, 8))
    assert traces == []
    assert routed_layers(model, torch.rand(2, 8, 8)) == []
