"""Networks that differ in their routing alone: as many parameters, and class scores by the kind of activations."""

import pytest
import torch

from capsella.layers import LayerNormPrimaryCapsules, MatrixPrimaryCapsules, MeanCapsules, PrimaryCapsules
from capsella.models import ImageClassifier, count_parameters, create_model, list_models
from capsella.routing import ROUTINGS


@pytest.mark.parametrize("name", list_models("benchmark_*"))
def test_parameters_as_asked(name):
    for parameters in (100_000, 250_000):
        model = create_model(name, image_size=32, channels=2, classes=5, parameters=parameters)
        assert count_parameters(model) == pytest.approx(parameters, rel=0.02)


@pytest.mark.parametrize("routing", sorted(ROUTINGS))
def test_gradients_of_every_routing_reach_the_convolutions(routing):
    """A little away from where training starts: uniform couplings or activations pass no gradient down."""
    options = {"image_size": 32, "channels": 1, "classes": 4, "routing": {"name": routing}}
    model = create_model("benchmark_capsnet", **options).train()
    assert count_parameters(model) == pytest.approx(128_000, rel=0.02)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    output = model(torch.rand(4, 1, 32, 32))
    scores = output.activations if output.logits is None else output.logits
    (scores[:, 0] * torch.arange(4.0)).sum().backward()  # their plain sum is constant under a normalisation
    assert all(parameter.grad.abs().max() > 0 for parameter in model.backbone.parameters())
    kind = ROUTINGS[routing].activation_kind
    assert isinstance(model.last_layer(), MeanCapsules) == (kind == "shares")
    assert (output.logits is None) == (kind == "lengths")
    primary = {"lengths": PrimaryCapsules, "log-odds": MatrixPrimaryCapsules, "none": LayerNormPrimaryCapsules}
    assert kind not in primary or type(model.primary) is primary[kind]


def test_the_width_is_saved_and_finding_it_draws_no_random_numbers(tmp_path):
    torch.manual_seed(0)
    model = create_model("benchmark_pooling", classes=3)
    torch.manual_seed(0)
    again = create_model("benchmark_pooling", classes=3, width=model.options["width"])
    assert all(map(torch.equal, model.state_dict().values(), again.state_dict().values()))
    model.save_pretrained(tmp_path)
    assert ImageClassifier.from_pretrained(tmp_path).options == model.options
