"""Pairs beside their reconstructions: each in its colour, each from its own capsule, and in the report."""

import numpy as np
import pytest
import torch

import capsella.report.reconstruction
from capsella.data import ImageSet, PairSet
from capsella.evaluation import Evaluation, evaluate
from capsella.report import explain_pairs, pairs_figure, write_report
from capsella.report.image_grids import FIRST, SECOND, overlay_figure

from .conftest import NAMES, SIZE


@pytest.fixture
def pairs() -> PairSet:
    source = ImageSet(torch.randint(0, 256, (9, 1, SIZE - 4, SIZE - 4)).to(torch.uint8), torch.arange(9) % 3, NAMES)
    return PairSet(source, 20, shift=2)


def shown(figure, row: int, column: int) -> np.ndarray:
    """The picture in a cell; rows of six, seven to a block."""
    return np.asarray(figure.axes[6 * row + column].get_images()[0].get_array())


def test_each_image_and_its_reconstruction_has_its_colour() -> None:
    parts, drawn = np.zeros((1, 2, 1, 3, 3)), np.zeros((1, 2, 1, 3, 3))
    parts[0, 0, 0, 0, 0], parts[0, 1, 0, 1, 1] = 1, 1
    parts[0, :, 0, 2, 2] = 1
    drawn[0, 0, 0, 0, 1], drawn[0, 1, 0, 1, 0] = 0.5, 0.5
    true, others = 0.5 * drawn[:, ::-1], np.flip(drawn, (3, 4))
    figure = overlay_figure(parts.max(1), parts, drawn, true, others, ["3 + 8"], ["3 + 5"])
    assert shown(figure, 1, 0)[0, 0].tolist() == list(FIRST)
    assert shown(figure, 1, 0)[1, 1].tolist() == list(SECOND)
    assert shown(figure, 1, 0)[2, 2].tolist() == np.add(FIRST, SECOND).clip(0, 1).tolist()
    assert shown(figure, 2, 0)[1, 0].tolist() == [0.5 * c for c in SECOND]
    assert shown(figure, 3, 0)[0, 1].tolist() == [0.5 * c for c in FIRST]
    assert shown(figure, 3, 0)[1, 0].tolist() == [0, 0, 0]
    assert shown(figure, 4, 0)[1, 0].tolist() == [0.5 * c for c in SECOND]
    assert shown(figure, 4, 0)[0, 1].tolist() == [0, 0, 0]
    assert shown(figure, 5, 0)[0, 1].tolist() == [0.25 * c for c in SECOND]
    assert shown(figure, 6, 0)[2, 1].tolist() == [0.5 * c for c in FIRST]
    assert figure.axes[0].get_title() == "3 + 8,\ntaken for\n3 + 5"


def test_reconstructions_are_those_of_the_predicted_capsules(capsnet, pairs) -> None:
    evaluation = evaluate(capsnet, pairs)
    picked = torch.tensor([4, 0, 7])
    figure = pairs_figure(capsnet, pairs, evaluation, picked)
    images = pairs.take(picked).images.float() / 255
    for column in (0, 1):
        with torch.no_grad():
            expected = capsnet(images, evaluation.predictions[picked, column]).reconstruction[:, 0]
        for k in range(3):
            colour = np.array([FIRST, SECOND][column])
            np.testing.assert_allclose(shown(figure, 3 + column, k), expected[k, ..., None] * colour, atol=1e-5)
    np.testing.assert_allclose(shown(figure, 0, 1), images[1, 0], atol=1e-6)


def test_reconstructions_from_the_true_classes_and_from_others(capsnet) -> None:
    digits = ImageSet(torch.randint(0, 256, (30, 1, SIZE, SIZE)).to(torch.uint8), torch.arange(30) % 3, NAMES)
    pairs = PairSet(digits, 20, shift=0)
    picked = torch.tensor([3, 5])
    labels, images = pairs.labels[picked], pairs.take(picked).images.float() / 255
    # The first is found; of the second, classes 0 and 1 are predicted whatever they are.
    activations = torch.zeros(20, 3)
    activations[3] = torch.nn.functional.one_hot(labels[0], 3).amax(0).float()
    activations[5] = torch.tensor([0.9, 0.8, 0.1])
    figure = pairs_figure(capsnet, pairs, Evaluation(activations, pairs.labels, NAMES), picked)
    with torch.no_grad():
        each = [capsnet(images, torch.full((2,), label)).reconstruction[:, 0] for label in range(3)]
    colours = np.array([FIRST, SECOND])
    for k in range(2):
        expected = sum(each[labels[k, j]][k, ..., None] * colours[j] for j in (0, 1))
        np.testing.assert_allclose(shown(figure, 5, k), expected.clip(0, 1), atol=1e-5)
    # Of three classes one is neither: it has the first colour, and the second is left out.
    (left,) = {0, 1, 2} - set(labels[0].tolist())
    np.testing.assert_allclose(shown(figure, 6, 0), each[left][0, ..., None] * colours[0], atol=1e-5)
    if set(labels[1].tolist()) != {0, 1}:  # then every class is true or predicted
        assert not shown(figure, 6, 1).any()


def test_a_picture_of_right_ones_and_mistakes(capsnet, cnn, pairs, tmp_path, monkeypatch) -> None:
    drawn = []

    def draw(model, images, evaluation, picked):
        drawn.append((evaluation.correct[picked], picked))
        return pairs_figure(model, images, evaluation, picked)

    monkeypatch.setattr(capsella.report.reconstruction, "pairs_figure", draw)
    path = explain_pairs(capsnet, pairs, tmp_path / "out")
    assert path.name == "pairs.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    ((right, picked),) = drawn
    evaluation = evaluate(capsnet, pairs)
    assert picked[~right].tolist() == evaluation.mistakes()[:6].tolist()
    assert right.sum() == min(6, evaluation.correct.sum())
    assert (~right).any()


@pytest.mark.parametrize("right", [True, False])
def test_the_report_of_a_run_on_pairs(capsnet, pairs, tmp_path, right) -> None:
    labels = pairs.labels
    activations = torch.nn.functional.one_hot(labels, 3).amax(1).float()
    evaluation = Evaluation(activations if right else activations.roll(1, 1), labels, NAMES)
    text = write_report(tmp_path, capsnet, evaluation, pairs, None, "pairs", {}).read_text()
    assert "both classes found" in text
    assert (tmp_path / "figures" / "reconstructions.png").exists()
    assert (tmp_path / "figures" / "mistakes.png").exists() is not right
