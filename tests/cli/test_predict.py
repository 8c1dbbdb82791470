"""`capsella predict`."""

import csv
import io
import shutil
import subprocess
import sys
import time

import psutil
import pytest


@pytest.fixture
def broken(tmp_path):
    path = tmp_path / "new" / "broken.png"
    path.parent.mkdir()
    path.write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    return path


def table(text):
    return list(csv.reader(io.StringIO(text)))


def test_to_standard_output(cli, trained, images):
    answer = cli("predict", trained, images / "rows", images / "rings" / "rings03.png")
    head, *rows = table(answer.out)
    assert answer.code == 0
    assert head == ["file", "class", "columns", "rings", "rows", "probability", "known", "why_unknown"]
    assert rows[0][0] == str(images / "rows" / "rows00.png")
    assert len(rows) == 12
    for row in rows:
        activations = dict(zip(head[2:5], map(float, row[2:5]), strict=True))
        assert row[1] == max(activations, key=activations.get)
        assert all(0 <= value <= 1 for value in activations.values())


def test_to_a_file(cli, trained, images, tmp_path):
    answer = cli("predict", trained, images, "--out", tmp_path / "sub" / "p.csv", "--batch-size", 7)
    assert (answer.code, answer.out) == (0, "")
    assert f"33 predictions written to {tmp_path / 'sub' / 'p.csv'}" in answer.err
    assert (tmp_path / "sub" / "p.csv").read_text() == cli("predict", trained, images).out


def test_skip_broken_counts_and_lists(cli, trained, images, broken):
    answer = cli("predict", trained, images / "rows", broken.parent, "--skip-broken")
    assert answer.code == 0
    assert len(table(answer.out)) == 12
    assert "left out 1 broken image:" in answer.err
    assert str(broken) in answer.err


def test_a_broken_image_is_an_error_on_standard_output_and_listed_apart_from_a_table(
    cli, trained, broken, images, tmp_path
):
    answer = cli("predict", trained, images / "rows", broken)
    assert answer.code == 1
    assert f"{broken}: cannot be read as an image" in answer.err
    out = tmp_path / "p.csv"
    answer = cli("predict", trained, images / "rows", broken, "--out", out)
    assert answer.code == 0
    assert f"1 broken image listed in {out}.broken.csv" in answer.err
    assert table((tmp_path / "p.csv.broken.csv").read_text())[1][0] == str(broken)


def test_names_in_messages_command_no_terminal(cli, trained, broken, images):
    odd = broken.rename(broken.with_name("a\x1b[2J\nb.png"))
    answer = cli("predict", trained, images / "rows", odd, "--skip-broken")
    assert "a\\x1b[2J\\nb.png" in answer.err
    assert "\x1b[2J" not in answer.err


def test_a_table_that_is_there(cli, trained, images, tmp_path):
    out = tmp_path / "p.jsonl"
    assert cli("predict", trained, images / "rows", "--out", out).code == 0
    first = out.read_text()
    for flag, text in ((None, "--overwrite replaces it, or choose another --out"), ("--resume", "nothing to resume")):
        answer = cli("predict", trained, images / "rows", "--out", out, *filter(None, [flag]))
        assert answer.code == 1
        assert text in answer.err
    out.write_text("older")
    assert cli("predict", trained, images / "rows", "--out", out, "--overwrite").code == 0
    assert out.read_text() == first


def start(said, *words):
    """To a file, not to a pipe: workers that outlive their parent would keep a pipe open, and the test waiting."""
    command = [sys.executable, "-m", "capsella", "predict", *map(str, words)]
    with open(said, "wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)


def test_killed_with_its_workers_at_work_and_gone_on_with(trained, images, tmp_path):
    folder = tmp_path / "many"
    folder.mkdir()
    files = sorted(images.rglob("*.png"))
    for k in range(400):
        shutil.copy(files[k % len(files)], folder / f"{k}.png")
    out, journal, said = tmp_path / "p.csv", tmp_path / "p.csv.journal", tmp_path / "said.txt"
    words = [trained, folder, "--out", out, "--batch-size", 2, "--resume"]
    job = start(said, *words, "--workers", 2)
    while not journal.exists() or journal.read_bytes().count(b"\n") < 20:
        assert job.poll() is None, said.read_text()
        time.sleep(0.002)
    family = psutil.Process(job.pid).children(recursive=True)
    job.kill()
    job.wait()
    assert not out.exists()
    assert len(family) >= 2
    assert psutil.wait_procs(family, timeout=30)[1] == []  # nobody goes on without the one that was killed
    job = start(said, *words, "--workers", 0)
    assert job.wait() == 0, said.read_text()
    assert "400 predictions written to" in said.read_text()
    assert sorted(row[0] for row in table(out.read_text())[1:]) == sorted(map(str, folder.iterdir()))


STARTED = """
import sys

import torch

from capsella.cli import predict
from capsella.models import create_model, list_models

predict.load_run(sys.argv[1])
for name in list_models():
    with torch.device("meta"):
        create_model(name)
slow = {"kornia", "lightning_fabric", "matplotlib", "scipy.stats", "sklearn", "torch._dynamo"}
print(*sorted(slow & set(sys.modules)))
"""


def test_starts_without_what_takes_seconds_to_import(trained):
    """Nor does any model's outline, which is made before weights are read, need PyTorch's compiler."""
    done = subprocess.run([sys.executable, "-c", STARTED, trained], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
