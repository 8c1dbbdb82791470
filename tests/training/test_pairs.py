"""Training on pairs: the loss falls, a resumed run repeats an unbroken one, and the run is evaluated by both labels."""

import dataclasses

import pytest
import torch
from rich.console import Console

from capsella.data import DataOptions, PairSet, epoch_order, load_data
from capsella.evaluation import evaluate
from capsella.losses import LossOptions, count_errors
from capsella.papers import get_recipe
from capsella.training import AugmentOptions, Recipe, resume
from capsella.training.loop import Trainer

PAIRS = DataOptions(name="multi", of="digits", size=8, pair_shift=2, validation_pairs=40, test_pairs=60)


@pytest.fixture
def pairs(tiny):
    def recipe(**fields) -> Recipe:
        return dataclasses.replace(tiny(augment=AugmentOptions()), **{"data": PAIRS, "epoch_images": 64, **fields})

    return recipe


def test_the_loss_falls(pairs, quiet_train) -> None:
    run = quiet_train(pairs(epochs=12, epoch_images=320, batch_size=16))
    rows = (run.folder / "metrics.csv").read_text().splitlines()
    columns = rows[0].split(",")
    first, last = (dict(zip(columns, map(float, row.split(",")), strict=True)) for row in (rows[1], rows[-1]))
    for part in ("train_classification", "train_reconstruction", "validation_loss"):
        assert last[part] < 0.97 * first[part], part
    assert first["train_images"] == 320


def test_validation_counts_what_evaluation_counts(pairs, quiet_train) -> None:
    run = quiet_train(pairs(epochs=1))
    row = (run.folder / "metrics.csv").read_text().splitlines()
    written = dict(zip(row[0].split(","), row[1].split(","), strict=True))
    validation = load_data(run.recipe.data).validation
    evaluation = evaluate(run.model, validation)
    assert evaluation.error == pytest.approx(float(written["validation_error"]))
    with torch.no_grad():
        images, labels, _ = validation.take(torch.arange(40))
        assert evaluation.errors == count_errors(run.model(images.float() / 255).activations, labels)


def test_an_interrupted_training_ends_with_the_same_weights(pairs, quiet_train, monkeypatch) -> None:
    recipe = pairs()
    whole = quiet_train(recipe, "whole", checkpoint_seconds=0.0)
    step = Trainer._train_step

    def stop_at_step_11(self, chosen):
        if self.progress.step == 11:
            raise KeyboardInterrupt
        return step(self, chosen)

    monkeypatch.setattr(Trainer, "_train_step", stop_at_step_11)
    with pytest.raises(KeyboardInterrupt):
        quiet_train(recipe, "broken", checkpoint_seconds=0.0)
    monkeypatch.setattr(Trainer, "_train_step", step)
    resumed = resume(whole.folder.parent / "broken", console=Console(quiet=True))
    for name, weights in whole.model.state_dict().items():
        assert torch.equal(weights, resumed.model.state_dict()[name]), name


def test_an_epoch_of_draws() -> None:
    order = epoch_order(60_000_000, 1000, torch.Generator().manual_seed(0))
    assert order.shape == (1000,)
    assert order.min() < 5_000_000
    assert order.max() > 55_000_000
    assert epoch_order(9, None, torch.Generator()).sort().values.tolist() == list(range(9))


def test_what_pairs_do_not_go_with() -> None:
    recipe = get_recipe("sabour2017-multimnist")
    with pytest.raises(ValueError, match=r"augment: must be off for pairs, .*got {.shift.: 1}"):
        dataclasses.replace(recipe, augment=AugmentOptions(shift=1))
    with pytest.raises(ValueError, match="loss: must be margin or sigmoid_cross_entropy for pairs, got spread"):
        dataclasses.replace(recipe, loss=LossOptions("spread"))
    with pytest.raises(ValueError, match="epoch_images: must be at least 1, got 0"):
        dataclasses.replace(recipe, epoch_images=0)


def test_a_cnn_on_pairs_brings_the_sigmoid_cross_entropy(monkeypatch) -> None:
    monkeypatch.undo()  # all networks, not the tiny one alone
    recipe = get_recipe("sabour2017-multimnist")
    assert recipe.with_network("sabour2017_multimnist_cnn").loss.name == "sigmoid_cross_entropy"
    assert get_recipe("sabour2017-mnist").with_network("sabour2017_cnn").loss.name == "cross_entropy"


def test_the_recipes_come_back_from_json() -> None:
    for name in ("sabour2017-multimnist", "sabour2017-multimnist-cnn"):
        recipe = get_recipe(name)
        assert Recipe.from_dict(recipe.to_dict()) == recipe
        assert recipe.data.is_paired


def test_a_run_on_pairs_is_over_pairs(pairs) -> None:
    assert isinstance(load_data(pairs().data).train, PairSet)
