"""Networks that are optimised for inference compute what the original computes."""

import pytest
import torch
from torch import nn

from capsella.layers import FastConv2d
from capsella.models import ImageClassifier
from capsella.models.inference import optimize_for_inference
from tests.models.test_battery import images_for, small


def with_statistics(model: ImageClassifier) -> ImageClassifier:
    """Make no batch normalisation the identity and no bias zero, as after training."""
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


def check(model: ImageClassifier, images: torch.Tensor) -> ImageClassifier:
    """Compare outputs, also at another batch size and back."""
    fast = optimize_for_inference(model)
    with torch.inference_mode():
        for batch in (images, images[:1], images):
            ours, expected = fast(batch), model(batch)
            torch.testing.assert_close(ours.activations, expected.activations, rtol=1e-4, atol=2e-6)
            if expected.reconstruction is not None:
                torch.testing.assert_close(ours.reconstruction, expected.reconstruction, rtol=1e-4, atol=1e-5)
    return fast


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sabour2017_capsnet", {"uniform_primary_couplings": True}),
        ("mazzia2021_efficient_capsnet", {}),
        ("hinton2018_cnn", {}),
        ("hahn2019_resnet20", {"width": 4, "types": 4}),
        ("heinsen2019_capsnet", {}),
        ("ribeiro2020_capsnet", {}),
        ("he2016_resnet10", {}),
        ("forslov2018_capsnet1_init2", {"batch_norm": True, "reconstruction": True}),
    ],
)
def test_outputs_are_equal_and_the_original_is_unchanged(name: str, options: dict[str, object]) -> None:
    model = with_statistics(small(name, **options))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    fast = check(model, images_for(model, 2))
    assert not any(type(module) in (nn.Conv2d, FastConv2d) for module in fast.modules())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert any(parameter.requires_grad for parameter in model.parameters())
