"""Two processes in one run folder: the second is sent away, and nothing of the first is lost."""

import pytest
from rich.console import Console

from capsella.errors import CapsellaError
from capsella.files import alone_in
from capsella.grid import Grid, Row
from capsella.grid import run as grid_run
from capsella.grid.run import evaluated_on, trained_run
from capsella.training import Machine, resume
from capsella.training.devices import starts_training

BUSY = r"run: capsella is at work there already \(process \d+\); wait for its end, or choose another folder$"


def test_a_new_training(tiny, quiet_train, tmp_path):
    with alone_in(tmp_path / "run"), pytest.raises(CapsellaError, match=BUSY):
        quiet_train(tiny())
    assert not (tmp_path / "run").exists()
    quiet_train(tiny(epochs=1))
    assert not (tmp_path / "run" / ".lock").exists()


def test_a_resumed_training(tiny, quiet_train, tmp_path):
    quiet_train(tiny(epochs=1))
    with alone_in(tmp_path / "run"), pytest.raises(CapsellaError, match=BUSY):
        resume(tmp_path / "run", console=Console(quiet=True))


def test_one_that_began_a_moment_ago_keeps_its_config(tiny, quiet_train, tmp_path):
    """Before its first checkpoint a training of a grid could be taken for one that never began."""
    quiet_train(tiny(epochs=1))
    for name in ("last.ckpt", "summary.json"):
        (tmp_path / "run" / name).unlink()
    with alone_in(tmp_path / "run"), pytest.raises(CapsellaError, match=BUSY):
        trained_run(tiny(epochs=1), tmp_path / "run", "tiny", Console(quiet=True), Machine(accelerator="cpu"))
    assert (tmp_path / "run" / "config.json").exists()


def test_one_that_ended_while_images_were_loaded_is_not_trained_anew(tiny, quiet_train, tmp_path, monkeypatch):
    run = tmp_path / "run"

    def other_process(data):
        quiet_train(tiny(epochs=1))
        (run / "last.ckpt").unlink()

    monkeypatch.setattr(grid_run, "loaded_once", other_process)
    monkeypatch.setattr(grid_run, "train", None)
    trained = trained_run(tiny(epochs=1), run, "tiny", Console(quiet=True), Machine(accelerator="cpu"))
    assert trained.folder == run
    assert (run / "config.json").exists()


def test_a_training_that_has_not_ended_is_not_evaluated(tiny, quiet_train, tmp_path):
    quiet_train(tiny(epochs=1))
    (tmp_path / "run" / "summary.json").unlink()
    with pytest.raises(CapsellaError, match="run: must hold a finished run, but no training has ended there"):
        evaluated_on(tmp_path / "run", "other", lambda: pytest.fail("images were loaded"))
    assert not (tmp_path / "run" / "other.json").exists()


def test_a_grid_says_so_too(tiny, tmp_path):
    grid = Grid(tmp_path, Console(quiet=True), Machine(accelerator="cpu"))
    with alone_in(tmp_path / "a-seed0"), pytest.raises(CapsellaError, match="a-seed0: capsella is at work there"):
        grid.results([Row(slug="a", recipe_name="tiny", recipe=tiny(epochs=1))], [0])


@pytest.mark.parametrize(
    ("devices", "variables", "first"),
    [
        (1, {}, True),
        (1, {"SLURM_PROCID": "3"}, True),  # trainings side by side, each alone
        (2, {}, True),
        (2, {"LOCAL_RANK": "1"}, False),
        (2, {"RANK": "2", "LOCAL_RANK": "0"}, False),  # the first of a second machine
        (2, {"RANK": "0", "LOCAL_RANK": "0"}, True),
    ],
)
def test_of_processes_that_train_together_the_first_asks(monkeypatch, devices, variables, first):
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert starts_training(Machine(devices=devices)) is first
