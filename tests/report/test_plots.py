import numpy as np
from PIL import Image

from capsella.evaluation import Roc
from capsella.report.figures import (
    attack_figure,
    confusion_figure,
    entropy_figure,
    reliability_figure,
    roc_figure,
    shorten,
    training_figure,
    write_png,
)
from capsella.uncertainty import calibration_curve


def texts(axes):
    return [text.get_text() for text in axes.texts]


def labels(ticks):
    return [tick.get_text() for tick in ticks]


def test_confusion_shows_counts_and_colours_shares(tmp_path):
    counts = np.array([[30, 10, 0], [0, 0, 0], [1, 0, 1]])
    figure = confusion_figure(counts, ("a", "$\\bad{", "c" * 40))
    axes = figure.axes[0]
    assert texts(axes) == ["30", "10", "1", "1"]
    assert axes.images[0].get_array().tolist() == [[0.75, 0.25, 0], [0, 0, 0], [0.5, 0, 0.5]]
    assert labels(axes.get_yticklabels()) == ["a", "$\\bad{", "c" * 21 + "…"]
    write_png(figure, tmp_path / "confusion.png")  # an unescaped $ would be read as a formula, and fail here
    assert Image.open(tmp_path / "confusion.png").size > (300, 300)


def test_confusion_by_answers_colours_columns():
    axes = confusion_figure(np.array([[3, 1], [1, 0]]), ("a", "b"), "predicted").axes[0]
    assert axes.images[0].get_array().tolist() == [[0.75, 1], [0.25, 0]]


def test_roc_has_a_curve_a_class_and_its_area():
    curve = Roc(np.array([0, 0.5, 1]), np.array([0, 1, 1]), 0.75)
    axes = roc_figure({"$\\bad{": curve, "b": curve}).axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "by chance (0.500)",
        "$\\bad{ (0.750)",
        "b (0.750)",
    ]
    np.testing.assert_allclose(axes.lines[1].get_xydata(), [[0, 0], [0.5, 1], [1, 1]])


def test_reliability_draws_filled_bins_only():
    curve = calibration_curve(np.array([0.5, 0.5, 0.95]), np.array([True, False, True]))
    upper, lower = reliability_figure(curve).axes
    points = upper.lines[1].get_xydata()
    np.testing.assert_allclose(points, [[0.5, 0.5], [0.95, 1]])
    assert sum(bar.get_height() for bar in lower.patches) == 3
    assert "0.017" in upper.get_title()


def test_training_draws_what_there_is():
    epochs, nothing = np.array([1.0, 2.0]), np.full(2, np.nan)
    figure = training_figure(
        {
            "epoch": epochs,
            "train_loss": np.array([1, 0.5]),
            "validation_loss": np.array([np.nan, 0.7]),
            "seconds": epochs,
        }
        | {"validation_error": nothing}
    )
    (axes,) = figure.axes
    assert axes.get_title() == "loss"
    drawn = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert drawn == {"train loss": [[1, 1], [2, 0.5]], "validation loss": [[2, 0.7]]}
    assert all(line.get_marker() == "o" for line in axes.lines)


def test_entropy_has_a_line_a_layer():
    (axes,) = entropy_figure({"first": [1, 0.9, 0.4], "second": [1, 0.8]}).axes
    assert [line.get_xydata().tolist() for line in axes.lines[:2]] == [[[1, 1], [2, 0.9], [3, 0.4]], [[1, 1], [2, 0.8]]]


def test_shorten_makes_bytes_that_are_no_text_drawable():
    assert shorten(b"caf\xe9.png".decode("utf-8", "surrogateescape")) == "caf\N{REPLACEMENT CHARACTER}.png"


def test_attacks_have_a_line_each_in_their_networks_colour(tmp_path):
    curves = {
        ("caps", "FGSM"): (90, 50.0, 10),
        ("caps", "PGD"): (90, 20, 0),
        ("$\\bad{", "FGSM"): (80, 5, 0),
        ("$\\bad{", "transfer from caps"): (80, 60, 30),
    }
    figure = attack_figure((0, 0.1, 0.3), curves)
    lines = figure.axes[0].lines
    assert [line.get_label() for line in lines] == [f"{network}: {attack}" for network, attack in curves]
    assert [list(line.get_ydata()) for line in lines] == [list(accuracy) for accuracy in curves.values()]
    assert lines[0].get_color() == lines[1].get_color() != lines[2].get_color() == lines[3].get_color()
    assert lines[0].get_marker() == lines[2].get_marker() != lines[1].get_marker()
    assert [line.get_linestyle() for line in lines] == ["-", "-", "-", "--"]
    write_png(figure, tmp_path / "attacks.png")
