"""Figures of images from plain arrays: inputs beside reconstructions, dimension tweaks, overlaid pairs."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from capsella.errors import ArgumentError
from capsella.report.figures import shorten

RIGHT, WRONG = "#2e7d32", "#c62828"
COLUMNS, CELL = 6, 1.5  # images per row, and inches per image: together the width of a page
FIRST, SECOND = (1.0, 0.45, 0.1), (0.1, 0.55, 0.9)  # colours of a pair's two images, which add up to nearly white
GAP = 1  # pixels between the images of a mosaic


def side_by_side(images: Float[np.ndarray, "*n c h w"]) -> Float[np.ndarray, "*n c2 h w2"]:
    """Return images as they are drawn: the two channels of a stereo pair become one grey picture, side by side."""
    return np.concatenate([images[..., :1, :, :], images[..., 1:, :, :]], -1) if images.shape[-3] == 2 else images


def mosaic(grid: Float[np.ndarray, "rows columns c h w"]) -> Float[np.ndarray, "height width c2"]:
    """Return one picture of rows × columns images with white gaps, channels last, clipped to [0, 1]."""
    grid = side_by_side(grid)
    gaps = ((0, 0), (0, 0), (0, 0), (0, GAP), (0, GAP))
    tiles = np.pad(np.clip(grid, 0, 1), gaps, constant_values=1).transpose(0, 3, 1, 4, 2)  # [rows h columns w c]
    rows, h, columns, w, channels = tiles.shape
    return tiles.reshape(rows * h, columns * w, channels)[:-GAP, :-GAP]


def show(axes: Axes, picture: Float[np.ndarray, "h w c"]) -> None:
    """Draw a picture in [0, 1] without smoothing or ticks; a stereo pair side by side."""
    picture = side_by_side(picture.transpose(2, 0, 1)).transpose(1, 2, 0)
    axes.imshow(picture.squeeze(2) if picture.shape[2] == 1 else picture, cmap="gray", vmin=0, vmax=1)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def draw_tweaks(
    axes: Axes,
    grid: Float[np.ndarray, "d offsets c h w"],
    offsets: Sequence[float],
    elements: Sequence[int] | None = None,
) -> None:
    """Draw a row for each pose element, numbered from 1, and a column for each offset."""
    grid = side_by_side(grid)
    d, columns, _, h, w = grid.shape
    elements = range(d) if elements is None else elements
    if (columns, d) != (len(offsets), len(elements)):
        raise ArgumentError("offsets, elements", f"name {columns} columns and {d} rows", (len(offsets), len(elements)))
    show(axes, mosaic(grid))
    # Centres of the tiles; pixel k reaches from k − ½ to k + ½.
    across, down = (w + GAP) * np.arange(columns) + (w - 1) / 2, (h + GAP) * np.arange(d) + (h - 1) / 2
    axes.set_xticks(across, [f"{offset:+.2f}" for offset in offsets], fontsize=8)
    axes.set_yticks(down, [str(k + 1) for k in elements], fontsize=8)
    axes.tick_params(length=0, top=False, labeltop=True, labelbottom=False)
    axes.set(ylabel="pose element")


def tweak_figure(
    grid: Float[np.ndarray, "d offsets c h w"],
    offsets: Sequence[float],
    elements: Sequence[int] | None = None,
    image: Float[np.ndarray, "c h w"] | None = None,
) -> Figure:
    """Draw the dimension tweaks of one class capsule (Sabour et al. 2017, Figure 4).

    With `image`, the input and its plain reconstruction stand above (Forslöv 2018, Figures 35 and 36).
    """
    height = 0.6 * _aspect(grid[0]) * grid.shape[0] + 0.6
    above = 0.0 if image is None else 1.9
    figure = Figure(figsize=(0.6 * grid.shape[1] + 0.8, above + height), layout="constrained")
    if image is None:
        draw_tweaks(figure.add_subplot(), grid, offsets, elements)
        return figure
    upper, lower = figure.subfigures(2, 1, height_ratios=(above, height), squeeze=False)[:, 0]
    pictures = {"input": image, "reconstruction": grid[0, len(offsets) // 2]}
    for axes, (title, picture) in zip(upper.subplots(1, 2), pictures.items(), strict=True):
        show(axes, _channels_last(picture))
        axes.set_title(title, fontsize=9)
    draw_tweaks(lower.subplots(), grid, offsets, elements)
    return figure


def columns_figure(
    rows: Sequence[Float[np.ndarray, "n c h w"]],
    titles: Sequence[str],
    true_names: Sequence[str],
    predicted_names: Sequence[str],
) -> Figure:
    """Draw a column for each image, in blocks of six: a titled row for each of its versions, e.g. reconstructions.

    A column is headed by the image's class, or for a mistake by its true and its predicted class.
    """
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
        _head(column[0], true_names[index], predicted_names[index])
    for row, title in enumerate(titles):
        for axes in grid[:, row, 0]:
            axes.set_ylabel(title, rotation=0, ha="right", va="center")
    return figure


def two_colours(both: Float[np.ndarray, "n 2 1 h w"]) -> Float[np.ndarray, "n 3 h w"]:
    """Return one picture per pair, its first image orange and its second blue."""
    return np.einsum("nkhw,kc->nchw", both[:, :, 0], np.array([FIRST, SECOND]))


def _channels_last(image: Float[np.ndarray, "c h w"]) -> Float[np.ndarray, "h w c"]:
    return np.clip(image, 0, 1).transpose(1, 2, 0)


def _aspect(images: Float[np.ndarray, "n c h w"]) -> float:
    """Return the ratio of height to width of the images as they are drawn."""
    _, c, h, w = images.shape
    return h / (2 * w if c == 2 else w)


def _head(axes: Axes, true: str, predicted: str) -> None:
    """Set an image's title: green if it is correct, red for a mistake."""
    text = shorten(predicted, 16)
    if true != predicted:
        text = f"{shorten(true, 21)},\ntaken for\n{text}"
    axes.set_title(text, color=RIGHT if true == predicted else WRONG, fontsize=8, parse_math=False)
