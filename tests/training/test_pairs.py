"""Training on overlapping pairs: two labels per image."""

from dataclasses import replace

import pytest
import torch

from capsella.data import PairData, PairSet, load_data
from capsella.evaluation import evaluate
from capsella.losses import LossOptions, count_errors
from capsella.papers import get_recipe
from capsella.training import AugmentOptions

PAIRS = PairData(of="digits", size=8, pair_shift=2, validation_pairs=40, test_pairs=60)


def test_the_loss_falls_and_validation_counts_what_evaluation_counts(tiny, quiet_train) -> None:
    recipe = tiny(augment=AugmentOptions(), data=PAIRS, epochs=6, epoch_images=320, batch_size=16)
    run = quiet_train(recipe)
    assert run.model.fit == "crop"
    header, *rows = ((run.folder / "metrics.csv").read_text()).splitlines()
    first, last = (dict(zip(header.split(","), map(float, row.split(",")), strict=True)) for row in (rows[0], rows[-1]))
    for name in ("train_classification", "train_reconstruction", "validation_loss"):
        assert last[name] < 0.99 * first[name], name
    assert first["train_images"] == 320
    validation = load_data(PAIRS).validation
    assert isinstance(validation, PairSet)
    evaluation = evaluate(run.model, validation)
    assert evaluation.error in [
        pytest.approx(float(row.split(",")[header.split(",").index("validation_error")])) for row in rows
    ]
    with torch.no_grad():
        images, labels, _ = validation.take(torch.arange(40))
        assert evaluation.errors == count_errors(run.model(images.float() / 255).activations, labels)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("augment", AugmentOptions(shift=1)), ("loss", LossOptions("spread"))],
)
def test_options_that_pairs_exclude(argument, value) -> None:
    with pytest.raises(ValueError, match=rf"^{argument}:"):
        replace(get_recipe("sabour2017-multimnist"), **{argument: value})


def test_a_cnn_on_pairs_takes_the_sigmoid_cross_entropy(monkeypatch) -> None:
    monkeypatch.undo()  # all networks, not the tiny one alone
    recipe = get_recipe("sabour2017-multimnist")
    assert recipe.with_network("sabour2017_multimnist_cnn").loss.name == "sigmoid_cross_entropy"
    assert get_recipe("sabour2017-mnist").with_network("sabour2017_cnn").loss.name == "cross_entropy"
