import errno
import os
import re
import subprocess
import sys
import warnings

import pytest

from capsella.cli import info
from capsella.cli.main import COMMANDS, GROUPS
from capsella.errors import CapsellaError, warn_once

WITHOUT_TORCH = """
import sys
from capsella.cli import main
for words in sys.argv[1:]:
    try:
        main(words.split())
    except SystemExit:
        pass
    if "torch" in sys.modules:
        sys.exit(f"{words}: imports PyTorch")
"""


def test_help_and_bad_flags_answer_without_pytorch():
    calls = ["--help", "train demo --help-all", "train demo --epoch 3", *(f"{command} --help" for command in COMMANDS)]
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *calls], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# Packages of the extras, as if they were not installed. `transformers` is in an environment that has all extras.
ONLY_THE_BASE = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
EXTRAS = {"onnx", "onnxruntime", "onnxscript", "optuna", "psutil", "pyarrow", "ray", "starlette", "tensorboard",
          "transformers", "triton", "uvicorn", "beartype", "pandas"}
sys.meta_path.insert(0, Missing())
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *args: None if name.partition(".")[0] in EXTRAS else find_spec(name, *args)
from capsella.cli import main
images, run, out = sys.argv[1:]
train = ["train", "images-cnn", images, "--size", "17", "--epochs", "1", "--batch-size", "8", "--accelerator", "cpu"]
for words in ([*train, "--out", run], ["evaluate", run], ["predict", run, images, "--out", out]):
    main(words)
"""


def test_without_any_extra_a_network_trains_is_evaluated_and_predicts(image_folder, tmp_path):
    run, out = tmp_path / "run", tmp_path / "predictions.csv"
    words = [sys.executable, "-c", ONLY_THE_BASE, image_folder, run, out]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(out.read_text().splitlines()) == 34
    assert (run / "report.html").exists()
    assert not (run / "events").exists()


def test_help_groups_the_commands_by_task(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli("--help").out.splitlines()
    assert cli().out.splitlines() == lines
    assert max(map(len, lines)) <= 80
    for group, commands in GROUPS.items():
        heading = lines.index(group)
        assert [line.split()[0] for line in lines[heading + 1 : heading + 1 + len(commands)]] == list(commands)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_has_at_most_fifteen_flags(cli, command):
    answer = cli(command, "--help")
    assert answer.code == 0
    flags = re.findall(r"^[│| ]*--[a-z]", answer.out, re.M)
    assert len(flags) <= 15
    if "--help-all" in answer.out:
        assert len(cli(command, "--help-all").out) > len(answer.out)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["tran", "demo"], "did you mean train"),
        (["train", "dmo"], "did you mean demo"),
        (["train", "nowhere/"], "nowhere/: no such folder"),
        (["train", ".", "images-cnn"], "images-cnn ."),
        (["train", "demo", "--epochs", "0"], "epochs: must be at least 1, got 0"),
        (["train", "demo", "--lr", "1"], "--lr"),
        (["train", "demo", "--model", "sabour2017_capsnt"], "did you mean sabour2017_capsnet"),
        (["train", "demo", "--data", "digts"], "did you mean digits"),
        (["train", "--resume", "missing"], "missing is not a run folder"),
        (["data", "show", "digits", "--out", "x.jpg"], "out: must end in .png"),
        (["papers", "run", "hinton2018-9"], "did you mean hinton2018-"),
        (["papers", "reproduce", "--rows", "dynamic"], "rows"),
        (["papers", "run", "few-images", "--on", "ray"], "left out for"),
    ],
)
def test_bad_input_ends_in_a_sentence_and_leaves_nothing(cli, words, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = cli(*words)
    assert answer.code in (1, 2)
    assert text in " ".join(answer.err.replace("│", " ").split())
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
    ("words", "hint"),
    [
        (["predict", "run", "images", "--out=x.csv"], "run the same command with --resume to continue"),
        (["compare", "images"], "run the same command to continue"),
        (["compare", "images", "--dry-run"], ""),
    ],
)
def test_an_interruption_says_how_to_continue(cli, monkeypatch, words, hint):
    def interrupt(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"capsella.cli.{words[0]}.run", interrupt)
    assert cli(*words).err.strip().partition("interrupted")[2] == (f"; {hint}" if hint else "")


def test_our_warnings_are_one_line_and_others_are_python_s(cli, monkeypatch):
    monkeypatch.setattr(sys.modules["capsella.cli.main"], "OPENINGS", {})
    monkeypatch.setattr("capsella.errors._warned", set())

    def warn(arguments):
        for _ in range(2):
            warn_once("a reason", "routing [red]runs[/] in PyTorch: " + "do this. " * 30)
        warnings.warn("of another package", UserWarning, stacklevel=1)

    monkeypatch.setattr(info, "run", warn)
    with pytest.warns(UserWarning, match="of another package") as others:
        answer = cli("info")
    assert answer.err == "warning: routing [red]runs[/] in PyTorch: " + "do this. " * 30 + "\n"
    assert len(others) == 1


def test_a_reader_who_leaves_early_is_no_error(cli, monkeypatch):
    """As in `capsella list models | head -1`; here the reader is gone before the first line."""
    monkeypatch.setattr(sys.modules["capsella.cli.main"], "OPENINGS", {})
    reading, writing = os.pipe()
    os.close(reading)
    monkeypatch.setattr(info, "run", lambda arguments: print("a line"))
    with open(writing, "w") as closed:
        monkeypatch.setattr("sys.stdout", closed)
        assert cli("info").err == ""
        print("more", flush=True)  # the rest goes nowhere


PRINTS = """
import capsella.cli.info as info
from capsella.cli import main
info.run = lambda _: print({text!r})
main(["info"])
"""


@pytest.mark.parametrize(
    ("encoding", "text", "expected"),
    [
        ("utf-8", "caf\udce9.png − ±", b"caf\xe9.png \xe2\x88\x92 \xc2\xb1\n"),  # a name that is not UTF-8
        ("latin-1", "−1.5 ± 0.2", b"\\u22121.5 \xb1 0.2\n"),
    ],
)
def test_what_a_terminal_cannot_show_stops_no_command(encoding, text, expected):
    environment = {**os.environ, "PYTHONIOENCODING": f"{encoding}:strict"}
    answer = subprocess.run([sys.executable, "-c", PRINTS.format(text=text)], env=environment, capture_output=True)
    assert (answer.returncode, answer.stdout) == (0, expected), answer.stderr


def test_a_plugin_for_all_commands_is_named_by_a_variable(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("CAPSELLA_PLUGIN", str(tmp_path / "missing.py"))
    assert "missing.py" in cli("info").err
