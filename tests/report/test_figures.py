"""Figures of numbers and of images show the right numbers and pixels."""

from base64 import b64decode

import numpy as np
import pytest
from PIL import Image

from capsella.evaluation import Roc
from capsella.report.figures import (
    attack_figure,
    confusion_figure,
    reliability_figure,
    roc_figure,
    shorten,
    training_figure,
    write_figure,
    write_png,
)
from capsella.report.image_figures import (
    RIGHT,
    WRONG,
    mosaic,
    perturbation_figure,
    reconstruction_figure,
    tweak_figure,
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
    (mesh,) = axes.collections
    assert mesh.get_array().filled(0).tolist() == [[0.75, 0.25, 0], [0, 0, 0], [0.5, 0, 0.5]]
    assert labels(axes.get_yticklabels()) == ["a", "$\\bad{", "c" * 21 + "…"]
    write_png(figure, tmp_path / "confusion.png")  # an unescaped $ would be read as a formula, and fail here
    assert Image.open(tmp_path / "confusion.png").size > (300, 300)
    svg = b64decode(write_figure(figure, tmp_path / "confusion.png").partition(",")[2]).decode()
    assert "prefers-color-scheme" in svg
    assert "$\\bad{" in svg


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


def test_mosaic_puts_every_image_in_its_place():
    grid = np.arange(2 * 3 * 1 * 4 * 5).reshape(2, 3, 1, 4, 5) / 200
    picture = mosaic(grid)
    assert picture.shape == (2 * 4 + 1, 3 * 5 + 2, 1)
    np.testing.assert_array_equal(picture[5:9, 12:17, 0], grid[1, 2, 0])
    assert (picture[4] == 1).all()
    assert (picture[:, 5] == 1).all()


def test_tweaks_are_headed_by_offsets_and_numbered():
    offsets = (-0.25, 0.0, 0.25)
    (axes,) = tweak_figure(np.zeros((16, 3, 1, 7, 9)), offsets).axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["-0.25", "+0.00", "+0.25"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == [str(k) for k in range(1, 17)]
    assert list(axes.get_xticks()) == [4, 14, 24]  # middle pixels of images 9 wide, 1 apart


@pytest.mark.parametrize("channels", [1, 3])
def test_reconstructions_stand_below_their_input(channels):
    images = np.random.default_rng(0).random((8, channels, 4, 4))
    names, taken = ["cat"] * 8, ["cat"] * 7 + ["dog"]
    figure = reconstruction_figure(images, images * 0.5, images * 0.25, names, taken)
    grid = np.array(figure.axes).reshape(6, 6)
    shown = [axes.images[0].get_array() for axes in grid[3:, 1]]
    assert figure.axes[0].get_title() == "cat"
    assert grid[3, 1].get_title() == "cat,\ntaken for\ndog"
    assert (grid[0, 0].title.get_color(), grid[3, 1].title.get_color()) == (RIGHT, WRONG)
    for scale, picture in zip((1, 0.5, 0.25), shown, strict=True):
        np.testing.assert_allclose(np.asarray(picture).reshape(4, 4, channels), scale * images[7].transpose(1, 2, 0))
    assert not any(axes.images for axes in grid[3:, 2:].ravel())


def side_by_side(pair):
    return np.hstack([pair[0], pair[1]])


class TestStereoPairs:
    """Two channels are the left and the right image of one view: they stand beside each other."""

    pairs = np.random.default_rng(1).random((3, 2, 4, 5))
    grid = np.random.default_rng(2).random((2, 3, 2, 4, 5))

    def test_mosaic(self):
        picture = mosaic(self.grid)
        assert picture.shape == (2 * 4 + 1, 3 * 10 + 2, 1)
        np.testing.assert_array_equal(picture[5:9, 22:32, 0], side_by_side(self.grid[1, 2]))

    def test_reconstructions(self):
        figure = reconstruction_figure(self.pairs, self.pairs * 0.5, self.pairs * 0.25, ["cat"] * 3, ["cat"] * 3)
        column = np.array(figure.axes).reshape(3, 6)[:, 1]
        for axes, scale in zip(column, (1, 0.5, 0.25), strict=True):
            np.testing.assert_allclose(axes.images[0].get_array(), scale * side_by_side(self.pairs[1]))

    def test_perturbation(self):
        figure = perturbation_figure(self.pairs[0], self.pairs[1], self.grid, (-0.1, 0.0, 0.1), (4, 7))
        for axes, pair in zip(figure.axes[:2], self.pairs, strict=False):
            np.testing.assert_array_equal(axes.images[0].get_array(), side_by_side(pair))
