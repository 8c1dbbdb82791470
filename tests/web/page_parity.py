"""Compare a page with PyTorch: its own modules are run in Node on the finished file."""

import base64
import json
import math
import shutil
import subprocess
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from capsella.web.arrays import KINDS
from capsella.web.images import change_images, decode_poses

NODE = shutil.which("node")
CHECK = Path(__file__).parent / "modules" / "check.mjs"
TOLERANCE = 0.004  # of a pixel in [0, 1], about one of 256 grey levels; of capsules, relative to the largest number


class Compared(NamedTuple):
    """Number of pictures and their largest difference; the same for capsules of images that the page looks at."""

    pictures: int
    difference: float
    looks: int
    numbers: float


def compare_page(page, models, network=False):
    """Draw with the page's decoder, and change images as it does; compare each picture with PyTorch's."""
    html = page.read_text(encoding="utf-8")
    inside = {name: html.partition(f'id="{name}">')[2].partition("</script>")[0] for name in ("facts", "data")}
    facts, content = json.loads(inside["facts"]), zlib.decompress(base64.b64decode(inside["data"]))

    def array(name):
        kind, shape, start = facts["arrays"][name]
        return np.frombuffer(content, KINDS[kind], int(np.prod(shape)), start).reshape(shape).copy()

    requests, expected = [], []
    for number, (model, run) in enumerate(zip(models, facts["runs"], strict=True)):
        images, poses = array(f"{number}/images"), torch.from_numpy(array(f"{number}/poses"))
        cases = [*_drawings(model, run, poses), *_changes(images)]
        cases += _looks(array(f"{number}/activations"), poses) if network else []
        for request, picture in cases:
            requests.append({"run": number, **request})
            expected.append(picture)
    words = [NODE, str(CHECK), str(page)]
    done = subprocess.run(words, input=json.dumps(requests), capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr[-500:]
    pictures, looks = [], []
    for request, ours, theirs in zip(requests, expected, json.loads(done.stdout), strict=True):
        difference = float(np.abs(np.asarray(ours).ravel() - np.array(theirs)).max())
        (looks if "look" in request else pictures).append(difference)
    return Compared(len(pictures), max(pictures), len(looks), max(looks, default=0.0))


def _drawings(model, run, poses):
    """Predicted capsules as found, and with all dials turned at random."""
    random = np.random.default_rng(0)
    targets = torch.tensor([image["predicted"] for image in run["images"]])
    for scale in (0.0, run["dials"]["most"]) if run["decoder"] else ():
        offsets = torch.from_numpy(random.uniform(-scale, scale, poses.shape[::2])).float()
        drawn = decode_poses(model, targets, poses[torch.arange(len(targets)), targets] + offsets).numpy()
        for image in range(len(targets)):
            target, turned = int(targets[image]), offsets[image].tolist()
            yield {"draw": image, "target": target, "offsets": turned}, drawn[image]


def _changes(images):
    """The first image, changed in five ways."""
    image = torch.from_numpy(images[:1]).float() / 255
    shift = float(math.ceil(image.shape[3] / 5))
    for name, amount in [("turn", 40.0), ("turn", -10.0), ("shift", shift), ("scale", 60.0), ("scale", 140.0)]:
        yield {"change": 0, "name": name, "amount": amount}, change_images(image, name, amount)[0].numpy()


def _looks(activations, poses):
    """Activations of each image, and poses relative to the largest number of any."""
    scale = max(1e-12, float(poses.abs().max()))
    both = np.concatenate([activations, poses.flatten(1).numpy() / scale], 1)
    for image in range(len(both)):
        yield {"look": image, "scale": scale}, both[image]
