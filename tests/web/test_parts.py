"""What a page is made of: arrays, images, their changes, planes of poses and votes, joined modules."""

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from capsella.data.reading import to_tensor
from capsella.image_options import Preprocessing
from capsella.models import create_model
from capsella.web.images import EncodedImages, change_images, changes_of, choose_images
from capsella.web.modules import joined_modules
from capsella.web.page import class_axes, page_html
from capsella.web.routing_view import MAX_VOTES, WITHIN, class_votes

from .conftest import NODE, in_node, needs_node

MODULES = Path(__file__).parent / "modules"


@needs_node
def test_the_modules_of_the_page():
    tests = sorted(map(str, MODULES.glob("*.test.mjs")))
    done = subprocess.run([NODE, "--test", *tests], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^# pass [1-9]\d", done.stdout, re.M)


@needs_node
@pytest.mark.parametrize("size", [(31, 17), (200, 90), (9, 40), (5, 5)])
def test_the_page_resizes_as_pillow_does(size):
    rgb = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    rgba = np.dstack([rgb, np.full(size, 255)]).ravel().tolist()
    script = """import { channelsOf, resized } from "./fit.js";
      const fitted = (plane) => [...resized(plane, given.size, [17, 17], given.fit)];
      console.log(JSON.stringify(channelsOf(given.rgba, given.channels).map(fitted)));"""
    for channels, fit in ((1, "crop"), (3, "pad"), (1, "squash")):
        expected = to_tensor(Image.fromarray(rgb), Preprocessing((17, 17), channels, fit=fit))
        got = in_node(script, {"rgba": rgba, "size": size, "channels": channels, "fit": fit})
        np.testing.assert_array_equal(np.reshape(got, expected.shape), expected.numpy())


def pool_of(activations, labels):
    count = len(labels)
    images = torch.zeros(count, 1, 4, 4, dtype=torch.uint8)
    return EncodedImages(
        images, labels.reshape(count, -1), tuple(range(count)), count, activations, torch.zeros(count, 3, 2)
    )


def test_every_class_mistakes_and_unsure_images_are_chosen():
    labels = torch.arange(40) % 4
    activations = torch.full((40, 4), 0.1)
    activations[torch.arange(40), labels] = 0.9
    activations[20] = torch.tensor([0.1, 0.2, 0.95, 0.1])  # of class 0: a mistake
    activations[21] = torch.tensor([0.1, 0.3, 0.1, 0.1])  # right, but unsure
    chosen = choose_images(pool_of(activations, labels), 8)
    assert len(chosen) == len(set(chosen)) == 8
    assert {20, 21} <= set(chosen)
    assert set(labels[chosen].tolist()) == {0, 1, 2, 3}
    assert chosen[-1] == 20  # mistakes stand last
    assert choose_images(pool_of(activations, labels), 1) == [0]
    assert sorted(choose_images(pool_of(activations, labels), 100)) == list(range(40))
    with pytest.raises(ValueError, match="images: must be at least 1, got 0"):
        choose_images(pool_of(activations, labels), 0)


def test_changes_about_the_centre():
    image = torch.arange(9.0).reshape(1, 1, 3, 3) / 8
    torch.testing.assert_close(change_images(image, "turn", 0), image)
    torch.testing.assert_close(change_images(image, "turn", 90), image.rot90(-1, (2, 3)))
    torch.testing.assert_close(change_images(image, "shift", 1)[..., 1:], image[..., :2])
    wide = torch.rand(2, 3, 4, 9)
    torch.testing.assert_close(change_images(wide, "turn", 180), wide.flip((2, 3)))
    assert changes_of(20)[1].amounts == (-4, -3, -2, -1, 0, 1, 2, 3, 4)


def test_the_plane_of_a_class():
    torch.manual_seed(0)
    usual, aside = torch.eye(5)[0], torch.eye(5)[3]
    poses = 0.9 * (usual + torch.linspace(-0.5, 0.5, 11)[:, None] * aside)
    both = torch.stack([poses, torch.rand(11, 5)], 1)
    activations = torch.tensor([[0.9, 0.1]]).repeat(11, 1)
    images, labels = torch.zeros(11, 1, 4, 4, dtype=torch.uint8), torch.zeros(11, 1, dtype=torch.long)
    axes = class_axes(EncodedImages(images, labels, tuple(range(11)), 11, activations, both))
    torch.testing.assert_close(axes[0, 0], usual)
    torch.testing.assert_close(axes[0, 1].abs(), aside)
    assert axes.isfinite().all()


@pytest.mark.parametrize(
    ("name", "options", "children"),
    [
        ("sabour2017_capsnet", {"image_size": 20, "classes": 3}, 128),
        ("hinton2018_matrix_capsnet_small", {}, 256),
        ("heinsen2019_capsnet", {"image_size": 32, "classes": 3}, 64),  # asked for log-odds, not called
    ],
)
def test_votes_in_a_plane(name, options, children):
    model = create_model(name, **options).eval()
    image = torch.rand(model.channels, *model.image_size)
    votes = class_votes(model, image, [2, 0])
    assert votes.children == children
    count = min(children, MAX_VOTES)
    assert votes.points.shape == (2, count, 2)
    assert votes.couplings.shape == (2, votes.means.shape[1], count)
    distances = np.linalg.norm(votes.points, axis=2)
    np.testing.assert_allclose(distances.max(1), 1)
    last = votes.couplings[:, -1]
    within = np.where(distances < 1 - 1e-9, last, 0).sum(1) / last.sum(1)
    assert (within < WITHIN + 1e-9).all()
    np.testing.assert_allclose(votes.means[:, -1], 0, atol=1e-12)
    assert ((votes.spread > 0) & (votes.spread <= 1 + 1e-9)).all()
    if name == "sabour2017_capsnet":
        active = model.primary(model.backbone(image[None])).activations[0].detach().numpy()
        ordered = active[tuple(votes.positions.T)]
        np.testing.assert_allclose(ordered, np.sort(active.ravel())[::-1][:count], rtol=1e-6)


@needs_node
def test_no_name_is_there_twice(tmp_path):
    script = tmp_path / "joined.mjs"
    script.write_text(joined_modules(), encoding="utf-8")
    done = subprocess.run([NODE, "--check", str(script)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_names_from_strangers_stay_text():
    name = "</script><script>alert(1)</script>"
    html = page_html(name, {"runs": [{"classes": [name]}]}, "")
    assert name not in html
    facts = html.partition('id="facts">')[2].partition("</script>")[0]
    assert json.loads(facts)["runs"][0]["classes"] == [name]
