"""The pictures of routings."""

import numpy as np
import pytest
import torch

from capsella.models import create_model
from capsella.routing import ROUTINGS
from tools.routing_pictures import class_couplings, draw, rows


def test_every_network_with_capsules_has_a_picture():
    names = [row.label[1] for row in rows()]
    assert names == [*(name.replace("_", " ") for name in sorted(ROUTINGS)), "cluster"]


@pytest.mark.parametrize(
    ("network", "options"), [("benchmark_capsnet", {"routing": {"name": "em"}}), ("benchmark_cluster", {})]
)
def test_a_picture(network, options):
    model = create_model(network, image_size=24, channels=2, classes=("cup", "pot", "pan"), **options)
    image = torch.rand(2, 24, 24)
    shares = class_couplings(model, image)
    axis = 0 if network == "benchmark_cluster" else 1  # children compete for a parent, or parents for a child
    np.testing.assert_allclose(shares.sum(axis), 1, rtol=1e-5)
    titles = [axes.get_title() for axes in draw(model, image, 1, "couplings").axes[:3]]
    assert titles == ["pot, left camera", "what went to pot", "couplings"]
