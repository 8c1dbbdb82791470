"""`--precision auto`: what it chooses, what it remembers, and that a run keeps what it began with."""

import json
import math

import pytest
import torch
from rich.console import Console

from capsella.errors import CapsellaError
from capsella.routing import DynamicRouting, EMRouting
from capsella.training import ComputeOptions, RunFolder, TrainingDivergedError, load_run, resume, train
from capsella.training.devices import launch
from capsella.training.precision import PrecisionChoice, choose_precision, measure_ratio
from capsella.training.resolve import resolve_auto
from tests.training.test_resume import poison_step

QUIET = Console(quiet=True)
CPU = ComputeOptions(accelerator="cpu")


@pytest.fixture
def measured(monkeypatch):
    """Let the next measurements give these ratios; more are an error."""

    def give(*ratios):
        left = list(ratios)
        monkeypatch.setattr("capsella.training.precision.measure_ratio", lambda: left.pop(0))

    return give


@pytest.fixture
def auto_is(monkeypatch):
    """Let this machine be one on which "auto" is this precision."""
    return lambda precision: monkeypatch.setattr(
        "capsella.training.resolve.choose_precision", lambda accelerator: PrecisionChoice(precision, "as the test says")
    )


def test_the_measurement_leaves_random_numbers_alone():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    assert 0 < measure_ratio() < math.inf
    assert torch.equal(torch.rand(4), expected)


def test_each_number_of_threads_is_measured_once_and_remembered(measured, tmp_path):
    before, memory = torch.get_num_threads(), tmp_path / "new folder" / "precision.json"
    measured(2.1, 0.5)
    try:
        for threads, precision in ((1, "bf16-mixed"), (3, "32-true"), (1, "bf16-mixed")):
            torch.set_num_threads(threads)
            assert choose_precision("cpu", memory).precision == precision
    finally:
        torch.set_num_threads(before)
    assert sorted(json.loads(memory.read_text()).values()) == [0.5, 2.1]


def test_a_damaged_memory_is_measured_again_and_written_anew(measured, tmp_path):
    memory = tmp_path / "precision.json"
    for content in (b"", b'{"a processor', b"\xff\xfe\x00", b"[2.1]", b"[" * 100_000):
        memory.write_bytes(content)
        measured(2.1)
        assert choose_precision("cpu", memory).precision == "bf16-mixed"
        assert list(json.loads(memory.read_text()).values()) == [2.1]
    (key,) = json.loads(memory.read_text())
    for value in ("fast", -2.0, math.nan):
        memory.write_text(json.dumps({key: value, "another machine": 3.0}))
        measured(0.5)
        assert choose_precision("cpu", memory).precision == "32-true"
        assert json.loads(memory.read_text()) == {key: 0.5, "another machine": 3.0}


def test_a_run_keeps_the_precision_it_began_with(tiny, auto_is, quiet_train, tmp_path, monkeypatch):
    auto_is("bf16-mixed")
    recipe, folder = tiny(precision="auto", epochs=1), tmp_path / "run"
    with monkeypatch.context() as patch:
        poison_step(patch, 4)
        with pytest.raises(TrainingDivergedError):
            quiet_train(recipe)
    auto_is("32-true")  # on another machine
    assert resume(folder, console=QUIET).recipe.precision == "bf16-mixed"
    RunFolder(folder).check_recipe(recipe)
    for other in (tiny(epochs=1), tiny(precision="auto")):
        with pytest.raises(CapsellaError):
            RunFolder(folder).check_recipe(other)
    half, full = (quiet_train(tiny(precision=p, epochs=1), p).folder for p in ("bf16-mixed", "32-true"))
    auto, reduced, exact = ((run / "model.safetensors").read_bytes() for run in (folder, half, full))
    assert auto == reduced != exact


def test_bf16_mixed_asks_for_bfloat16_votes(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("capsella._native.multiplies_bfloat16", lambda: True)
    recipe = tiny(precision="bf16-mixed", epochs=1).with_model(routing=EMRouting())
    run = train(recipe, tmp_path / "run", name="tiny", compute=CPU, console=QUIET)
    assert run.recipe.model.options["routing"].votes == "bfloat16"
    assert load_run(run.folder).model.capsule_layers[0].routing.votes == "bfloat16"
    RunFolder(run.folder).check_recipe(recipe)
    with pytest.raises(CapsellaError):
        RunFolder(run.folder).check_recipe(recipe.with_model(routing=EMRouting(votes="float32")))


@pytest.mark.parametrize(
    ("precision", "routing", "accelerator", "multiplies"),
    [
        ("bf16-mixed", EMRouting(), "cuda", True),
        ("bf16-mixed", EMRouting(votes="float32"), "cpu", True),
        ("bf16-mixed", DynamicRouting(), "cpu", True),
        ("bf16-mixed", EMRouting(), "cpu", False),
    ],
)
def test_votes_stay_float32_otherwise(tiny, precision, routing, accelerator, multiplies, monkeypatch):
    monkeypatch.setattr("capsella._native.multiplies_bfloat16", lambda: multiplies)
    recipe = tiny(precision=precision).with_model(routing=routing)
    assert resolve_auto(recipe, ComputeOptions(accelerator=accelerator)) == (recipe, [])


def test_a_launch_decides_whether_a_gpu_may_round(tiny):
    """PyTorch lets a GPU's convolutions round to ten bits."""
    for precision in ("bf16-mixed", "32-true"):
        launch(tiny(precision=precision), CPU)
        assert torch.backends.cudnn.allow_tf32 == (precision == "bf16-mixed")
    with pytest.raises(ValueError, match=r"^precision:"):
        launch(tiny(precision="auto"), CPU)
