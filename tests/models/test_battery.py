"""Checks for every registered network. A new network gets them by being registered."""

import re
from functools import cache
from pathlib import Path

import pytest
import torch

from capsella.errors import ArgumentError
from capsella.losses import LossOptions, total_loss
from capsella.models import ImageClassifier, create_model, forslov2018, list_models

CHANNELS, CLASSES = 2, ("rod", "cone", "glia")
THESIS_SIZE = 184  # the least that all heads of the thesis can be built for; images are enlarged to 224 otherwise
every_network = pytest.mark.parametrize("name", list_models())
# For checks that depend on the two classes of networks and not on the layers.
four_networks = pytest.mark.parametrize(
    "name", ["sabour2017_capsnet", "hinton2018_matrix_capsnet_small", "hahn2019_convnet", "he2016_resnet10"]
)


@pytest.fixture(autouse=True)
def _smaller_thesis_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forslov2018, "PUBLISHED_SIZE", THESIS_SIZE)


@cache
def smallest_size(name: str) -> int:
    """The smallest image size, as the network's own error states it."""
    with pytest.raises(ArgumentError) as error:
        create_model(name, image_size=0)
    return int(re.search(r"at least (\d+)×\1", error.value.rule)[1])


def small(name: str, **options: object) -> ImageClassifier:
    """The network for images that are neither square nor grey nor of ten classes."""
    height = max(smallest_size(name), 8)
    return create_model(name, image_size=(height, height + 1), channels=CHANNELS, classes=CLASSES, **options)


def images_for(model: ImageClassifier, batch: int = 2) -> torch.Tensor:
    return torch.rand(batch, model.channels, *model.image_size)


@every_network
def test_forward_and_backward(name: str) -> None:
    """Every parameter has a gradient, a little away from where training starts.

    At the start, the couplings of self-routing are zero whatever the poses are. A bias that is added to the scores of
    all classes alike has no gradient anywhere.
    """
    model = small(name).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    images, labels = images_for(model, 3), torch.tensor([0, 2, 1])
    output = model(images, labels)
    assert output.activations.shape == (3, len(CLASSES))
    assert output.activations.dtype == torch.float32
    assert 0 <= output.activations.min() <= output.activations.max() <= 1
    if output.capsules is not None:
        assert output.capsules.poses.shape[:4] == (3, 1, 1, len(CLASSES))
        torch.testing.assert_close(output.capsules.activations[:, 0, 0], output.activations)
    assert model.has_decoder == (output.reconstruction is not None)
    if output.reconstruction is not None:
        assert output.reconstruction.shape == images.shape
        assert 0 <= output.reconstruction.min() <= output.reconstruction.max() <= 1
    total_loss(output, images, labels, LossOptions()).total.backward()
    for path, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{path} has no gradient"
        assert parameter.grad.isfinite().all(), f"the gradient of {path} is not finite"
        if path != "scores.linear.bias":
            assert parameter.grad.abs().max() > 0, f"the gradient of {path} is zero"


@every_network
def test_smallest_image_and_one_pixel_less(name: str) -> None:
    side = smallest_size(name)
    model = create_model(name, image_size=side, classes=3).eval()
    assert model(images_for(model)).activations.shape == (2, 3)
    with pytest.raises(ArgumentError) as error:
        create_model(name, image_size=(side + 3, side - 1))
    assert error.value.argument == "image_size"


@every_network
def test_an_image_does_not_depend_on_its_batch(name: str) -> None:
    model = small(name).eval()
    if re.search("ribeiro|capsnet2", name):  # their first weights give nearly the same activations for every image
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(3)
    images = images_for(model, 2)

    def outputs(images: torch.Tensor) -> torch.Tensor:
        output = model(images)
        poses = [] if output.capsules is None else [output.capsules.poses.flatten(1)]
        return torch.cat([output.activations, *poses], 1)

    # Matrix products sum in another order for other batches; Gaussians in float32 turn that into 4e-5.
    tolerance = 2e-4 if re.search("emnet|matrix|heinsen|benchmark_cluster", name) else 1e-5
    with torch.no_grad():
        together = outputs(images)
        torch.testing.assert_close(outputs(images[1:]), together[1:], rtol=tolerance, atol=tolerance)
        assert (together[0] - together[1]).abs().max() > 5 * tolerance  # the other image's output would not pass
        assert model(images[:0]).activations.shape == (0, len(CLASSES))


@four_networks
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 2e-4), (torch.bfloat16, 0.1), (torch.float16, 0.02)])
def test_other_dtypes(name: str, dtype: torch.dtype, tolerance: float) -> None:
    """A network in another dtype classifies and learns in it; bfloat16 is also tried under autocast."""
    model = small(name).eval()
    images, labels = images_for(model), torch.tensor([0, 2])
    expected = model(images).activations
    if dtype == torch.bfloat16:
        with torch.autocast("cpu", dtype):
            activations = model(images).activations
        assert activations.dtype == torch.float32
        torch.testing.assert_close(activations, expected, rtol=0.1, atol=0.05)
    output = model.to(dtype)(images.to(dtype), labels)
    torch.testing.assert_close(output.activations.float(), expected, rtol=tolerance, atol=tolerance)
    assert dtype != torch.float64 or output.activations.dtype == dtype
    total_loss(output, images.to(dtype), labels, LossOptions()).total.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)


@four_networks
def test_save_and_load(name: str, tmp_path: Path) -> None:
    model = small(name).eval()
    model.save_pretrained(tmp_path / "new" / "folder")
    loaded = ImageClassifier.from_pretrained(tmp_path / "new" / "folder").eval()
    assert (type(loaded), loaded.name, loaded.options) == (type(model), model.name, model.options)
    weights = loaded.state_dict()
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(weights[path], tensor) for path, tensor in model.state_dict().items())
    images = images_for(model)
    assert torch.equal(loaded(images).activations, model(images).activations)
