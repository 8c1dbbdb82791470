import pytest

from capsella.models import create_model, list_models
from capsella.models.shapes import grid_after


def test_names() -> None:
    assert {"sabour2017_capsnet", "sabour2017_cnn"} <= set(list_models())
    assert list_models("sabour2017_c*") == ["sabour2017_capsnet", "sabour2017_cnn"]
    assert list_models("nothing*") == []


def test_unknown_model() -> None:
    message = r"model: must be a registered name, got 'sabour_capsnet'; did you mean .*sabour2017_capsnet"
    with pytest.raises(ValueError, match=message):
        create_model("sabour_capsnet")


def test_options_are_complete() -> None:
    model = create_model("sabour2017_capsnet", image_size=20, classes=3)
    assert model.options == {
        "image_size": (20, 20),
        "channels": 1,
        "classes": ("0", "1", "2"),
        "routing": {"name": "dynamic", "iterations": 3, "bias": False, "leaky": False, "backend": "auto"},
        "primary_relu": False,
        "primary_types": 32,
        "evenly_routed": False,
        "class_weight_sd": 0.1,
        "decoder_width": 1024,
        "reconstruction": True,
    }


def test_class_names() -> None:
    assert create_model("sabour2017_cnn", image_size=4, classes=["cat", "dog"]).classes == ("cat", "dog")
    with pytest.raises(ValueError, match="classes: must be at least 2, got 1"):
        create_model("sabour2017_cnn", classes=("only",))


@pytest.mark.parametrize(
    ("image", "convolutions", "grid"),
    [((28, 28), [(9, 1), (9, 2)], (6, 6)), ((17, 18), [(9, 1), (9, 2)], (1, 1)), ((5, 9), [(2, 3), (1, 1)], (2, 3))],
)
def test_grid_after(image: tuple[int, int], convolutions: list[tuple[int, int]], grid: tuple[int, int]) -> None:
    assert grid_after(image, convolutions) == grid


def test_grid_after_too_much() -> None:
    with pytest.raises(ValueError, match=r"image_size: must be at least 17×17 for these kernels, got 28×16"):
        grid_after((28, 16), [(9, 1), (9, 2)])
