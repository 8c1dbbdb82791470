"""Runs on small digits, hardly trained: an epoch of a few images; and the pages that are made of them."""

from dataclasses import replace

import pytest
from rich.console import Console

from capsella.papers import get_recipe
from capsella.share import share_runs
from capsella.training import load_run, train


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """"digits" with a decoder, "plain" without one."""
    root = tmp_path_factory.mktemp("runs")
    recipe = get_recipe("demo")
    recipe = replace(recipe, data=replace(recipe.data, size=17, per_class=4, test_per_class=6), epochs=1)
    for name in ("digits", "plain"):
        train(recipe.with_model(reconstruction=name == "digits"), root / name, name=name, console=Console(quiet=True))
    return root


@pytest.fixture(scope="session")
def run(folders):
    return load_run(folders / "digits")


@pytest.fixture(scope="session")
def shared(run, tmp_path_factory):
    return share_runs([run], tmp_path_factory.mktemp("page") / "page.html", images=12)


@pytest.fixture(scope="session")
def shared_pair(run, folders, tmp_path_factory):
    """Two runs, the second without dials."""
    return share_runs([run, load_run(folders / "plain")], tmp_path_factory.mktemp("pair") / "page.html", images=3)
