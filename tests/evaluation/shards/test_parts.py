"""The parts of a long prediction, and what is done with them, without a cluster: a worker in this process."""

import os
import zipfile
from dataclasses import asdict
from urllib.parse import urlsplit

import fsspec
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from fsspec.implementations.local import LocalFileSystem
from PIL import Image

from capsella import ray_cluster
from capsella.errors import CapsellaError
from capsella.evaluation import Certainty
from capsella.evaluation.shards import job, urls
from capsella.evaluation.shards.parts import write_names
from capsella.evaluation.shards.worker import Work, Worker
from capsella.models import create_model
from capsella.ray_cluster import Desk, Place


class Hosted(LocalFileSystem):
    """This machine's files as those of a host, as ftp://HOST/FOLDER."""

    protocol = "hosted"

    @classmethod
    def _strip_protocol(cls, path):
        return urlsplit(path).path.rstrip("/") if "://" in path else path

    def ls(self, path, **options):
        if path.endswith("closed"):
            raise PermissionError(f"no access to {path}")
        return super().ls(path, **options)


fsspec.register_implementation("hosted", Hosted, clobber=True)


def network():
    torch.manual_seed(0)
    return create_model("hinton2018_cnn", classes=3, channels=1, image_size=17).eval()


def cannot_load():
    raise RuntimeError("no memory")


@pytest.fixture
def images(tmp_path):
    """Six images in two folders."""
    for number in range(6):
        path = tmp_path / "images" / f"{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((17, 17), 40 * number, np.uint8)).save(path)
    return tmp_path / "images"


@pytest.fixture
def predict(tmp_path, monkeypatch):
    """The prediction of a folder, in parts of two; gives the shards that it wrote now."""

    def rows(work, parts, place):
        worker = Worker(work)
        for part in parts:
            written.append(part.shard)
            yield {name: value for name, (value,) in worker({k: [v] for k, v in asdict(part).items()}).items()}

    def call(path, out=tmp_path / "out", **options):
        written.clear()
        job.predict_shards(network, [str(path)], str(out), size=2, **options)
        return list(written)

    written = []
    monkeypatch.setattr(job, "_rows", rows)
    monkeypatch.setattr(ray_cluster, "place", lambda: Place(on="ray", cpus=torch.get_num_threads()))
    monkeypatch.setattr(ray_cluster, "shortage", lambda takes: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES", ""))  # which a worker sets
    return call


def interrupted(out):
    """As a call that is cut off before its end leaves it."""
    about = out / "_about.json"
    about.write_text(about.read_text().replace('"counts"', '"begun"'))


def test_whatever_goes_wrong_in_a_worker_is_one_line_that_names_the_part(tmp_path):
    desk = Desk(os.getcwd(), {}, torch.get_num_threads())
    worker = Worker(Work(desk, cannot_load, str(tmp_path), 1, 1, Certainty(None)))
    answer = worker({"number": [3], "table": ["images.parquet"], "group": [0], "rows": [1]})
    assert answer["error"] == ["part-000003.parquet: RuntimeError: no memory"]


def test_folders_elsewhere_are_walked_and_names_keep_what_the_url_says(images, tmp_path):
    (images / "0" / ".hidden.png").touch()
    (images / "0" / "notes.md").touch()
    there = [f"hosted://example.org{path}" for path in sorted(images.glob("*/[0-9].png"))]
    assert list(urls.walk(f"hosted://example.org{images}")) == there
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for path in sorted(images.glob("*/[0-9].png")):
            archive.write(path, f"in/{path.parent.name}/{path.name}")
    packed = list(urls.walk(f"zip://in::file://{tmp_path}/all.zip"))
    assert packed[0] == f"zip://in/0/0.png::file://{tmp_path}/all.zip"
    assert len(packed) == 6


def test_a_folder_elsewhere_that_cannot_be_listed_is_an_error(images, monkeypatch):
    """Its images would be missing, and nobody would know."""
    monkeypatch.setattr(urls.time, "sleep", lambda seconds: None)
    (images / "1").rename(images / "closed")
    with pytest.raises(CapsellaError, match=r"^hosted://example.org/.*images/closed: cannot be listed: no access"):
        list(urls.walk(f"hosted://example.org{images}"))


def test_a_single_image_elsewhere_and_a_list_that_has_a_name_twice(images, tmp_path):
    out, image = tmp_path / "names.parquet", f"hosted://example.org{images}/0/2.png"
    assert write_names([image], out, 9) == 1
    assert pyarrow.parquet.read_table(out)["path"].to_pylist() == [image]
    (tmp_path / "list.txt").write_text(f"{image}\n{image}\n")
    assert write_names([f"file://{tmp_path}/list.txt"], out, 9) == 1


def test_a_part_that_was_cut_off_as_it_was_written_is_predicted_again(images, predict, tmp_path):
    assert len(predict(images)) == 3
    interrupted(tmp_path / "out")
    cut = tmp_path / "out" / "part-000001.parquet"
    whole = cut.read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    assert predict(images, resume=True) == [cut.name]
    assert pyarrow.parquet.read_table(cut).num_rows == 2


def test_a_table_that_was_written_anew_is_not_gone_on_with(images, predict, tmp_path):
    table = tmp_path / "images.parquet"
    for names in (sorted(images.glob("*/*.png")), sorted(images.glob("*/*.png"), reverse=True)):
        pyarrow.parquet.write_table(pyarrow.table({"path": list(map(str, names))}), table, row_group_size=2)
        if not (tmp_path / "out").exists():
            assert len(predict(table)) == 3
            interrupted(tmp_path / "out")
            assert predict(table, resume=True) == []
            interrupted(tmp_path / "out")
    with pytest.raises(CapsellaError, match="begun with another content of tables"):
        predict(table, resume=True)


def test_overwriting_that_is_cut_off_is_not_taken_for_a_finished_prediction(images, predict, tmp_path, monkeypatch):
    predict(images)
    remains = tmp_path / "out" / ".part-000000.parquet.17.part"
    remains.touch()

    def remove(place):
        removed.append(place)
        urls.remove(place)

    removed = []
    monkeypatch.setattr(job, "remove", remove)
    assert len(predict(images, overwrite=True)) == 3
    assert removed[0].endswith("_about.json")
    assert not remains.exists()


def test_overwriting_removes_nothing_but_an_earlier_prediction_and_no_input(images, predict, tmp_path):
    """Other programs name their parts alike: part-00000-….parquet."""
    out = tmp_path / "out"
    out.mkdir()
    others = out / "part-00000-ab.snappy.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"path": list(map(str, images.glob("*/*.png")))}), others)
    assert predict(others, overwrite=True) == ["part-000000.parquet"]
    assert others.exists()
    written = (out / "part-000000.parquet").read_bytes()
    with pytest.raises(
        CapsellaError, match=r"part-000000.parquet is to be read, and would be replaced: choose another"
    ):
        predict(out / "part-000000.parquet", overwrite=True)
    assert (out / "part-000000.parquet").read_bytes() == written
