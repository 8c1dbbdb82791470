"""Figures of numbers and of images show the right numbers and pixels."""

from base64 import b64decode

import numpy as np
import pytest
from PIL import Image

from capsella.report.figures import (
    accuracy_figure,
    confusion_figure,
    reliability_figure,
    training_figure,
    write_figure,
    write_png,
)
from capsella.report.image_figures import RIGHT, WRONG, columns_figure, mosaic
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


def test_a_network_has_one_colour_in_all_panels_and_its_intervals(tmp_path):
    curve = np.array([[0, 0.1, 0.3], [90, 50, 10], [80, 40, 0], [95, 60, 20]])
    figure = accuracy_figure(
        {"noise": ("SD", {"caps": curve, "$\\bad{": curve}), "turned": ("degrees", {"caps": curve})}
    )
    (first, second), (other,) = (axes.lines for axes in figure.axes)
    assert [axes.get_xlabel() for axes in figure.axes] == ["SD", "degrees"]
    assert first.get_xydata().tolist() == [[0, 90], [0.1, 50], [0.3, 10]]
    assert first.get_color() == other.get_color() != second.get_color()
    assert figure.axes[0].collections[0].get_paths()[0].vertices[:, 1].max() == 95
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["caps", "$\\bad{"]
    write_png(figure, tmp_path / "noise.png")


def test_mosaic_puts_every_image_in_its_place():
    grid = np.arange(2 * 3 * 1 * 4 * 5).reshape(2, 3, 1, 4, 5) / 200
    picture = mosaic(grid)
    assert picture.shape == (2 * 4 + 1, 3 * 5 + 2, 1)
    np.testing.assert_array_equal(picture[5:9, 12:17, 0], grid[1, 2, 0])
    assert (picture[4] == 1).all()
    assert (picture[:, 5] == 1).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_reconstructions_stand_below_their_input(channels):
    images = np.random.default_rng(0).random((8, channels, 4, 4))
    names, taken = ["cat"] * 8, ["cat"] * 7 + ["dog"]
    figure = columns_figure([images, images * 0.5, images * 0.25], ["a", "b", "c"], names, taken)
    grid = np.array(figure.axes).reshape(6, 6)
    shown = [axes.images[0].get_array() for axes in grid[3:, 1]]
    assert figure.axes[0].get_title() == "cat"
    assert grid[3, 1].get_title() == "cat,\ntaken for\ndog"
    assert (grid[0, 0].title.get_color(), grid[3, 1].title.get_color()) == (RIGHT, WRONG)
    for scale, picture in zip((1, 0.5, 0.25), shown, strict=True):
        np.testing.assert_allclose(np.asarray(picture).reshape(4, 4, channels), scale * images[7].transpose(1, 2, 0))
    assert not any(axes.images for axes in grid[3:, 2:].ravel())
