"""Predictions on a Ray cluster of two nodes: one row per file, whatever dies."""

import os
import signal
from functools import partial

import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image

from capsella import ray_cluster
from capsella.errors import ArgumentError, CapsellaError
from capsella.evaluation import PredictOptions, predict_files, predict_on_cluster
from capsella.models import create_model
from tests.ray_cluster import from_outside, two_nodes

pytestmark = pytest.mark.slow
RAY = ray_cluster.ClusterOptions(on="ray")
IMAGES, SEVEN = 60, PredictOptions(batch_size=7)


def network(seed=0):
    import torch

    torch.manual_seed(seed)
    return create_model("hinton2018_cnn", classes=3, channels=1, image_size=17).eval()


def other_network():
    return network(seed=1)


def dying_network(marker):
    """A network whose first worker dies in the middle of its second batch."""
    calls = []

    def die(*_):
        calls.append(None)
        if len(calls) == 2 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    model = network()
    model.register_forward_pre_hook(die)
    return model


@pytest.fixture(scope="module")
def nodes():
    with two_nodes() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """60 images in two folders, one of which cannot be read."""
    folder, random = tmp_path_factory.mktemp("cluster") / "images", np.random.default_rng(0)
    for number in range(IMAGES):
        path = folder / f"{number % 2}" / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (17, 17), dtype=np.uint8)).save(path)
    path.write_bytes(b"no image")
    return folder


def read(out):
    rows = pyarrow.parquet.read_table(out).to_pylist()
    by_file = {row["file"]: row for row in rows}
    assert len(by_file) == len(rows)
    return by_file


@pytest.mark.usefixtures("nodes")
def test_a_worker_is_killed_and_every_file_has_one_row_also_after_resuming(images, tmp_path):
    marker, out = tmp_path / "killed", str(tmp_path / "out")
    with ray_cluster.ray_session(RAY):
        half = predict_on_cluster(partial(dying_network, marker), [str(images / "0")], out, SEVEN)
        assert marker.exists()
        with pytest.raises(CapsellaError, match="--resume"):
            predict_on_cluster(network, [str(images)], out, SEVEN)
        with pytest.raises(ArgumentError):
            predict_on_cluster(other_network, [str(images)], out, SEVEN, resume=True)
        both = predict_on_cluster(network, [str(images)], out, SEVEN, resume=True)
    assert (half.rows, half.unreadable, both.rows, both.unreadable) == (30, 0, IMAGES, 1)
    rows = read(out)
    assert set(rows) == {str(path) for path in images.glob("*/*.png")}
    for prediction in predict_files(network(), [images / "0"]):
        row = rows[str(prediction.file)]
        assert row["class"] == prediction.class_name
        assert [row[name] for name in network().classes] == pytest.approx(prediction.activations.tolist(), abs=1e-5)


def test_a_process_outside_the_cluster_gets_the_same(nodes, images, tmp_path):
    cluster, _ = nodes
    with from_outside(cluster) as address, ray_cluster.ray_session(ray_cluster.ClusterOptions(on=address)):
        summary = predict_on_cluster(network, [str(images)], str(tmp_path / "out"))
    assert (summary.rows, summary.unreadable, len(read(tmp_path / "out"))) == (IMAGES, 1, IMAGES)
