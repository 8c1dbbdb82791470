"""What README.md shows works: its Python runs, its commands parse, its links lead somewhere."""

import re
import shlex
from pathlib import Path

import pytest

import capsella
from capsella.cli import (
    attack,
    bench,
    compare,
    data,
    evaluate,
    explain,
    explore,
    export,
    main,
    models,
    predict,
    robustness,
    train,
)
from capsella.papers.published import FIGURES, TABLES

ROOT = Path(capsella.__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


COMMANDS = [
    line.strip() for block in blocks("sh") for line in block.splitlines() if line.strip().startswith("capsella ")
]


class ReachedError(Exception):
    """The command line has understood a command and was about to carry it out."""


@pytest.fixture
def understood(monkeypatch):
    """Whether a command line would be carried out; what it would do first is taken away."""

    def stop(*arguments, **options):
        raise ReachedError

    for module, name in [
        (train, "train"),
        (train, "resume"),
        (train, "_train_seeds"),
        (evaluate, "load_run"),
        (attack, "load_runs"),
        (predict, "load_run"),
        (explain, "load_run"),
        (explore, "check_gradio"),
        (export, "load_run"),
        (bench, "_model_and_images"),
        (compare, "make_plan"),
        (data, "load_data"),
        (data, "source_table"),
        (data, "save_split"),
        (data, "save_thesis_sets"),
        (robustness, "load_runs"),
        (bench, "execution_times"),
        (models, "list_models"),
    ]:
        monkeypatch.setattr(module, name, stop)
    for published in (*TABLES.values(), *FIGURES.values()):
        monkeypatch.setattr(type(published("small")), "run", stop)

    def check(line):
        words = shlex.split(line, comments=True)[1:]
        try:
            main(words)
        except ReachedError:
            return True
        except SystemExit:
            return False
        return "--help" in words or "info" in words

    return check


def test_the_python_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    assert len(blocks("python")) >= 3
    for number, block in enumerate(blocks("python"), start=1):
        exec(compile(block, f"README.md, block {number}", "exec"), namespace)
    assert "sabour2017_capsnet" in capsys.readouterr().out


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_understood(line, understood, capsys):
    assert understood(line), capsys.readouterr().err


@pytest.mark.parametrize("line", ["capsella trian demo", "capsella train demo --colour red", "capsella predict run"])
def test_a_wrong_command_is_not(line, understood):
    assert not understood(line)


def test_there_are_commands():
    assert len(COMMANDS) >= 5
    assert {line.split()[1] for line in COMMANDS} >= {
        "train",
        "evaluate",
        "attack",
        "predict",
        "explain",
        "data",
        "table",
    }


def test_files_that_are_named_exist():
    named = {name for name in re.findall(r"`([\w./-]+\.(?:md|py|toml|txt))`", README) if "/" in name or name.isupper()}
    linked = {link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link}
    assert named
    assert sorted(name for name in named | linked if not (ROOT / name).exists()) == []


def test_makefile_targets_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"`?make ([a-z]+)", "\n".join(blocks("sh")))) <= targets
