"""The networks of self-routing: first couplings, loss, class capsules, and other routings."""

import torch
from torch import nn

from capsella.layers import MeanCapsules
from capsella.losses import LossOptions, total_loss
from capsella.models import create_model
from capsella.routing import SelfRouting
from capsella.types import Capsules


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
