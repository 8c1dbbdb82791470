"""From runs to a page: what is in it, what is refused, and that it draws what PyTorch draws."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from capsella.errors import CapsellaError
from capsella.models import create_model
from capsella.routing import record
from capsella.web import share_runs
from capsella.web.routing_view import class_votes
from capsella.web.share import split_cnn

from .page_parity import NODE, TOLERANCE, compare_page

needs_node = pytest.mark.skipif(NODE is None, reason="Node is not installed")


def test_the_page_is_one_file_that_asks_for_nothing(shared):
    html = shared.path.read_text(encoding="utf-8")
    assert shared.megabytes == len(html.encode()) / 1e6
    assert "default-src 'none'" in html
    assert not re.findall(r'(?:src|href)="(?!data:)', html)
    assert [len(numbers) for numbers in shared.images.values()] == [12]


@pytest.mark.parametrize(
    ("network", "routing"),
    [("benchmark_capsnet", "em"), ("benchmark_capsnet", "variational"), ("heinsen2019_capsnet", None)],
)
def test_networks_whose_log_odds_are_logits_are_looked_into(network, routing):
    """Their last layer is asked for log-odds, not called."""
    torch.manual_seed(0)
    more = {} if routing is None else {"routing": {"name": routing}}
    model = create_model(network, image_size=32, classes=3, **more).eval()
    image = torch.rand(1, 32, 32)
    votes = class_votes(model, image, [0, 2])
    with torch.no_grad(), record() as traces:
        output = model(image[None])
    assert votes.couplings.shape[:2] == (2, len(traces[-1].couplings))
    assert votes.children == traces[-1].couplings[-1].shape[1]
    assert output.activations.isfinite().all()


@needs_node
def test_the_page_draws_what_pytorch_draws(shared, run):
    compared = compare_page(shared.path, [run.model])
    assert compared.pictures == 12 * 2 + 5
    assert 0 < compared.difference < TOLERANCE


@needs_node
@pytest.mark.slow
def test_the_network_in_a_page_sees_what_pytorch_sees(shared_network, small_run):
    compared = compare_page(shared_network.path, [small_run.model], network=True)
    assert compared.looks == 3
    assert 0 < compared.numbers < TOLERANCE


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


def test_a_cnn_has_nothing_to_share(run, tmp_path):
    cnn = replace(run, model=create_model("sabour2017_cnn", image_size=17))
    with pytest.raises(CapsellaError, match=r"^digits: sabour2017_cnn is a CNN"):
        share_runs([cnn], tmp_path / "page.html")


@pytest.fixture(scope="module")
def cnn(run):
    torch.manual_seed(1)
    return replace(run, folder=Path("plain-cnn"), model=create_model("sabour2017_cnn", image_size=17).eval())


def test_a_cnn_stands_beside_the_capsules(run, cnn, tmp_path):
    shared = share_runs([cnn, run], tmp_path / "page.html", images=2)
    assert list(shared.images) == ["digits"]
    html = shared.path.read_text(encoding="utf-8")
    assert '"beside":"plain-cnn"' in html
    assert '"0/cnnActivations2"' in html


def test_a_cnn_that_may_have_learned_from_the_images_shown_is_refused(run, plain_run, cnn):
    with pytest.raises(CapsellaError, match="a, b, c"):
        split_cnn({"a": run, "b": plain_run, "c": cnn})
    other = replace(cnn, recipe=replace(cnn.recipe, data=replace(run.recipe.data, split_seed=3)))
    with pytest.raises(CapsellaError, match="plain-cnn"):
        split_cnn({"digits": run, "plain-cnn": other})
