import csv
from dataclasses import replace

import pytest
import torch
from scipy.stats import beta

from capsella.losses import LossOptions, Others, total_loss
from capsella.training import AugmentOptions, OptimizerOptions
from capsella.training.mixup import mix
from capsella.types import Output


def test_each_image_is_blended_with_another_of_its_batch():
    torch.manual_seed(0)
    labels = torch.arange(64)
    images = labels.float()[:, None, None, None].expand(-1, 1, 3, 3)
    mixed, others = mix(images, labels, 0.2)
    own = 1 - others.share
    blend = own * labels + others.share * others.labels
    torch.testing.assert_close(mixed, blend[:, None, None, None].expand(-1, 1, 3, 3))
    assert sorted(others.labels.tolist()) == labels.tolist()
    assert 0 <= others.share.min() < 0.01 < 0.3 < others.share.max() <= 0.5


@pytest.mark.parametrize("alpha", [0.2, 1.0, 10.0])
def test_shares_follow_the_beta_distribution(alpha):
    torch.manual_seed(0)
    images = torch.rand(20_000, 1, 1, 1)
    _, others = mix(images, torch.zeros(20_000, dtype=torch.long), alpha)
    mean = beta(alpha, alpha).expect(lambda share: min(share, 1 - share))
    assert others.share.mean().item() == pytest.approx(mean, abs=0.005)


@pytest.mark.parametrize("loss", ["margin", "spread", "cross_entropy"])
@pytest.mark.parametrize("class_weights", [None, torch.tensor([0.5, 2.0, 1.0])])
def test_the_loss_is_that_of_both_classes_each_by_its_share(loss, class_weights):
    activations = torch.tensor([[0.8, 0.3, 0.1], [0.2, 0.6, 0.7]])
    labels, options = torch.tensor([0, 2]), LossOptions(name=loss)
    others = Others(torch.tensor([1, 2]), torch.tensor([0.25, 0.4]))

    def of(image, label):
        one = Output(activations[image : image + 1])
        return total_loss(one, torch.zeros(1), torch.tensor([label]), options, class_weights=class_weights).total

    expected = (0.75 * of(0, 0) + 0.25 * of(0, 1) + of(1, 2)) / 2
    found = total_loss(Output(activations), torch.zeros(2), labels, options, class_weights=class_weights, others=others)
    torch.testing.assert_close(found.total, expected)


def test_cross_entropy_is_that_of_soft_targets():
    logits, others = torch.randn(5, 3), Others(torch.tensor([1, 0, 2, 1, 1]), torch.rand(5) / 2)
    labels = torch.tensor([0, 0, 1, 2, 1])
    one_hot = torch.nn.functional.one_hot
    share = others.share[:, None]
    targets = (1 - share) * one_hot(labels, 3) + share * one_hot(others.labels, 3)
    output = Output(logits.softmax(1), logits=logits)
    found = total_loss(output, torch.zeros(5), labels, LossOptions(name="cross_entropy"), others=others)
    torch.testing.assert_close(found.total, torch.nn.functional.cross_entropy(logits, targets))


def test_pairs_have_no_others():
    output, labels = Output(torch.rand(2, 3)), torch.tensor([[0, 1], [1, 2]])
    with pytest.raises(ValueError, match="others: must be None for images of two classes"):
        total_loss(output, torch.zeros(2), labels, LossOptions(), others=Others(labels[:, 0], torch.rand(2)))


def test_a_network_learns_from_mixed_images(tiny, quiet_train):
    recipe = tiny(epochs=6, optimizer=OptimizerOptions(learning_rate=5e-3))
    plain, mixed = (
        list(csv.DictReader(quiet_train(one, name).folder.joinpath("metrics.csv").open()))
        for name, one in (("plain", recipe), ("mixed", replace(recipe, augment=AugmentOptions(mixup=0.2))))
    )
    assert float(mixed[-1]["train_loss"]) < 0.9 * float(mixed[0]["train_loss"])
    assert mixed[0]["train_loss"] != plain[0]["train_loss"]


@pytest.mark.parametrize("value", [-0.1, 11.0, float("nan")])
def test_a_share_out_of_range_is_refused(value):
    with pytest.raises(ValueError, match="mixup: must be from 0 to 10, got"):
        AugmentOptions(mixup=value)
