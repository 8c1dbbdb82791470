"""`--precision auto`: what it chooses, what it remembers, and that a run keeps what it began with."""

import io
import json
import math
import time
import warnings

import pytest
import torch
from rich.console import Console

from capsella.errors import CapsellaError, CapsellaWarning
from capsella.grid.run import finish_run
from capsella.routing import DynamicRouting, EMRouting
from capsella.training import Machine, RunFolder, TrainingDivergedError, load_run, resume, train
from capsella.training.devices import launch
from capsella.training.precision import PrecisionChoice, choose_precision, faster, measure_ratio
from capsella.training.settle import settle_votes
from tests.training.test_resume import poison_step

QUIET = Console(quiet=True)


@pytest.fixture
def measured(monkeypatch):
    """Let the next measurements give these ratios; more are an error. Returns what is left of them."""

    def give(*ratios):
        left = list(ratios)
        monkeypatch.setattr("capsella.training.precision.measure_ratio", lambda: left.pop(0))
        return left

    return give


@pytest.fixture
def auto_is(monkeypatch):
    """Let this machine be one on which "auto" is this precision."""
    return lambda precision: monkeypatch.setattr(
        "capsella.training.settle.choose_precision", lambda accelerator: PrecisionChoice(precision, "as the test says")
    )


@pytest.mark.parametrize(
    ("ratio", "precision"),
    [(0.3, "32-true"), (1.0, "32-true"), (1.19, "32-true"), (1.2, "bf16-mixed"), (4, "bf16-mixed")],
)
def test_only_what_is_clearly_faster_is_chosen(ratio, precision):
    assert faster(ratio) == precision


def test_the_measurement_is_short_and_leaves_random_numbers_alone():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    started = time.perf_counter()
    ratio = measure_ratio()
    assert 0 < ratio < math.inf
    assert time.perf_counter() - started < 20  # a second or two, on a machine that does nothing else
    assert torch.equal(torch.rand(4), expected)


def test_measured_once_and_remembered(measured, tmp_path):
    memory = tmp_path / "new folder" / "precision.json"
    measured(2.1)
    for _ in range(2):  # the second measurement would be an error
        choice = choose_precision("cpu", memory)
        assert str(choice) == (
            f"auto → bf16-mixed: bfloat16 is 2.1 times as fast as float32 here (measured once, remembered in {memory})"
        )


def test_another_number_of_threads_is_measured_for_itself(measured, tmp_path):
    before, memory = torch.get_num_threads(), tmp_path / "precision.json"
    measured(2.1, 0.5)
    try:
        torch.set_num_threads(1)
        assert choose_precision("cpu", memory).precision == "bf16-mixed"
        torch.set_num_threads(3)
        assert choose_precision("cpu", memory).precision == "32-true"
        torch.set_num_threads(1)
        assert choose_precision("cpu", memory).precision == "bf16-mixed"
    finally:
        torch.set_num_threads(before)
    assert sorted(json.loads(memory.read_text()).values()) == [0.5, 2.1]


DAMAGED = {
    "empty": b"",
    "cut off": b'{"a processor',
    "no text": b"\xff\xfe\x00",
    "a list": b"[2.1]",
    "nested too deep": b"[" * 100_000,
}
WRONG = [None, "fast", True, -2.0, 0, [2.1], math.nan, math.inf, 10**400]


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_memory_is_measured_again_and_written_anew(content, measured, tmp_path):
    memory = tmp_path / "precision.json"
    memory.write_bytes(content)
    measured(2.1)
    assert choose_precision("cpu", memory).precision == "bf16-mixed"
    assert list(json.loads(memory.read_text()).values()) == [2.1]


@pytest.mark.parametrize("value", WRONG, ids=lambda value: str(value)[:9])
def test_a_remembered_ratio_that_is_none_is_measured_again(value, measured, tmp_path):
    memory = tmp_path / "precision.json"
    measured(0.5, 2.1)
    choose_precision("cpu", memory)
    (key,) = json.loads(memory.read_text())
    memory.write_text(json.dumps({key: value, "another machine": 3.0}))
    assert choose_precision("cpu", memory).precision == "bf16-mixed"
    assert json.loads(memory.read_text()) == {key: 2.1, "another machine": 3.0}


def test_a_folder_that_cannot_be_written_is_said_once(measured, tmp_path, monkeypatch):
    monkeypatch.setattr("capsella.errors._warned", set())
    (tmp_path / "file").write_text("")
    measured(2.1, 2.1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        choices = [choose_precision("cpu", tmp_path / "file" / "precision.json") for _ in range(2)]
    assert [choice.precision for choice in choices] == ["bf16-mixed"] * 2
    assert choices[0].why.endswith("(measured once, not remembered)")
    (warning,) = said
    assert warning.category is CapsellaWarning
    assert str(warning.message).startswith("what --precision auto measured cannot be remembered: ")


@pytest.mark.parametrize(("has_units", "precision"), [(True, "bf16-mixed"), (False, "32-true")])
def test_a_gpu_says_what_it_has(has_units, precision, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda including_emulation: has_units)
    assert choose_precision("cuda").precision == precision


def test_a_run_keeps_what_auto_was_when_it_began(tiny, auto_is, tmp_path, monkeypatch):
    auto_is("bf16-mixed")
    recipe, folder = tiny(precision="auto", epochs=1), tmp_path / "run"
    console = Console(record=True, file=io.StringIO())
    with monkeypatch.context() as patch:
        poison_step(patch, 4)
        with pytest.raises(TrainingDivergedError):
            train(recipe, folder, name="tiny", machine=Machine(accelerator="cpu"), console=console)
    assert console.export_text().splitlines()[0] == "precision auto → bf16-mixed: as the test says"

    auto_is("32-true")  # on another machine
    run = resume(folder, console=QUIET)
    assert run.recipe.precision == "bf16-mixed"
    RunFolder(folder).check_recipe(recipe)
    finish_run(load_run(folder), progress=False)
    assert RunFolder(folder).read("result")["recipe"]["precision"] == "bf16-mixed"


def test_auto_computes_what_the_precision_itself_does(tiny, auto_is, quiet_train):
    auto_is("bf16-mixed")
    runs = [quiet_train(tiny(precision=p, epochs=1), p).folder for p in ("auto", "bf16-mixed", "32-true")]
    auto, reduced, full = ((run / "model.safetensors").read_bytes() for run in runs)
    assert auto == reduced != full


def test_another_precision_is_another_recipe(tiny, quiet_train):
    run = quiet_train(tiny(epochs=1)).folder
    with pytest.raises(CapsellaError, match="holds a run of another recipe"):
        RunFolder(run).check_recipe(tiny(epochs=1, precision="bf16-mixed"))
    with pytest.raises(CapsellaError, match="holds a run of another recipe"):
        RunFolder(run).check_recipe(tiny(epochs=2, precision="auto"))


@pytest.fixture
def multiplies_bfloat16(monkeypatch):
    """Let this processor be one that gains by bfloat16 votes."""
    monkeypatch.setattr("capsella._native.multiplies_bfloat16", lambda: True)


@pytest.mark.usefixtures("multiplies_bfloat16")
def test_bf16_mixed_asks_for_bfloat16_votes_and_says_so(tiny, tmp_path):
    recipe = tiny(precision="bf16-mixed", epochs=1).with_model(routing=EMRouting())
    console = Console(record=True, file=io.StringIO())
    run = train(recipe, tmp_path / "run", name="tiny", machine=Machine(accelerator="cpu"), console=console)
    assert console.export_text().splitlines()[0].startswith("votes auto → bfloat16: bf16-mixed, and this processor")
    assert run.recipe.model.options["routing"].votes == "bfloat16"
    assert load_run(run.folder).model.capsule_layers[0].routing.votes == "bfloat16"
    RunFolder(run.folder).check_recipe(recipe)
    with pytest.raises(CapsellaError, match="holds a run of another recipe"):
        RunFolder(run.folder).check_recipe(recipe.with_model(routing=EMRouting(votes="float32")))


@pytest.mark.usefixtures("multiplies_bfloat16")
@pytest.mark.parametrize(
    ("precision", "routing", "accelerator"),
    [
        ("32-true", EMRouting(), "cpu"),
        ("bf16-mixed", EMRouting(), "cuda"),
        ("bf16-mixed", EMRouting(votes="float32"), "cpu"),
        ("bf16-mixed", EMRouting(backend="eager"), "cpu"),
        ("bf16-mixed", DynamicRouting(), "cpu"),
    ],
)
def test_votes_stay_float32_in_all_else(tiny, precision, routing, accelerator):
    recipe = tiny(precision=precision).with_model(routing=routing)
    assert settle_votes(recipe, Machine(accelerator=accelerator)) == (recipe, None)


@pytest.mark.parametrize("has_kernels", [True, False])
def test_votes_stay_float32_where_the_processor_does_not_multiply_bfloat16(tiny, has_kernels, monkeypatch):
    class Kernels:
        def instruction_set(self):
            return "avx512"

    monkeypatch.setattr("capsella._native.kernels", Kernels() if has_kernels else None)
    recipe = tiny(precision="bf16-mixed").with_model(routing=EMRouting())
    assert settle_votes(recipe, Machine(accelerator="cpu")) == (recipe, None)


def test_a_launch_needs_a_settled_precision(tiny):
    with pytest.raises(ValueError, match="precision: must be settled before a launch"):
        launch(tiny(precision="auto"), Machine(accelerator="cpu"))


def test_float32_is_float32_on_a_gpu_too(tiny, quiet_train):
    """PyTorch lets a GPU's convolutions round to ten bits."""
    for precision in ("bf16-mixed", "32-true"):
        quiet_train(tiny(precision=precision), precision)
        assert torch.backends.cudnn.allow_tf32 == (precision == "bf16-mixed")
