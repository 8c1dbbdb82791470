"""What a journal keeps of outcomes, and what of itself when it was cut off, damaged, or is another's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from capsella.errors import CapsellaError
from capsella.evaluation import Broken, Prediction
from capsella.evaluation.prediction.journal import Journal

CLASSES = ("a", "b")
ABOUT = {"journal": "1", "model": "abc", "list of paths": ["caf\udce9", "x"]}
OUTCOMES = [
    Prediction(Path("1\n2.png"), "b", torch.tensor([0.1, 1 / 3])),
    Broken(Path("caf\udce9.png"), "it is\nodd"),
    Prediction(Path("3.png"), "a", torch.tensor([0.5, 0.5])),
]


def journal(path, overwrite=False, **changes):
    return Journal(path, ABOUT | changes, CLASSES, overwrite=overwrite)


@pytest.fixture
def path(tmp_path):
    with journal(tmp_path / "sub" / "t.journal") as begun:
        begun.append(OUTCOMES[:2])
        begun.append(OUTCOMES[2:])
    return tmp_path / "sub" / "t.journal"


def plain(outcomes):
    return [
        (str(o.file), o.reason) if isinstance(o, Broken) else (str(o.file), o.class_name, o.activations.tolist())
        for o in outcomes
    ]


def test_outcomes_come_back_bit_for_bit(path):
    with journal(path) as again:
        assert plain(again.outcomes()) == plain(OUTCOMES)
        assert all(name in again.files for name in ("1\n2.png", "caf\udce9.png", "3.png"))
        assert len(again.files) == 3
        assert again.predictions == 2


def test_cut_off_anywhere_it_keeps_the_whole_lines(path):
    content = path.read_bytes()
    head = content.index(b"\n") + 1
    for length in range(len(content)):
        path.write_bytes(content[:length])
        whole = content[:length].count(b"\n") - 1 if length >= head else 0
        with journal(path) as again:
            assert plain(again.outcomes()) == plain(OUTCOMES[:whole])
            again.append(OUTCOMES[whole:])
        assert path.read_bytes() == content


@pytest.mark.parametrize(
    "line", [b"\0\0\0\0\n", b"{}\n", b"[1]\n", b'{"file": "x", "class": 7, "activations": [1, 2]}\n',
             b'{"file": "x", "class": 0, "activations": [1]}\n', b'{"file": 3, "broken": "x"}\n', b"\xff\n"]
)  # fmt: skip
def test_a_damaged_line_and_all_after_it_are_dropped(path, line):
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], line, *lines[2:]]))
    with journal(path) as again:
        assert plain(again.outcomes()) == plain(OUTCOMES[:1])
    assert path.read_bytes() == b"".join(lines[:2])


def test_another_predictions_journal_is_refused_and_kept(path):
    content = path.read_bytes()
    with pytest.raises(
        CapsellaError, match=r"t\.journal was begun with another model: 'abc'; take that, or begin anew"
    ):
        journal(path, model="xyz")
    with pytest.raises(CapsellaError, match="was begun with another list of paths"):
        journal(path, **{"list of paths": ["x"]})
    assert path.read_bytes() == content
    with journal(path, overwrite=True, model="xyz") as anew:
        assert list(anew.outcomes()) == []
        assert len(anew.files) == 0


@pytest.mark.parametrize("content", [b"name,size\na,1\n", b"[]\n"])
def test_a_file_that_is_no_journal_is_refused_and_kept(path, content):
    path.write_bytes(content)
    with pytest.raises(CapsellaError, match="is no journal of capsella predict; choose another --out"):
        journal(path)
    assert path.read_bytes() == content


def test_two_processes_do_not_write_one_journal(path):
    lock = f"import fcntl; f = open({str(path)!r}); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    other = subprocess.Popen([sys.executable, "-c", lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"1\n"
        for overwrite in (False, True):
            with pytest.raises(CapsellaError, match=r"t\.journal: another capsella predict is writing it"):
                journal(path, overwrite)
    finally:
        other.kill()
        other.communicate()
    with journal(path) as again:
        assert again.predictions == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_disk_is_a_clear_error(path):
    message = r"no space left to write .*t\.journal; make room, then go on with --resume"
    again = journal(path)
    again.file.close()
    again.file = os.fdopen(os.open("/dev/full", os.O_WRONLY), "ab", buffering=0)
    with again, pytest.raises(CapsellaError, match=message):
        again.append(OUTCOMES)
    assert len(path.read_bytes().splitlines()) == 4


def test_the_first_line_says_what_is_predicted(path):
    assert json.loads(path.read_bytes().splitlines()[0]) == ABOUT
