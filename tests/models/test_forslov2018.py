"""The networks of Forslöv's thesis: grids of its figures, and defaults. `tests/papers/forslov2018` has Table 2."""

import pytest
import torch

from capsella.models import create_model
from capsella.models.forslov2018 import init_net
from capsella.routing import DynamicRouting
from tests.models.test_parameters import on_meta


@pytest.mark.parametrize("init", [1, 2])
@pytest.mark.parametrize(("size", "grid"), [((64, 67), (20, 22)), ((233, 250), (22, 24))])
def test_init_nets_end_with_the_published_map(init: int, size: tuple[int, int], grid: tuple[int, int]) -> None:
    assert init_net(init, size, 3, standardise=True)(torch.rand(1, 3, *size)).shape == (1, 128, *grid)


@pytest.mark.parametrize("head", ["capsnet1", "capsnet2", "emnet1", "emnet2"])
def test_grids_of_the_figures(head: str) -> None:
    model = create_model(f"forslov2018_{head}_init1", classes=3)
    types, pose, class_pose = (64, 8, 96) if head.startswith("caps") else (32, 16, 16)
    capsules = model.primary(model.backbone(torch.rand(1, 3, 224, 224)))
    shapes = [tuple(capsules.poses.shape)]
    for layer in model.capsule_layers:
        capsules = layer(capsules)
        shapes.append(tuple(capsules.poses.shape))
    between = [(1, 4, 4, types, pose)] if head.endswith("2") else []
    assert shapes == [(1, 6, 6, types, pose), *between, (1, 1, 1, 3, class_pose)]
    assert model.capsule_layers[-1].geometry.tied


def test_coordinates_are_added_to_the_votes_of_em_nets_alone() -> None:
    offset = create_model("forslov2018_emnet1_init1", image_size=64).capsule_layers[-1].vote_offset
    assert offset.shape == (6, 6, 16)
    # Windows of 9, then of 9 with stride 2, over 28 cells: 17 cells wide, 2 apart.
    torch.testing.assert_close(offset[:, 0, 3], (torch.arange(6) * 2 + 8.5) / 28)
    torch.testing.assert_close(offset[0, :, 7], (torch.arange(6) * 2 + 8.5) / 28)
    assert create_model("forslov2018_capsnet1_init1", image_size=64).capsule_layers[-1].vote_offset is None


def test_defaults_are_those_of_the_thesis() -> None:
    capsules, em = (on_meta(f"forslov2018_{head}_init1") for head in ("capsnet1", "emnet1"))
    assert len(capsules.classes) == 15
    assert capsules.classes[:5] == ("Segmented Neutrophil", "Eosinophil", "Basophil", "Lymphocyte", "Monocyte")
    assert capsules.capsule_layers[0].routing == DynamicRouting(iterations=3)
    routing = em.capsule_layers[0].routing
    assert (routing.competition, routing.standardise_costs) == ("types", True)
    assert [round(routing.inverse_temperature_at(t), 2) for t in range(3)] == [1.0, 1.95, 2.85]
