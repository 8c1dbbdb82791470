"""The networks of Sabour et al. 2017: grids, lengths, and what the decoder reads."""

import torch

from capsella.models import create_model


def test_grids_of_capsnet() -> None:
    """Figure 1: 20×20×256, 6×6×32 capsules of 8, 10 capsules of 16."""
    model = create_model("sabour2017_capsnet", reconstruction=False)
    features = model.backbone(torch.rand(2, 1, 28, 28))
    assert features.shape == (2, 256, 20, 20)
    primary = model.primary(features)
    assert primary.poses.shape == (2, 6, 6, 32, 8)
    assert model.capsule_layers(primary).poses.shape == (2, 1, 1, 10, 16)


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


def test_two_labels_give_a_reconstruction_from_each_capsule() -> None:
    model = create_model("sabour2017_capsnet", image_size=17)
    images, labels = torch.rand(3, 1, 17, 17), torch.tensor([[1, 2], [0, 9], [4, 3]])
    both = model(images, labels).reconstruction
    assert both.shape == (3, 2, 1, 17, 17)
    for column in (0, 1):
        torch.testing.assert_close(both[:, column], model(images, labels[:, column]).reconstruction)
