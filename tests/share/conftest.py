"""Runs without training, whose capsules differ and whose dials draw, and the pages that are made of them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from jaxtyping import config

from capsella.layers import ConvolutionalDecoder
from capsella.models import create_model
from capsella.papers import get_recipe
from capsella.share import share_runs
from capsella.training import Run
from tests.browser import DIAL, launched, opener

SIZE = 17  # the least that CapsNet's kernels allow


def made(name, size=SIZE, convolutions=False, network="sabour2017_capsnet", **options):
    """A run on the small digits of the demo."""
    torch.manual_seed(0)
    model = create_model(network, image_size=size, **options).eval()
    if convolutions:
        model.decoder = ConvolutionalDecoder(16, (1, size, size), hidden=(2, 2, 2)).eval()
    for parameter in model.capsule_layers.parameters():
        parameter.data *= 20  # fresh weights make poses so short that no capsule is sure
    for parameter in model.decoder.parameters() if model.has_decoder else ():
        parameter.data *= 3  # and drawings that hardly depend on them
    recipe = get_recipe("demo")
    recipe = replace(recipe, data=replace(recipe.data, size=size, per_class=4, test_per_class=6))
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


@pytest.fixture(scope="session")
def small_run():
    """Of a network that is small enough for a page."""
    return made("small", 28, network="mazzia2021_efficient_capsnet")


@pytest.fixture(scope="session")
def shared_network(small_run, tmp_path_factory):
    """A page that holds the network."""
    page = tmp_path_factory.mktemp("network") / "page.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "jaxtyping_disable", True)
        return share_runs([small_run], page, images=3, network=True)


@pytest.fixture(scope="session")
def shared_convolved(tmp_path_factory):
    """A run whose decoder is not dense; 30 rows become 32 in it, which runtimes of ONNX round in their own ways."""
    page = tmp_path_factory.mktemp("convolved") / "page.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "jaxtyping_disable", True)  # torch.export's sizes are no int to the annotations' checks
        return share_runs([made("convolutions", 32, convolutions=True)], page, images=3, megabytes=20)


@pytest.fixture(scope="module")
def chromium():
    with launched() as browser:
        yield browser


@pytest.fixture
def tab(shared, chromium):
    """A function that opens the page from the disk; at the end nothing else may have been asked for."""
    with opener(chromium, ("file:",)) as open_tab:

        def open_file(hash_="", path=shared.path, **options):
            page = open_tab(f"{path.as_uri()}{hash_}", **options)
            page.wait_for_selector(DIAL, state="attached") if path == shared.path else None
            return page

        yield open_file
