"""Reconstructions, dimension tweaks, pairs, and the pictures of single files."""

import numpy as np
import pytest
import torch
from PIL import Image

from capsella.data import ImageSet, PairSet
from capsella.evaluation import Evaluation
from capsella.models import create_model
from capsella.report import (
    OFFSETS,
    dimension_tweaks,
    explain_images,
    largest_elements,
    pairs_figure,
    pick_examples,
    reconstruct,
    reconstructions,
)
from capsella.report.image_figures import FIRST, SECOND, mosaic
from capsella.report.image_pictures import image_figures
from capsella.report.reconstructions import Reconstructions, dial_range, offsets_across, share_nearest_own
from capsella.types import Capsules
from tests.pictures import write_empty

from .conftest import NAMES, SIZE


@pytest.fixture
def folder(tmp_path):
    for name in ("one/cell.png", "two/cell.png", "two/Cell.bmp"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(path)
    return tmp_path / "in"


VIEWS = ("explained", "votes")


def test_every_image_gets_pictures_of_its_own(capsnet, folder, tmp_path, monkeypatch):
    monkeypatch.setattr("capsella.report.image_pictures.write_png", write_empty)
    pictures, _ = explain_images(capsnet, [folder], tmp_path / "out")
    names = [f"{name}_{view}.png" for name in ("cell", "Cell_2", "cell_3") for view in VIEWS]
    assert [path.name for path in pictures] == names


def test_tweaks_go_as_far_as_the_papers_did(capsnet, matrix_capsnet):
    assert offsets_across(capsnet) == OFFSETS
    assert offsets_across(matrix_capsnet) == (-5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5)
    thesis = create_model("forslov2018_capsnet1_init1", image_size=64, classes=3)
    assert (dial_range(thesis), offsets_across(thesis, 3)) == (0.4, (-0.4, 0, 0.4))
    assert dial_range(create_model("forslov2018_emnet1_init1", image_size=64, classes=3)) == 5


def test_the_picture_shows_input_activations_reconstruction_and_tweaks(capsnet):
    image = torch.rand(1, *capsnet.image_size)
    figure = image_figures(capsnet, image, "$\\bad{.png")["explained"]
    shown, bars, reconstruction, tweaks = figure.axes
    with torch.no_grad():
        output = capsnet(image.unsqueeze(0))
    best = output.activations[0].sort(descending=True)
    np.testing.assert_allclose(shown.images[0].get_array(), image[0])
    np.testing.assert_allclose([bar.get_width() for bar in bars.patches], best.values, rtol=1e-5)
    assert bars.get_yticklabels()[0].get_text() == capsnet.classes[best.indices[0]]
    np.testing.assert_allclose(reconstruction.images[0].get_array(), output.reconstruction[0, 0], atol=1e-6)
    expected = mosaic(dimension_tweaks(capsnet, image).numpy())[..., 0]
    np.testing.assert_allclose(tweaks.images[0].get_array(), expected)
    assert figure.get_suptitle().startswith("$\\bad{.png: ")


def test_decodes_the_true_and_the_predicted_class(capsnet, image_set):
    images = image_set.images.float() / 255
    shown = reconstruct(capsnet, images, image_set.labels)
    with torch.no_grad():
        torch.testing.assert_close(shown.from_true, capsnet(images, image_set.labels).reconstruction)
        predicted = capsnet(images)
    torch.testing.assert_close(shown.from_predicted, predicted.reconstruction)
    assert shown.predictions.equal(predicted.activations.argmax(1))
    wrong = shown.predictions != image_set.labels
    assert wrong.any()
    assert not wrong.all()
    torch.testing.assert_close(shown.from_true[~wrong], shown.from_predicted[~wrong])
    assert not shown.from_true[wrong].allclose(shown.from_predicted[wrong], atol=1e-6)


@pytest.mark.parametrize("batch_size", [5, 64])
def test_share_of_reconstructions_nearest_to_their_own_image(capsnet, image_set, monkeypatch, batch_size):
    images, labels = image_set.images, image_set.labels
    drawn = images.float() / 255
    drawn[3], drawn[7] = drawn[4], 0.5 * drawn[7] + 0.5 * drawn[8] + 0.01 * (drawn[8] - drawn[7])
    drawn[9] = 0.6 * drawn[9] + 0.4 * drawn[1]  # still nearest to its own
    queue = list(drawn)

    def both(model, part, labels):
        shown = torch.stack([queue.pop(0) for _ in labels])
        return Reconstructions(shown, shown, labels)

    monkeypatch.setattr(reconstructions, "reconstruct", both)
    assert share_nearest_own(capsnet, images, labels, batch_size) == pytest.approx(10 / 12)


def evaluation_of(predictions, labels, confidence):
    activations = torch.zeros(len(labels), 3)
    activations[torch.arange(len(labels)), torch.tensor(predictions)] = torch.tensor(confidence)
    return Evaluation(activations, torch.tensor(labels), ("a", "b", "c"))


def test_examples_go_round_the_classes_then_come_the_surest_mistakes():
    labels = [0, 0, 0, 2, 2, 1, 1, 0]
    wrong_at = {5: 0.4, 7: 0.9}
    predictions = [(label + 1) % 3 if index in wrong_at else label for index, label in enumerate(labels)]
    evaluation = evaluation_of(predictions, labels, [wrong_at.get(index, 0.8) for index in range(8)])
    assert pick_examples(evaluation, right=5, wrong=6).tolist() == [0, 6, 3, 1, 4, 7, 5]
    assert pick_examples(evaluation, right=2, wrong=1).tolist() == [0, 6, 7]


@pytest.fixture
def image(capsnet):
    return torch.rand(1, *capsnet.image_size)


def test_every_row_moves_one_element_of_the_winner(capsnet, image):
    grid = dimension_tweaks(capsnet, image)
    assert grid.shape == (16, 11, 1, *capsnet.image_size)
    with torch.no_grad():
        capsules = capsnet.encode(image.unsqueeze(0))
        winner = capsules.activations.flatten().argmax().view(1)
        for element, column in ((0, 0), (7, 10), (15, 3)):
            poses = capsules.poses.clone()
            poses[0, 0, 0, winner, element] += OFFSETS[column]
            expected = capsnet.decode(Capsules(poses, capsules.activations), winner)[0]
            torch.testing.assert_close(grid[element, column], expected)
    assert not grid[0, 0].equal(grid[0, 10])
    assert not grid[0, 0].equal(grid[1, 0])


def test_the_largest_elements_of_the_winner_or_the_target(capsnet, image):
    capsules = capsnet.encode(image.unsqueeze(0))
    for target in (None, 2):
        pose = capsules.poses[0, 0, 0, capsules.activations.argmax() if target is None else target].abs()
        chosen = largest_elements(capsnet, image, target, most=5)
        others = [k for k in range(16) if k not in chosen]
        assert chosen == sorted(chosen)
        assert pose[chosen].min() >= pose[others].max()


@pytest.fixture
def pairs() -> PairSet:
    source = ImageSet(torch.randint(0, 256, (9, 1, SIZE - 4, SIZE - 4)).to(torch.uint8), torch.arange(9) % 3, NAMES)
    return PairSet(source, 20, shift=2)


def shown(figure, row: int, column: int) -> np.ndarray:
    """The picture in a cell; rows of six, five to a block."""
    return np.asarray(figure.axes[6 * row + column].get_images()[0].get_array())


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
        np.testing.assert_allclose(shown(figure, 3, k), expected.clip(0, 1), atol=1e-5)
        both = pairs.take(picked[k : k + 1]).parts[0, :, 0].numpy() / 255
        expected = sum(part[..., None] * colour for part, colour in zip(both, colours, strict=True))
        np.testing.assert_allclose(shown(figure, 1, k), expected.clip(0, 1), atol=1e-5)
    # Of three classes one is neither: it has the first colour, and the second is left out.
    (left,) = {0, 1, 2} - set(labels[0].tolist())
    np.testing.assert_allclose(shown(figure, 4, 0), each[left][0, ..., None] * colours[0], atol=1e-5)
    if set(labels[1].tolist()) != {0, 1}:  # then every class is true or predicted
        assert not shown(figure, 4, 1).any()
