"""Pairs beside their reconstructions: each in its colour, each from its own capsule, and in the report."""

import numpy as np
import pytest
import torch

from capsella.data import ImageSet, PairSet
from capsella.evaluation import Evaluation, evaluate
from capsella.explain import explain_pairs, pairs_figure, write_report
from capsella.explain.image_grids import FIRST, SECOND, overlay_figure

from .conftest import NAMES, SIZE


@pytest.fixture
def pairs() -> PairSet:
    source = ImageSet(torch.randint(0, 256, (9, 1, SIZE - 4, SIZE - 4)).to(torch.uint8), torch.arange(9) % 3, NAMES)
    return PairSet(source, 20, shift=2)


def shown(figure, row: int, column: int) -> np.ndarray:
    """The picture in a cell; ten rows of six: two blocks of five."""
    return np.asarray(figure.axes[6 * row + column].get_images()[0].get_array())


def test_each_image_and_its_reconstruction_has_its_colour() -> None:
    parts, drawn = np.zeros((1, 2, 1, 3, 3)), np.zeros((1, 2, 1, 3, 3))
    parts[0, 0, 0, 0, 0], parts[0, 1, 0, 1, 1] = 1, 1
    parts[0, :, 0, 2, 2] = 1
    drawn[0, 0, 0, 0, 1], drawn[0, 1, 0, 1, 0] = 0.5, 0.5
    figure = overlay_figure(parts.max(1), parts, drawn, ["3 + 8"], ["3 + 5"])
    assert shown(figure, 1, 0)[0, 0].tolist() == list(FIRST)
    assert shown(figure, 1, 0)[1, 1].tolist() == list(SECOND)
    assert shown(figure, 1, 0)[2, 2].tolist() == np.add(FIRST, SECOND).clip(0, 1).tolist()
    assert shown(figure, 2, 0)[1, 0].tolist() == [0.5 * c for c in SECOND]
    assert shown(figure, 3, 0)[0, 1].tolist() == [0.5 * c for c in FIRST]
    assert shown(figure, 3, 0)[1, 0].tolist() == [0, 0, 0]
    assert shown(figure, 4, 0)[1, 0].tolist() == [0.5 * c for c in SECOND]
    assert shown(figure, 4, 0)[0, 1].tolist() == [0, 0, 0]
    assert figure.axes[0].get_title() == "3 + 5\nis 3 + 8"
    with pytest.raises(ValueError, match="as many of each, at least 1, got 1, 1, 1, 2, 1"):
        overlay_figure(parts.max(1), parts, drawn, ["a", "b"], ["a"])


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


def test_a_picture_of_right_ones_and_mistakes(capsnet, cnn, pairs, tmp_path) -> None:
    path = explain_pairs(capsnet, pairs, tmp_path / "out")
    assert path.name == "pairs.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="must have a decoder for reconstructions"):
        explain_pairs(cnn, pairs, tmp_path)


@pytest.mark.parametrize("right", [True, False])
def test_the_report_of_a_run_on_pairs(capsnet, pairs, tmp_path, right) -> None:
    labels = pairs.labels
    activations = torch.nn.functional.one_hot(labels, 3).amax(1).float()
    evaluation = Evaluation(activations if right else activations.roll(1, 1), labels, NAMES)
    text = write_report(tmp_path, capsnet, evaluation, pairs, None, "pairs", {}).read_text()
    assert "both classes found" in text
    assert (tmp_path / "figures" / "reconstructions.png").exists()
    assert (tmp_path / "figures" / "mistakes.png").exists() is not right
