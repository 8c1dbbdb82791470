"""The head of a frozen backbone as a logistic regression."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

import capsella.papers  # noqa: F401  registers the recipes
from capsella.data import FolderData, ImageSet
from capsella.evaluation import evaluate
from capsella.models import create_model
from capsella.training import load_run, train
from capsella.training.adapt import update_batch_norms
from capsella.training.logistic_regression import fit_head
from capsella.training.registry import get_recipe


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("backbone") / "small"
    create_model("he2016_resnet10", image_size=32, channels=3, classes=2).save_pretrained(folder)
    return str(folder)


def coloured(counts, seed=0):
    """Noise in which one colour prevails."""
    random, labels = np.random.default_rng(seed), np.repeat(np.arange(len(counts)), counts)
    pixels = random.integers(0, 160, (len(labels), 3, 20, 20))
    pixels[np.arange(len(labels)), labels] += 60
    classes = tuple("abc"[: len(counts)])
    return ImageSet(torch.from_numpy(pixels.astype(np.uint8)), torch.from_numpy(labels), classes)


@pytest.mark.parametrize("counts", [(30, 30), (30, 20, 10), (40, 4, 1)])
def test_the_network_predicts_as_the_regression(backbone, counts):
    images = coloured(counts)
    model = create_model("backbone_linear", backbone=backbone, image_size=20, channels=3, classes=images.classes)
    before = {name: value.clone() for name, value in model.network[0].state_dict().items()}
    fit = fit_head(model, images, "sampling", 8)
    trained = evaluate(model.eval(), images)
    assert trained.errors == fit.errors
    true = trained.activations[torch.arange(len(images)), images.labels]
    assert -float(true.log().mean()) == pytest.approx(fit.loss, abs=1e-4)
    assert evaluate(model, coloured(counts, seed=1)).error < 20
    assert all(torch.equal(value, before[name]) for name, value in model.network[0].state_dict().items())


def test_adaptation_to_the_training_images_changes_nothing(backbone):
    """Batch norms can be measured again: the head's has the variance over positions, not that of pooled features."""
    images = coloured((30, 20, 10))
    model = create_model("backbone_linear", backbone=backbone, image_size=20, channels=3, classes=images.classes)
    fit_head(model, images, "none", 8)
    before = evaluate(model.eval(), images).activations
    update_batch_norms(model, images)
    torch.testing.assert_close(evaluate(model, images).activations, before, atol=1e-3, rtol=1e-2)


def test_an_ordinary_run(backbone, image_folder, tmp_path):
    recipe = get_recipe("images-backbone-linear").with_model(backbone=backbone)
    recipe = replace(recipe, data=FolderData(image_folder, size=20, channels=3))
    run = train(recipe, tmp_path / "run", console=Console(quiet=True))
    assert run.model.calibration is not None
    loaded = load_run(tmp_path / "run").model
    images = torch.rand(2, 3, 20, 20)
    assert torch.equal(loaded(images).activations, run.model(images).activations)
