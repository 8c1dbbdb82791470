"""The comparison of an exported network with PyTorch."""

import json

import pytest
import torch
from torch import nn

from capsella.data import ImageSet
from capsella.errors import CapsellaError
from capsella.export import Tolerance, check_parity, compare
from capsella.export.graph import Exportable
from capsella.models import ImageClassifier, create_model
from capsella.types import Output
from capsella.uncertainty import fit_calibration, fit_ood_detector


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
    return {"activations": lambda images: MODEL(images).activations.detach() + torch.tensor([-by, by])}


def test_equal_networks_need_no_tolerance():
    parity = compare(MODEL, shifted(0.0), IMAGES, Tolerance(0.0, 0.0))
    assert (parity.images, parity.difference, parity.flips, parity.holds) == (6, 0.0, 0, True)
    assert parity.error == parity.exported_error == pytest.approx(100 / 6)  # the last image is labelled light
    check_parity(parity)


def test_differences_flips_and_errors_are_counted():
    parity = compare(MODEL, shifted(0.02), IMAGES, Tolerance(0.5, 100.0))
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


def test_probabilities_and_the_ood_check_are_compared():
    model = create_model("sabour2017_cnn", image_size=17, classes=3).eval()
    pixels = torch.randint(256, (60, 1, 17, 17), dtype=torch.uint8)
    images = ImageSet(pixels, torch.arange(60) % 3, model.classes)
    fit_ood_detector(model, images, images)
    with torch.no_grad():
        a = model(pixels.float() / 255).activations
    model.calibration = fit_calibration(a, a.argmax(1))
    exact = {name: exported(model, name) for name in ("activations", "probabilities", "ood_score")}
    parity = compare(model, exact, images, Tolerance(0, 0, 1e-6))
    assert (parity.holds, parity.ood_flips) == (True, 0)
    changed = exact | {"probabilities": lambda part: exact["probabilities"](part) + 0.01}
    parity = compare(model, changed, images, Tolerance(0, 0, 0.005))
    assert (parity.holds, parity.probability) == (False, pytest.approx(0.01, abs=1e-6))
    changed = exact | {"ood_score": lambda part: exact["ood_score"](part) + 100}
    parity = compare(model, changed, images, Tolerance(0, 0))
    assert (parity.holds, parity.ood_flips > 50) == (False, True)


def exported(model, name):
    return lambda part: Exportable(model, (name,))(part)[0].detach()


def test_single_images_and_batches_are_both_tried_and_broken_outputs_are_errors():
    sizes, right = [], shifted(0)["activations"]
    compare(MODEL, {"activations": lambda part: sizes.append(len(part)) or right(part)}, IMAGES, Tolerance(0.0, 0.0))
    assert sizes == [1, 5]
    for wrong, reason in (
        (lambda part: right(part) if len(part) == 1 else right(part) * float("nan"), "NaN"),
        (lambda part: right(part)[:, :1], "shape"),
    ):
        with pytest.raises(CapsellaError, match=reason):
            compare(MODEL, {"activations": wrong}, IMAGES, Tolerance(1.0, 100.0))
