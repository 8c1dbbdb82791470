"""Adaptation to another laboratory: what each way changes, and what it leaves."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from capsella.data import ImageSet, load_data
from capsella.errors import CapsellaError
from capsella.losses import LossOptions
from capsella.models import ImageClassifier, create_model
from capsella.models.base import register_model
from capsella.models.he2016 import he2016_resnet10
from capsella.models.inference import inference, predict_with_scores
from capsella.training import (
    AdaptOptions,
    adapt_model,
    calibrate_adapted,
    load_run,
    predict_held_out,
    save_adapted,
)
from capsella.training.config import AugmentOptions
from capsella.uncertainty import calibrate_model, fit_ood_detector

FEW = AdaptOptions(how="all", steps=3, batch_size=8)


@pytest.fixture
def labelled(tiny):
    """Two images of each of eight digits, darker than those of the training; of two digits none."""
    images = load_data(tiny().data).train
    rows = [row for label in range(8) for row in (images.labels == label).nonzero()[:2, 0].tolist()]
    few = images.subset(rows)
    return replace(few, images=few.images // 2)


@pytest.fixture
def resnet(labelled):
    register_model(he2016_resnet10)
    return create_model("he2016_resnet10", image_size=12, channels=1, classes=labelled.classes, width=4).eval()


def changed(before: nn.Module, after: nn.Module) -> set[str]:
    other = after.state_dict()
    return {name for name, value in before.state_dict().items() if not torch.equal(value, other[name])}


def test_statistics_are_those_of_the_images(resnet, labelled, tiny):
    kept = {name: value.clone() for name, value in resnet.state_dict().items()}
    adapted = adapt_model(resnet, tiny(), labelled, AdaptOptions(how="statistics"))
    assert all(torch.equal(value, kept[name]) for name, value in resnet.state_dict().items())
    names = changed(resnet, adapted)
    assert all(name.rpartition(".")[2] in ("running_mean", "running_var", "num_batches_tracked") for name in names)
    first = resnet.network[:1](labelled.images.float() / 255)
    torch.testing.assert_close(adapted.network[1].running_mean, first.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    assert not adapted.training


def test_last_changes_the_last_layer_and_all_everything(resnet, labelled, tiny):
    weights = {name for name, _ in resnet.named_parameters()}
    last = adapt_model(resnet, tiny(), labelled, replace(FEW, how="last"))
    assert changed(resnet, last) & weights == {"network.10.weight", "network.10.bias"}
    assert changed(resnet, adapt_model(resnet, tiny(), labelled, FEW)) >= weights


def test_a_capsule_network_without_batch_normalisation(tiny, labelled, run):
    model = load_run(run).model
    with pytest.raises(CapsellaError, match="how"):
        adapt_model(model, tiny(), labelled, AdaptOptions(how="statistics"))
    last = adapt_model(model, tiny(), labelled, replace(FEW, how="last"))
    assert {name.split(".")[0] for name in changed(model, last)} == {"capsule_layers"}


def test_it_learns_the_images_and_the_seed_decides(tiny, labelled, resnet):
    recipe, model = replace(tiny(), loss=LossOptions(name="cross_entropy")), resnet

    def errors(network: nn.Module) -> int:
        answers = network(labelled.images.float() / 255).activations.argmax(1)
        return int((answers != labelled.labels).sum())

    adapted = adapt_model(model, recipe, labelled, AdaptOptions(steps=40, batch_size=16, learning_rate=3e-3))
    assert errors(adapted) < errors(model) / 2
    short = adapt_model(model, recipe, labelled, FEW)
    assert not changed(short, adapt_model(model, recipe, labelled, FEW))
    assert changed(short, adapt_model(model, recipe, labelled, replace(FEW, seed=1)))


def test_each_labelled_image_is_judged_without_it(tiny, labelled, run, monkeypatch):
    model = load_run(run).model
    seen: list[ImageSet] = []

    def remember(model, recipe, images, options, label):
        seen.append(images)
        return model

    monkeypatch.setattr("capsella.training.adapt.adapt_model", remember)
    judged = predict_held_out(model, tiny(), labelled, FEW)
    assert [len(images) for images in seen] == [8, 8]  # two folds, for a class has two images
    assert judged.labels.sort().values.tolist() == labelled.labels.tolist()
    assert predict_held_out(model, tiny(), labelled.subset(range(1, 16)), FEW) is None


def test_the_ood_check_is_that_of_the_new_laboratory(tiny, run):
    """Darker digits are unlike the training images; after adaptation they are not, and noise still is."""
    model, splits = load_run(run).model, load_data(tiny().data)
    few, others = (
        replace(images, images=images.images // 2) for images in (splits.train, splits.test.subset(range(100)))
    )
    noise = replace(others, images=torch.randint(256, others.images.shape, dtype=torch.uint8))
    adapted = adapt_model(model, tiny(), few, FEW)
    recipe = replace(tiny(), augment=AugmentOptions(gamma=0.5))
    calibrate_adapted(adapted, few, predict_held_out(model, recipe, few, FEW))
    fit_ood_detector(model, splits.train, splits.validation)

    def flagged(model: ImageClassifier, images: ImageSet, rate: float) -> float:
        with inference(model):
            _, scores = predict_with_scores(model, images.images.float() / 255, model.ood_detector)
        return float((scores.amax(1) > model.ood_detector.threshold(rate)).double().mean())

    assert adapted.ood_detector.images == len(adapted.ood_detector.shifted) == len(few) == 50
    assert flagged(model, others, 0.1) > 0.4
    assert flagged(adapted, others, 0.05) < 0.15
    assert flagged(adapted, noise, 0.05) > 0.9


def test_the_folder_is_a_run(tiny, labelled, run, tmp_path):
    run = load_run(run)
    adapted = adapt_model(run.model, run.recipe, labelled, FEW)
    calibrate_adapted(adapted, labelled, predict_held_out(run.model, run.recipe, labelled, FEW))
    save_adapted(run, adapted, tmp_path / "there", {"laboratory": "dark"})
    read = load_run(tmp_path / "there")
    assert (read.adapted, read.recipe, run.adapted) == ({"laboratory": "dark"}, run.recipe, None)
    assert not changed(adapted, read.model)
    assert read.model.calibration.images == 16
    with pytest.raises(CapsellaError, match="there"):
        save_adapted(run, adapted, tmp_path / "there", {})
    assert calibrate_model(run.model, labelled).weights != read.model.calibration.weights
