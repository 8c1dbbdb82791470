"""The networks of Hinton et al. 2018: grids, each row of the ablation table as options, and multiple crops."""

import pytest
import torch

from capsella.models import MultiCrop, create_model
from capsella.models.hinton2018 import CROPS
from capsella.routing import EMRouting, UniformRouting

SMALL = "hinton2018_matrix_capsnet_small"


def test_grids_of_the_paper() -> None:
    model = create_model(SMALL, image_size=48, crop=32, channels=2).eval()
    capsules = model.primary(model.backbone(torch.rand(1, 2, 48, 48)))
    grids = [tuple(capsules.activations.shape[1:])]
    for layer in model.capsule_layers:
        capsules = layer(capsules)
        grids.append(tuple(capsules.activations.shape[1:]))
    assert grids == [(14, 14, 8), (6, 6, 16), (4, 4, 16), (1, 1, 5)]


@pytest.mark.parametrize(
    "options",
    [
        {"routing": EMRouting(iterations=1), "brightness": 0.3, "contrast": 0.5},
        {"routing": EMRouting(iterations=5, competition="types"), "coordinate_addition": False},
        {"routing": UniformRouting(), "pose_elements": 9},
        {"pose": "vector", "reconstruction": True},
        {"crop": 17, "standardise": False},
    ],
)
def test_ablations_are_options(options: dict[str, object]) -> None:
    model = create_model(SMALL, image_size=20, classes=3, **options)
    images = torch.rand(2, 1, 20, 20)
    output = model(images)
    if "reconstruction" in options:
        assert output.reconstruction.shape == images.shape
        assert tuple(model.capsule_layers[0].weight.shape) == (3, 3, 8, 16, 16, 16)
    output.activations.sum().backward()
    unused = ("decoder", "routing_parameters")
    grads = [p.grad for path, p in model.named_parameters() if not any(part in path for part in unused)]
    assert all(grad is not None and grad.isfinite().all() and grad.abs().max() > 0 for grad in grads)


def test_multiple_crops_are_the_mean_over_crops_at_the_offsets() -> None:
    """Compare with the same network without a crop, given the crops themselves."""
    model = create_model("hinton2018_cnn", image_size=(14, 15), crop=8, classes=3).eval()
    whole = create_model("hinton2018_cnn", image_size=8, classes=3).eval()
    whole.load_state_dict(model.state_dict())
    images = torch.rand(2, 1, 14, 15)
    expected = torch.stack(
        [whole(images[..., 3 + rows : 11 + rows, 3 + columns : 11 + columns]).activations for rows, columns in CROPS]
    )
    torch.testing.assert_close(MultiCrop(model).eval()(images).activations, expected.mean(0))
    torch.testing.assert_close(MultiCrop(model, [(0, 0)]).eval()(images).activations, model(images).activations)
    assert len(set(CROPS)) == 13
