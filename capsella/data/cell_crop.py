"""Find the stained cell in a microscope's image, crop it at a common scale, and normalise its stain.

Microscopes differ in magnification by more than a factor of two, cameras and stains in colour. A network trained in one
laboratory mistakes such differences for classes. Nuclei are found by their colour alone, so the same rule serves every
laboratory. Its constants were chosen with the 300 outlined nuclei of `segmentation-wbc` (86 % overlap), not by any
network's errors. Matching the cytoplasm, too, was thought of after networks had mistaken the neutrophils of two
laboratories for eosinophils.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Bool, Float32, Int, UInt8
from PIL import Image

from capsella.errors import CapsellaError
from capsella.image_options import CellCut, CellStain

RADII = 2.0  # half the crop's side, in radii of the nucleus; the whole cell has a radius of 1.3
MAX_SAMPLES = 100  # images on which a typical nucleus and cytoplasm are measured, spread evenly
NUCLEUS = (1.13, 1.82, 0.42)  # optical density (red, green, blue) after matching: the median of pbc's training images

# The same of cytoplasm: amount, remainder (red, green, blue) and contrast, measured on pbc's training images.
CYTOPLASM = CellStain(0.267, 0.001, -0.005, 0.019, 0.085)

_SIDE = 128  # pixels of the smaller side, to which an image is shrunk for the search
_BLACK = 12  # darker regions that touch the border are corners that a rotation left empty
_LOBE_AREA = 0.12  # smallest lobe of a nucleus, as a fraction of the largest lobe's area
_LOBE_GAP = 0.8  # largest distance between lobes, in radii of the largest
_BACKGROUND = 0.9  # quantile of the pixel values that is taken for the background
_MIN_DENSITY = 0.3  # a nucleus's optical density, as a norm over colours; a smaller one would amplify noise
_CELL = 1.3  # radius of the whole cell, in radii of the nucleus
_PALEST, _DARKEST = 0.07, 0.46  # amounts of stain between which a pixel of the cell is cytoplasm
_FEWEST = 20  # pixels of cytoplasm; a cell with fewer is not measured
_STRONG = 0.9  # quantile over the pixels of a cell that is its contrast
_LEAST_CONTRAST = 1e-3
_MOST_CHANGE = 3.0  # largest factor by which contrast is changed
_MIN_STAIN = 0.05  # smallest contrast of the stain, on a scale from 0 to 1

Pixels = UInt8[np.ndarray, "h w 3"]


class Nucleus(NamedTuple):
    """A nucleus: its centre (row, column) and radius in pixels, and the mask of its pixels.

    The radius is that of a disc with the same second moment, which grows as lobes move apart.
    """

    row: float
    column: float
    radius: float
    mask: Bool[np.ndarray, "h w"]


def cut_cell(image: Image.Image, size: tuple[int, int], cut: CellCut) -> Image.Image:
    """Crop the cell of an RGB image to (height, width), at a common scale and, if matched, with a normalised stain.

    The crop is centred on the nucleus; half its shorter side is `RADII` radii of the typical nucleus, or of its own.
    Border pixels are repeated outwards; black corners of rotated images are filled with the median colour first.

    Raises:
        CapsellaError: there is no stained cell.
    """
    pixels = np.asarray(image)
    small, scale = _small(image)
    beyond = beyond_border(small)
    nucleus = find_nucleus(small, beyond)
    if beyond.any():
        border = np.asarray(Image.fromarray(beyond).resize(image.size, Image.Resampling.NEAREST))
        pixels = np.where(border[..., None], np.median(small[~beyond], 0).astype(np.uint8), pixels)
    cell = _cut(pixels, nucleus, scale, size, cut.radius or nucleus.radius * scale)
    return _matched(cell, small[~beyond], small[nucleus.mask], cut.stain) if cut.matched else cell


def measured_cut(images: Iterable[Image.Image], matched: bool) -> tuple[CellCut, int]:
    """Return a laboratory's radius of a typical nucleus and, if matched, its typical stain, and the number of cells.

    All images of a laboratory have one magnification; with a common scale a lymphocyte stays smaller than a monocyte.
    A different mix of classes moves the median by about a tenth. A laboratory has one stain, too: measured on each
    image alone, it would take away the colours by which classes differ.

    Images without a stained cell are skipped; radius and stain are None if no image has one. If no cell shows
    cytoplasm, the stain is that of `CYTOPLASM`, which changes nothing.
    """
    radii, cells = list[float](), list[_Density]()
    for image in images:
        small, scale = _small(image)
        with suppress(CapsellaError):
            beyond = beyond_border(small)
            nucleus = find_nucleus(small, beyond)
            radii.append(nucleus.radius * scale)
            rows, columns = np.mgrid[: small.shape[0], : small.shape[1]]
            cell = np.hypot(rows - nucleus.row, columns - nucleus.column) <= _CELL * nucleus.radius
            density = _relative_density(small[cell & ~beyond], small[~beyond], small[nucleus.mask])
            if _is_cytoplasm(density.along).sum() >= _FEWEST:
                cells.append(density)
    radius = float(np.median(radii)) if radii else None
    stain = _typical_stain(cells) if matched and cells else CYTOPLASM
    return CellCut(matched, radius, stain if matched and radii else None), len(radii)


class _Density(NamedTuple):
    """Optical densities of pixels: along the nucleus (which has 1), and the remainder over its norm."""

    along: Float32[np.ndarray, " *n"]
    remainder: Float32[np.ndarray, "*n 3"]


def _is_cytoplasm(along: Float32[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    return (along > _PALEST) & (along < _DARKEST)


def _typical_stain(cells: Sequence[_Density]) -> CellStain:
    """Return medians over cells of each cell's median amount and remainder, and of its contrast."""
    masks = [_is_cytoplasm(cell.along) for cell in cells]
    amount = float(np.median([np.median(cell.along[mask]) for cell, mask in zip(cells, masks, strict=True)]))
    colour = np.median([np.median(cell.remainder[mask], 0) for cell, mask in zip(cells, masks, strict=True)], 0)
    shift = colour - CYTOPLASM[1:4]
    contrasts = [
        np.quantile(np.linalg.norm(cell.remainder - _share(cell.along, amount) * shift, axis=-1), _STRONG)
        for cell in cells
    ]
    red, green, blue = map(float, colour)
    return CellStain(amount, red, green, blue, max(float(np.median(contrasts)), _LEAST_CONTRAST))


def _share(along: Float32[np.ndarray, " *n"], amount: float) -> Float32[np.ndarray, "*n 1"]:
    """Return which share of the cytoplasm's shift a pixel gets: 1 at its amount of stain, 0 for white and nucleus."""
    return ((along * (1 - along)).clip(0) / (amount * (1 - amount)))[..., None]


def find_nucleus(pixels: Pixels, beyond: Bool[np.ndarray, "h w"] | None = None) -> Nucleus:
    """Find the stained nucleus in an image of about a hundred pixels per side: a large region near the centre.

    Nuclei absorb red and green but not blue. Two thresholds by Otsu's method (1979) separate background from cells and
    cells from nuclei. The largest connected part near the centre is the nucleus, with nearby parts, such as the lobes
    of a neutrophil. `beyond` masks pixels that are no part of the photograph. Raises `CapsellaError` if nothing is
    stained.
    """
    inside = np.ones(pixels.shape[:2], bool) if beyond is None else ~beyond
    smooth = scipy.ndimage.gaussian_filter(pixels.astype(np.float32), (1, 1, 0))
    red, green, blue = np.moveaxis(smooth / 255, -1, 0)
    stain = (blue - red - green) / 2  # how much more red and green are absorbed than blue
    cells = inside & (stain > _otsu(stain[inside]))
    if np.ptp(stain[inside]) < _MIN_STAIN:
        raise CapsellaError("no stained cell is found in it")
    found = cells & (stain > _otsu(stain[cells]))
    mask = _with_its_parts(scipy.ndimage.binary_opening(found))
    rows, columns = np.nonzero(mask)
    radius = float(np.sqrt(2 * (rows.var() + columns.var())))
    return Nucleus(float(rows.mean()), float(columns.mean()), max(radius, 1.0), mask)


def _small(image: Image.Image) -> tuple[Pixels, float]:
    """Shrink an image for the search of its nucleus; return the pixels and the factor."""
    scale = max(1.0, min(image.size) / _SIDE)
    if scale == 1:
        return np.asarray(image), 1.0
    width, height = (max(1, round(side / scale)) for side in image.size)
    return np.asarray(image.resize((width, height), Image.Resampling.BOX)), scale


def beyond_border(pixels: Pixels) -> Bool[np.ndarray, "h w"]:
    """Return a mask of the black regions that touch the border, widened by two pixels."""
    black = pixels.max(-1) < _BLACK
    frame = np.zeros_like(black)
    frame[[0, -1]] = frame[:, [0, -1]] = True
    touching = scipy.ndimage.binary_propagation(black & frame, mask=black)
    beyond = scipy.ndimage.binary_dilation(touching, iterations=2) if touching.any() else touching
    if beyond.all():
        raise CapsellaError("it is black: no stained cell is found")
    return beyond


def _otsu(values: Float32[np.ndarray, " n"]) -> float:
    """Return the threshold with the largest variance between the two sides (Otsu 1979, equation 18)."""
    counts, edges = np.histogram(values, 256)
    centres = (edges[1:] + edges[:-1]) / 2
    below, sums = np.cumsum(counts)[:-1], np.cumsum(counts * centres)[:-1]
    total, whole = counts.sum(), (counts * centres).sum()
    between = (whole * below - total * sums) ** 2 / (below * (total - below)).clip(1)
    return float(centres[:-1][between.argmax()])


def _with_its_parts(found: Bool[np.ndarray, "h w"]) -> Bool[np.ndarray, "h w"]:
    """Return a mask of the main part and of all large parts that only small gaps separate from it."""
    parts, number = scipy.ndimage.label(found)
    if number == 0:
        raise CapsellaError("no stained cell is found in it")
    numbers = np.arange(1, number + 1)
    areas = scipy.ndimage.sum(found, parts, numbers)
    main = _main_part(parts, numbers, areas)
    reach = _LOBE_GAP * np.sqrt(areas[main - 1] / np.pi)
    large = np.isin(parts, numbers[areas >= _LOBE_AREA * areas[main - 1]])
    mask = parts == main
    while True:
        near = large & (scipy.ndimage.distance_transform_edt(~mask) <= reach)
        grown = np.isin(parts, np.unique(parts[near]))
        if (grown == mask).all():
            return mask
        mask = grown


def _main_part(parts: Int[np.ndarray, "h w"], numbers: Int[np.ndarray, " n"], areas: np.ndarray) -> int:
    """Return the label of the largest part, where area counts less the farther it lies from the centre."""
    height, width = parts.shape
    centres = np.array(scipy.ndimage.center_of_mass(parts > 0, parts, numbers))
    away = np.hypot(centres[:, 0] - height / 2, centres[:, 1] - width / 2) / min(height, width)
    return int(numbers[(areas * np.exp(-4 * away**2)).argmax()])


def _relative_density(
    pixels: UInt8[np.ndarray, "*n 3"], seen: UInt8[np.ndarray, "m 3"], nucleus: UInt8[np.ndarray, "k 3"]
) -> _Density:
    """Return the densities of pixels relative to the background of all that is seen and to the nucleus."""
    white = np.log(np.quantile(seen, _BACKGROUND, axis=0).clip(1))
    own = np.median(white - np.log(nucleus.clip(1).astype(np.float32)), axis=0)
    strength = max(float(np.linalg.norm(own)), _MIN_DENSITY)
    density = white - np.log(pixels.clip(1).astype(np.float32))
    along = density @ own / strength**2
    return _Density(along, (density - along[..., None] * own) / strength)


def _matched(
    image: Image.Image, seen: UInt8[np.ndarray, "n 3"], nucleus: UInt8[np.ndarray, "k 3"], stain: CellStain | None
) -> Image.Image:
    """Rotate and scale optical densities, relative to the background, so that the nucleus gets those of `NUCLEUS`.

    A density has a component along the nucleus's colour and a remainder, the colour of granules and cytoplasm. The
    component gets the colour `NUCLEUS`; the remainder keeps its direction and is scaled by the same factor. Channels
    are not scaled one by one, because in some laboratories nuclei absorb no blue at all. Given the laboratory's typical
    stain, the remainder is shifted and scaled so that typical cytoplasm gets the colour and contrast of `CYTOPLASM`.
    """
    along, remainder = _relative_density(np.asarray(image), seen, nucleus)
    if stain is not None:
        shift = np.subtract(stain[1:4], CYTOPLASM[1:4])
        factor = float(np.clip(CYTOPLASM.contrast / stain.contrast, 1 / _MOST_CHANGE, _MOST_CHANGE))
        remainder = factor * (remainder - _share(along, stain.amount) * shift)
    wanted = np.array(NUCLEUS)
    matched = along[..., None] * wanted + np.linalg.norm(wanted) * remainder
    return Image.fromarray((255 * np.exp(-matched)).clip(0, 255).round().astype(np.uint8))


def _cut(pixels: Pixels, nucleus: Nucleus, scale: float, size: tuple[int, int], radius: float) -> Image.Image:
    height, width = size
    half = np.array([height, width]) / min(size) * RADII * radius
    centre = (np.array([nucleus.row, nucleus.column]) + 0.5) * scale
    border = int(np.ceil(max(0, *(half - centre), *(centre + half - pixels.shape[:2])))) + 1
    padded = Image.fromarray(np.pad(pixels, ((border, border), (border, border), (0, 0)), mode="edge"))
    (top, left), (bottom, right) = centre - half + border, centre + half + border
    return padded.resize((width, height), Image.Resampling.BICUBIC, box=(left, top, right, bottom))
