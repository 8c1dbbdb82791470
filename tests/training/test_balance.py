"""`--balance`: what classes are drawn or weighted to, what "auto" is, and that a run keeps what it began with."""

import json
import math

import pytest
import torch
from rich.console import Console

from capsella.data import ImageSet, even_shares
from capsella.errors import CapsellaError
from capsella.training import RunFolder, TrainingDivergedError, load_run, resume
from capsella.training import loop as training_loop
from capsella.training.balance import log_prior_shift
from tests.training.test_resume import poison_step


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
    monkeypatch.setattr("capsella.training.run.load_data", load_uneven)
    monkeypatch.setattr("capsella.experiments.fit.load_public_once", lambda data: None)
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


def test_a_run_keeps_the_balance_it_began_with(uneven, quiet_train, tmp_path, monkeypatch):
    recipe, folder = uneven(balance="auto", epochs=1), tmp_path / "run"
    with monkeypatch.context() as patch:
        poison_step(patch, 2)
        with pytest.raises(TrainingDivergedError):
            quiet_train(recipe)
    assert json.loads((folder / "config.json").read_text())["recipe"]["balance"] == "sampling"
    monkeypatch.setattr("capsella.training.balance.choose_balance", lambda counts: ("none", "as the test says"))
    resume(folder, console=Console(quiet=True))
    assert load_run(folder).recipe.balance == "sampling"
    RunFolder(folder).check_recipe(recipe)
    with pytest.raises(CapsellaError):
        RunFolder(folder).check_recipe(uneven(balance="none", epochs=1))
    runs = [quiet_train(uneven(balance=balance, epochs=1), balance).folder for balance in ("none", "sampling")]
    none, sampling, auto = ((run / "model.safetensors").read_bytes() for run in (*runs, folder))
    assert auto == sampling != none
