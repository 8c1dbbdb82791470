"""Runs on a Ray cluster of two nodes: the same numbers as here, also when a node dies half way."""

import io
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from rich.console import Console

import capsella.papers  # noqa: F401  registers the demo's recipe
from capsella import ray_cluster
from capsella.errors import CapsellaError
from capsella.experiments import Row, Runner, Task, run_tasks
from tests.papers.tiny import CNN, QUIET
from tests.ray_cluster import two_nodes


@pytest.fixture(scope="module")
def nodes():
    with two_nodes() as found:
        yield found


def row(epochs):
    return Row(slug="cnn", recipe_name="demo", recipe=replace(CNN, epochs=epochs))


class Probe(Task):
    """A task that does something else in its worker; its name says what."""

    def run(self, console):
        if self.recipe_name == "refused":
            raise CapsellaError(f"{self.folder}: no {self.label}")
        if self.recipe_name == "fails":
            raise RuntimeError(f"no {self.label}")
        console.print(f"GPUs {os.environ.get('CUDA_VISIBLE_DEVICES')!r}")


def probe(name):
    return Probe(recipe=CNN, folder=Path("runs"), label="probe", recipe_name=name)


def numbers(results):
    """The results of the runs, without times."""
    return [(run["command"], run["test"], run["training"]["best"]["validation_loss"]) for run in results["cnn"]]


@pytest.mark.slow
@pytest.mark.usefixtures("nodes")
def test_errors_and_output_of_a_worker_come_back_and_a_run_without_gpus_sees_none():
    text = io.StringIO()
    with ray_cluster.ray_session(ray_cluster.ClusterOptions(on="ray", gpus=0)):
        for name, error in (("refused", "no probe"), ("fails", "RuntimeError: no probe")):
            with pytest.raises(CapsellaError, match=error):
                list(run_tasks([probe(name)], QUIET))
        assert len(list(run_tasks([probe("gpus")], Console(file=text, width=200)))) == 1
    assert "GPUs ''" in text.getvalue()


@pytest.mark.slow
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
        (node,) = (node for node in both if node.all_processes["raylet"][0].process.pid == raylet)
        made.remove_node(node, allow_graceful=False)
        killed.set()

    threading.Thread(target=kill, daemon=True).start()
    rows = [row(40)]
    with ray_cluster.ray_session(ray_cluster.ClusterOptions(on="ray")):
        found = Runner(Path("there"), Console(file=text, width=200)).results(rows, [0])
    assert killed.is_set()
    assert "epoch 1/40" not in text.getvalue()
    assert text.getvalue().count("epoch 40/40") == 1
    assert not list(tmp_path.glob("there/*/last.ckpt"))
    assert ray_cluster.current_cluster() is None
    assert numbers(found) == numbers(Runner(tmp_path / "here", QUIET).results(rows, [0]))
    assert found["cnn"][0]["command"].startswith("capsella train demo ")


def test_a_worker_without_the_folder_a_module_or_the_version_is_refused(tmp_path):
    with pytest.raises(CapsellaError, match="gone"):
        ray_cluster.WorkerEnvironment(str(tmp_path / "gone"), {}, 1).apply()
    with pytest.raises(CapsellaError, match="no_such_module"):
        ray_cluster.WorkerEnvironment(str(tmp_path), {}, 1, ("no_such_module",)).apply()
    with pytest.raises(CapsellaError, match="must have 0"):
        ray_cluster.WorkerEnvironment(str(tmp_path), {}, 1, version="0").apply()
