"""Processes that train together take the step of one with the whole batch, also through the fused kernels."""

import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from capsella.data import load_data
from tests.training.together_job import NETWORKS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("together")
    call = [sys.executable, "-m", "tests.training.together_job", str(folder)]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def first_weights():
    """Of each network, before the step."""
    found = {}
    for name, (recipe, _) in NETWORKS.items():
        splits = load_data(recipe.data)
        torch.manual_seed(recipe.seed)
        found[name] = recipe.model.create(splits.image_size, splits.channels, splits.classes).state_dict()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_of_several_processes_are_those_of_one(runs, first_weights, network):
    counts = NETWORKS[network][1]
    single, *several = (safetensors.torch.load_file(runs / f"{network}-{n}" / "model.safetensors") for n in counts)
    moved = 0
    for name, weight in first_weights[network].items():
        gradient, rounding = weight - single[name], 2e-7 * max(1.0, float(weight.abs().max()))
        moved += float(gradient.abs().max()) > 100 * rounding
        for other in several:
            assert (other[name] - single[name]).abs().max() <= rounding + 1e-5 * gradient.abs().max(), name
    assert moved > 3
