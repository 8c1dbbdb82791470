"""The networks of Hinton et al. 2018: every layer's parameters, and each row of the ablation table as options."""

import pytest
import torch

from capsella.layers import CropImages, JitterImages, StandardiseImages
from capsella.models import create_model
from capsella.models.base import count_parameters
from capsella.routing import EMRouting, UniformRouting

# 5·5·channels·A + A; A·B·17 + B·17; 3·3·B·C·16 + 2·C; 3·3·C·D·16 + 2·D; D·classes·16 + 2·classes
PARTS = {
    "hinton2018_matrix_capsnet": (832, 17_952, 147_520, 147_520, 2_570),
    "hinton2018_matrix_capsnet_small": (1_664, 8_840, 18_464, 36_896, 1_290),
}


@pytest.mark.parametrize("name", PARTS)
def test_parameters_layer_by_layer(name: str) -> None:
    model = create_model(name)
    parts = [model.backbone, model.primary, *model.capsule_layers]
    assert tuple(count_parameters(part) for part in parts) == PARTS[name]
    assert count_parameters(model) == sum(PARTS[name])


def test_totals_near_the_paper_s() -> None:
    assert count_parameters(create_model("hinton2018_matrix_capsnet")) == 316_394  # "310 K"
    assert count_parameters(create_model("hinton2018_matrix_capsnet_small")) == 67_154  # "68 K"
    assert count_parameters(create_model("hinton2018_matrix_capsnet_small", channels=2)) == 68_754
    assert count_parameters(create_model("hinton2018_cnn")) == 4_252_549  # "4.2 M"


def test_grids_of_the_paper() -> None:
    model = create_model("hinton2018_matrix_capsnet_small", image_size=48, crop=32, channels=2).eval()
    primary = model.primary(model.backbone(torch.rand(1, 2, 48, 48)))
    grids, capsules = [tuple(primary.activations.shape[1:])], primary
    for layer in model.capsule_layers:
        capsules = layer(capsules)
        grids.append(tuple(capsules.activations.shape[1:]))
    assert grids == [(14, 14, 8), (6, 6, 16), (4, 4, 16), (1, 1, 5)]


@pytest.mark.parametrize(
    "options",
    [
        {"routing": EMRouting(iterations=1)},
        {"routing": EMRouting(iterations=5, competition="types")},
        {"routing": UniformRouting()},
        {"pose": "vector"},
        {"pose": "vector", "coordinate_addition": False},
        {"coordinate_addition": False},
        {"pose_elements": 9},
        {"crop": 17, "standardise": False},
        {"brightness": 0.3, "contrast": 0.5},
        {"reconstruction": True},
    ],
)
def test_ablations_are_options(options: dict[str, object]) -> None:
    model = create_model("hinton2018_matrix_capsnet_small", image_size=20, classes=3, **options)
    images = torch.rand(2, 1, 20, 20)
    if "reconstruction" in options:
        assert model(images).reconstruction.shape == images.shape
    model(images).activations.sum().backward()
    grads = [
        p.grad for path, p in model.named_parameters() if "decoder" not in path and "routing_parameters" not in path
    ]
    assert all(grad is not None and grad.isfinite().all() and grad.abs().max() > 0 for grad in grads)


def test_vector_weights_have_sixteen_by_sixteen_elements() -> None:
    model = create_model("hinton2018_matrix_capsnet_small", pose="vector")
    assert tuple(model.capsule_layers[0].weight.shape) == (3, 3, 8, 16, 16, 16)
    assert tuple(create_model("hinton2018_matrix_capsnet_small").capsule_layers[0].weight.shape) == (3, 3, 8, 16, 4, 4)


def test_standardised_before_the_first_convolution_and_after_the_crop() -> None:
    for name in ("hinton2018_matrix_capsnet_small", "hinton2018_cnn"):
        model = create_model(name, image_size=24, crop=20, brightness=0.3, contrast=0.2)
        steps = list((model.backbone if "caps" in name else model.network)[0])
        assert [type(step) for step in steps] == [CropImages, StandardiseImages, JitterImages]
        assert (steps[2].brightness, steps[2].contrast) == (0.3, 0.2)
    images = torch.rand(2, 1, 24, 24)
    brighter = 0.5 * images + 0.3
    model.eval()
    torch.testing.assert_close(model(images).activations, model(brighter).activations)


def test_errors() -> None:
    with pytest.raises(ValueError, match="image_size: must be at least 17×17 for these kernels, got 16×20"):
        create_model("hinton2018_matrix_capsnet", image_size=(16, 20))
    with pytest.raises(ValueError, match="crop: must be from 1 to the image's 20×20, got 32"):
        create_model("hinton2018_cnn", image_size=20, crop=32)
    for name in ("hinton2018_matrix_capsnet_small", "ribeiro2020_capsnet"):
        with pytest.raises(ValueError, match="reconstruction: must be off with a crop, or the crop be None, got 32"):
            create_model(name, image_size=48, crop=32, reconstruction=True)
    with pytest.raises(ValueError, match="pose_elements: must be a square number for matrix poses, got 8"):
        create_model("hinton2018_matrix_capsnet", pose_elements=8)
