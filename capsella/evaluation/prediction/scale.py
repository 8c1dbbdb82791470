"""The scale of new images of stained cells: another microscope may magnify otherwise."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import median

from capsella.data.listing import spread
from capsella.data.reading import rgb_images
from capsella.data.stained import SAMPLED, nuclear_radii
from capsella.errors import check_argument, pluralize
from capsella.evaluation.prediction.listing import image_files
from capsella.image_options import CellCut
from capsella.models import ImageClassifier

FEWEST = 20
"""Cells whose median radius is a laboratory's scale; of fewer, the mix of classes says too much."""


def set_scale(model: ImageClassifier, paths: Iterable[Path], radius: float | None = None) -> str | None:
    """Let a model cut cells out of new images at their own scale; a note where that is not known, as `scaled`.

    Raises:
        ValueError: a radius for a model that cuts no cells out.
    """
    if model.cut is None:
        check_argument(radius is None, "be None for a network that cuts no cells out", cell_radius=radius)
        return None
    model.cut, note = scaled(model.cut, paths, radius)
    return note


def scaled(cut: CellCut, paths: Iterable[Path], radius: float | None = None) -> tuple[CellCut, str | None]:
    """How cells are cut out of new images, and a note where their own scale is not known.

    Args:
        cut: of a model.
        paths: files and folders, all of one laboratory.
        radius: of its usual nucleus, in pixels of the files; None measures it on 100 of the images.
    """
    if radius is not None:
        return replace(cut, radius=radius), None
    paths = list(paths)
    rows = set(spread(sum(1 for _ in image_files(paths)), SAMPLED))
    files = (Path(name) for row, name in enumerate(image_files(paths)) if row in rows)
    radii = nuclear_radii(rgb_images(files))
    if len(radii) >= FEWEST:
        return replace(cut, radius=median(radii)), None
    scale = "its own" if cut.radius is None else f"that of the training images, {cut.radius:.0f} pixels"
    found = pluralize(len(radii), "stained cell")
    return cut, f"too few for a scale of their own, {found}: each nucleus's radius is {scale}; --cell-radius sets it"
