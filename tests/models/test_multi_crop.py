import pytest
import torch

from capsella.models import MultiCrop, create_model
from capsella.models.multi_crop import CROPS


def test_mean_over_cuts_at_the_offsets() -> None:
    """Against the same network without a crop, given the cuts themselves."""
    model = create_model("hinton2018_cnn", image_size=(14, 15), crop=8, classes=3).eval()
    whole = create_model("hinton2018_cnn", image_size=8, classes=3).eval()
    whole.load_state_dict(model.state_dict())
    images = torch.rand(2, 1, 14, 15)
    expected = torch.stack(
        [whole(images[..., 3 + rows : 11 + rows, 3 + columns : 11 + columns]).activations for rows, columns in CROPS]
    )
    torch.testing.assert_close(MultiCrop(model).eval()(images).activations, expected.mean(0))
    torch.testing.assert_close(MultiCrop(model, [(0, 0)]).eval()(images).activations, model(images).activations)


def test_the_thirteen_cuts_of_the_authors() -> None:
    assert len(set(CROPS)) == 13
    assert {abs(rows) for rows, _ in CROPS} == {0, 1, 2, 3}
    assert all(abs(rows) == abs(columns) for rows, columns in CROPS)


def test_errors() -> None:
    with pytest.raises(ValueError, match="model: must be created with a crop for multiple crops, got hinton2018_cnn"):
        MultiCrop(create_model("hinton2018_cnn", image_size=8))
    model = create_model("hinton2018_cnn", image_size=12, crop=8)
    with pytest.raises(ValueError, match="offsets: must be at least one, of at most 2 pixels for this crop, got"):
        MultiCrop(model)
    with pytest.raises(RuntimeError, match="MultiCrop is for evaluation"):
        MultiCrop(model, [(1, 1)])(torch.rand(1, 1, 12, 12))
