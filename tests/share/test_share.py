"""From runs to a page: what is in it, what is refused, and that a page which differs from PyTorch is not written."""

import copy
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from capsella.cli import share as command
from capsella.errors import CapsellaError
from capsella.models import create_model
from capsella.routing import record
from capsella.share import parity, share_runs
from capsella.share.arrays import Arrays
from capsella.share.beside import add_beside, choose_features
from capsella.share.engine import encoder_graph
from capsella.share.routed import class_votes, look_at_routing
from capsella.share.shared import parted
from capsella.share.turned import STOPS

needs_node = pytest.mark.skipif(parity.find_node() is None, reason="Node is not installed")


def test_the_page_is_one_file_that_asks_for_nothing(shared):
    html = shared.path.read_text(encoding="utf-8")
    assert shared.megabytes == len(html.encode()) / 1e6
    assert "default-src 'none'" in html
    assert not re.findall(r'(?:src|href)="(?!data:)', html)
    assert [len(numbers) for numbers in shared.images.values()] == [12]


@pytest.mark.parametrize(
    ("network", "routing"), [("league_capsnet", "em"), ("league_capsnet", "variational"), ("heinsen2019_capsnet", None)]
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
    look_at_routing(model, image, output.activations[0])


@needs_node
def test_it_was_compared_with_pytorch(shared, shared_pair):
    assert shared.compared.pictures == 12 * 2 + 5
    assert 0 < shared.compared.difference < parity.TOLERANCE
    assert shared_pair.compared.pictures == 3 * 2 + 5 + 5  # the second draws nothing


@needs_node
def test_a_decoder_of_convolutions_is_compared_as_well(shared_convolved):
    assert shared_convolved.compared.pictures == 3 * 2 + 5
    assert 0 < shared_convolved.compared.difference < parity.TOLERANCE
    html = shared_convolved.path.read_text(encoding="utf-8")
    assert "script-src 'unsafe-inline' blob: 'wasm-unsafe-eval'; worker-src blob:" in html
    assert "default-src 'none'" in html


@needs_node
def test_the_network_is_compared_as_well(shared_network):
    assert shared_network.compared.looks == 3
    assert 0 < shared_network.compared.numbers < parity.TOLERANCE
    assert re.search(r", its capsules of 3 images by at most [\de.-]+$", str(shared_network.compared))


@needs_node
@pytest.mark.usefixtures("as_users_call")
def test_a_network_that_looks_differently_is_not_written(small_run, tmp_path, monkeypatch):
    def other(model):
        changed = copy.deepcopy(model)
        for parameter in changed.capsule_layers.parameters():
            parameter.data *= 1.1
        return encoder_graph(changed)

    monkeypatch.setattr("capsella.share.shared.encoder_graph", other)
    with pytest.raises(CapsellaError, match=r"the page differs from PyTorch: .* its capsules of 2 images by at most"):
        share_runs([small_run], tmp_path / "page.html", images=2, network=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("of", "why"),
    [
        ({"value_range": (0.0, 4095.0)}, "its images have more than 8 bits"),
        ({"cut": object()}, "its stained cells are cut out first"),
    ],
)
def test_networks_whose_images_a_page_cannot_read(run, tmp_path, monkeypatch, of, why):
    for name, value in of.items():
        monkeypatch.setattr(run.model, name, value)
    with pytest.raises(CapsellaError, match=f"network: a page cannot read images as .* since {why}"):
        share_runs([run], tmp_path / "page.html", network=True)


@needs_node
def test_a_page_that_differs_is_not_written(run, tmp_path, monkeypatch):
    def other(images, name, amount):
        return images * 0.5

    monkeypatch.setattr(parity, "turned", other)
    with pytest.raises(
        CapsellaError, match=r"the page differs from PyTorch: .* differ .* by at most [\d.]+ \(allowed: 0.004"
    ):
        share_runs([run], tmp_path / "page.html", images=2)
    assert list(tmp_path.iterdir()) == []


def test_without_node_the_page_says_so(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("capsella.share.shared.find_node", lambda: None)
    monkeypatch.setattr(command, "load_runs", lambda folders: {"digits": run})
    out = tmp_path / "page.html"
    command.run(["digits", "--out", str(out), "--images", "2"])
    said = capsys.readouterr().out
    assert "not compared with PyTorch: Node is not installed" in said
    assert re.search(r"digits: 2 test images are in the page, and whoever gets it can see them: \d+, \d+\n", said)
    assert '"compared":false' in out.read_text(encoding="utf-8")


def test_a_page_that_is_too_large_is_refused(run, tmp_path):
    out = tmp_path / "page.html"
    text = r"the page would have \d+\.\d MB, more than the 0.5 of --megabytes\. The largest parts, in MB: decoder \d"
    with pytest.raises(CapsellaError, match=text):
        share_runs([run], out, images=2, megabytes=0.5)
    assert not out.exists()


def test_a_cnn_has_nothing_to_share(run, tmp_path):
    cnn = replace(run, model=create_model("sabour2017_cnn", image_size=17))
    with pytest.raises(CapsellaError, match=r"sabour2017_cnn is a CNN and has no capsules\. Name a run with"):
        share_runs([cnn], tmp_path / "page.html")


@pytest.fixture(scope="module")
def cnn(run):
    torch.manual_seed(1)
    return replace(run, folder=Path("plain-cnn"), model=create_model("sabour2017_cnn", image_size=17).eval())


def test_a_cnn_stands_beside_the_capsules(run, cnn, tmp_path):
    shared = share_runs([cnn, run], tmp_path / "page.html", images=2)
    assert list(shared.images) == ["digits"]
    html = shared.path.read_text(encoding="utf-8")
    assert '"beside":{"name":"plain-cnn","network":"sabour2017_cnn","features":16,"of":192,"kept":[' in html


def test_features_of_changed_images(cnn):
    arrays, kept = Arrays(), {}
    arrays.add = lambda name, kind, values: kept.update({name: values})
    images = torch.randint(0, 256, (2, 1, 17, 17), dtype=torch.uint8)
    beside = choose_features("cnn", cnn.model, images)
    add_beside(beside, images.float() / 255, arrays, "0")
    angles, features = kept["0/besideAngles0"], kept["0/besideFeatures0"]
    assert angles.shape == (2, STOPS)
    np.testing.assert_allclose(angles[:, STOPS // 2], 0, atol=0.1)
    assert (angles[:, [0, -1]] > 1).all()
    largest = np.abs(np.concatenate([kept[f"0/besideFeatures{k}"] for k in range(3)], 1)).max((0, 1))
    np.testing.assert_allclose(largest, 1, rtol=1e-6)
    moves = features.max(1) - features.min(1)
    assert moves.shape == (2, 16)
    np.testing.assert_allclose(kept["0/besideActivations1"].sum(2), 1, rtol=1e-5)


def test_a_cnn_beside_two_runs_is_refused(run, plain_run, cnn):
    with pytest.raises(CapsellaError, match="beside one capsule network: give these two runs, got a, b, c"):
        parted({"a": run, "b": plain_run, "c": cnn})


def test_a_cnn_that_learned_from_other_images_is_refused(run, cnn):
    """It might have seen those on the page."""
    other = replace(cnn, recipe=replace(cnn.recipe, data=replace(cnn.recipe.data, split_seed=7)))
    with pytest.raises(CapsellaError, match="b: a CNN beside a capsule network must be trained on the same images"):
        parted({"a": run, "b": other})
    seen_otherwise = replace(cnn, model=copy.deepcopy(cnn.model))
    seen_otherwise.model.value_range = (0.0, 4095.0)
    with pytest.raises(CapsellaError, match=r"its value_range must be None, got \(0.0, 4095.0\)"):
        parted({"a": run, "b": seen_otherwise})


def test_a_cnn_for_other_classes_is_refused(run, cnn, tmp_path):
    other = replace(cnn, model=create_model("sabour2017_cnn", image_size=17, classes=("a", "b")))
    with pytest.raises(CapsellaError, match=r"its classes must be .*, got \('a', 'b'\)"):
        share_runs([run, other], tmp_path / "page.html")
