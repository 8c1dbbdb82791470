"""Packed networks answer what the networks they are made of answer."""

import pytest
import torch
from torch import nn

from capsella.models import create_model, list_models
from capsella.models.packed import PackedConv2d, packed
from tests.models.test_battery import images_for, small


def lived_in(model):
    """As after training: no batch normalisation is the identity, no bias zero."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for values, low, high in (
                (module.running_mean, -0.5, 0.5),
                (module.running_var, 0.5, 2.0),
                (module.weight.data, -1.5, 1.5),
                (module.bias.data, -0.5, 0.5),
            ):
                values.uniform_(low, high, generator=generator)
        elif isinstance(module, nn.Conv2d) and module.bias is not None:
            module.bias.data.uniform_(-0.1, 0.1, generator=generator)
    return model.eval()


def check(model, images):
    """The same outputs to rounding, also at another batch size and back."""
    quick = packed(model)
    with torch.inference_mode():
        for batch in (images, images[:1], images):
            ours, theirs = quick(batch), model(batch)
            torch.testing.assert_close(ours.activations, theirs.activations, rtol=1e-4, atol=2e-6)
            if theirs.reconstruction is not None:
                torch.testing.assert_close(ours.reconstruction, theirs.reconstruction, rtol=1e-4, atol=1e-5)
    return quick


@pytest.mark.parametrize("name", list_models())
def test_every_model(name):
    model = lived_in(small(name))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    quick = check(model, images_for(model, 3))
    assert not any(isinstance(module, nn.Conv2d) for module in quick.modules())
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), f"packing changed the model's {key}"


@pytest.mark.parametrize("options", [{"batch_norm": True}, {"reconstruction": True}])
def test_networks_of_the_thesis_with_their_options(options):
    check(lived_in(small("forslov2018_capsnet1_init2", **options)), torch.rand(2, 2, 64, 65))


def test_evenly_routed_primary_capsules():
    model = lived_in(create_model("sabour2017_capsnet", image_size=17, evenly_routed=True, reconstruction=False))
    check(model, torch.rand(3, 1, 17, 17))


def test_batch_normalisation_goes_into_convolutions():
    quick = packed(lived_in(small("mazzia2021_efficient_capsnet")))
    kinds = [type(module) for module in quick.backbone]
    assert kinds == [PackedConv2d] * 4 + [nn.BatchNorm2d]  # the last has no convolution behind it


@pytest.mark.parametrize(("padding", "groups"), [(0, 1), (0, 2), (1, 1)])
def test_a_normalisation_before_a_convolution(padding, groups):
    """With zeros around the maps it stays where it is: they are zeros behind it."""
    model = small("sabour2017_cnn")
    torch.manual_seed(0)
    model.network = nn.Sequential(
        nn.BatchNorm2d(2), nn.Conv2d(2, 4, 3, padding=padding, groups=groups), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)
    )
    images = images_for(model, 3)
    model(images)
    check(lived_in(model), images)
    assert isinstance(packed(model).network[0], nn.BatchNorm2d) == bool(padding)


def test_the_model_goes_on_learning():
    model = small("sabour2017_cnn").train()
    packed(model)
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_other_numbers_than_float32_stay_unpacked():
    model = lived_in(small("he2016_resnet10")).double()
    quick = packed(model)
    assert not any(isinstance(module, PackedConv2d) for module in quick.modules())
    images = images_for(model).double()
    torch.testing.assert_close(quick(images).activations, model(images).activations)
