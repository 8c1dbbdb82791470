"""Runs without training, pages that are made of them, and a server about them in a thread of its own."""

import http.client
import io
import json
import shutil
import socket
import subprocess
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from jaxtyping import config
from PIL import Image

from capsella.data import ImageSet
from capsella.models import create_model
from capsella.papers import get_recipe
from capsella.training import ComputeOptions, Run, RunFolder
from capsella.web import ServedRun, share_runs
from capsella.web.images import encode_test_images
from capsella.web.modules import PAGE
from tests.browser import DIAL, launched, opener

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="Node is not installed")
SIZE = 17  # the least that CapsNet's kernels allow
NAMES = ("round", "<b>&amp;</b>", "$\\bad{")


def in_node(script, given=None):
    """Return the JSON that a script prints, which may import modules of the page; `given` is its input."""
    script = f"const given = JSON.parse(await new Response(process.stdin).text());\n{script}"
    words = [NODE, "--input-type=module", "-e", script]
    done = subprocess.run(words, input=json.dumps(given), capture_output=True, text=True, timeout=120, cwd=PAGE)
    assert done.returncode == 0, done.stderr[-500:]
    return json.loads(done.stdout)


def png(*shape):
    """The content of a file with noise."""
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)).save(buffer, format="PNG")
    return buffer.getvalue()


def model(name="sabour2017_capsnet", size=SIZE, **options):
    torch.manual_seed(0)
    made = create_model(name, image_size=size, **{"channels": 1, "classes": NAMES, **options}).eval()
    for parameter in getattr(made, "capsule_layers", torch.nn.Module()).parameters():
        parameter.data *= 30  # fresh weights make votes so short that routing hardly moves
    if getattr(made, "has_decoder", False):
        for parameter in made.decoder.parameters():
            parameter.data *= 3  # and drawings that hardly depend on them
    return made


def images_for(made, count=30):
    random = np.random.default_rng(0)
    pixels = torch.from_numpy(random.integers(0, 256, (count, made.channels, *made.image_size), dtype=np.uint8))
    return ImageSet(pixels, torch.arange(count) % len(made.classes), made.classes)


def subject(made, images=None, name="my run", most=24):
    images = images_for(made) if images is None else images
    return ServedRun(name, made, images, encode_test_images(made, images, most))


@pytest.fixture(scope="session")
def capsnet():
    return subject(model())


@pytest.fixture(scope="session")
def plain():
    """On the same images, without a decoder."""
    return subject(model(reconstruction=False), name="plain")


class Served:
    """A server on a free port of this machine; leaving it ends the server."""

    def __init__(self, subjects, token=None):
        import uvicorn

        from capsella.web.server import make_application

        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        application = make_application(subjects, token)
        self.server = uvicorn.Server(uvicorn.Config(application, log_level="error", timeout_graceful_shutdown=1))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True)

    def __enter__(self):
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *_):
        self.server.should_exit = True
        self.thread.join(20)
        self.socket.close()

    def ask(self, path, method="GET", body=None, **headers):
        """Status, headers, and what JSON says or the text."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, body, {key.replace("_", "-"): value for key, value in headers.items()})
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
        connection.close()
        return response.status, response.headers, json.loads(text) if text.startswith("{") else text


@pytest.fixture(scope="session")
def served(capsnet, plain):
    with Served([capsnet, plain]) as server:
        yield server


def made(folder, size=SIZE, network="sabour2017_capsnet", **options):
    """A run on the small digits of the demo, of which the folder holds the config alone."""
    recipe = get_recipe("demo")
    recipe = replace(recipe, data=replace(recipe.data, size=size, per_class=4, test_per_class=6))
    classes = tuple(map(str, range(10)))
    folder.mkdir()
    RunFolder(folder).write_config(folder.name, recipe, ComputeOptions())
    return Run(folder, folder.name, recipe, model(network, size, classes=classes, **options), {})


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    return made(tmp_path_factory.mktemp("runs") / "digits")


@pytest.fixture(scope="session")
def shared(run, tmp_path_factory):
    return share_runs([run], tmp_path_factory.mktemp("page") / "page.html", images=12)


@pytest.fixture(scope="session")
def small_run(tmp_path_factory):
    """Of a network that is small enough for a page."""
    return made(tmp_path_factory.mktemp("runs") / "small", 28, network="mazzia2021_efficient_capsnet")


@pytest.fixture(scope="session")
def shared_network(small_run, tmp_path_factory):
    """A page that holds the network."""
    page = tmp_path_factory.mktemp("network") / "page.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "jaxtyping_disable", True)
        return share_runs([small_run], page, images=3, network=True)


@pytest.fixture(scope="module")
def chromium():
    with launched() as browser:
        yield browser


@pytest.fixture
def served_tab(served, chromium):
    """A function that opens the served page."""
    with opener(chromium, (served.url,)) as open_tab:
        yield lambda **options: open_tab(f"{served.url}/", **options)


@pytest.fixture
def tab(shared, chromium):
    """A function that opens the page from the disk; at the end nothing else may have been asked for."""
    with opener(chromium, ("file:",)) as open_tab:

        def open_file(hash_="", path=shared.path, **options):
            page = open_tab(f"{path.as_uri()}{hash_}", **options)
            page.wait_for_selector(DIAL, state="attached") if path == shared.path else None
            return page

        yield open_file
