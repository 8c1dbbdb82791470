"""One process at a time in a folder, whatever becomes of it."""

import signal
import subprocess
import sys
from pathlib import Path
from threading import Timer

import pytest

from capsella.errors import BusyError, CapsellaError
from capsella.files import alone_in

HOLD = """
import sys, time
from pathlib import Path
from capsella.files import alone_in
with alone_in(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that works in the folder `run`."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_who_waits_comes_next(holder, tmp_path):
    with pytest.raises(BusyError, match=f"process {holder.pid}"), alone_in(tmp_path / "run"):
        pass
    Timer(0.2, holder.kill).start()
    with alone_in(tmp_path / "run", wait=True):
        assert holder.wait() == -signal.SIGKILL


def test_what_a_killed_process_left_is_taken_over(holder, tmp_path):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "run" / ".lock").exists()
    with alone_in(tmp_path / "run"):
        pass
    assert list((tmp_path / "run").iterdir()) == []


def test_nothing_is_left_where_nothing_came_of_it(tmp_path):
    (tmp_path / "of the user").mkdir()
    for name in ("runs/run", "of the user"):
        with pytest.raises(RuntimeError), alone_in(tmp_path / name):
            raise RuntimeError
    assert list(tmp_path.iterdir()) == [tmp_path / "of the user"]


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: None)
    with pytest.raises(CapsellaError, match="cannot be written"), alone_in(tmp_path / "run"):
        pass
