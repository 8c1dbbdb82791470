"""Runs without training, whose capsules differ and whose dials draw, and the pages that are made of them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from capsella.models import create_model
from capsella.papers import get_recipe
from capsella.share import share_runs
from capsella.training import Run

SIZE = 17  # the least that CapsNet's kernels allow


def made(name, **options):
    """A run on the small digits of the demo."""
    torch.manual_seed(0)
    model = create_model("sabour2017_capsnet", image_size=SIZE, **options).eval()
    for parameter in model.capsule_layers.parameters():
        parameter.data *= 20  # fresh weights make poses so short that no capsule is sure
    for parameter in model.decoder.parameters() if model.has_decoder else ():
        parameter.data *= 3  # and drawings that hardly depend on them
    recipe = get_recipe("demo")
    recipe = replace(recipe, data=replace(recipe.data, size=SIZE, per_class=4, test_per_class=6))
    return Run(Path(name), name, recipe, model, {})


@pytest.fixture(scope="session")
def run():
    return made("digits")


@pytest.fixture(scope="session")
def plain_run():
    return made("plain", reconstruction=False)


@pytest.fixture(scope="session")
def shared(run, tmp_path_factory):
    return share_runs([run], tmp_path_factory.mktemp("page") / "page.html", images=12)


@pytest.fixture(scope="session")
def shared_pair(run, plain_run, tmp_path_factory):
    """Two runs, the second without dials."""
    return share_runs([run, plain_run], tmp_path_factory.mktemp("pair") / "page.html", images=3)
