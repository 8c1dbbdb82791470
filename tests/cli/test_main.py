import errno
import importlib
import os
import shlex
import subprocess
import sys
import warnings

import pytest

from capsella.cli import info, main
from capsella.cli.main import GROUPS, VERBS
from capsella.errors import CapsellaError, warn_once


def test_help_groups_the_commands(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli("--help").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert {"train", "evaluate", "bench", "table", "explore", "data"} <= set(VERBS)
    for group, verbs in GROUPS.items():
        heading = lines.index(group)
        assert [line.split()[0] for line in lines[heading + 1 : heading + 1 + len(verbs)]] == list(verbs)


def test_version(cli):
    assert cli("--version").out == cli("version").out == "0.1.0\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["tran", "demo"], "did you mean train or transfer?"),
        (["time", "sabour2017_cnn"], "command: must be a registered name, got 'time'; known: adapt, attack, bench"),
        (["demo-explore"], "did you mean explore"),
        (["train", "--folds", "4", "cells/"], "the first word must be a folder of images or a recipe, got '--folds'"),
        (["train", "nowhere/"], "nowhere/: no such folder"),
        (["train", __file__], "is a file; name the folder that has one sub-folder a class"),
        (["train", "demo", "--lr", "0.1"], "--lr: no such flag; did you mean --learning-rate?"),
        (["train", ".", "images-cnn"], "a recipe must stand before the folder, as in images-cnn ., got . images-cnn"),
        (["train", "dmo"], "recipe: must be a registered name, got 'dmo'; did you mean demo?"),
        (["train", "demo", "--epoch", "3"], "--epoch: no such flag; did you mean --epochs"),
        (["train", "nowhere"], "got 'nowhere'; `capsella recipes` lists them; images of your own are named by"),
        (["data", "show", "nowhere/"], "nowhere: no such folder"),
        (["data", "show", "digts"], "name: must be a registered name, got 'digts'; did you mean digits?"),
        (["train", "demo", "--learning-rat", "1"], "did you mean --learning-rate"),
        (["train", "demo", "--model", "sabour2017_capsnt"], "did you mean sabour2017_capsnet"),
        (["train", "demo", "--routing", "dynamc"], "did you mean dynamic?"),
        (["train", "demo", "--data.name", "digts"], "did you mean digits?"),
        (["train", "demo", "--model"], "--model: must be followed by a value"),
        (["train", "sabour2017-mnist-cnn", "--routing", "uniform"], "sabour2017_cnn has no capsules to route"),
        (["train", "demo", "--epochs", "0"], "epochs: must be at least 1, got 0"),
        (["train", "demo", "--epochs", "x"], "invalid literal for int() with base 10: 'x'"),
        (["train", "demo", "--seeds", "0"], "seeds: must be at least 1, got 0"),
        (["train", "demo", "--learning-rate", "-1"], "must be above 0, got -1.0"),
        (["train", "demo", "--precision", "fp8"], "'32-true', 'bf16-mixed'"),
        (["train", "demo", "--size", "16"], "image_size: must be at least 17×17 for these kernels, got 16×16"),
        (["train", "demo", "--name", "x"], "must name one field, but could be --model.name or --data.name"),
        (["train", "images-capsnet", "--path", "missing"], "missing: no such folder"),
        (["train", "images-cnn"], "IMAGES: must be named for this recipe, as in `capsella train images-cnn IMAGES`"),
        (["train", "--resume"], "--resume: must come first and name a run, as in `capsella train --resume RUN`"),
        (["train", "demo", "--resume", "x"], "got `capsella train demo --resume x`"),
        (["train", "--resume", "missing"], "missing is not a run folder: it has no config.json"),
        (["evaluate"], "RUN"),
        (["evaluate", "missing"], "missing is not a run folder: it has no config.json"),
        (["evaluate", "missing", "--split", "tst"], "invalid choice 'tst'"),
        (["predict", "missing"], "paths: must name at least one image or folder"),
        (["predict", "missing", ""], "paths: must name at least one image or folder, and none may be empty"),
        (["predict", "missing", "x.png"], "missing is not a run folder"),
        (["train", ""], "the folder of images must have a name, got an empty one"),
        (["data", "show", "digits", "--out", "x.jpg"], "out: must end in .png, got 'x.jpg'"),
        (["explain", "missing"], "missing is not a run folder: it has no config.json"),
        (["data", "lst"], "data: must be followed by list, by show NAME or by split NAME, got 'lst'"),
        (["data", "list", "x"], "got 'list x'"),
        (["data", "show"], "`capsella data list` names them"),
        (["data", "show", "digts"], "did you mean digits?"),
        (["data", "show", "digits", "--sze", "3"], "--size"),
        (["models", "sabour2017_capsnt"], "did you mean sabour2017_capsnet"),
        (["train", "images-efficient", ".", "--data", "digits"], "data: must be left out: the images are those of ."),
        (["table", "hinton2018-1", "--data", "smallnorb-jpg"], "got 'smallnorb-jpg'; did you mean smallnorb-jpeg"),
    ],
)
def test_bad_input_ends_in_a_sentence_not_in_a_stack_trace(cli, words, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = cli(*words)
    assert answer.code in (1, 2)
    assert text in answer.err
    assert answer.out.strip() == ""
    assert "Traceback" not in answer.err
    assert list(tmp_path.iterdir()) == []


def hides(first):
    """As PyTorch's writer of files does, left in the middle."""
    error = RuntimeError("unexpected pos 64 vs 0")
    error.__context__ = first
    return error


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (CapsellaError("a [red]file[/] is broken"), 1, "error: a [red]file[/] is broken"),
        (ValueError("size: must be"), 1, "error: size: must be"),
        (PermissionError(errno.EACCES, "Permission denied", "runs"), 1, "Permission denied: 'runs'"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (hides(KeyboardInterrupt()), 130, "interrupted"),
    ],
)
def test_errors_and_exit_codes(cli, monkeypatch, error, code, text):
    def fail(arguments):
        raise error

    monkeypatch.setattr(info, "run", fail)
    answer = cli("info")
    assert answer.code == code
    assert text in answer.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("compare", "cells"), "interrupted; the same command goes on"),
        (("predict", "run", "cells", "--out=a.csv"), "interrupted; the same command with --resume goes on"),
        (("predict", "run", "cells"), "interrupted"),
        (
            ("predict", "run", "cells", "--out", "a.csv", "--overwrite"),
            "interrupted; the same command with --resume in place of --overwrite goes on",
        ),
        (("compare", "cells", "--dry-run"), "interrupted"),
    ],
)
def test_an_interruption_says_what_goes_on(cli, monkeypatch, words, text):
    def interrupt(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib.import_module(f"capsella.cli.{words[0]}"), "run", interrupt)
    answer = cli(*words)
    assert (answer.code, answer.err.strip()) == (130, text)


def test_our_warnings_are_one_line_and_others_are_as_usual(cli, monkeypatch):
    monkeypatch.setattr("capsella.errors._warned", set())

    def warn(arguments):
        for _ in range(2):
            warn_once("a reason", "routing [red]runs[/] in PyTorch: " + "do this. " * 30)
        warnings.warn("of another package", UserWarning, stacklevel=1)

    monkeypatch.setattr(info, "run", warn)
    before = warnings.showwarning
    with pytest.warns(UserWarning, match="of another package") as others:
        answer = cli("info")
    assert answer.err == "warning: routing [red]runs[/] in PyTorch: " + "do this. " * 30 + "\n"
    assert [str(other.message) for other in others] == ["of another package"]
    assert warnings.showwarning is before


def test_a_bug_shows_its_stack_trace(monkeypatch):
    monkeypatch.setattr(info, "run", lambda arguments: {}["missing"])
    with pytest.raises(KeyError):
        main(["info"])


@pytest.mark.parametrize("verb", ["info", "models"])  # by print, and by rich
def test_a_reader_who_leaves_early_is_no_error(cli, monkeypatch, verb):
    """As in `capsella models | head -1`; here the reader is gone before the first line."""
    reading, writing = os.pipe()
    os.close(reading)
    monkeypatch.setattr(info, "run", lambda arguments: print("a line"))
    with open(writing, "w") as closed:
        monkeypatch.setattr("sys.stdout", closed)
        answer = cli(verb)
        assert answer.err == ""
        print("more", flush=True)  # what is left to say goes nowhere


@pytest.mark.parametrize("words", [">&-", "| cat"])
def test_standard_output_that_is_closed_or_of_few_letters(words):
    """`models NAME` prints arrows and signs that Latin 1 has not."""
    command = f"{shlex.quote(sys.executable)} -m capsella models sabour2017_capsnet {words}"
    latin = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    answer = subprocess.run(["bash", "-o", "pipefail", "-c", command], env=latin, capture_output=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, b"")


def test_names_that_are_not_utf_8_are_printed_as_the_bytes_they_are():
    said = (
        "import capsella.cli.info as info; info.run = lambda _: print('caf\\udce9.png'); from capsella.cli import main"
    )
    command = [sys.executable, "-c", f"{said}; main(['info'])"]
    strict = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    answer = subprocess.run(command, env=strict, capture_output=True, check=False)
    assert (answer.returncode, answer.stdout) == (0, b"caf\xe9.png\n")


@pytest.mark.parametrize(
    ("given", "set_to"), [({"GOMP_SPINCOUNT": "77"}, "77"), ({"OMP_WAIT_POLICY": "passive"}, None), ({}, "10000")]
)
def test_waiting_threads_are_as_the_user_wishes(given, set_to, monkeypatch):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")  # so that it is as before afterwards
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    main(["--version"])
    assert os.environ.get("GOMP_SPINCOUNT") == set_to


def test_waiting_threads_soon_sleep():
    shown = {**os.environ, "OMP_DISPLAY_ENV": "verbose"}
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        shown.pop(name, None)
    words = [sys.executable, "-m", "capsella", "info"]
    answer = subprocess.run(words, env=shown, check=True, capture_output=True, text=True)
    if "GOMP_SPINCOUNT" not in answer.stderr:
        pytest.skip("PyTorch's OpenMP is not libgomp")
    assert "GOMP_SPINCOUNT = '10000'" in answer.stderr
