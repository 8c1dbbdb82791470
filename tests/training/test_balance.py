"""`--balance`: what classes are drawn or weighted to, and what "auto" is."""

import math

import pytest
import torch

from capsella.data import ImageSet, even_shares
from capsella.errors import CapsellaError
from capsella.training import RunFolder, load_run
from capsella.training import loop as training_loop
from capsella.training.balance import log_prior_shift


@pytest.fixture
def uneven(tiny, monkeypatch):
    """The tiny recipe on its digits with every 1, 2 and 3 but one left out of training."""
    load = training_loop.load_data

    def load_uneven(options):
        splits = load(options)
        rare = torch.isin(splits.train.labels, torch.tensor([1, 2, 3])).nonzero()[:, 0].tolist()
        kept = [k for k in range(len(splits.train)) if k not in rare] + [
            next(k for k in rare if splits.train.labels[k] == label) for label in (1, 2, 3)
        ]
        object.__setattr__(splits, "train", splits.train.subset(kept))
        return splits

    monkeypatch.setattr(training_loop, "load_data", load_uneven)
    return tiny


def test_a_run_is_calibrated_for_the_classes_as_they_are(uneven, quiet_train):
    """The prior takes back what balanced training changed."""
    for balance in ("sampling", "none"):
        run = quiet_train(uneven(epochs=1, balance=balance), balance)
        counts = list(training_loop.load_data(run.recipe.data).train.counts().values())
        expected = [math.log(n / sum(counts) / share) for n, share in zip(counts, even_shares(counts), strict=True)]
        assert run.model.calibration.prior == (None if balance == "none" else pytest.approx(expected))


def test_each_class_of_each_laboratory_is_drawn_alike(uneven):
    """Of two laboratories, one without the third class."""
    labels = torch.tensor([0] * 30 + [1] * 10 + [2] * 10)
    place = torch.tensor([0] * 20 + [1] * 10 + [0] * 5 + [1] * 5 + [0] * 10)
    images = ImageSet(torch.zeros(50, 1, 2, 2).byte(), labels, ("a", "b", "c"), metadata={"domain": place})
    recipe = uneven(balance="sampling")
    expected = [math.log(0.6 / 0.4), math.log(0.2 / 0.4), math.log(0.2 / 0.2)]
    assert log_prior_shift(recipe, images) == pytest.approx(expected)


def test_auto_samples_uneven_classes(uneven, quiet_train):
    recipes = [uneven(balance=balance, epochs=1) for balance in ("auto", "sampling", "none")]
    folders = [quiet_train(recipe, recipe.balance).folder for recipe in recipes]
    assert load_run(folders[0]).recipe == recipes[1]
    RunFolder(folders[0]).check_recipe(recipes[0])
    with pytest.raises(CapsellaError):
        RunFolder(folders[0]).check_recipe(recipes[2])
    auto, sampling, none = ((folder / "model.safetensors").read_bytes() for folder in folders)
    assert auto == sampling != none
