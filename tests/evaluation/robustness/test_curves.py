import csv
import io
import json

import pytest
import torch
from rich.console import Console
from torch import nn

from capsella.data import ImageSet
from capsella.evaluation import Robustness, evaluate, measure_robustness, perturbed
from capsella.models import ImageClassifier, create_model
from capsella.report.figures import robustness_figure, write_png
from capsella.types import Output

CLASSES = ("left", "right")


class BrightSide(ImageClassifier):
    """Which half is brighter; mistaken where a picture is mirrored. Notes its images."""

    def __init__(self, classes=CLASSES):
        super().__init__((8, 8), 1, classes)
        self.scale = nn.Parameter(torch.ones(1))
        self.seen = []

    def forward(self, images, labels=None):
        self.seen.append(images.clone())
        halves = torch.stack([images[..., :4].mean((1, 2, 3)), images[..., 4:].mean((1, 2, 3))], 1)
        return Output(self.scale * halves)


@pytest.fixture
def images():
    """150 of them, more than are changed at a time: one bright half each."""
    labels = torch.arange(150) % 2
    pixels = torch.full((150, 1, 8, 8), 80, dtype=torch.uint8)
    for image, label in zip(pixels, labels, strict=True):
        image[..., 4 * int(label) : 4 * int(label) + 4] = 170
    return ImageSet(pixels, labels, CLASSES)


def test_every_model_meets_the_same_images_whatever_the_batch_size(images):
    first, second = BrightSide(), BrightSide()
    measure_robustness({"a": first, "b": second}, images, {"noise": [0.1]}, batch_size=50)
    again = BrightSide()
    measure_robustness({"c": again}, images, {"noise": [0.1]}, batch_size=128)
    assert torch.equal(torch.cat(first.seen), torch.cat(second.seen))
    assert torch.equal(torch.cat(first.seen), torch.cat(again.seen))
    assert torch.equal(torch.cat(again.seen)[150:], torch.cat(list(perturbed(images, "noise", 0.1))))
    other = BrightSide()
    measure_robustness({"d": other}, images, {"noise": [0.1]}, seed=1)
    assert not torch.equal(torch.cat(again.seen), torch.cat(other.seen))


def test_accuracies_and_intervals(images):
    """Mirrored with probability 1 each way, every image is on the wrong side; brightness does no harm."""
    result = measure_robustness(
        {"net": BrightSide()}, images, {"flips": (1.0,), "colour": (0.2, 0.1)}, data="halves", seed=3
    )
    assert [(p.perturbation, p.strength) for p in result.points] == [
        *(("flips", 0.0), ("flips", 1.0), ("colour", 0.0), ("colour", 0.1), ("colour", 0.2))
    ]
    assert [p.accuracy for p in result.points] == [100, 0, 100, 100, 100]
    assert result.points[0].correct == 150
    assert result.points[0].interval == pytest.approx((97.5, 100), abs=0.1)  # Wilson
    assert result.points[1].interval == pytest.approx((0, 2.5), abs=0.1)
    assert (result.data, result.seed, result.networks) == ("halves", 3, ["net"])


def test_unchanged_images_have_the_accuracy_of_evaluate(images):
    torch.manual_seed(0)
    models = {
        name: create_model(name, image_size=20, channels=1, classes=CLASSES)
        for name in ("sabour2017_capsnet", "hinton2018_matrix_capsnet_small")
    }
    pixels = torch.randint(256, (40, 1, 20, 20), dtype=torch.uint8)
    digits = ImageSet(pixels, torch.arange(40) % 2, CLASSES)
    result = measure_robustness(models, digits, {"rotation": (90,)})
    for name, model in models.items():
        evaluation = evaluate(model, digits)
        unchanged, turned = result.curve(name, "rotation")
        assert unchanged.accuracy == pytest.approx(100 - evaluation.error)
        low, high = evaluation.error_interval
        assert unchanged.interval == pytest.approx((100 - high, 100 - low))
        assert turned.images == 40


def test_the_default_is_the_thesis_four(images):
    result = measure_robustness({"net": BrightSide()}, images)
    assert result.perturbations == ["rotation", "translation", "colour", "noise"]
    assert len(result.curve("net", "noise")) == 5


def test_table_json_and_csv_say_the_same(images, tmp_path):
    result = measure_robustness({"[red]": BrightSide(), "b": BrightSide()}, images, {"flips": (0.5,)})
    console = Console(file=io.StringIO(), width=80)
    console.print(*result.tables())
    text = console.file.getvalue()
    assert "flips (probability of each)" in text
    assert "[red]" in text
    half = result.curve("b", "flips")[1]
    assert 20 < half.accuracy < 80
    assert f"{half.accuracy:.1f}" in text
    assert f"{half.interval[0]:.1f}–{half.interval[1]:.1f}" in text
    values = json.loads(json.dumps(result.to_dict()))
    assert values["units"] == {"flips": "probability of each"}
    result.write_csv(tmp_path / "r.csv")
    rows = list(csv.DictReader((tmp_path / "r.csv").open()))
    assert len(rows) == len(values["points"]) == 4
    for row, point in zip(rows, values["points"], strict=True):
        assert {key: str(value) for key, value in point.items()} == row


def test_the_figure_has_a_panel_a_perturbation_and_a_line_a_network(images, tmp_path):
    chosen = {"noise": (0.1, 0.2), "flips": (1.0,), "colour": (0.1,)}
    result = measure_robustness({"a$\\bad{": BrightSide(), "b": BrightSide()}, images, chosen)
    figure = robustness_figure(result)
    assert [axes.get_title() for axes in figure.axes] == ["noise", "flips", "colour"]
    assert [len(axes.lines) for axes in figure.axes] == [2, 2, 2]
    assert figure.axes[1].lines[0].get_xydata().tolist() == [[0, 100], [1, 0]]
    write_png(figure, tmp_path / "r.png")  # a name that looks like a formula would fail here
    with pytest.raises(ValueError, match="result: must hold at least one point, got none"):
        robustness_figure(Robustness("nothing", 0, ()))


def test_errors(images):
    net = {"net": BrightSide()}
    for arguments, message in [
        (({}, images), "models: must hold at least one trained model, got none"),
        ((net, images.subset([])), "images: must hold at least one labelled image, got none"),
        ((net, images, {}), "strengths: must name at least one perturbation of rotation, .*, got none"),
        ((net, images, {"noize": (1,)}), "perturbation: must be a registered name, got 'noize'; did you mean noise"),
        ((net, images, {"noise": (-0.1,)}), "strength: must be a finite number of at least 0 for noise, got -0.1"),
        (({"net": BrightSide(("l", "r"))}, images), r"models: net must have the images' classes \('left', 'right'\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            measure_robustness(*arguments)
    with pytest.raises(ValueError, match="batch_size: must be from 1 to 128, got 200"):
        measure_robustness(net, images, batch_size=200)
    with pytest.raises(ValueError, match="seed: must not be negative, got -1"):
        measure_robustness(net, images, seed=-1)
