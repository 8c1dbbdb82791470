"""The page of a run: it stands alone, escapes names, and gives the reason for what is absent."""

import copy
import html
import re
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch

from capsella.data import ImageSet, PairSet
from capsella.evaluation import Evaluation, evaluate
from capsella.models import create_model
from capsella.report import Training, write_report

from .conftest import NAMES, SIZE

METRICS = "epoch,learning_rate,train_loss,train_error,validation_error\n1,0.001,0.5,20,22\n2,0.0009,0.2,5,6\n"
FIGURES = {"confusion", "training", "reliability"}


class Page(HTMLParser):
    """Checks that tags are closed in order, and keeps the sources of images."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.sources = [], set(), []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)
        self.sources += [value for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture
def report(tmp_path, image_set):
    (tmp_path / "metrics.csv").write_text(METRICS)

    def write(model, evaluation=None):
        evaluation = evaluation or evaluate(model, image_set)
        facts = {"recipe": "demo", "data": "<digits>"}
        path = write_report(tmp_path, model, evaluation, image_set, tmp_path / "metrics.csv", "A <title> & more", facts)
        assert path == tmp_path / "report.html"
        return path.read_text(encoding="utf-8")

    return write


def headings(text):
    return re.findall(r"<h2 id=\"(\w+)\"", text)


def test_the_page_stands_alone_and_escapes_names(report, capsnet, image_set, tmp_path):
    text = report(capsnet)
    page = Page(text)
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == FIGURES
    assert "script" not in page.tags
    figures = [source for source in page.sources if source.startswith("data:image/svg+xml;base64,")]
    assert len(figures) == len(FIGURES)
    for source in figures:
        assert b"prefers-color-scheme" in b64decode(source.removeprefix("data:image/svg+xml;base64,"))
    for source in set(page.sources) - set(figures):
        assert b64decode(source.removeprefix("data:image/png;base64,")).startswith(b"\x89PNG")
    assert not re.search(r"https?://|url\(", text)
    evaluation = evaluate(capsnet, image_set)
    assert f"Error {evaluation.error:.2f}\N{NO-BREAK SPACE}%" in text
    for name in ("A <title> & more", "<digits>", *image_set.classes[1:]):
        assert html.escape(name) in text
    assert html.escape(image_set.files[evaluation.mistakes()[0]]) in text
    assert not {"i", "b", "digits"} & page.tags


@pytest.mark.usefixtures("without_pictures")
def test_only_what_a_network_has_and_what_varies_is_drawn(report, cnn, plain_capsnet, capsnet):
    blank = copy.deepcopy(capsnet)
    for parameter in blank.decoder.parameters():
        parameter.data.zero_()
    sections = {"reconstructions", "dimension_tweaks"}
    for model, drawn in ((cnn, set()), (plain_capsnet, set()), (blank, set()), (capsnet, sections)):
        assert sections & set(headings(report(model))) == drawn


@pytest.mark.usefixtures("without_pictures")
def test_only_capsule_lengths_are_explained_beside_the_calibration(report, cnn, plain_capsnet, matrix_capsnet):
    for model, explained in ((plain_capsnet, True), (cnn, False), (matrix_capsnet, False)):
        assert ("Capsule lengths" in report(model)) == explained


@pytest.mark.usefixtures("without_pictures")
def test_warnings_come_first(report, cnn, image_set):
    activations = torch.nn.functional.one_hot(image_set.labels * 0, 3).float()
    text = html.unescape(report(cnn, Evaluation(activations, image_set.labels, image_set.classes)))
    parts = (
        '<p class="warning">Never found: <b>&amp;</b> (0 of 4)',
        '<p class="warning">Not shown',
        "Do not use this network yet: 4 of 12",
        "capsella predict",
        'id="confusion"',
        'id="classes"',
        'id="limits"',
    )
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    perfect = Evaluation(torch.nn.functional.one_hot(image_set.labels, 3).float(), image_set.labels, image_set.classes)
    assert "12 of 12 test images correct (100.0\N{NO-BREAK SPACE}%)" in report(cnn, perfect)


@pytest.mark.usefixtures("without_pictures")
def test_without_metrics_and_with_odd_names(cnn, image_set, tmp_path):
    named, training = (
        replace(image_set, files=("caf\udce9.png",) * 12),
        Training(("It was trained on <cells>.",), False),
    )
    text = write_report(tmp_path, cnn, evaluate(cnn, named), named, None, "title", {}, training).read_text("utf-8")
    assert "caf\N{REPLACEMENT CHARACTER}.png" in text
    assert "<p>It was trained on &lt;cells&gt;.</p>" in text
    assert "training" not in headings(text)


@pytest.mark.usefixtures("without_pictures")
def test_stereo_images_and_pairs(capsnet, tmp_path):
    model = create_model("sabour2017_capsnet", image_size=17, channels=2, classes=3)
    for parameters, scale in ((model.capsule_layers.parameters(), 30), (model.decoder.parameters(), 4)):
        for parameter in parameters:
            parameter.data *= scale
    stereo = ImageSet(torch.randint(0, 256, (12, 2, 17, 17), dtype=torch.uint8), torch.arange(12) % 3, model.classes)
    text = write_report(tmp_path, model, evaluate(model, stereo), stereo, None, "stereo", {}).read_text()
    assert {"reconstructions", "dimension_tweaks", "mistakes"} <= set(headings(text))
    source = ImageSet(torch.randint(0, 256, (9, 1, SIZE - 4, SIZE - 4)).to(torch.uint8), torch.arange(9) % 3, NAMES)
    pairs = PairSet(source, 20, shift=2)
    found = torch.nn.functional.one_hot(pairs.labels, 3).amax(1).float()
    for activations, right in ((found, True), (found.roll(1, 1), False)):
        evaluation = Evaluation(activations, pairs.labels, NAMES)
        text = write_report(tmp_path, capsnet, evaluation, pairs, None, "pairs", {}).read_text()
        assert "reconstructions" in headings(text)
        assert ("mistakes" not in headings(text)) is right
