"""Runs without training, and a server about them in a thread of its own."""

import http.client
import json
import socket
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from capsella.data import ImageSet, PairSet
from capsella.explorer import Subject
from capsella.layers import ConvolutionalDecoder
from capsella.models import create_model
from capsella.share.beside import choose_features
from capsella.share.pool import make_pool

SIZE = 17  # the least that CapsNet's kernels allow
NAMES = ("round", "<b>&amp;</b>", "$\\bad{")


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
    return Subject(name, made, images, make_pool(made, images, most))


@pytest.fixture(scope="session")
def capsnet():
    return subject(model())


@pytest.fixture(scope="session")
def with_cnn(capsnet):
    """The same run with a CNN beside it."""
    cnn = model("sabour2017_cnn")
    return replace(capsnet, beside=choose_features("plain cnn", cnn, capsnet.pool.images))


@pytest.fixture(scope="session")
def plain():
    """On the same images, without a decoder."""
    return subject(model(reconstruction=False), name="plain")


@pytest.fixture(scope="session")
def convolutional():
    """A run whose drawings come from the server."""
    made = model(size=30)
    torch.manual_seed(0)
    made.decoder = ConvolutionalDecoder(16, (1, 30, 30), hidden=(2, 2, 2)).eval()
    for parameter in made.decoder.parameters():
        parameter.data *= 3
    return subject(made, images_for(made, 12), "convolutions")


@pytest.fixture(scope="session")
def pairs():
    """Two images, each 9×9 and shifted by up to 4 pixels, on a canvas of 17×17."""
    random = np.random.default_rng(0)
    source = ImageSet(
        torch.from_numpy(random.integers(0, 256, (30, 1, 9, 9), dtype=np.uint8)), torch.arange(30) % 3, NAMES
    )
    return subject(model(), PairSet(source, 12), "pairs")


class Served:
    """A server on a free port of this machine; leaving it ends the server."""

    def __init__(self, subjects, password=None, name=None):
        import uvicorn

        from capsella.explorer.application import make_application
        from capsella.explorer.server import names_of_server

        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        application = make_application(subjects, names_of_server("127.0.0.1", name), password)
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
        text = response.read().decode()
        connection.close()
        return response.status, response.headers, json.loads(text) if text.startswith("{") else text


@pytest.fixture(scope="session")
def served(capsnet, plain):
    with Served([capsnet, plain]) as server:
        yield server
