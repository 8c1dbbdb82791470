"""From runs to a page: what is in it, what is refused, and that it draws what PyTorch draws."""

import base64
import json
import math
import re
import subprocess
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from capsella.errors import CapsellaError
from capsella.web import share_runs
from capsella.web.arrays import KINDS
from capsella.web.images import change_images, decode_poses
from capsella.web.share import split_cnn

from .conftest import NODE, made, needs_node

CHECK = Path(__file__).parent / "modules" / "check.mjs"
TOLERANCE = 0.004  # of a pixel in [0, 1], about one of 256 grey levels; of capsules, relative to the largest number


def differences(page, model, network=False):
    """Run the page's own modules on the finished file, and return each result's largest difference from PyTorch's.

    The results are drawings of the predicted capsules, as found and with all dials turned at random, and the first
    image changed in five ways; with `network`, instead, the capsules of each image.
    """
    html = page.read_text(encoding="utf-8")
    inside = {name: html.partition(f'id="{name}">')[2].partition("</script>")[0] for name in ("facts", "data")}
    facts, content = json.loads(inside["facts"]), zlib.decompress(base64.b64decode(inside["data"]))

    def array(name):
        kind, shape, start = facts["arrays"][f"0/{name}"]
        return torch.from_numpy(np.frombuffer(content, KINDS[kind], int(np.prod(shape)), start).reshape(shape).copy())

    poses, images, cases = array("poses"), array("images").float() / 255, []
    (run,), count = facts["runs"], len(array("images"))
    if network:
        scale = float(poses.abs().max())
        both = torch.cat([array("activations"), poses.flatten(1) / scale], 1)
        cases = [({"look": image, "scale": scale}, both[image]) for image in range(count)]
    else:
        targets = torch.tensor([image["predicted"] for image in run["images"]])
        for most in (0.0, run["dials"]["most"]):
            offsets = torch.from_numpy(np.random.default_rng(0).uniform(-most, most, poses.shape[::2])).float()
            drawn = decode_poses(model, targets, poses[torch.arange(count), targets] + offsets)
            for image, target in enumerate(targets.tolist()):
                cases.append(({"draw": image, "target": target, "offsets": offsets[image].tolist()}, drawn[image]))
        shift = float(math.ceil(images.shape[3] / 5))
        for name, amount in [("turn", 40.0), ("turn", -10.0), ("shift", shift), ("scale", 60.0), ("scale", 140.0)]:
            changed = change_images(images[:1], name, amount)
            cases.append(({"change": 0, "name": name, "amount": amount}, changed))
    asked = json.dumps([{"run": 0, **request} for request, _ in cases])
    done = subprocess.run([NODE, str(CHECK), str(page)], input=asked, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr[-500:]
    pairs = zip(cases, json.loads(done.stdout), strict=True)
    return [float(np.abs(expected.numpy().ravel() - np.array(got)).max()) for (_, expected), got in pairs]


def test_the_page_is_one_file_that_asks_for_nothing(shared):
    html = shared.path.read_text(encoding="utf-8")
    assert shared.megabytes == len(html.encode()) / 1e6
    assert "default-src 'none'" in html
    assert not re.findall(r'(?:src|href)="(?!data:)', html)
    assert [len(numbers) for numbers in shared.images.values()] == [12]


@needs_node
def test_the_page_draws_what_pytorch_draws(shared, run):
    found = differences(shared.path, run.model)
    assert len(found) == 12 * 2 + 5
    assert 0 < max(found) < TOLERANCE


@needs_node
@pytest.mark.slow
def test_the_network_in_a_page_sees_what_pytorch_sees(shared_network, small_run):
    found = differences(shared_network.path, small_run.model, network=True)
    assert len(found) == 3
    assert 0 < max(found) < TOLERANCE


@pytest.mark.parametrize("options", [{"value_range": (0.0, 4095.0)}, {"cut": object()}])
def test_networks_whose_images_a_page_cannot_read(run, tmp_path, monkeypatch, options):
    for name, value in options.items():
        monkeypatch.setattr(run.model, name, value)
    with pytest.raises(CapsellaError, match=r"^network: "):
        share_runs([run], tmp_path / "page.html", network=True)


def test_a_page_that_is_too_large_is_refused(run, tmp_path):
    out = tmp_path / "page.html"
    with pytest.raises(CapsellaError, match="megabytes"):
        share_runs([run], out, images=2, megabytes=0.5)
    assert not out.exists()


@pytest.fixture(scope="module")
def cnn(tmp_path_factory):
    return made(tmp_path_factory.mktemp("runs") / "plain-cnn", network="sabour2017_cnn")


def test_a_cnn_stands_beside_the_capsules(run, cnn, tmp_path):
    shared = share_runs([cnn, run], tmp_path / "page.html", images=2)
    assert list(shared.images) == ["digits"]
    with pytest.raises(CapsellaError, match="plain-cnn: sabour2017_cnn is a CNN"):
        share_runs([cnn], tmp_path / "page.html")
    html = shared.path.read_text(encoding="utf-8")
    assert '"beside":"plain-cnn"' in html
    assert '"0/cnnActivations2"' in html


def test_a_cnn_that_may_have_learned_from_the_images_shown_is_refused(run, cnn):
    with pytest.raises(CapsellaError, match="a, b, c"):
        split_cnn({"a": run, "b": run, "c": cnn})
    other = replace(cnn, recipe=replace(cnn.recipe, data=replace(run.recipe.data, split_seed=3)))
    with pytest.raises(CapsellaError, match="plain-cnn"):
        split_cnn({"digits": run, "plain-cnn": other})
