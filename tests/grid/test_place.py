"""Runs on a Ray cluster of two nodes: the same numbers as here, also when a node dies half way."""

import io
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from rich.console import Console

import capsella.papers  # noqa: F401  registers the demo's recipe
from capsella import cluster
from capsella.errors import CapsellaError
from capsella.grid import Clock, Grid, Row, each
from capsella.training import Machine
from tests.cluster import from_outside, two_nodes
from tests.papers.tiny import CNN, QUIET


@pytest.fixture(scope="module")
def nodes():
    with two_nodes() as found:
        yield found


def row(epochs):
    return Row(slug="cnn", recipe_name="demo", recipe=replace(CNN, epochs=epochs))


def refused(recipe, folder, name, console, machine):
    raise CapsellaError(f"{folder}: no {name}")


def numbers(results):
    """What the runs found, without times."""
    return [(one["command"], one["test"], one["training"]["best"]["validation_loss"]) for one in results["cnn"]]


@pytest.mark.usefixtures("nodes")
def test_an_error_there_is_an_error_here():
    task = row(1).task(refused, Path("runs"), 3, Machine())
    with cluster.joined(cluster.Place(on="ray")), pytest.raises(CapsellaError, match=r"^runs/cnn-seed3: no demo$"):
        list(each([task], QUIET, Clock()))


def test_a_process_outside_the_cluster_gets_the_same_numbers(nodes, tmp_path):
    made, _ = nodes
    rows = [row(1)]
    with from_outside(made) as address, cluster.joined(cluster.Place(on=address)):
        found = Grid(tmp_path / "there", QUIET).results(rows, [0])
    assert numbers(found) == numbers(Grid(tmp_path / "here", QUIET).results(rows, [0]))


def test_a_node_dies_half_way_and_the_numbers_are_the_same(nodes, tmp_path, monkeypatch):
    """Its run goes on elsewhere from its checkpoint: nobody prints its first epoch."""
    monkeypatch.chdir(tmp_path)  # a folder of runs without a root is the same there
    made, both = nodes
    text, killed = io.StringIO(), threading.Event()

    def kill():
        run = Path(tmp_path, "there", "cnn-seed0")
        metrics = run / "metrics.csv"
        while not metrics.exists() or metrics.read_text().count("\n") < 3:  # so the first epoch is in the checkpoint
            time.sleep(0.02)
        raylet = psutil.Process(int((run / ".lock").read_text().split()[-1])).ppid()
        (node,) = (one for one in both if one.all_processes["raylet"][0].process.pid == raylet)
        made.remove_node(node, allow_graceful=False)
        killed.set()

    threading.Thread(target=kill, daemon=True).start()
    rows = [row(40)]
    with cluster.joined(cluster.Place(on="ray")):
        found = Grid(Path("there"), Console(file=text, width=200)).results(rows, [0])
    assert killed.is_set()
    assert "epoch 1/40" not in text.getvalue()
    assert text.getvalue().count("epoch 40/40") == 1
    assert not list(tmp_path.glob("there/*/last.ckpt"))
    assert cluster.place() is None
    assert numbers(found) == numbers(Grid(tmp_path / "here", QUIET).results(rows, [0]))
    assert found["cnn"][0]["command"].startswith("capsella train demo ")


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"on": "slurm"}, "on: must be `ray`, or an address as ray://HOST:10001, got 'slurm'"),
        ({"cpus": 2}, "cpus, gpus: must come with --on, got 2, None"),
        ({"on": "ray", "cpus": 0}, "cpus: must be at least 1, got 0"),
    ],
)
def test_a_place_that_cannot_be(fields, error):
    with pytest.raises(ValueError, match="^" + error + "$"):
        cluster.Place(**fields)


def test_a_worker_without_the_folder_or_with_another_version_says_so(tmp_path):
    with pytest.raises(CapsellaError, match="all machines must share the working folder"):
        cluster.Desk(str(tmp_path / "gone"), {}, 1).sit_down()
    with pytest.raises(CapsellaError, match=r"all machines must have 0\.0\.0"):
        cluster.Desk(str(tmp_path), {}, 1, version="0.0.0").sit_down()
    with pytest.raises(CapsellaError, match=r"cannot import no_such_module"):
        cluster.Desk(str(tmp_path), {}, 1, ("no_such_module",)).sit_down()
