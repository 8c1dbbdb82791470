"""The registry of networks, and the options that all of them share."""

import inspect
import json

import pytest
import torch

from capsella.errors import ArgumentError, CapsellaError
from capsella.models import create_model, list_models, model_function


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(ArgumentError) as error:
        create_model("sabour_capsnet")
    assert (error.value.argument, error.value.got) == ("model", "sabour_capsnet")
    assert "sabour2017_capsnet" in error.value.hint
    with pytest.raises(ArgumentError) as error:
        create_model("sabour2017_cnn", channel=3)
    assert (error.value.got, "channels" in error.value.hint) == ("channel", True)


def test_every_network_is_made_again_from_its_options() -> None:
    """Options hold every argument, survive JSON, and describe the same weights."""

    def differs(name: str) -> bool:
        model = create_model(name)
        again = create_model(name, **json.loads(json.dumps(model.options)))
        shapes = [{key: value.shape for key, value in network.state_dict().items()} for network in (model, again)]
        arguments = set(inspect.signature(model_function(name)).parameters)
        return set(model.options) != arguments or again.options != model.options or shapes[0] != shapes[1]

    with torch.device("meta"):
        assert not [name for name in list_models() if differs(name)]


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("image_size", "32"),
        ("image_size", (28.9, 28)),
        ("image_size", True),
        ("image_size", 0),
        ("classes", "cat"),
        ("classes", ("a", "b", "a")),
        ("classes", ("only",)),
        ("channels", 0),
    ],
)
def test_arguments_that_cannot_be_meant(argument: str, value: object) -> None:
    with pytest.raises(ArgumentError) as error:
        create_model("sabour2017_cnn", **{argument: value})
    assert error.value.argument == argument


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("name", ["sabour2017_cnn", "sabour2017_capsnet"])
@pytest.mark.parametrize("shape", [(2, 1, 17, 18), (2, 2, 18, 17), (2, 17, 18), (2, 2, 18, 18)])
def test_images_of_another_shape(name: str, shape: tuple[int, ...]) -> None:
    model = create_model(name, image_size=(17, 18), channels=2)
    with pytest.raises(ArgumentError) as error:
        model(torch.rand(shape))
    assert (error.value.argument, error.value.got) == ("images", shape)


def test_parts_that_a_network_lacks() -> None:
    cnn = create_model("sabour2017_cnn", image_size=4)
    capsules = create_model("sabour2017_capsnet", image_size=17, reconstruction=False)
    output = capsules(torch.rand(1, 1, 17, 17))
    with pytest.raises(CapsellaError, match="sabour2017_cnn"):
        cnn.encode(torch.rand(1, 1, 4, 4))
    with pytest.raises(CapsellaError, match="sabour2017_capsnet"):
        capsules.decode(output.capsules, torch.tensor([0]))
