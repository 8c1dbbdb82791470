import html
import re
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch

from capsella.data import ImageSet
from capsella.evaluation import Evaluation, evaluate
from capsella.models import create_model
from capsella.report import Training, write_report

METRICS = "epoch,learning_rate,train_loss,train_error,validation_error\n1,0.001,0.5,20,22\n2,0.0009,0.2,5,6\n"
FIGURES = {"confusion", "answers", "roc", "training", "samples", "mistakes", "reliability"}


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


def test_report_of_a_capsule_network_stands_alone_and_escapes_names(report, capsnet, image_set, tmp_path):
    text = report(capsnet)
    page = Page(text)
    expected = FIGURES | {"reconstructions", "dimension_tweaks", "coupling_entropy"}
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == expected
    assert len(page.sources) == 10
    assert "script" not in page.tags
    for source in page.sources:
        assert source.startswith("data:image/png;base64,")
        assert b64decode(source.split(",")[1]).startswith(b"\x89PNG")
    assert not re.search(r"https?://|url\(", text)
    evaluation = evaluate(capsnet, image_set)
    assert f"{evaluation.error:.2f} % error" in text
    assert f"{evaluation.error_interval[0]:.2f} to {evaluation.error_interval[1]:.2f} %" in text
    for name in ("A <title> & more", "<digits>", *image_set.classes[1:]):
        assert html.escape(name) in text
    assert html.escape(image_set.files[evaluation.mistakes()[0]]) in text
    assert not {"i", "b", "digits"} & page.tags


def test_a_capsule_network_of_stereo_pairs_has_every_picture(tmp_path):
    model = create_model("sabour2017_capsnet", image_size=17, channels=2, classes=3)
    images = torch.randint(0, 256, (12, 2, 17, 17), dtype=torch.uint8)
    pairs = ImageSet(images, torch.arange(12) % 3, model.classes)
    write_report(tmp_path, model, evaluate(model, pairs), pairs, None, "stereo", {})
    expected = FIGURES - {"training"} | {"reconstructions", "dimension_tweaks", "coupling_entropy"}
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == expected


def test_a_cnn_says_why_pictures_are_absent(report, cnn, tmp_path):
    text = report(cnn)
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == FIGURES
    assert text.count("This model has no decoder, so no image can be made from what it found.") == 2
    assert "This model has no capsules, so nothing is routed." in text
    headings = re.findall(r"<h2 id=\"(\w+)\"", text)
    assert headings[-1] == "absent"
    assert not {"reconstructions", "dimension_tweaks", "vote_distances"} & set(headings)


def test_capsules_without_decoder_still_show_their_routing(report, plain_capsnet, tmp_path):
    text = report(plain_capsnet)
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == FIGURES | {"coupling_entropy"}
    assert text.count("This model has no decoder") == 2


def test_em_routing_shows_the_distances_of_its_votes(report, matrix_capsnet, capsnet, tmp_path):
    text = report(matrix_capsnet)
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == FIGURES | {"coupling_entropy", "vote_distances"}
    assert "how far the votes for each class capsule lie from its mean" in text
    assert "Drawn here for EM routing and its kin alone" not in text
    assert "Drawn here for EM routing and its kin alone" in report(capsnet)


@pytest.mark.usefixtures("without_pictures")
def test_without_metrics_and_with_file_names_that_are_not_utf8(cnn, image_set, tmp_path):
    named = replace(image_set, files=("caf\udce9.png",) * 12)
    text = write_report(tmp_path, cnn, evaluate(cnn, named), named, None, "title", {}).read_text(encoding="utf-8")
    assert "No training metrics were given for this model." in text
    assert "caf\N{REPLACEMENT CHARACTER}.png" in text


@pytest.mark.usefixtures("without_pictures")
def test_what_is_wrong_stands_first_and_in_words(report, cnn, image_set):
    activations = torch.nn.functional.one_hot(image_set.labels * 0, 3).float()
    text = html.unescape(report(cnn, Evaluation(activations, image_set.labels, image_set.classes)))
    never, constant, headline, words, table = (
        text.index(part)
        for part in (
            '<p class="warning">Never found: <b>&amp;</b> (0 of 4), $\\bad{ (0 of 4).',
            '<p class="warning">Not shown to be better than calling every image round, which is right for 33.3 %',
            "4 of 12 right",
            "Of 12 test images, 4 were classified right: 33.3 %.",
            "Sensitivity (recall)",
        )
    )
    assert never < constant < headline < words < table
    assert "<li><b>&amp;</b>, taken for round: 4 of the 4 images of <b>&amp;</b></li>" in text
    assert "Read the interval, not the number, of each class with fewer than 30: round (4)" in text


@pytest.mark.usefixtures("without_pictures")
def test_a_training_is_told_in_words(report, cnn, image_set, tmp_path):
    evaluation = evaluate(cnn, image_set)
    for grouped, said in ((True, "Images of one group were kept in one split"), (False, "Nothing told which images")):
        training = Training(("It was trained on <cells>.",), grouped)
        page = write_report(tmp_path, cnn, evaluation, image_set, None, "title", {}, training).read_text()
        assert "<p>It was trained on &lt;cells&gt;.</p>" in page
        assert said in page
