"""Small networks beside images from elsewhere: what is counted, drawn and written."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from capsella.errors import CapsellaError
from capsella.evaluation import auc_interval, elsewhere, knowledge_table, measure_knowledge
from capsella.evaluation.novelty.elsewhere import Elsewhere, halved
from capsella.report import novelty_figure
from capsella.training import familiarise_model


@pytest.fixture(scope="module")
def fitted(trained, digits):
    models = {name: trained[name] for name in ("cnn", "dynamic")}
    for model in models.values():
        familiarise_model(model, digits.train, digits.validation)
    yield models
    for model in models.values():
        model.novelty = None


def test_halves_and_noise_are_told_from_digits(fitted, digits):
    for model in fitted.values():
        others = [elsewhere(name, model, digits.test) for name in ("noise", "half")]
        result = measure_knowledge(model, digits.test, others)
        noise, half = result.sets
        assert (noise.images, half.images, result.images) == (30, 30, 30)
        assert noise.refused == 30
        assert noise.told[0].auc == 1
        assert half.told[0].score == "known"
        assert half.told[0].auc > 0.8
        assert noise.labelled is noise.right is None
        assert result.refused <= 6
        names = [told.score for told in noise.told]
        assert names[:3] == ["known", "appearance", "features"]
        assert names[-2:] == ["confidence", "energy"]


def test_images_of_the_same_kind_are_not(fitted, digits):
    model = fitted["cnn"]
    names = tuple(digits.test.classes[k] for k in digits.test.labels)
    (same,) = measure_knowledge(model, digits.test, [Elsewhere("same", digits.test.images, names)]).sets
    assert all(told.auc == pytest.approx(0.5) for told in same.told)
    assert same.labelled == 30 - same.refused
    assert same.right <= same.labelled
    model.classes, written = tuple(f"Klasse ä{name}" for name in model.classes), model.classes
    try:  # as another laboratory may write it
        others = tuple(f"KLASSE a\u0308{name}" for name in names)
        (again,) = measure_knowledge(model, digits.test, [Elsewhere("same", digits.test.images, others)]).sets
    finally:
        model.classes = written
    assert (again.labelled, again.right) == (same.labelled, same.right)


def test_copies_of_an_image_prove_no_more_than_the_image(fitted, digits):
    model, few = fitted["cnn"], digits.test
    which = torch.arange(len(few)).repeat(10)
    copied = replace(few, images=few.images[which], labels=few.labels[which], files=None, metadata={"group": which})
    others = [elsewhere("half", model, few)]
    alone, grouped = (measure_knowledge(model, home, others, refuse=0.2) for home in (few, copied))
    ungrouped = measure_knowledge(model, replace(copied, metadata={}), others, refuse=0.2)
    assert 0 < alone.refused < 30
    assert grouped.refused == ungrouped.refused == 10 * alone.refused
    assert width(grouped.refused_interval_95) == pytest.approx(width(alone.refused_interval_95), rel=0.1)
    assert width(ungrouped.refused_interval_95) < 0.5 * width(alone.refused_interval_95)
    told = zip(alone.sets[0].told, grouped.sets[0].told, ungrouped.sets[0].told, strict=True)
    for one, other, narrow in told:
        assert other.auc == pytest.approx(one.auc)
        if 0.05 < one.auc < 0.95:
            assert width(other.interval) == pytest.approx(width(one.interval), rel=0.15)
            assert width(narrow.interval) < 0.95 * width(one.interval)


def width(interval):
    return interval[1] - interval[0]


def test_table_figure_and_json(fitted, digits):
    model = fitted["dynamic"]
    result = measure_knowledge(model, digits.test, [elsewhere("noise", model, digits.test)], refuse=0.001)
    assert result.refused == result.sets[0].refused == 0
    console = Console(width=80, file=io.StringIO())
    console.print(knowledge_table(result))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert "validation images are too few to refuse 0.1 %: that needs 2302. So no image is refused" in " ".join(
        text.split()
    )
    assert "poses" in text
    values = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert values["elsewhere"][0]["auc"]["known"]["auc"] == 1
    assert novelty_figure(result).axes[0].get_title() == "noise"


def test_a_model_that_was_not_fitted(trained, digits):
    with pytest.raises(ValueError, match="model: must have novelty"):
        measure_knowledge(trained["em"], digits.test, [])


def test_halves_take_the_colour_of_the_border():
    images = torch.zeros(1, 3, 5, 6, dtype=torch.uint8)
    images[:, 1] = 7
    images[:, :, 2, 2:4] = 200
    left, right = halved(images)[0].split(3, 2)
    assert (right[0] == 0).all()
    assert (right[1] == 7).all()
    torch.testing.assert_close(left, images[0, ..., :3])


def test_sources_and_folders_come_at_the_size_of_the_network(trained, digits, tmp_path):
    model = trained["cnn"]
    for number in range(3):
        Image.fromarray(np.full((9, 30, 3), 80 * number, np.uint8)).save(tmp_path / f"{number}.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    own = elsewhere(str(tmp_path), model, digits.test)
    assert own.images.shape == (3, 1, 12, 12)
    assert own.classes is None
    source = elsewhere("digits", model, digits.test)
    assert source.images.shape == (1000, 1, 12, 12)
    assert len(source.classes) == 1000


@pytest.mark.parametrize(("name", "text"), [("nowhere", "a source or a folder"), ("multimnist", "no source by itself")])
def test_names_that_cannot_be(trained, digits, name, text):
    with pytest.raises(CapsellaError, match=f"elsewhere: .*{text}"):
        elsewhere(name, trained["cnn"], digits.test)


def test_intervals_of_areas_hold_the_true_one():
    """Normal scores one deviation apart: the true area is 0.760; 95 % of the intervals hold it."""
    random, held = np.random.default_rng(0), 0
    for _ in range(300):
        home, away = random.normal(size=40), random.normal(1, size=60)
        auc = float((away[:, None] > home).mean())
        low, high = auc_interval(auc, 40, 60)
        assert low < auc < high
        held += low <= 0.7602 <= high
    assert 0.92 <= held / 300 <= 0.99
    low, high = auc_interval(1.0, 20, 20)
    assert (0.8 < low < 0.95, high) == (True, 1)
    assert auc_interval(0.0, 20, 20) == pytest.approx((0, 1 - low))
    with pytest.raises(ValueError, match="auc, images: must be in"):
        auc_interval(1.1, 2, 2)
