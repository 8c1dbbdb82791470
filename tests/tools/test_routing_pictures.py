"""The pictures of routings: which rows have one, that they are small, and what they show."""

import numpy as np
import pytest
import torch

from capsella.models import create_model
from capsella.papers.league.fields import OTHERS
from capsella.report.figures import png_bytes
from capsella.routing import ROUTINGS
from tools.routing_pictures import class_couplings, draw, rows

NETWORKS = [pytest.param("league_capsnet", {"routing": {"name": name}}, id=name) for name in sorted(ROUTINGS)]


def test_every_row_with_capsules_has_a_picture():
    names = [row.label[1] for row in rows()]
    assert names == [*(name.replace("_", " ") for name in sorted(ROUTINGS)), *list(OTHERS)[:1]]
    assert {row.recipe.epochs * row.recipe.epoch_images // row.recipe.batch_size for row in rows()} == {300}


@pytest.mark.parametrize(("name", "options"), [*NETWORKS, pytest.param("league_cluster", {}, id="cluster")])
def test_a_picture(name, options):
    model = create_model(name, image_size=24, channels=2, classes=("cup", "pot", "pan"), **options)
    image = torch.rand(2, 24, 24)
    shares = class_couplings(model, image)
    assert shares.shape[1] == 3
    axis = 0 if name == "league_cluster" else 1  # children compete for a parent, or parents for a child
    np.testing.assert_allclose(shares.sum(axis), 1, rtol=1e-5)
    figure = draw(model, image, 1, "couplings")
    assert 2_000 < len(png_bytes(figure)) < 100_000
    assert [axes.get_title() for axes in figure.axes[:3]] == ["pot, left camera", "what went to pot", "couplings"]
