"""The network that learns in the page: its gradients are PyTorch's, and it learns."""

import numpy as np
import pytest
import torch

from capsella.losses import margin_loss
from capsella.routing import dynamic_routing
from capsella.routing.functional import squash

from .conftest import in_node, needs_node

SIDE, CLASSES, D, TYPES, DRAWN = 6, 3, 8, 2, 0.04
IMPORT = 'import * as train from "./train.js";'
pytestmark = needs_node


def loss_of(weights, image, label):
    """Return the loss and the last couplings in float64, by capsella's routing and margin loss."""
    patches = torch.nn.functional.unfold(image[None, None], 4, stride=2)[0].T  # [positions 16]
    poses = squash((patches @ weights["patch"].T + weights["patchBias"]).reshape(-1, D))
    votes = torch.einsum("id,ijde->ije", poses, weights["vote"])
    routed = dynamic_routing(votes[None], 3, backend="reference")
    hidden = torch.relu(routed.poses[0, label] @ weights["hidden"][label] + weights["hiddenBias"])
    drawing = torch.sigmoid(hidden @ weights["pixel"] + weights["pixelBias"])
    error = (drawing - image.flatten()).square().sum()
    return margin_loss(routed.activations, torch.tensor([label])) + DRAWN * error, routed.couplings[0]


def test_loss_and_gradients_are_those_of_pytorch():
    shapes = in_node(f"{IMPORT}console.log(JSON.stringify(train.sizesOf({SIDE}, {CLASSES}).shapes));")
    random = np.random.default_rng(0)
    weights = {name: torch.from_numpy(random.normal(0, 0.5, shape)).requires_grad_() for name, shape in shapes.items()}
    image = torch.from_numpy(random.random((SIDE, SIDE)) * (random.random((SIDE, SIDE)) > 0.3))
    loss, couplings = loss_of(weights, image, 1)
    loss.backward()
    given = {name: weight.detach().flatten().tolist() for name, weight in weights.items()}
    script = f"""{IMPORT}
      const sizes = train.sizesOf({SIDE}, {CLASSES});
      const grads = train.emptyWeights(sizes);
      const passed = train.forward(sizes, given.weights, given.image);
      const loss = train.backward(sizes, given.weights, passed, 1, grads);
      const list = (values) => Array.from(values);
      const all = Object.fromEntries(Object.entries(grads).map(([name, values]) => [name, list(values)]));
      console.log(JSON.stringify({{ loss, couplings: list(passed.couplings.at(-1)), grads: all }}));"""
    got = in_node(script, {"weights": given, "image": image.flatten().tolist()})
    assert got["loss"] == pytest.approx(loss.item(), rel=1e-9)
    np.testing.assert_allclose(got["couplings"], couplings.detach().flatten(), rtol=1e-9)
    for name, weight in weights.items():
        assert weight.grad.abs().max() > 1e-4, name
        np.testing.assert_allclose(got["grads"][name], weight.grad.flatten(), rtol=1e-6, atol=1e-9, err_msg=name)


def test_the_network_learns():
    script = """import * as train from "./train.js";
      const sizes = train.sizesOf(6, 3);
      const learner = train.makeLearner(sizes, 1);
      const labels = Array.from({ length: 24 }, (_, k) => k % 3);
      const pixel = (label, k, p) => (Math.floor(p / 12) === label) * (0.5 + (k + p) % 7 / 14);
      const images = labels.map((label, k) => Float64Array.from({ length: 36 }, (_, p) => pixel(label, k, p)));
      const losses = Array.from({ length: 60 }, () => learner.step(images, labels));
      console.log(JSON.stringify([losses[0], losses.at(-1)]));"""
    first, last = in_node(script)
    assert last < first / 3
