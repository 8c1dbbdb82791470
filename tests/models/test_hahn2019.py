"""The networks of self-routing: every layer's parameters as in the authors' code, and what their capsules make."""

import math

import pytest
import torch
from torch import nn

from capsella.layers import CapsuleConv2d, MeanCapsules
from capsella.losses import LossOptions, total_loss
from capsella.models import count_parameters, create_model
from capsella.report.routing_views import receptive_fields, routed_layers
from capsella.routing import DynamicRouting, EMRouting, SelfRouting
from capsella.types import Capsules


def own_parameters(model: nn.Module) -> list[int]:
    own = [sum(p.numel() for p in layer.parameters(recurse=False)) for layer in model.modules()]
    return [count for count in own if count]


def block(below: int, width: int) -> list[int]:
    return [9 * below * width, 2 * width, 9 * width * width, 2 * width]  # option A: no weights beside


CAPSULES = 32 * (16 + 1)


def test_parameters_of_the_resnet() -> None:
    with torch.device("meta"):
        model = create_model("hahn2019_resnet20")
    blocks = [(16, 16)] * 3 + [(16, 32)] + [(32, 32)] * 2 + [(32, 64)] + [(64, 64)] * 2
    assert own_parameters(model) == [
        9 * 3 * 16,
        2 * 16,
        *(count for sizes in blocks for count in block(*sizes)),
        9 * 64 * CAPSULES,  # poses and activations
        2 * CAPSULES,
        9 * 32 * 32 * 16 * 16,  # W of the votes
        9 * 32 * 32 * (16 + 1),  # w and b of the couplings
        2 * 32 * 16,
        16 * 32 * 10 * (16 + 1),  # of the class capsules, which have no votes
    ]
    assert count_parameters(model) == 3_187_536  # "3.2 M", their poster


@pytest.mark.parametrize(
    ("options", "published"),
    [
        ({"layers": 1}, 0.9),
        ({"routing": EMRouting()}, None),
        ({"layers": 3}, None),
    ],
)
def test_other_depths_and_routings(options: dict[str, object], published: float | None) -> None:
    model = create_model("hahn2019_resnet20", image_size=(9, 8), **options)
    assert model(torch.rand(2, 3, 9, 8)).activations.sum(1).allclose(torch.ones(2))
    if published is not None:
        with torch.device("meta"):
            whole = create_model("hahn2019_resnet20", **options)
        assert round(count_parameters(whole) / 1e6, 1) == published


def test_parameters_of_the_convolutions() -> None:
    with torch.device("meta"):
        model = create_model("hahn2019_convnet")
    widths = [1, 16, 32, 32, 64, 64, 128]
    pairs = zip(widths[:-1], widths[1:], strict=True)
    assert own_parameters(model) == [
        *(count for below, width in pairs for count in (9 * below * width, 2 * width)),
        9 * 128 * CAPSULES,
        2 * CAPSULES,
        16 * 32 * 5 * (16 + 1),
    ]
    assert count_parameters(model) == 814_960


def test_parameters_of_the_cnns() -> None:
    """The same convolutions, and a linear layer."""
    with torch.device("meta"):
        resnet, convnet = create_model("hahn2019_resnet20_cnn"), create_model("hahn2019_convnet_cnn")
        capsules = [create_model(name) for name in ("hahn2019_resnet20", "hahn2019_convnet")]
    assert count_parameters(resnet) == count_parameters(capsules[0].backbone) + 64 * 10 + 10 == 269_722  # "0.3 M"
    assert count_parameters(convnet) == count_parameters(capsules[1].backbone) + 128 * 5 + 5 == 144_309


@pytest.mark.parametrize("name", ["hahn2019_resnet20", "hahn2019_convnet"])
def test_at_first_nothing_is_known(name: str) -> None:
    """Couplings start even, as in the authors' code: every class is as likely."""
    model = create_model(name, width=4, types=4)
    output = model(torch.rand(2, model.channels, 32, 32))
    classes = len(model.classes)
    torch.testing.assert_close(output.activations, torch.full((2, classes), 1 / classes))


def test_the_loss_is_the_logarithm_of_the_activation() -> None:
    model = create_model("hahn2019_convnet", width=4, types=4, layers=2).eval()
    for parameter in model.capsule_layers[-1].parameters():
        nn.init.normal_(parameter)
    images, labels = torch.rand(3, 1, 32, 32), torch.tensor([0, 4, 2])
    output = model(images)
    raw = model.capsule_layers(model.primary(model.backbone(images))).activations[:, 0, 0]
    torch.testing.assert_close(output.activations, raw)  # they sum to 1 as they are
    loss = total_loss(output, images, labels, LossOptions(name="cross_entropy")).total
    torch.testing.assert_close(loss, -raw[torch.arange(3), labels].log().mean())


def test_class_capsules_have_their_children_s_mean_pose() -> None:
    layer = MeanCapsules((2, 2), 3, 4, 5, routing=SelfRouting())
    assert {name: tuple(p.shape) for name, p in layer.named_parameters()} == {
        "routing_parameters.weight": (12, 5, 4),
        "routing_parameters.bias": (12, 5),
    }
    assert "weight" not in layer.state_dict()
    poses, activations = torch.randn(2, 2, 2, 3, 4), torch.rand(2, 2, 2, 3)
    parents = layer(Capsules(poses, activations))
    shares = activations.flatten(1) / activations.flatten(1).sum(1, keepdim=True)
    mean = torch.einsum("bi,bid->bd", shares, poses.reshape(2, 12, 4))
    torch.testing.assert_close(parents.poses[:, 0, 0], mean[:, None].expand(-1, 5, -1))


def test_another_routing_learns_votes_for_the_classes() -> None:
    model = create_model("hahn2019_convnet", routing=DynamicRouting())
    assert not isinstance(model.capsule_layers[-1], MeanCapsules)
    assert isinstance(model.capsule_layers[-1], CapsuleConv2d)


def test_first_weights() -> None:
    model = create_model("hahn2019_resnet20")
    votes = model.capsule_layers[1].weight.detach()
    assert float(votes.std()) == pytest.approx(math.sqrt(2 / (32 * 16 * 16)), rel=0.02)


def test_what_the_explorer_sees() -> None:
    model = create_model("hahn2019_resnet20", image_size=16, width=4, types=3).eval()
    hidden, classes = routed_layers(model, torch.rand(3, 16, 16))
    assert hidden.evidence.shape == (1, 6, 6, 3, 3)  # 4×4 and one around
    assert classes.evidence.shape == (1, 2, 2, 3, 10)
    assert hidden.title == "routing layer 1 (self)"
    assert not hidden.evidence[:, 0].any()  # those around are not there
    primary, second = receptive_fields(model)
    assert second.step[0] == 2 * primary.step[0] == 8  # beside the shortcuts, whose strides do not count again
    assert primary.first[0] == 0.5 - 4  # of a capsule outside of the image
