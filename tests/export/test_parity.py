import json

import pytest
import torch
from torch import nn

from capsella.data import ImageSet
from capsella.errors import CapsellaError
from capsella.export import Tolerance, check_parity, compare
from capsella.models import ImageClassifier
from capsella.types import Output


class Darkness(ImageClassifier):
    """ "dark" below a mean of one half, "light" above."""

    name = "darkness"

    def __init__(self):
        super().__init__((2, 2), 1, ("dark", "light"))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, images, labels=None):
        mean = images.mean((1, 2, 3))
        return Output(self.scale * torch.stack([1 - mean, mean], 1))


def grey(*values):
    pixels = torch.tensor(values, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 2, 2)
    return ImageSet(pixels, torch.tensor([0, 1] * len(values))[: len(values)], ("dark", "light"))


IMAGES = grey(0, 255, 51, 204, 126, 1)
MODEL = Darkness()


def shifted(by):
    """The same network, lighter."""
    return lambda images: MODEL(images).activations.detach() + torch.tensor([-by, by])


def test_what_is_the_same_holds_with_no_tolerance_at_all():
    parity = compare(MODEL, shifted(0.0), IMAGES, Tolerance(0.0, 0.0))
    assert (parity.images, parity.difference, parity.flips, parity.holds) == (6, 0.0, 0, True)
    assert parity.error == parity.exported_error == pytest.approx(100 / 6)  # the last image is labelled light
    check_parity(parity)


def test_reconstructions_are_compared_where_classes_agree():
    class Drawing(Darkness):
        def forward(self, images, labels=None):
            return super().forward(images)._replace(reconstruction=images)

    def drawn(part):
        wrong = (part.mean((1, 2, 3)) * 255).round() == 126  # the one that gets another class
        return part + 0.3 * wrong[:, None, None, None] - 0.05

    parity = compare(Drawing(), shifted(0.02), IMAGES, Tolerance(0.06, 100.0), drawn=drawn)
    assert parity.flips == 1
    assert parity.drawn == pytest.approx(0.05, abs=1e-6)
    assert parity.holds
    parity = compare(Drawing(), shifted(0.02), IMAGES, Tolerance(0.04, 100.0), drawn=drawn)
    with pytest.raises(CapsellaError, match=r"largest pixel difference of reconstructions 0\.05, other label"):
        check_parity(parity)


def test_differences_flips_and_errors_are_counted():
    parity = compare(MODEL, shifted(0.02), IMAGES, Tolerance(0.5, 100.0), batch_size=4)
    assert parity.difference == pytest.approx(0.02, abs=1e-6)
    assert parity.flips == 1  # 126 of 255 is dark by a hair
    assert parity.exported_error == pytest.approx(100 * 2 / 6)
    json.dumps(parity.to_dict())


@pytest.mark.parametrize("tolerance", [Tolerance(0.019, 100.0), Tolerance(0.5, 16.0)])
def test_beyond_either_tolerance_is_an_error_with_the_numbers(tolerance):
    parity = compare(MODEL, shifted(0.02), IMAGES, tolerance)
    with pytest.raises(CapsellaError, match=r"differs from PyTorch: .*difference 0\.02.*other label for 1 of 6 images"):
        check_parity(parity)


@pytest.mark.parametrize(("batch_size", "expected"), [(2, [1, 2, 2, 1]), (5, [1, 5]), (64, [1, 5])])
def test_single_images_and_batches_are_both_tried(batch_size, expected):
    sizes = []
    compare(MODEL, lambda part: sizes.append(len(part)) or shifted(0)(part), IMAGES, Tolerance(0.0, 0.0), batch_size)
    assert sizes == expected
    assert compare(MODEL, shifted(0), IMAGES.subset([0]), Tolerance(0.0, 0.0)).holds


def test_broken_pictures_of_a_later_batch_are_errors():
    class Drawing(Darkness):
        def forward(self, images, labels=None):
            return super().forward(images)._replace(reconstruction=images)

    with pytest.raises(CapsellaError, match=r"answers NaN or infinity \(pictures\)"):
        compare(
            Drawing(),
            shifted(0.0),
            IMAGES,
            Tolerance(1.0, 100.0),
            drawn=lambda part: part if len(part) == 1 else part * float("nan"),
        )


def test_broken_answers_are_errors():
    with pytest.raises(CapsellaError, match="answers NaN or infinity"):
        compare(MODEL, shifted(float("nan")), IMAGES, Tolerance(1.0, 100.0))
    with pytest.raises(CapsellaError, match=r"of shape \(1, 1\), not \(1, 2\)"):
        compare(MODEL, lambda part: shifted(0)(part)[:, :1], IMAGES, Tolerance(1.0, 100.0))


def test_what_cannot_be_compared():
    with pytest.raises(ValueError, match="images: must hold at least one to compare on, got none"):
        compare(MODEL, shifted(0), IMAGES.subset([]), Tolerance(0.0, 0.0))
    with pytest.raises(ValueError, match="difference: must not be negative, got -1"):
        Tolerance(-1, 0)
