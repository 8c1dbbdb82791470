"""Every routing alike: empty batches, and options that no routing can mean."""

import pytest
import torch

from capsella import create_model
from capsella.layers import DenseCapsules
from capsella.routing import ROUTINGS
from capsella.types import Capsules

WITH_BACKENDS = [name for name, kind in ROUTINGS.items() if "backend" in kind.__dataclass_fields__]


@pytest.mark.parametrize("backend", ["reference", "eager", "auto"])
@pytest.mark.parametrize("name", WITH_BACKENDS)
def test_an_empty_batch_gives_an_empty_batch(name, backend):
    layer = DenseCapsules((2, 2), 3, 4, 5, 4, pose="matrix", routing=ROUTINGS[name](backend=backend))
    found = layer(Capsules(torch.rand(0, 2, 2, 3, 4), torch.rand(0, 2, 2, 3)))
    assert (found.poses.shape, found.activations.shape) == ((0, 1, 1, 5, 4), (0, 1, 1, 5))


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("iterations", [0, 2.5, "3", True])
@pytest.mark.parametrize("name", [name for name, kind in ROUTINGS.items() if "iterations" in kind.__dataclass_fields__])
def test_iterations_are_a_whole_number(name, iterations):
    with pytest.raises(ValueError, match=f"iterations: must be a whole number of at least 1, got {iterations!r}"):
        ROUTINGS[name](iterations=iterations)


@pytest.mark.usefixtures("as_users_call")
def test_a_routing_is_no_name():
    with pytest.raises(ValueError, match=r"routing: must be a Routing, as EMRouting\(\), got 'em'"):
        DenseCapsules((2, 2), 3, 4, 5, 4, routing="em")
    with pytest.raises(ValueError, match=r"routing: must be a Routing, as EMRouting\(\), got 'em'"):
        create_model("hinton2018_matrix_capsnet_small", classes=3, image_size=32, channels=1, routing="em")
