"""torch.compile takes every routing in one graph, torch.export a whole layer."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import capsella
from capsella.layers import CapsuleConv2d
from capsella.routing import ROUTINGS
from capsella.types import Capsules

# In its own process, as the annotation checks of the tests cannot be traced. aot_eager traces forward and backward as
# every other backend does, and spares the half minute in which the default one compiles C++.
SCRIPT = """
import torch
from capsella.layers import CapsuleConv2d
from capsella.routing import ROUTINGS
from capsella.types import Capsules

for routing in ROUTINGS.values():
    if routing.name not in {names!r}:
        continue
    torch.compiler.reset()
    torch.manual_seed(0)
    layer = CapsuleConv2d(2, 4, 3, 4, kernel=(2, 1), routing=routing())
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    children = Capsules(torch.randn(2, 3, 2, 2, 4), torch.rand(2, 3, 2, 2))
    results = []
    for run in (layer, compiled):
        layer.zero_grad()
        out = run(children)
        (out.poses.pow(3).sum() + out.activations.sum()).backward()
        results.append((out.poses, out.activations, layer.weight.grad))
    torch.testing.assert_close(*results)
    print(routing.name)
"""
NAMES = ["dynamic", "em", "heinsen", "inverted_attention", "random", "self", "self_attention", "uniform"]
NAMES += ["variational"]


def test_compiled_layers_agree() -> None:
    root = Path(capsella.__file__).parents[1]
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(names=NAMES)], cwd=root, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert sorted(run.stdout.split()) == NAMES


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("name", NAMES)
def test_exported_layers_agree(name: str) -> None:
    layer = CapsuleConv2d(2, 4, 3, 4, kernel=(2, 1), routing=ROUTINGS[name]())
    children = Capsules(torch.randn(2, 3, 2, 2, 4), torch.rand(2, 3, 2, 2))
    exported = torch.export.export(layer, (children,)).module()
    for ours, expected in zip(exported(children), layer(children), strict=True):
        torch.testing.assert_close(ours, expected)
