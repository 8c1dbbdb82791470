"""The comparison of an exported network with PyTorch."""

import json

import pytest
import torch
from torch import nn

from capsella.data import ImageSet
from capsella.errors import ArgumentError, CapsellaError
from capsella.export import Tolerance, check_parity, compare
from capsella.export.graph import Exportable
from capsella.models import ImageClassifier, create_model
from capsella.types import Output
from capsella.uncertainty import fit_calibration, fit_ood_detector


class Darkness(ImageClassifier):
    """ "dark" below a mean of one half, "light" above; reconstructs the image itself."""

    name = "darkness"

    def __init__(self, draws=False):
        super().__init__((2, 2), 1, ("dark", "light"))
        self.scale, self.draws = nn.Parameter(torch.ones(1)), draws

    @property
    def has_decoder(self):
        return self.draws

    def forward(self, images, labels=None):
        mean = images.mean((1, 2, 3))
        return Output(self.scale * torch.stack([1 - mean, mean], 1), reconstruction=images if self.draws else None)


def grey(*values):
    pixels = torch.tensor(values, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 2, 2)
    return ImageSet(pixels, torch.tensor([0, 1] * len(values))[: len(values)], ("dark", "light"))


IMAGES = grey(0, 255, 51, 204, 126, 1)
MODEL, DRAWING = Darkness(), Darkness(draws=True)


def shifted(by):
    """The same network, lighter."""
    return lambda images: MODEL(images).activations.detach() + torch.tensor([-by, by])


def test_equal_networks_need_no_tolerance():
    parity = compare(MODEL, shifted(0.0), IMAGES, Tolerance(0.0, 0.0))
    assert (parity.images, parity.difference, parity.flips, parity.holds) == (6, 0.0, 0, True)
    assert parity.error == parity.exported_error == pytest.approx(100 / 6)  # the last image is labelled light
    check_parity(parity)


def test_differences_flips_and_errors_are_counted():
    parity = compare(MODEL, shifted(0.02), IMAGES, Tolerance(0.5, 100.0), batch_size=4)
    assert parity.difference == pytest.approx(0.02, abs=1e-6)
    assert parity.flips == 1  # 126 of 255 is just dark
    assert parity.exported_error == pytest.approx(100 * 2 / 6)
    json.dumps(parity.to_dict())


@pytest.mark.parametrize("tolerance", [Tolerance(0.019, 100.0), Tolerance(0.5, 16.0)])
def test_beyond_either_tolerance_is_an_error(tolerance):
    parity = compare(MODEL, shifted(0.02), IMAGES, tolerance)
    assert not parity.holds
    with pytest.raises(CapsellaError, match="PyTorch"):
        check_parity(parity)


def test_reconstructions_are_compared_where_classes_agree():
    def drawn(part):
        wrong = (part.mean((1, 2, 3)) * 255).round() == 126  # the one that gets another class
        return part + 0.3 * wrong[:, None, None, None] - 0.05

    for limit in (0.06, 0.04):
        others = {"reconstruction": drawn}
        parity = compare(DRAWING, shifted(0.02), IMAGES, Tolerance(limit, 100.0), others=others)
        assert parity.flips == 1
        assert parity.pixel_difference == pytest.approx(0.05, abs=1e-6)
        assert parity.holds == (limit > 0.05)


def test_probabilities_and_the_ood_check_are_compared():
    model = create_model("sabour2017_cnn", image_size=17, classes=3).eval()
    pixels = torch.randint(256, (60, 1, 17, 17), dtype=torch.uint8)
    images = ImageSet(pixels, torch.arange(60) % 3, model.classes)
    fit_ood_detector(model, images, images)
    with torch.no_grad():
        a = model(pixels.float() / 255).activations
    model.calibration = fit_calibration(a, a.argmax(1))
    exact = {name: exported(model, name) for name in ("probabilities", "ood_score")}
    parity = compare(model, exported(model, "activations"), images, Tolerance(0, 0, 1e-6), others=exact)
    assert (parity.holds, parity.ood_flips) == (True, 0)
    others = exact | {"probabilities": lambda part: exact["probabilities"](part) + 0.01}
    parity = compare(model, exported(model, "activations"), images, Tolerance(0, 0, 0.005), others=others)
    assert (parity.holds, parity.probability) == (False, pytest.approx(0.01, abs=1e-6))
    others = exact | {"ood_score": lambda part: exact["ood_score"](part) + 100}
    parity = compare(model, exported(model, "activations"), images, Tolerance(0, 0), others=others)
    assert (parity.holds, parity.ood_flips > 50) == (False, True)


def exported(model, name):
    return lambda part: Exportable(model, (name,))(part)[0].detach()


@pytest.mark.parametrize(("batch_size", "expected"), [(2, [1, 2, 2, 1]), (64, [1, 5])])
def test_single_images_and_batches_are_both_tried(batch_size, expected):
    sizes = []
    compare(MODEL, lambda part: sizes.append(len(part)) or shifted(0)(part), IMAGES, Tolerance(0.0, 0.0), batch_size)
    assert sizes == expected
    assert compare(MODEL, shifted(0), IMAGES.subset([0]), Tolerance(0.0, 0.0)).holds


def test_broken_outputs_are_errors():
    def later_nan(part):
        return part if len(part) == 1 else part * float("nan")

    anything = Tolerance(1.0, 100.0)
    with pytest.raises(CapsellaError, match="NaN"):
        compare(MODEL, shifted(float("nan")), IMAGES, anything)
    with pytest.raises(CapsellaError, match="NaN"):
        compare(DRAWING, shifted(0.0), IMAGES, anything, others={"reconstruction": later_nan})
    with pytest.raises(CapsellaError, match="shape"):
        compare(MODEL, lambda part: shifted(0)(part)[:, :1], IMAGES, anything)


def test_what_cannot_be_compared():
    with pytest.raises(ArgumentError) as error:
        compare(MODEL, shifted(0), IMAGES.subset([]), Tolerance(0.0, 0.0))
    assert error.value.argument == "images"
    with pytest.raises(ArgumentError) as error:
        Tolerance(-1, 0)
    assert error.value.argument == "difference"
