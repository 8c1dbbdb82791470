from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

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


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"image_size": "32"}, r"image_size: must be a whole number of pixels, or two: .* got '32'"),
        ({"image_size": (28.9, 28)}, r"image_size: must be a whole number .* got \(28\.9, 28\)"),
        ({"image_size": True}, "image_size: must be a whole number .* got True"),
        ({"image_size": 0}, "image_size: must be at least .* got 0×0"),
        ({"classes": "cat"}, "classes: must be a number or names, got 'cat'"),
        ({"classes": ("a", "b", "a")}, "classes: must have each name once, got 'a' twice"),
        ({"channels": 0}, "channels: must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_meant(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        create_model("sabour2017_cnn", **options)


def test_whole_numbers_of_numpy_and_pytorch(tmp_path: Path) -> None:
    model = create_model(
        "hahn2019_convnet", image_size=np.int64(32), classes=torch.tensor([0, 3]).max() + 1, width=np.int64(8)
    )
    assert (model.image_size, model.classes, model.options["width"]) == ((32, 32), ("0", "1", "2", "3"), 8)
    model.save_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("image", "convolutions", "grid"),
    [((28, 28), [(9, 1), (9, 2)], (6, 6)), ((17, 18), [(9, 1), (9, 2)], (1, 1)), ((5, 9), [(2, 3), (1, 1)], (2, 3))],
)
def test_grid_after(image: tuple[int, int], convolutions: list[tuple[int, int]], grid: tuple[int, int]) -> None:
    assert grid_after(image, convolutions) == grid


def test_grid_after_too_much() -> None:
    with pytest.raises(ValueError, match=r"image_size: must be at least 17×17 for these kernels, got 28×16"):
        grid_after((28, 16), [(9, 1), (9, 2)])
