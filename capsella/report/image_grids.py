"""Figures of images, drawn from plain arrays: inputs beside reconstructions, dimension tweaks, sample predictions."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from capsella.errors import ArgumentError
from capsella.report.figures import axes_in_rows, shorten

RIGHT, WRONG = "#2e7d32", "#c62828"
COLUMNS, CELL = 6, 1.5  # images side by side, and inches for each: a page's width in all
FIRST, SECOND = (1.0, 0.45, 0.1), (0.1, 0.55, 0.9)  # colours of a pair's images; where both are, nearly white
GAP = 1  # pixels between the images of a mosaic


def side_by_side(images: Float[np.ndarray, "*n c h w"]) -> Float[np.ndarray, "*n c2 h w2"]:
    """Images as they are drawn: a stereo pair, of two channels, is one grey picture, left beside right."""
    return np.concatenate([images[..., :1, :, :], images[..., 1:, :, :]], -1) if images.shape[-3] == 2 else images


def mosaic(grid: Float[np.ndarray, "rows columns c h w"]) -> Float[np.ndarray, "height width c2"]:
    """One picture of rows × columns images with a white gap around each, channels last, clipped to [0, 1].

    Raises:
        ValueError: not five axes, or not 1, 2 (a stereo pair) or 3 channels.
    """
    if grid.ndim != 5 or grid.shape[2] not in (1, 2, 3) or 0 in grid.shape:
        raise ValueError(f"grid: must be [rows columns c h w] with 1, 2 or 3 channels, got shape {grid.shape}")
    grid = side_by_side(grid)
    gaps = ((0, 0), (0, 0), (0, 0), (0, GAP), (0, GAP))
    tiles = np.pad(np.clip(grid, 0, 1), gaps, constant_values=1).transpose(0, 3, 1, 4, 2)  # [rows h columns w c]
    rows, h, columns, w, channels = tiles.shape
    return tiles.reshape(rows * h, columns * w, channels)[:-GAP, :-GAP]


def show(axes: Axes, picture: Float[np.ndarray, "h w c"]) -> None:
    """Draw a picture in [0, 1], grey, in colour or a stereo pair side by side, pixels as squares, without ticks."""
    picture = side_by_side(picture.transpose(2, 0, 1)).transpose(1, 2, 0)
    axes.imshow(picture.squeeze(2) if picture.shape[2] == 1 else picture, cmap="gray", vmin=0, vmax=1)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def tweaks(
    axes: Axes,
    grid: Float[np.ndarray, "d offsets c h w"],
    offsets: Sequence[float],
    elements: Sequence[int] | None = None,
) -> None:
    """A row a pose element, named by its index + 1, a column an offset, which heads it."""
    grid = side_by_side(grid)
    d, columns, _, h, w = grid.shape
    if columns != len(offsets):
        raise ArgumentError("offsets", f"name each of the {columns} columns", len(offsets))
    elements = range(d) if elements is None else elements
    if d != len(elements):
        raise ArgumentError("elements", f"name each of the {d} rows", len(elements))
    show(axes, mosaic(grid))
    # Centres of the tiles; pixel k reaches from k − ½ to k + ½.
    across, down = (w + GAP) * np.arange(columns) + (w - 1) / 2, (h + GAP) * np.arange(d) + (h - 1) / 2
    axes.set_xticks(across, [f"{offset:+.2f}" for offset in offsets], fontsize=8)
    axes.set_yticks(down, [str(k + 1) for k in elements], fontsize=8)
    axes.tick_params(length=0, top=False, labeltop=True, labelbottom=False)
    axes.set(ylabel="number of the capsule")


def tweak_figure(
    grid: Float[np.ndarray, "d offsets c h w"], offsets: Sequence[float], elements: Sequence[int] | None = None
) -> Figure:
    """The dimension tweaks of one class capsule (Sabour et al. 2017, Fig. 4)."""
    height = 0.6 * _aspect(grid[0]) * grid.shape[0]
    figure = Figure(figsize=(0.6 * grid.shape[1] + 0.8, height + 0.6), layout="constrained")
    tweaks(figure.add_subplot(), grid, offsets, elements)
    return figure


def perturbation_figure(
    image: Float[np.ndarray, "c h w"],
    reconstruction: Float[np.ndarray, "c h w"],
    grid: Float[np.ndarray, "d offsets c h w"],
    offsets: Sequence[float],
    elements: Sequence[int],
) -> Figure:
    """The input on the top left, its reconstruction on the top right; below, a row a moved number of the capsule.

    Forslöv 2018, Figures 35 and 36.
    """
    below = 0.75 * _aspect(grid[0]) * len(grid) + 0.4
    figure = Figure(figsize=(0.75 * len(offsets) + 0.8, 1.9 + below), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=(1.9, below), squeeze=False)[:, 0]
    left, right = upper.subplots(1, 2)
    for axes, picture, title in ((left, image, "input"), (right, reconstruction, "reconstruction")):
        show(axes, _channels_last(picture))
        axes.set_title(title, fontsize=9)
    tweaks(lower.subplots(), grid, offsets, elements)
    return figure


def reconstruction_figure(
    images: Float[np.ndarray, "n c h w"],
    from_true: Float[np.ndarray, "n c h w"],
    from_predicted: Float[np.ndarray, "n c h w"],
    true_names: Sequence[str],
    predicted_names: Sequence[str],
) -> Figure:
    """Three rows, a column an image: the input, its reconstruction from the true class and from the predicted one.

    Raises:
        ValueError: no images, or names that do not fit them.
    """
    _check_counts("images, reconstructions, names", images, from_true, from_predicted, true_names, predicted_names)
    titles = ("input", "from the\ntrue class", "from the\npredicted one")
    return _columns((images, from_true, from_predicted), titles, true_names, predicted_names)


def overlay_figure(
    images: Float[np.ndarray, "n 1 h w"],
    parts: Float[np.ndarray, "n 2 1 h w"],
    drawn: Float[np.ndarray, "n 2 1 h w"],
    from_true: Float[np.ndarray, "n 2 1 h w"],
    from_others: Float[np.ndarray, "n 2 1 h w"],
    true_names: Sequence[str],
    predicted_names: Sequence[str],
) -> Figure:
    """Seven rows, a column a pair: the input, its two images, the two reconstructions, together and each alone.

    Below them the reconstructions from the two true classes, and from two that are neither true nor predicted. The
    first image and its reconstruction are orange, the second blue (Sabour et al. 2017, Figure 5).

    Raises:
        ValueError: no images, or parts, reconstructions or names that do not fit them.
    """
    names = true_names, predicted_names
    _check_counts("images, parts, reconstructions, names", images, parts, drawn, from_true, from_others, *names)
    first, second = drawn.copy(), drawn.copy()
    first[:, 1], second[:, 0] = 0, 0
    rows = [images, *map(_two_colours, (parts, drawn, first, second, from_true, from_others))]
    titles = (
        "input", "its two\nimages", "recon-\nstructions", "the first\nalone", "the second\nalone",
        "from the\ntrue classes", "from two\nothers",
    )  # fmt: skip
    return _columns(rows, titles, true_names, predicted_names)


def _columns(
    rows: Sequence[Float[np.ndarray, "n c h w"]],
    titles: Sequence[str],
    true_names: Sequence[str],
    predicted_names: Sequence[str],
) -> Figure:
    """A column an image, with its verdict on top, and a row a way to draw it, with its title; in blocks of six."""
    n = len(rows[0])
    blocks = -(-n // COLUMNS)
    size = (CELL * COLUMNS + 1, (len(rows) * CELL * _aspect(rows[0]) + 0.5) * blocks)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(rows) * blocks, COLUMNS, squeeze=False).reshape(blocks, len(rows), COLUMNS)
    for axes in grid.transpose(0, 2, 1).reshape(-1, len(rows))[n:].ravel():
        axes.set_axis_off()
    for index in range(n):
        column = grid[index // COLUMNS, :, index % COLUMNS]
        for axes, pictures in zip(column, rows, strict=True):
            show(axes, _channels_last(pictures[index]))
        _verdict(column[0], true_names[index], predicted_names[index], "")
    for row, title in enumerate(titles):
        for axes in grid[:, row, 0]:
            axes.set_ylabel(title, rotation=0, ha="right", va="center")
    return figure


def _two_colours(both: Float[np.ndarray, "n 2 1 h w"]) -> Float[np.ndarray, "n 3 h w"]:
    """Two grey images as one picture, each in its colour."""
    return np.einsum("nkhw,kc->nchw", both[:, :, 0], np.array([FIRST, SECOND]))


def prediction_figure(
    images: Float[np.ndarray, "n c h w"],
    true_names: Sequence[str],
    predicted_names: Sequence[str],
    confidence: Float[np.ndarray, " n"],
) -> Figure:
    """Images with the class each was put in and how sure the model was; a mistake also says what it truly is.

    Raises:
        ValueError: no images, or names that do not fit them.
    """
    _check_counts("images, names, confidence", images, true_names, predicted_names, confidence)
    figure, cells = axes_in_rows(len(images), COLUMNS, (CELL, CELL * _aspect(images) + 0.45))
    for index, axes in enumerate(cells):
        show(axes, _channels_last(images[index]))
        _verdict(axes, true_names[index], predicted_names[index], f" {confidence[index]:.2f}")
    return figure


def _check_counts(what: str, *each: Sequence[object] | np.ndarray) -> None:
    counts = [len(one) for one in each]
    if 0 in counts or len(set(counts)) > 1:
        raise ArgumentError(f"{what}", "be as many of each, at least 1", ", ".join(map(str, counts)))


def _channels_last(image: Float[np.ndarray, "c h w"]) -> Float[np.ndarray, "h w c"]:
    return np.clip(image, 0, 1).transpose(1, 2, 0)


def _aspect(images: Float[np.ndarray, "n c h w"]) -> float:
    """Height by width of the images as they are drawn."""
    _, c, h, w = images.shape
    return h / (2 * w if c == 2 else w)


def _verdict(axes: Axes, true: str, predicted: str, after: str) -> None:
    """Head an image with its class in green, or with its class and what it was taken for in red."""
    text = shorten(predicted, 16) + after
    if true != predicted:
        text = f"{shorten(true, 21)},\ntaken for\n{text}"
    axes.set_title(text, color=RIGHT if true == predicted else WRONG, fontsize=8, parse_math=False)
