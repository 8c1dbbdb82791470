"""The moving average of the weights, and training that stops at an error."""

import dataclasses
import json

import pytest
import torch
from rich.console import Console

from capsella.data import load_data
from capsella.evaluation import evaluate
from capsella.training import Machine, OptimizerOptions, RunFolder, TrainingDivergedError, load_run, resume
from capsella.training.average import average_of
from capsella.training.devices import launch
from capsella.training.logs import epoch_line
from capsella.training.loop import Trainer

QUIET = Console(quiet=True)


def interrupt(monkeypatch, quiet_train, recipe, name, step):
    """A training that dies at this step; steps count from 1."""
    from capsella.training.augment import Augment

    usual, calls = Augment.forward, iter(range(1, 10**6))
    with monkeypatch.context() as patch:
        patch.setattr(
            Augment, "forward", lambda self, images: usual(self, images) * (float("nan") if next(calls) == step else 1)
        )
        with pytest.raises(TrainingDivergedError):
            quiet_train(recipe, name, checkpoint_seconds=0.0)


def history(folder):
    rows = [line.split(",") for line in (folder / "metrics.csv").read_text().splitlines()]
    timed = [rows[0].index(name) for name in ("images_per_second", "seconds")]
    return [[cell for index, cell in enumerate(row) if index not in timed] for row in rows]


def test_the_average_by_hand():
    layer = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.BatchNorm1d(1))
    average = average_of(layer, decay=0.15)
    expected = 0.0
    for n, value in enumerate([1.0, 2.0, 5.0]):
        with torch.no_grad():
            layer[0].weight.fill_(value)
        layer[1].running_mean.fill_(10 * value)
        layer[1].num_batches_tracked.fill_(n + 1)
        average.update_parameters(layer)
        kept = 0.0 if n == 0 else min(0.15, (1 + n) / (10 + n))  # 2/11 and 3/12 are above 0.15
        expected = kept * expected + (1 - kept) * value
    assert float(average.module[0].weight) == pytest.approx(expected)
    assert float(average.module[1].running_mean) == pytest.approx(10 * expected)
    assert int(average.module[1].num_batches_tracked) == 3
    assert not average.module.training
    early = average_of(layer, decay=0.999)
    for value in (0.0, 1.0):
        with torch.no_grad():
            layer[0].weight.fill_(value)
        early.update_parameters(layer)
    assert float(early.module[0].weight) == pytest.approx(1 - 2 / 11)  # and not 0.001


def test_the_average_is_what_is_judged_and_kept(tiny, quiet_train, last_checkpoint):
    run = quiet_train(tiny(optimizer=OptimizerOptions(ema=0.9), epochs=2))
    state = last_checkpoint(run.folder)
    best = json.loads((run.folder / "summary.json").read_text())["best"]
    assert best["epoch"] == 2
    kept = run.model.state_dict()
    assert all(torch.equal(kept[name], state["average"][f"module.{name}"]) for name in kept)
    assert any(not torch.equal(kept[name], state["model"][name]) for name in kept)
    validation = load_data(run.recipe.data).validation
    assert evaluate(run.model, validation).error == pytest.approx(best["validation_error"])


def test_the_average_resumes(tiny, quiet_train, last_checkpoint, monkeypatch):
    recipe = tiny(optimizer=OptimizerOptions(ema=0.9))
    unbroken = quiet_train(recipe, "unbroken", checkpoint_seconds=0.0).folder
    interrupt(monkeypatch, quiet_train, recipe, "broken", 10)
    broken = unbroken.parent / "broken"
    resume(broken, console=QUIET)
    assert (broken / "model.safetensors").read_bytes() == (unbroken / "model.safetensors").read_bytes()
    first, second = last_checkpoint(broken)["average"], last_checkpoint(unbroken)["average"]
    assert int(first["n_averaged"]) == 14
    assert all(torch.equal(first[name], second[name]) for name in second)


def test_channels_last_changes_the_layout_and_not_the_numbers(tiny, quiet_train, tmp_path):
    recipe = tiny(epochs=1, channels_last=True)
    usual, other = (
        Trainer(one, Machine(), RunFolder(tmp_path / "none"), "tiny", launch(one, Machine()), QUIET)
        for one in (dataclasses.replace(recipe, channels_last=False), recipe)
    )
    for first, second in zip(usual.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(first, second)
    assert not usual.model.primary.conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert other.model.primary.conv.weight.is_contiguous(memory_format=torch.channels_last)
    run = quiet_train(recipe)
    best = json.loads((run.folder / "summary.json").read_text())["best"]
    assert evaluate(run.model, load_data(recipe.data).validation).error == pytest.approx(best["validation_error"])


@pytest.mark.parametrize("on", ["validation", "test"])
def test_training_stops_at_an_error(tiny, quiet_train, on):
    """The threshold is the second-lowest error of a whole training, so that its lowest does not come first."""
    fields = {"epochs": 6, "epoch_images": 24, "stop_on": on}
    whole = history(quiet_train(tiny(**fields, stop_at_error=0.0), "whole").folder)
    errors = [float(row[whole[0].index(f"{on}_error")]) for row in whole[1:]]
    assert len(errors) == 6
    threshold = sorted(errors)[1] + 1e-3  # metrics.csv has six digits
    expected = next(number for number, error in enumerate(errors, 1) if error <= threshold)
    run = quiet_train(tiny(**fields, stop_at_error=threshold), "stopped")
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["epochs"] == summary["best"]["epoch"] == expected
    assert summary["stopped"] == {
        "at_error": threshold,
        "on": on,
        "reached": True,
        "epoch": expected,
        "error": pytest.approx(errors[expected - 1], rel=1e-4),
    }
    split = getattr(load_data(run.recipe.data), on)
    assert evaluate(run.model, split).error == pytest.approx(errors[expected - 1], rel=1e-4)


def test_the_epoch_line_has_the_error_that_ends_the_run():
    names = ("train_error", "train_loss", "validation_error", "validation_loss", "images_per_second")
    row = {"epoch": 1, **dict.fromkeys(names, 1.0)}
    assert "test error" not in epoch_line(row, 2)
    assert "test error 4.25 %" in epoch_line(row | {"test_error": 4.25}, 2)


def test_an_error_that_is_never_reached(tiny, quiet_train):
    run = quiet_train(tiny(stop_at_error=0.0, epochs=2))
    stopped = json.loads((run.folder / "summary.json").read_text())["stopped"]
    assert stopped["reached"] is False
    assert stopped["error"] > 0
    assert json.loads((quiet_train(tiny(), "free").folder / "summary.json").read_text())["stopped"] is None


def test_a_stopped_training_is_finished_and_an_interrupted_one_stops_where_it_would_have(
    tiny, quiet_train, monkeypatch
):
    recipe = tiny(stop_at_error=100.0, epochs=4)
    run = quiet_train(recipe, checkpoint_seconds=0.0)
    assert len(history(run.folder)) == 2
    weights = (run.folder / "model.safetensors").read_bytes()
    resume(run.folder, console=QUIET)
    assert len(history(run.folder)) == 2
    interrupt(monkeypatch, quiet_train, recipe, "broken", 3)
    resume(run.folder.parent / "broken", console=QUIET)
    assert (run.folder.parent / "broken" / "model.safetensors").read_bytes() == weights
    assert load_run(run.folder).recipe.stop_at_error == 100.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stop_at_error": -1.0}, r"stop_at_error: must be from 0 to 100 per cent, got -1\.0"),
        ({"stop_on": "train"}, "stop_on: must be 'validation' or 'test', got 'train'"),
        ({"optimizer": {"ema": 1.0}}, r"ema: must be between 0 and 1, both excluded, or None, got 1\.0"),
        ({"optimizer": {"schedule": "linear"}}, "schedule: must be 'exponential', 'cosine' or 'steps', got"),
        ({"optimizer": {"warmup_steps": -1}}, "warmup_steps: must not be negative, got -1"),
    ],
)
def test_fields_out_of_range(tiny, fields, message):
    with pytest.raises(ValueError, match=message):
        tiny(**{name: OptimizerOptions(**value) if name == "optimizer" else value for name, value in fields.items()})


def test_steps_drop_the_rate_at_their_shares():
    options = OptimizerOptions(learning_rate=0.1, schedule="steps", decay=0.1, drops=(0.5, 0.75), warmup_steps=2)
    rates = [options.rate_at(step, 100) for step in (0, 1, 2, 49, 50, 74, 75, 100)]
    assert rates == pytest.approx([0.05, 0.1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


def test_the_cosine_ends_at_zero_after_a_warm_up():
    options = OptimizerOptions(learning_rate=0.8, schedule="cosine", warmup_steps=4)
    rates = [options.rate_at(step, 104) for step in range(105)]
    assert rates[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert rates[4] == 0.8
    assert rates[54] == pytest.approx(0.4)
    assert rates[104] == pytest.approx(0.0)
    assert all(after <= before for before, after in zip(rates[4:-1], rates[5:], strict=True))
