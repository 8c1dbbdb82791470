"""Our own tables: few images, viewpoint curves, and sweeps."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from capsella.data import ImageSet, PairSet, load_data
from capsella.data.sources import toys
from capsella.experiments import unpack_correct
from capsella.papers import few_images, overlapping_digits, viewpoint_curves
from capsella.papers.budget import Budget, Budgets
from capsella.papers.few_images import FewImages, pretrained_table
from capsella.papers.overlapping_digits import overlaps
from capsella.papers.sabour2017 import tables as sabour2017
from capsella.papers.table_types import ErrorRow, Sweep
from capsella.papers.viewpoint_curves import ViewpointCurves, adjusted_means
from capsella.training import RunFolder
from tests.papers.tiny import CNN, QUIET


def test_few_images_are_paired_and_their_rates_see_no_test_image(tmp_path, monkeypatch):
    every = few_images._recipes()
    two = {name: every[name] for name in (few_images.CAPSULES, "average pooling")}
    monkeypatch.setattr(few_images, "_recipes", lambda pretrained: two)
    monkeypatch.setattr(few_images, "SMALL_EPOCHS", 1)
    monkeypatch.setattr(few_images, "FACTORS", (1.0, 3.0))
    monkeypatch.setattr(few_images, "CHOICE_IMAGES", 2)
    reads, load_source = [], few_images.load_source
    monkeypatch.setattr(few_images, "load_source", lambda data: reads.append(data) or load_source(data))
    monkeypatch.setattr("capsella.data.load.load_source", None)  # by nobody else
    values = FewImages(budget="small").on("digits").run(tmp_path, (0, 1), "c", QUIET)
    assert len(reads) == 1
    assert [row["label"] for row in values["rows"]] == [[5, "Efficient-CapsNet"], [5, "average pooling"]]
    capsules, pooling = values["rows"]
    assert [run["seed"] for run in capsules["runs"]] == [0, 1]
    for a, b in zip(capsules["runs"], pooling["runs"], strict=True):
        assert a["recipe"]["data"] == b["recipe"]["data"]
        assert a["recipe"]["data"]["split_seed"] == a["seed"]
    assert capsules["gain"] is None
    difference = np.mean(pooling["error_percent"]) - np.mean(capsules["error_percent"])
    assert 100 * pooling["gain"]["estimate"] == pytest.approx(difference)
    tried = list(tmp_path.glob("choice-*"))
    assert len(tried) == 2 * len(few_images.FACTORS)
    assert not any(RunFolder(path).is_tested for path in tried)


def test_imagenet_weights_see_larger_images_and_a_logistic_regression_is_fitted_once(tmp_path, monkeypatch):
    every, names = few_images._recipes(pretrained=True), (few_images.CAPSULES, few_images.FROZEN)
    rows = pretrained_table("medium").rows_of(20, 5, 0)
    assert [row.recipe.data.size for row in rows.values()] == [64, 128, 128]
    assert [row.recipe.epochs for row in rows.values()] == [100, 1, 57]
    assert [row.recipe.augment.shift for row in rows.values()] == [4, 0, 8]
    assert [*pretrained_table("medium").rows_of(300, 5, 0)] == [*rows]
    monkeypatch.setattr(few_images, "_recipes", lambda pretrained: {name: every[name] for name in names})
    monkeypatch.setattr(few_images, "SMALL_EPOCHS", 1)
    monkeypatch.setattr(few_images, "FACTORS", (1.0,))
    monkeypatch.setattr(few_images, "CHOICE_IMAGES", 2)
    monkeypatch.setattr(few_images, "CHOICE_VALIDATION", 2)
    values = pretrained_table("small").on("digits").run(tmp_path, (0,), "c", QUIET)
    assert [row["label"][1] for row in values["rows"]] == list(names)
    assert values["rows"][1]["error_percent"][0] < 60  # 90 by chance


def test_viewpoint_curves_of_the_same_objects(tmp_path, monkeypatch):
    render = toys.render_toys
    monkeypatch.setattr(toys, "render_toys", lambda instances, *views: render(instances[:2], *views, size=32))
    tiny = Budget(epochs=2, epoch_images=32, batch_size=16, validation_per_class=1, test_per_class=8, ema=0.9)
    monkeypatch.setattr(viewpoint_curves, "SMALL", tiny)
    monkeypatch.setattr(viewpoint_curves, "SOURCES", {"toys-5": ("azimuth",)})
    recipes = ViewpointCurves.recipes
    monkeypatch.setattr(ViewpointCurves, "recipes", lambda table, by: dict([*recipes(table, by).items()][1:3]))
    monkeypatch.setattr(viewpoint_curves, "EM", "EM, uniform couplings")
    values = ViewpointCurves(budget="small").run(tmp_path, (0, 1), "c", QUIET)
    assert json.loads(ViewpointCurves(budget="small").path(tmp_path).read_text()) == json.loads(json.dumps(values))
    for row in values["rows"]:
        assert np.shape(row["curves"]) == (2, 2, 2)  # seeds, epochs, familiar and novel
        ends = np.array(row["curves"])[:, -1]
        assert ends.T.tolist() == [row["familiar_error_percent"], row["novel_error_percent"]]
    assert values["rows"][0]["gain"] is None
    assert values["rows"][1]["gain_at_equal_familiar_error"]["estimate"] is not None


def test_equal_familiar_error():
    first = [np.array([[5.0, 10.0], [10.0, 20.0]]), np.array([[6.0, 12.0], [8.0, 16.0]])]
    second = [run + np.array([4.0, 8.0]) for run in first]  # on the same line: slower, and no better or worse
    means = adjusted_means([first, second])
    assert np.concatenate(means) == pytest.approx(np.full(4, means[0][0]))
    above = [run + np.array([0.0, 3.0]) for run in second]
    means = adjusted_means([first, above])
    assert means[1] - means[0] == pytest.approx([3.0, 3.0])


def test_gains_by_overlap(tmp_path, monkeypatch):
    tiny = Budget(epochs=1, epoch_images=64, batch_size=16, validation_pairs=20, test_pairs=200, ema=0.9)
    monkeypatch.setattr(overlapping_digits, "BUDGETS", Budgets(tiny, tiny))
    table = overlapping_digits.overlapping_digits("small").on("digits")
    rows = [
        replace(row, recipe=replace(row.recipe.with_model(reconstruction=False), data=row.recipe.data.replace(size=20)))
        for row in table.rows[1:]
    ]
    values = replace(table, rows=tuple(rows)).run(tmp_path, (0, 1), "c", QUIET)
    routed, uniform = values["rows"]
    heads = ("self-attention", "uniform couplings")
    assert [row["label"] for row in values["rows"]] == [["pairs of digits", name] for name in heads]
    correct = [np.array([unpack_correct(run["test"]) for run in row["runs"]]) for row in values["rows"]]
    apart = correct[0].mean(0) - correct[1].mean(0)
    overlap = overlaps(load_data(rows[0].recipe.data).test)
    slope = np.cov(apart, overlap, ddof=0)[0, 1] / overlap.std()
    assert routed["rise_of_gain"]["estimate"] == pytest.approx(slope)
    assert routed["gain"]["estimate"] == pytest.approx(apart.mean())
    assert routed["overlap"] == sorted(routed["overlap"])
    assert np.mean(routed["error_percent_by_overlap"]) == pytest.approx(np.mean(routed["error_percent"]))
    assert uniform["gain"] is None
    assert not any(RunFolder(path).is_tested for path in tmp_path.glob("choice-*"))


def test_overlap_is_the_shared_part_of_the_lighter_digit():
    images = torch.zeros(3, 1, 2, 2, dtype=torch.uint8)
    images[0, 0, 0] = 200  # the upper row
    images[1, 0, :, 0] = 100  # the left column, half as bright
    images[2, 0, 1, 1] = 50
    pairs = PairSet(ImageSet(images, torch.arange(3), ("a", "b", "c")), 50, shift=0)
    shared = {frozenset((0, 1)): 0.5, frozenset((0, 2)): 0.0, frozenset((1, 2)): 0.0}
    assert overlaps(pairs).tolist() == [shared[frozenset(labels)] for labels in pairs.labels.tolist()]


def test_sweeps_differ_in_what_is_swept_and_test_nothing(tmp_path):
    sweep = sabour2017.rates("medium")
    assert len({row.slug for row in sweep.rows}) == 10
    warmups = {row.label[0]: row.recipe.optimizer.warmup_steps for row in sweep.rows}
    assert warmups["plain"] == 500
    weights = {row.recipe.loss.reconstruction_weight for row in sabour2017.decoder_weights("medium").rows}
    assert weights == {0.0005, 0.002, 0.01}
    swept = Sweep(
        title="t", columns=("network",), rows=(ErrorRow(slug="a", recipe_name="demo", recipe=CNN, label=("a",)),)
    )
    values = swept.run(tmp_path, (0, 1), "c", QUIET)
    assert [len(row["validation_error_percent"]) for row in values["rows"]] == [2]
    assert not [*tmp_path.glob("*/result.json")]
