"""`fit` from a folder of images to result.json and report.html; and tables of correct images."""

import base64
import dataclasses
import json
from collections import Counter

import numpy as np
import pytest
from PIL import ImageFile
from rich.console import Console

from capsella import fit
from capsella.data import FolderData, load
from capsella.errors import CapsellaError
from capsella.evaluation import difference_interval
from capsella.experiments import CorrectnessTable
from capsella.experiments.fit import pack_groups
from capsella.training import ComputeOptions, load_run
from capsella.training import loop as training_loop
from tests.papers.tiny import CNN

TOYS = np.arange(40) // 10
RIGHT = np.random.default_rng(0).random((2, 40)) < 0.8


def results(*groups):
    values = [{"images": 40, "correct": base64.b64encode(np.packbits(right).tobytes()).decode()} for right in RIGHT]
    return [
        value if group is None else value | {"groups": pack_groups(group)}
        for value, group in zip(values, groups, strict=True)
    ]


def test_correct_images_and_groups_of_several_seeds():
    hits = CorrectnessTable.from_tests(results(TOYS, TOYS))
    assert np.array_equal(hits.correct, RIGHT)
    assert np.array_equal(hits.groups, TOYS)
    assert CorrectnessTable.from_tests(results(None, None)).groups is None
    other = CorrectnessTable(RIGHT[:, ::-1], TOYS)
    assert hits.difference_from(other) == difference_interval(RIGHT, RIGHT[:, ::-1], TOYS)


@pytest.mark.usefixtures("without_pictures")
def test_fit_lists_once_decodes_each_image_once_and_writes_result_and_report(image_folder, tmp_path, monkeypatch):
    decoded, loaded, listed = Counter(), [], []
    decode, load_data = ImageFile.ImageFile.load, training_loop.load_data

    def count(image):
        if image.tile:
            decoded[image.fp.name] += 1
        return decode(image)

    monkeypatch.setattr(ImageFile.ImageFile, "load", count)
    list_folder = load.list_folder
    monkeypatch.setattr(load, "list_folder", lambda root: listed.append(root) or list_folder(root))
    monkeypatch.setattr(training_loop, "load_data", lambda data: loaded.append(data) or load_data(data))
    recipe = dataclasses.replace(CNN, data=FolderData(path=image_folder, size=17), epochs=1, batch_size=8)
    compute, console = ComputeOptions(accelerator="cpu"), Console(quiet=True)
    run = fit(recipe, tmp_path / "run", name="cells", compute=compute, console=console)
    assert len(loaded) == len(listed) == 1
    assert set(decoded.values()) == {1}
    assert len(decoded) == len(list(image_folder.rglob("*.png"))) == sum(map(len, run.splits.named().values()))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["test"]["errors"] == run.evaluation.errors
    assert result["training"]["epochs"] == 1
    assert "</html>" in run.report.read_text()
    assert run.model.calibration is not None
    assert load_run(run.folder).splits is None
    with pytest.raises(CapsellaError, match="run"):
        fit(recipe, run.folder, compute=compute, console=console)
