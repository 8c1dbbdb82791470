import numpy as np
import pytest

from capsella.explain.image_grids import RIGHT, WRONG, mosaic, prediction_figure, reconstruction_figure, tweak_figure


def test_mosaic_puts_every_image_in_its_place():
    grid = np.arange(2 * 3 * 1 * 4 * 5).reshape(2, 3, 1, 4, 5) / 200
    picture = mosaic(grid)
    assert picture.shape == (2 * 4 + 1, 3 * 5 + 2, 1)
    np.testing.assert_array_equal(picture[5:9, 12:17, 0], grid[1, 2, 0])
    assert (picture[4] == 1).all()
    assert (picture[:, 5] == 1).all()


def test_mosaic_keeps_colours_and_clips():
    grid = np.zeros((1, 2, 3, 2, 2))
    grid[0, 1, 2] = 1.5
    picture = mosaic(grid)
    assert picture[0, 3].tolist() == [0, 0, 1]


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 3, 2, 4, 5), (2, 0, 1, 4, 5)])
def test_mosaic_of_another_shape_is_an_error(shape):
    with pytest.raises(ValueError, match=r"\[rows columns c h w\] with 1 or 3 channels"):
        mosaic(np.zeros(shape))


def test_tweaks_are_headed_by_offsets_and_numbered():
    offsets = (-0.25, 0.0, 0.25)
    (axes,) = tweak_figure(np.zeros((16, 3, 1, 7, 9)), offsets).axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["-0.25", "+0.00", "+0.25"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == [str(k) for k in range(1, 17)]
    assert list(axes.get_xticks()) == [4, 14, 24]  # middle pixels of images 9 wide, 1 apart
    with pytest.raises(ValueError, match="offsets: must name each of the 3 columns, got 2"):
        tweak_figure(np.zeros((16, 3, 1, 7, 9)), offsets[:2])


def test_tweaks_of_chosen_elements_keep_their_numbers():
    (axes,) = tweak_figure(np.zeros((2, 1, 1, 7, 9)), [0.0], [3, 95]).axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["4", "96"]
    with pytest.raises(ValueError, match="elements: must name each of the 2 rows, got 3"):
        tweak_figure(np.zeros((2, 1, 1, 7, 9)), [0.0], [1, 2, 3])


@pytest.mark.parametrize("channels", [1, 3])
def test_reconstructions_stand_below_their_input(channels):
    images = np.random.default_rng(0).random((8, channels, 4, 4))
    names, taken = ["cat"] * 8, ["cat"] * 7 + ["dog"]
    figure = reconstruction_figure(images, images * 0.5, images * 0.25, names, taken)
    grid = np.array(figure.axes).reshape(6, 6)
    shown = [axes.images[0].get_array() for axes in grid[3:, 1]]
    assert figure.axes[0].get_title() == "cat"
    assert grid[3, 1].get_title() == "dog\nis cat"
    assert (grid[0, 0].title.get_color(), grid[3, 1].title.get_color()) == (RIGHT, WRONG)
    for scale, picture in zip((1, 0.5, 0.25), shown, strict=True):
        np.testing.assert_allclose(np.asarray(picture).reshape(4, 4, channels), scale * images[7].transpose(1, 2, 0))
    assert not any(axes.images for axes in grid[3:, 2:].ravel())


def test_predictions_say_class_confidence_and_truth():
    figure = prediction_figure(np.zeros((7, 1, 4, 4)), ["cat"] * 7, ["cat"] * 6 + ["dog"], np.linspace(0.4, 1, 7))
    assert figure.axes[0].get_title() == "cat 0.40"
    assert figure.axes[6].get_title() == "dog 1.00\nis cat"


def test_nothing_to_draw_and_names_that_do_not_fit_are_errors():
    nothing, one = np.zeros((0, 1, 4, 4)), np.zeros((1, 1, 4, 4))
    with pytest.raises(ValueError, match="at least 1, got 0, 0, 0, 0"):
        prediction_figure(nothing, [], [], np.zeros(0))[0]
    with pytest.raises(ValueError, match="at least 1, got 1, 1, 1, 0, 1"):
        reconstruction_figure(one, one, one, [], ["a"])
