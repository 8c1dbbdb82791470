"""Matrix capsules behind a batch-normalised stem: what they are made of."""

import pytest
from torch import nn

from capsella.models import count_parameters, create_model
from capsella.routing import DynamicRouting

POSE = 16


def test_parameters_layer_by_layer() -> None:
    model = create_model("stem_matrix_capsnet", channels=2)
    betas = 2
    assert [count_parameters(part) for part in [model.backbone, model.primary, *model.capsule_layers]] == [
        9 * (2 * 32 + 32 * 64 + 64 * 64) + 2 * (32 + 64 + 64),  # no bias, but a scale and a shift a channel
        64 * 8 * (POSE + 1) + 2 * 2 * 8,  # a scale and a shift a type, of poses and of activations
        9 * 8 * 16 * POSE + betas * 16,
        9 * 16 * 16 * POSE + betas * 16,
        16 * 5 * POSE + betas * 5,  # shared by all positions
    ]
    assert count_parameters(model) == 121_578


def test_every_layer_is_normalised_or_none() -> None:
    def norms(**options: object) -> list[int]:
        model = create_model("stem_matrix_capsnet", types=6, width=10, **options)
        return [module.num_features for module in model.modules() if isinstance(module, nn.BatchNorm1d)]

    assert norms() == [3, 3, 6, 6, 6, 6, 5, 5]
    assert norms(class_norm=None) == [3, 3, 6, 6, 6, 6]
    assert norms(norm=None, class_norm=None, routing=DynamicRouting()) == []


def test_a_crop_or_the_whole_image() -> None:
    whole, cut = (create_model("stem_matrix_capsnet", crop=crop) for crop in (None, 40))
    assert whole.capsule_layers[2].vote_offset.shape[:2] == (2, 2)
    assert cut.capsule_layers[2].vote_offset.shape[:2] == (1, 1)


@pytest.mark.parametrize("field", ["width", "types"])
@pytest.mark.parametrize("value", [0, -2, 7])
def test_bad_widths(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{field}: must be even and at least 2, got {value}"):
        create_model("stem_matrix_capsnet", **{field: value})
