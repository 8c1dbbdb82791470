"""The networks of Sabour et al. 2017: every layer's parameters as in the paper, and how they classify."""

import pytest
import torch
from torch import nn

from capsella.errors import CapsellaError
from capsella.models import ImageClassifier, count_parameters, create_model
from capsella.routing import UniformRouting


def at_paper_size(name: str, **options: object) -> ImageClassifier:
    """28×28×1 and ten classes; shapes only, no memory."""
    with torch.device("meta"):
        return create_model(name, **options)


def layer_counts(module: nn.Module) -> list[int]:
    """Parameters of each layer that has any of its own, in order."""
    own = [sum(p.numel() for p in layer.parameters(recurse=False)) for layer in module.modules()]
    return [count for count in own if count]


def test_parameters_of_capsnet() -> None:
    model = at_paper_size("sabour2017_capsnet")
    assert layer_counts(model) == [
        9 * 9 * 1 * 256 + 256,
        9 * 9 * 256 * 32 * 8 + 32 * 8,
        6 * 6 * 32 * 10 * 8 * 16,
        10 * 16 * 512 + 512,
        512 * 1024 + 1024,
        1024 * 784 + 784,
    ]
    assert count_parameters(model) == 8_215_568
    assert count_parameters(at_paper_size("sabour2017_capsnet", reconstruction=False)) == 6_804_224


def test_parameters_of_cnn() -> None:
    model = at_paper_size("sabour2017_cnn")
    assert layer_counts(model) == [
        5 * 5 * 1 * 256 + 256,
        5 * 5 * 256 * 256 + 256,
        5 * 5 * 256 * 128 + 128,
        28 * 28 * 128 * 328 + 328,
        328 * 192 + 192,
        192 * 10 + 10,
    ]
    assert count_parameters(model) == 35_445_522


def test_parameters_for_multimnist() -> None:
    """§6: 11.36 M for CapsNet at 36×36, 24.56 M for the CNN."""
    assert count_parameters(at_paper_size("sabour2017_capsnet", image_size=36)) == 11_361_808
    model = at_paper_size("sabour2017_multimnist_cnn")
    assert layer_counts(model) == [
        9 * 9 * 512 + 512,
        5 * 5 * 512 * 256 + 256,
        9 * 9 * 256 * 1024 + 1024,
        1024 * 10 + 10,
    ]
    assert count_parameters(model) == 24_563_978


def test_the_multimnist_cnn_gives_each_class_a_logistic_of_its_own() -> None:
    model = create_model("sabour2017_multimnist_cnn", image_size=8)
    output = model(torch.rand(2, 1, 8, 8))
    torch.testing.assert_close(output.activations, output.logits.sigmoid())


def test_two_labels_give_a_reconstruction_from_each_capsule() -> None:
    model = create_model("sabour2017_capsnet", image_size=17)
    images, labels = torch.rand(3, 1, 17, 17), torch.tensor([[1, 2], [0, 9], [4, 3]])
    both = model(images, labels).reconstruction
    assert both.shape == (3, 2, 1, 17, 17)
    for column in (0, 1):
        torch.testing.assert_close(both[:, column], model(images, labels[:, column]).reconstruction)


def test_grids_of_capsnet() -> None:
    """Figure 1: 20×20×256, 6×6×32 capsules of 8, 10 capsules of 16."""
    model = create_model("sabour2017_capsnet", reconstruction=False)
    features = model.backbone(torch.rand(2, 1, 28, 28))
    assert features.shape == (2, 256, 20, 20)
    primary = model.primary(features)
    assert primary.poses.shape == (2, 6, 6, 32, 8)
    assert model.capsule_layers(primary).poses.shape == (2, 1, 1, 10, 16)


def test_the_primary_capsules_of_the_paper_have_no_relu() -> None:
    images = torch.rand(1, 1, 17, 17)
    for primary_relu in (False, True):
        model = create_model("sabour2017_capsnet", image_size=17, primary_relu=primary_relu)
        assert (model.primary(model.backbone(images)).poses < 0).any() == (not primary_relu)


def test_activations_are_lengths_and_no_softmax() -> None:
    """The margin loss wants lengths, each in [0, 1] on its own; their sum may be anything."""
    model = create_model("sabour2017_capsnet", image_size=17)
    output = model(torch.rand(4, 1, 17, 17))
    lengths = output.capsules.poses[:, 0, 0].norm(dim=2)
    torch.testing.assert_close(output.activations, lengths, rtol=1e-4, atol=1e-5)
    assert (output.activations.sum(1) - 1).abs().min() > 1e-3


def test_the_decoder_sees_the_true_class_in_training_and_the_longest_otherwise() -> None:
    model = create_model("sabour2017_capsnet", image_size=17, classes=3)
    images = torch.rand(2, 1, 17, 17)
    output = model(images)
    longest = output.activations.argmax(1)
    torch.testing.assert_close(output.reconstruction, model.decode(output.capsules, longest))
    labels = (longest + 1) % 3
    true = model(images, labels).reconstruction
    torch.testing.assert_close(true, model.decode(output.capsules, labels))
    assert not torch.allclose(true, output.reconstruction)


def test_without_a_decoder() -> None:
    model = create_model("sabour2017_capsnet", image_size=17, reconstruction=False)
    output = model(torch.rand(1, 1, 17, 17))
    assert output.reconstruction is None
    with pytest.raises(CapsellaError, match="sabour2017_capsnet has no decoder; create it with reconstruction=True"):
        model.decode(output.capsules, torch.tensor([0]))


def test_a_cnn_has_no_capsules() -> None:
    model = create_model("sabour2017_cnn", image_size=4)
    with pytest.raises(CapsellaError, match="sabour2017_cnn has no capsules to encode into; it is a CNN"):
        model.encode(torch.rand(1, 1, 4, 4))
    output = model(torch.rand(2, 1, 4, 4))
    assert output.capsules is None
    torch.testing.assert_close(output.activations, output.logits.softmax(1))


def test_dropout_works_in_training_only() -> None:
    model = create_model("sabour2017_cnn", image_size=4, dropout=0.5)
    images = torch.rand(1, 1, 4, 4)
    assert not torch.equal(model.train()(images).logits, model(images).logits)
    assert torch.equal(model.eval()(images).logits, model(images).logits)


def test_the_routing_can_be_changed() -> None:
    by_object = create_model("sabour2017_capsnet", image_size=17, routing=UniformRouting())
    by_options = create_model("sabour2017_capsnet", image_size=17, routing={"name": "uniform"})
    by_options.load_state_dict(by_object.state_dict())
    images = torch.rand(2, 1, 17, 17)
    assert torch.equal(by_object(images).activations, by_options(images).activations)
    assert by_object.options["routing"] == {"name": "uniform"}
