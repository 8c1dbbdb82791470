"""`capsella explore`: what it refuses, and the demo that it opens where no run is named."""

from types import SimpleNamespace

import pytest

from capsella.cli import explore
from capsella.cli.runs import load_runs
from capsella.image_options import CellCut


@pytest.fixture
def opened(monkeypatch, tmp_path):
    """Folders that were opened, and calls of `capsella train`; nothing is trained, loaded or served."""
    opened, trained = [], []
    monkeypatch.chdir(tmp_path)
    for check in ("check_starlette", "check_port"):
        monkeypatch.setattr(explore, check, lambda *_: None)
    monkeypatch.setattr(explore.train, "run", trained.append)
    monkeypatch.setattr(
        explore, "load_runs", lambda folders: {str(one): SimpleNamespace(adapted=None) for one in folders}
    )
    monkeypatch.setattr(explore, "parted", lambda runs: (runs, {}))
    monkeypatch.setattr(explore, "open_subject", lambda run, name, images, cnns: opened.append(name))
    monkeypatch.setattr(explore, "serve", lambda subjects, **options: None)
    return opened, trained


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["nowhere", "--host", "0.0.0.0"], "needs a password: set the environment variable CAPSELLA_PASSWORD"),
        (["nowhere", "--port", "0"], "port: must be in 1…65535, got 0"),
        (["--port", "70000"], "port: must be in 1…65535, got 70000"),
    ],
)
def test_what_is_refused_before_anything_is_loaded_or_trained(cli, words, text, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CAPSELLA_PASSWORD", raising=False)
    answer = cli("explore", *words)
    assert answer.code == 1
    assert text in " ".join(answer.err.split())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_no_run_is_not_trained(cli, opened, monkeypatch):
    monkeypatch.setattr(explore, "load_runs", load_runs)
    answer = cli("explore", "nowhere")
    assert "nowhere is not a run folder" in answer.err
    assert opened == ([], [])


def test_without_a_run_the_demo_is_opened_and_trained_only_where_there_is_none(cli, opened, tmp_path):
    folders, trained = opened
    answer = cli("explore")
    assert answer.code == 0, answer.err
    assert trained == [["demo", "--out", "runs/demo"]]
    (line,) = answer.out.splitlines()
    assert "no run given, and none in runs/demo: training the demo first" in line
    assert "minutes" in line
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    (tmp_path / "runs" / "demo" / "model.safetensors").touch()
    assert cli("explore").out == ""
    assert len(trained) == 1
    assert folders == ["runs/demo", "runs/demo"]


def test_a_run_that_is_named_is_opened_and_nothing_trained(cli, opened):
    folders, trained = opened
    assert cli("explore", "runs/a", "runs/b").out == ""
    assert (folders, trained) == (["runs/a", "runs/b"], [])


def test_the_scale_of_uploaded_cells_is_set_in_every_run_that_cuts_them_out(cli, opened, monkeypatch):
    models = {"a": SimpleNamespace(cut=CellCut(True, 20.0)), "b": SimpleNamespace(cut=None)}
    runs = {name: SimpleNamespace(model=model, adapted=None) for name, model in models.items()}
    monkeypatch.setattr(explore, "load_runs", lambda folders: {str(folder): runs[str(folder)] for folder in folders})
    assert cli("explore", "a", "b", "--cell-radius", "33").code == 0
    assert models["a"].cut == CellCut(True, 33.0)
    assert models["b"].cut is None
    answer = cli("explore", "b", "--cell-radius", "33")
    assert "cell_radius: must be None: no run cuts cells out, got 33" in answer.err
