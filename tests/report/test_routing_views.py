"""What is shown of routing: diagnostics, layers of one image, distances of votes."""

import math

import numpy as np
import pytest
import torch

from capsella.models import create_model
from capsella.report.routing_views import (
    receptive_fields,
    routed_layers,
    strongest_path,
    vote_distances,
)
from capsella.routing import RoutingTrace, coupling_entropy, record


@pytest.fixture
def image():
    return torch.rand(1, 17, 17)


@pytest.mark.parametrize("name", ["capsnet", "matrix_capsnet"])
def test_entropy_is_that_of_the_couplings(name, image, request):
    model = request.getfixturevalue(name)
    layers = routed_layers(model, image)
    with record() as traces, torch.no_grad():
        model(image.unsqueeze(0))
    for layer, trace in zip(layers, traces, strict=True):
        expected = [coupling_entropy(couplings).mean() for couplings in trace.couplings]
        np.testing.assert_allclose(layer.entropy, expected, rtol=1e-6)


def test_evidence_is_activation_shared_out_among_the_classes(capsnet, image):
    (layer,) = routed_layers(capsnet, image)
    with torch.no_grad():
        children = capsnet.primary(capsnet.backbone(image.unsqueeze(0)))
    # Couplings of dynamic routing sum to one over the parents: all of each child is sent, in every iteration.
    for iteration in layer.evidence:
        np.testing.assert_allclose(iteration.sum(3), children.activations[0], rtol=1e-5)
    np.testing.assert_allclose(layer.between_types, layer.evidence.sum((1, 2)))


def test_windows_that_overlap_are_added_up(matrix_capsnet, image):
    first = routed_layers(matrix_capsnet, image)[0]
    with record() as traces, torch.no_grad():
        children = matrix_capsnet.primary(matrix_capsnet.backbone(image.unsqueeze(0)))
        matrix_capsnet.capsule_layers(children)
    (kh, kw), (down, across) = (
        matrix_capsnet.capsule_layers[0].geometry.kernel,
        matrix_capsnet.capsule_layers[0].geometry.stride,
    )
    a = children.activations[0]
    rows, columns = 1 + (a.shape[0] - kh) // down, 1 + (a.shape[1] - kw) // across
    couplings = traces[0].couplings[-1].reshape(rows, columns, kh, kw, a.shape[2], -1)
    expected = torch.zeros(*a.shape, couplings.shape[-1])
    for r in range(rows):
        for c in range(columns):
            for y in range(kh):
                for x in range(kw):
                    here = r * down + y, c * across + x
                    expected[here] += couplings[r, c, y, x] * a[here].unsqueeze(1)
    np.testing.assert_allclose(first.evidence[-1], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sabour2017_capsnet", {"image_size": (28, 33)}),
        ("hinton2018_matrix_capsnet_small", {"image_size": 40, "crop": 30, "standardise": False}),
        ("forslov2018_emnet1_init2", {"image_size": 112, "standardise": False}),
        ("tsai2020_resnet", {"image_size": 97, "types": 4}),  # shortcuts lie beside their residual blocks
    ],
)
def test_a_receptive_field_is_where_the_gradient_is(name, options):
    torch.manual_seed(0)
    model = create_model(name, **options).eval()
    for module in model.backbone.modules():  # without dead ReLUs, so that no part of the field goes dark
        if isinstance(module, torch.nn.Conv2d):
            module.weight.data.abs_()
    fields = receptive_fields(model)[0]
    image = torch.rand(1, model.channels, *model.image_size, requires_grad=True)
    poses = model.primary(model.backbone(image)).poses
    row, column = poses.shape[1] // 2, poses.shape[2] // 2
    poses[0, row, column].square().sum().backward()
    reached = image.grad[0].abs().sum(0) > 0
    for axis, place in ((0, row), (1, column)):
        lines = reached.any(1 - axis).nonzero().flatten()
        centre, side = (float(lines[0] + lines[-1] + 1) / 2, len(lines))
        assert fields.first[axis] + place * fields.step[axis] == pytest.approx(centre, abs=0.1 + fields.step[axis] / 8)
        assert fields.side[axis] == pytest.approx(side, abs=1 + fields.step[axis] / 4)


def test_parts_of_heinsen_s_network_stand_where_they_look():
    """Its children stand in a row a position and a column a type, which is no place on the image."""
    torch.manual_seed(0)
    model = create_model("heinsen2019_capsnet", image_size=(40, 52), classes=3).eval()
    image = torch.rand(1, *model.image_size)
    first, second = routed_layers(model, image)
    rows, columns = model.primary.grid
    assert rows != columns
    assert first.evidence.shape[1:] == (rows, columns, 64, 64)
    with torch.no_grad():
        children = model.primary(model.backbone(image[None]))
    active = children.activations[0, ..., 0].reshape(rows, columns, 64)
    np.testing.assert_allclose(first.evidence[-1].sum(3), active, rtol=1e-4, atol=1e-6)
    for axis, number in enumerate((rows, columns)):
        last = first.fields.first[axis] + (number - 1) * first.fields.step[axis]
        assert 0 < first.fields.first[axis] < last < model.image_size[axis]
        assert second.fields.side[axis] == first.fields.side[axis] + (number - 1) * first.fields.step[axis]


def test_vote_distances_of_dynamic_routing_are_from_the_weighted_mean(capsnet, image):
    (layer,) = routed_layers(capsnet, image)
    iterations, classes, _ = layer.histograms.weights.shape
    assert (iterations, classes) == (3, 3)
    with record() as traces, torch.no_grad():
        children = capsnet.primary(capsnet.backbone(image.unsqueeze(0)))
        capsnet.capsule_layers(children)
        W = capsnet.capsule_layers[-1].weight.flatten(0, 2)  # [i j p d]
        V = torch.einsum("ip,ijpd->ijd", children.poses.flatten(0, 3), W)
    for iteration, couplings in enumerate(traces[0].couplings):
        for j in range(classes):
            c = couplings[0, :, j]
            distances = (V[:, j] - (c @ V[:, j]) / c.sum()).norm(dim=1)
            expected = np.histogram(distances, layer.histograms.edges, weights=c)[0]
            # float32 may put a vote on the other side of an edge
            assert np.abs(np.cumsum(layer.histograms.weights[iteration, j] - expected)).max() < 1.001 * float(c.max())


def test_the_path_leads_back_from_a_class(matrix_capsnet, image):
    layers = routed_layers(matrix_capsnet, image)
    path = strongest_path(layers, 2)
    assert path[2] == 2
    assert path[1] == layers[2].between_types[-1][:, 2].argmax()
    assert path[0] == layers[1].between_types[-1][:, path[1]].argmax()


@pytest.mark.parametrize("routing", ["heinsen", "variational"])
def test_networks_whose_log_odds_are_logits_are_looked_into(routing):
    """Their class capsules are asked for log-odds, not called."""
    options = {"image_size": 17, "channels": 1, "classes": 3, "routing": {"name": routing}}
    model = create_model("benchmark_capsnet", **options).eval()
    image = torch.rand(1, 17, 17)
    last = routed_layers(model, image)[-1]
    with record() as traces, torch.no_grad():
        output = model(image[None])
        children = model.capsule_layers[:-1](model.primary(model.backbone(image[None])))
    np.testing.assert_allclose(traces[1].activations[-1], output.activations, rtol=1e-5)
    np.testing.assert_allclose(last.evidence[-1].sum(3), children.activations[0], rtol=1e-4, atol=1e-6)


def test_entropy_by_hand():
    couplings = torch.tensor([[[0.5, 0.25, 0.25]]])
    expected = (0.5 * math.log(2) + 0.5 * math.log(4)) / math.log(3)
    assert coupling_entropy(couplings).item() == pytest.approx(expected)


def test_leaky_couplings_are_divided_by_their_sum():
    couplings = torch.tensor([[[0.5, 0.25, 0.25], [0.05, 0.025, 0.025], [0, 0, 0]]])
    full, leaky, nothing = coupling_entropy(couplings)[0].tolist()
    assert leaky == pytest.approx(full)
    assert nothing == 0


def test_what_is_no_number_is_not_called_well_routed():
    couplings = torch.rand(1, 3, 4)
    couplings[0, 1, 2] = torch.nan
    assert coupling_entropy(couplings).isnan().tolist() == [[False, True, False]]


def test_histograms_by_hand():
    """Three children, two parents: distances up to 4 in four bins; a vote weighs as much as its coupling."""
    trace = RoutingTrace("em")
    trace.add(
        torch.tensor([[[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]]]),
        torch.zeros(1, 2, 1),
        torch.zeros(1, 2),
        torch.tensor([[[0.5, 3.5], [0.6, 1.5], [4.0, 2.5]]]),
    )
    histograms = vote_distances(None, None, trace, bins=4)
    assert histograms.edges.tolist() == [0, 1, 2, 3, 4]
    assert histograms.weights.tolist() == [[[0.75, 0, 0, 1.0], [0, 0.75, 0, 0.5]]]
