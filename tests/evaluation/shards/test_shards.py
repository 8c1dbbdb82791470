"""Predictions on a Ray cluster of two nodes: one row a file, whatever dies."""

import threading
import time

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from capsella import ray_cluster
from capsella.errors import CapsellaError
from capsella.evaluation import predict_files
from capsella.evaluation.shards.job import predict_shards
from capsella.models import create_model
from tests.ray_cluster import from_outside, two_nodes

RAY = ray_cluster.Place(on="ray")
IMAGES = 60


def network(seed=0):
    import torch

    torch.manual_seed(seed)
    return create_model("hinton2018_cnn", classes=3, channels=1, image_size=17).eval()


def slow_network():
    """So slow to load that a worker dies before it has done all."""
    time.sleep(0.2)
    return network()


@pytest.fixture(scope="module")
def nodes():
    with two_nodes() as found:
        yield found


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """60 images in two folders, one of which cannot be read."""
    folder, random = tmp_path_factory.mktemp("shards"), np.random.default_rng(0)
    for number in range(IMAGES):
        path = folder / "images" / f"{number % 2}" / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (17, 17), dtype=np.uint8)).save(path)
    path.write_bytes(b"no image")
    return folder


def table(out):
    """All rows by name."""
    rows = [row for file in sorted(out.glob("part-*.parquet")) for row in pyarrow.parquet.read_table(file).to_pylist()]
    found = {row["file"]: row for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.usefixtures("nodes")
def test_folders_lists_urls_and_tables_with_bytes(pictures, tmp_path):
    first, second = pictures / "images" / "0", pictures / "images" / "1"
    (tmp_path / "list.txt").write_text("".join(f"{file}\n" for file in sorted(first.iterdir())))
    files = sorted(second.iterdir())
    columns = {"path": [f"b{file.name}" for file in files], "bytes": [file.read_bytes() for file in files]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "bytes.parquet", row_group_size=20)
    inputs = [str(first), str(tmp_path / "list.txt"), f"file://{second}", str(tmp_path / "bytes.parquet")]
    with ray_cluster.joined(RAY):
        found = predict_shards(network, inputs, str(tmp_path / "out"), size=25)
        rows = table(tmp_path / "out")
        assert found._asdict() == {"rows": 90, "broken": 2, "unsure": 0, "unknown": 0, "shards": 5}
        with pytest.raises(CapsellaError, match="out is finished already: --overwrite predicts anew"):
            predict_shards(network, inputs, str(tmp_path / "out"), size=25, resume=True)
    shards = [f"part-{k:06}.parquet" for k in range(5)]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["_about.json", *shards]
    for prediction in predict_files(network(), [first]):
        row = rows[str(prediction.file)]
        assert row["class"] == prediction.class_name
        assert [row[name] for name in network().classes] == pytest.approx(prediction.activations.tolist(), abs=1e-5)
    for file in files:
        there, bytes_of = rows[f"file://{file}"], rows[f"b{file.name}"]
        assert {**there, "file": "", "broken": bool(there["broken"])} == {
            **bytes_of,
            "file": "",
            "broken": file == files[-1],
        }
    broken = rows[f"b{files[-1].name}"]
    assert broken["broken"] == f"cannot be read as an image (cannot identify image file '{broken['file']}')"
    assert broken["class"] is None


def test_a_process_outside_the_cluster_gets_the_same(nodes, pictures, tmp_path):
    """Ray Data itself knows only processes of the cluster."""
    made, _ = nodes
    with from_outside(made) as address, ray_cluster.joined(ray_cluster.Place(on=address)):
        found = predict_shards(network, [str(pictures / "images")], str(tmp_path / "out"), size=25)
    assert (found.rows, found.broken, found.shards) == (IMAGES, 1, 3)
    rows = table(tmp_path / "out")
    for prediction in predict_files(network(), [pictures / "images" / "0"]):
        assert rows[str(prediction.file)]["class"] == prediction.class_name


def test_a_node_dies_half_way_and_every_file_has_one_row(nodes, pictures, tmp_path):
    made, both = nodes
    killed = threading.Event()

    def kill():
        while not list(tmp_path.glob("out/part-*")):
            time.sleep(0.02)
        made.remove_node(both[0], allow_graceful=False)
        killed.set()

    threading.Thread(target=kill, daemon=True).start()
    with ray_cluster.joined(RAY):
        found = predict_shards(slow_network, [str(pictures / "images")], str(tmp_path / "out"), size=1)
    assert killed.is_set()
    assert (found.rows, found.broken, found.shards) == (IMAGES, 1, IMAGES)
    names = {str(path) for path in (pictures / "images").glob("*/*.png")}
    assert set(table(tmp_path / "out")) == names
