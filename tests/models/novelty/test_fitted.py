"""Distances, surprises and thresholds: by hand, and as often as promised."""

import math

import pytest
import torch
from torch import nn

from capsella.errors import CapsellaError
from capsella.models import ImageClassifier, Novelty, create_model, fit_novelty
from capsella.models.novelty.fit import largest_surprises
from capsella.models.novelty.fitted import REASONS, Familiar
from capsella.models.novelty.gaussians import ClassGaussian, fit_gaussian
from capsella.models.novelty.observe import answer, observe, only_as_needed
from capsella.models.packed import packed
from capsella.types import Output


def batches_of(number, seed, channels=1, size=20):
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(number, channels, size, size, generator=generator)
    return list(zip(images.split(8), (torch.arange(number) % 3).split(8), strict=True))


@pytest.fixture(scope="module")
def capsnet():
    torch.manual_seed(0)
    model = create_model("mazzia2021_efficient_capsnet", image_size=20, classes=3).eval()
    model.novelty = fit_novelty(model, batches_of(40, 0), batches_of(40, 1))
    return model


def test_distance_is_mahalanobis():
    """Two classes around (0, 0) and (10, 0), with deviations 1 and 3: shrinking hardly matters with many."""
    labels = torch.arange(20_000) % 2
    features = torch.randn(20_000, 2) * torch.tensor([1.0, 3.0])
    features[:, 0] += 10 * labels
    gaussian = fit_gaussian(features, labels, 2)
    distance = gaussian.distance(torch.tensor([[12.0, 0.0], [0.0, 6.0], [10.0, 0.0]]), torch.tensor([1, 0, 0]))
    assert (distance * math.sqrt(2)).tolist() == pytest.approx([2, 2, 10], rel=0.05)


def test_one_image_and_a_class_without():
    gaussian = fit_gaussian(torch.tensor([[1.0, 2.0]]), torch.tensor([1]), 3)
    assert gaussian.means.tolist() == [[1, 2]] * 3
    assert gaussian.distance(torch.tensor([[1.0, 2.0]]), torch.tensor([0])).isfinite().all()
    with pytest.raises(ValueError, match="features: must be finite, got 'NaN or infinity'"):
        fit_gaussian(torch.tensor([[math.nan]]), torch.tensor([0]), 1)


def test_surprise_rises_and_is_a_share_below_the_tail():
    familiar = Familiar(torch.arange(100.0))
    scores = torch.linspace(-10, 300, 500)
    surprises = familiar.surprise(scores)
    assert (surprises.diff() >= 0).all()
    assert float(familiar.surprise(torch.tensor([-1.0]))) == 0
    assert float(familiar.surprise(torch.tensor([50.0]))) == pytest.approx(-math.log(51 / 101))
    beyond = familiar.surprise(torch.tensor([200.0, 201.0]))
    assert float(beyond.diff()) == pytest.approx(1 / 5.5, rel=1e-3)  # the tail exceeds its start by 5.5 on average


def test_surprise_has_a_gradient_in_the_tail():
    score = torch.tensor([98.0, 150.0], requires_grad=True)
    Familiar(torch.arange(100.0)).surprise(score).sum().backward()
    assert (score.grad > 0).all()


def test_thresholds_refuse_at_most_as_many_as_asked_for():
    """Of new images like the validation images, at most 10 % in nine draws of ten."""
    refused = []
    for _ in range(300):
        values = torch.rand(60).sort().values
        novelty = Novelty({}, {"reconstruction": Familiar(values)}, Familiar(values).surprise(values).sort().values)
        refused.append((novelty.surprises(torch.linspace(0, 1, 2001)[:, None]) > novelty.threshold(0.1)).float().mean())
    assert 0.9 <= float((torch.stack(refused) <= 0.1).float().mean()) <= 0.97


@pytest.mark.parametrize("scores", [1, 3, 5])
def test_several_scores_together_refuse_at_most_as_many_as_asked_for(scores):
    """However many scores there are: no image shapes the tails that it is judged by."""
    generator, names, refused = torch.Generator().manual_seed(0), list(REASONS)[-scores:], []
    any_one = fit_gaussian(torch.rand(9, 2), torch.arange(9) % 2, 2)
    gaussians = dict.fromkeys(set(names) - {"reconstruction", "turned"}, any_one)
    for _ in range(100):
        columns = list(torch.rand(60, scores, generator=generator).unbind(1))
        familiar = {name: Familiar(column.sort().values) for name, column in zip(names, columns, strict=True)}
        novelty = Novelty(gaussians, familiar, largest_surprises(columns).sort().values)
        new = torch.rand(2000, scores, generator=generator)
        refused.append((novelty.surprises(new).amax(1) > novelty.threshold(0.05)).float().mean())
    assert float((torch.stack(refused) <= 0.05).float().mean()) >= 0.83  # nine in ten, less three deviations


def test_too_few_validation_images_refuse_nothing():
    values = torch.rand(44).sort().values
    novelty = Novelty({}, {"reconstruction": Familiar(values)}, values)
    assert novelty.threshold(0.05) == math.inf
    with pytest.raises(ValueError, match=r"refuse: must be between 0 and 1, as 0\.05, got 5"):
        novelty.threshold(5)


def test_a_network_with_a_decoder_has_all_scores_and_a_cnn_two(capsnet):
    assert capsnet.novelty.scores == ("appearance", "features", "poses", "reconstruction", "turned")
    assert only_as_needed(capsnet, capsnet.novelty) is capsnet
    assert not only_as_needed(capsnet, None).has_decoder
    cnn = create_model("hinton2018_cnn", image_size=20, classes=3)
    novelty = fit_novelty(cnn, batches_of(40, 0), batches_of(40, 1))
    assert novelty.scores == ("appearance", "features", "turned")
    assert not novelty.draws
    assert cnn.training


class UpOrDown(ImageClassifier):
    """Whether the upper half is brighter than the lower: another answer for every image that is turned."""

    name = "up_or_down"

    def __init__(self, upside):
        super().__init__((20, 20), 1, ("up", "down", "neither"))
        self.upside, self.scale = upside, nn.Parameter(torch.tensor(1000.0))

    def forward(self, images, labels=None):
        upper, lower = images[:, 0, :10].mean((1, 2)), images[:, 0, 10:].mean((1, 2))
        difference = upper - lower if self.upside else upper + lower
        return Output((torch.stack([difference, -difference, 0 * difference], 1) * self.scale).softmax(1))


@pytest.mark.parametrize("upside", [True, False])
def test_images_are_turned_only_where_usual_answers_stay(upside):
    novelty = fit_novelty(UpOrDown(upside), batches_of(40, 0), batches_of(40, 1))
    assert novelty.turns is not upside


def test_an_answer_that_changes_when_turned_is_refused():
    torch.manual_seed(0)
    model = UpOrDown(False)
    model.novelty = fit_novelty(model, batches_of(40, 0), batches_of(40, 1))
    model.upside = True
    _, surprises = answer(model, batches_of(8, 2)[0][0], model.novelty)
    assert (surprises.amax(1) > model.novelty.threshold(0.1)).all()
    assert model.novelty.why(surprises[0], "up") == "another answer when turned upside down"


def test_strange_images_are_refused_and_why(capsnet):
    novelty = capsnet.novelty
    familiar, _ = batches_of(8, 2)[0]
    grey = torch.full((2, 1, 20, 20), 0.5)
    with torch.no_grad():
        _, known = answer(capsnet, familiar, novelty)
        _, strange = answer(capsnet, grey, novelty)
    assert (known.amax(1) <= novelty.threshold(0.1)).sum() >= 6
    assert (strange.amax(1) > novelty.threshold(0.1)).all()
    assert novelty.why(strange[0], "ring") == "colours or sharpness unlike the training images"
    assert novelty.why(torch.tensor([0.0, 0.0, 1.0, 0.0]), "ring") == "shape unlike any ring"


def test_a_packed_network_sees_the_same(capsnet):
    images, _ = batches_of(8, 3)[0]
    with torch.inference_mode():
        _, plain = answer(capsnet, images, capsnet.novelty)
        _, quick = answer(packed(capsnet), images, capsnet.novelty)
    torch.testing.assert_close(plain, quick, rtol=1e-3, atol=1e-3)


def test_poses_are_those_of_the_class_asked_for(capsnet):
    images, labels = batches_of(8, 4)[0]
    with torch.no_grad():
        output, seen = observe(capsnet, images, labels)
    torch.testing.assert_close(seen["poses"], output.capsules.poses[torch.arange(8), 0, 0, labels])


def test_what_no_fit_gives():
    values, gaussian = Familiar(torch.tensor([1.0])), ClassGaussian(torch.zeros(2, 1), torch.eye(1))
    for make, text in (
        (
            lambda: Familiar(torch.tensor([2.0, 1.0])),
            "validation scores: must be at least one finite number, ascending",
        ),
        (lambda: Familiar(torch.tensor([])), "validation scores"),
        (lambda: ClassGaussian(torch.zeros(2, 3), torch.eye(2)), "means, whitening"),
        (lambda: Novelty({}, {}, values.values), "scores: must be some of appearance, features"),
        (lambda: Novelty({}, {"poses": values}, values.values), "gaussians: must be those of the scores, got none"),
        (lambda: Novelty({"poses": gaussian}, {"poses": values}, torch.zeros(2)), "must be of the same images"),
    ):
        with pytest.raises(CapsellaError, match=text):
            make()


def test_nothing_to_fit_on():
    cnn = create_model("hinton2018_cnn", image_size=20, classes=3)
    with pytest.raises(ValueError, match="training: must be of at least one image, got 0"):
        fit_novelty(cnn, [], batches_of(8, 0))
    with pytest.raises(ValueError, match="validation: must be of at least one image, got 0"):
        fit_novelty(cnn, batches_of(8, 0), [])
