"""`--precision auto`: what it chooses, and that a run keeps what it began with."""

import json
import math

import pytest
import torch
from rich.console import Console

from capsella.errors import CapsellaError
from capsella.routing import EMRouting
from capsella.training import ComputeOptions, RunFolder, TrainingDivergedError, resume
from capsella.training.devices import launch
from capsella.training.resolve import choose_precision, measure_ratio, resolve_auto, with_resolved_from
from tests.training.test_resume import poison_step

QUIET = Console(quiet=True)
CPU = ComputeOptions(accelerator="cpu")


@pytest.fixture
def ratio_is(monkeypatch, tmp_path):
    """Let bfloat16 be this many times as fast as float32 on a machine that was not measured yet."""

    def give(ratio):
        memory = tmp_path / f"{ratio}.json"
        monkeypatch.setattr("capsella.training.resolve.MEMORY", memory)
        monkeypatch.setattr("capsella.training.resolve.measure_ratio", lambda: ratio)
        return memory

    return give


def test_auto_is_measured_once_and_remembered(ratio_is, monkeypatch):
    for ratio, precision in ((1.9, "bf16-mixed"), (0.05, "32-true")):
        memory = ratio_is(ratio)
        assert choose_precision("cpu")[0] == precision
        assert list(json.loads(memory.read_text()).values()) == [ratio]
        monkeypatch.setattr("capsella.training.resolve.measure_ratio", lambda: 1.0)
        assert choose_precision("cpu")[0] == precision


def test_the_measurement_leaves_random_numbers_alone():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    assert 0 < measure_ratio() < math.inf
    assert torch.equal(torch.rand(4), expected)


def test_a_run_keeps_the_precision_it_began_with(tiny, ratio_is, quiet_train, tmp_path, monkeypatch):
    ratio_is(1.9)
    recipe, folder = tiny(precision="auto", epochs=1), tmp_path / "run"
    with monkeypatch.context() as patch:
        poison_step(patch, 4)
        with pytest.raises(TrainingDivergedError):
            quiet_train(recipe)
    ratio_is(0.5)  # on another machine
    assert resume(folder, console=QUIET).recipe.precision == "bf16-mixed"
    RunFolder(folder).check_recipe(recipe)
    for other in (tiny(epochs=1), tiny(precision="auto")):
        with pytest.raises(CapsellaError):
            RunFolder(folder).check_recipe(other)
    half, full = (quiet_train(tiny(precision=p, epochs=1), p).folder for p in ("bf16-mixed", "32-true"))
    auto, reduced, exact = ((run / "model.safetensors").read_bytes() for run in (folder, half, full))
    assert auto == reduced != exact


@pytest.mark.parametrize(
    ("precision", "votes", "accelerator", "multiplies", "expected"),
    [
        ("bf16-mixed", "auto", "cpu", True, "bfloat16"),
        ("bf16-mixed", "auto", "cuda", True, "auto"),
        ("bf16-mixed", "float32", "cpu", True, "float32"),
        ("32-true", "auto", "cpu", True, "auto"),
        ("bf16-mixed", "auto", "cpu", False, "auto"),
    ],
)
def test_votes_follow_the_precision(tiny, precision, votes, accelerator, multiplies, expected, monkeypatch):
    monkeypatch.setattr("capsella._native.multiplies_bfloat16", lambda: multiplies)  # has it such instructions?
    recipe = tiny(precision=precision).with_model(routing=EMRouting(votes=votes))
    resolved, _ = resolve_auto(recipe, ComputeOptions(accelerator=accelerator))
    assert resolved.model.options["routing"].votes == expected
    assert with_resolved_from(recipe, resolved) == resolved


def test_a_launch_decides_whether_a_gpu_may_round(tiny):
    """PyTorch lets a GPU's convolutions round to ten bits."""
    for precision in ("bf16-mixed", "32-true"):
        launch(tiny(precision=precision), CPU)
        assert torch.backends.cudnn.allow_tf32 == (precision == "bf16-mixed")
    with pytest.raises(ValueError, match=r"^precision:"):
        launch(tiny(precision="auto"), CPU)
