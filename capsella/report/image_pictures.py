"""Pictures of what a model makes of single image files: activations, reconstruction, dimension tweaks, votes."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from matplotlib.figure import Figure
from torch import Tensor

from capsella.data import PairSet
from capsella.data.reading import UnseenCount, decode
from capsella.errors import ArgumentError, CapsellaError, check_argument, errors_of, warn_once
from capsella.evaluation import UnreadableFile, find_images, passed_over, set_scale
from capsella.image_options import ValueRange
from capsella.losses import top_classes
from capsella.models import ImageClassifier
from capsella.models.inference import inference
from capsella.progress import tracked
from capsella.report.figures import activation_bars, shorten, write_png
from capsella.report.image_figures import draw_tweaks, show
from capsella.report.reconstructions import dimension_tweaks, explain_pairs, largest_elements, offsets_across
from capsella.report.routing_views import routed_layers
from capsella.report.vote_distances import VoteDistances, vote_distances_figure
from capsella.training import load_splits
from capsella.training.trained import open_network

MOST_BARS = 12
MOST_BYTES = 200  # maximum length of a file's stem; file systems allow names of 255 bytes
NO_DECODER = "no decoder:\nthis model cannot\nreconstruct images"


def explain_images(
    model: ImageClassifier,
    paths: Iterable[Path],
    out: Path,
    *,
    classes: int = 1,
    broken: list[UnreadableFile] | None = None,
) -> list[Path]:
    """Draw what the model makes of each image file, and return the paths of the pictures.

    NAME_explained.png has the input, the class activations, the reconstruction and the dimension tweaks (Sabour et al.
    2017, Figure 4; Forslöv 2018, Figures 35 and 36); for a model of pairs there is one for each of the two strongest
    classes. For capsule networks NAME_votes.png has the distances of the votes in the last routed layer. A second file
    of the same name is called NAME_2.

    Args:
        model: any registered model.
        paths: files and folders, as for `find_images`.
        out: folder for the pictures.
        classes: number of classes that each image shows: 1, or 2 for a model of overlaid pairs.
        broken: files that cannot be read are appended here. None raises an error instead.
    """
    number = len(model.classes)
    check_argument(1 <= classes <= number, f"be from 1 to the model's {number}", classes=classes)
    taken: set[str] = set()
    pictures, losses = [], UnseenCount()
    readable = [*_readable(model, find_images(paths), broken, losses)]  # a broken file raises before anything is drawn
    for line in losses.lines():
        warn_once(f"unseen: {out}: {line}", line)
    for file, pixels in tracked(readable, "Drawing"):
        name, title = _unused(file, taken), f"{file.parent.name}/{file.name}".removeprefix("/")
        for view, figure in image_figures(model, pixels.float() / 255, title, classes):
            pictures.append(out / f"{name}_{view}.png")
            write_png(figure, pictures[-1])
    return pictures


def explain_run(
    folder: Path,
    paths: Sequence[Path],
    out: Path,
    *,
    value_range: ValueRange | None = None,
    cell_radius: float | None = None,
    skip_broken: bool = False,
    say: Callable[[str], object] = lambda note: None,
) -> tuple[list[Path], list[UnreadableFile]]:
    """Draw what the network of a run makes of image files; without files, for a run on pairs, of its test pairs.

    Args:
        folder: a run, a comparison or an exported folder.
        paths, out: as for `explain_images`.
        value_range: values that become black and white in files with more than 8 bits.
        cell_radius: radius of a typical nucleus in pixels of the files, for networks that crop cells.
        skip_broken: list files that cannot be read instead of stopping at the first.
        say: called with each note.

    Returns:
        The pictures, and the files that were skipped.
    """
    model, run = open_network(folder)
    model.value_range = value_range or model.value_range
    is_paired = run is not None and run.recipe.data.is_paired
    broken: list[UnreadableFile] = []
    if paths:
        for line in (set_scale(model, paths, cell_radius), *passed_over(paths)):
            if line:
                say(line)
        classes = 2 if is_paired else 1
        return explain_images(model, paths, out, classes=classes, broken=broken if skip_broken else None), broken
    if run is None or not is_paired:
        raise ArgumentError("data", "name at least one image or folder", None)
    test = load_splits(run, skip_broken=True).test
    return [explain_pairs(model, test, out)] if isinstance(test, PairSet) else [], broken


def image_figures(
    model: ImageClassifier, image: Float[Tensor, "c h w"], title: str, classes: int = 1
) -> Iterator[tuple[str, Figure]]:
    """Yield (name, figure) for each view of one image in [0, 1]."""
    with inference(model) as device:
        activations = model(image.unsqueeze(0).to(device)).activations[0]
    for number, target in enumerate(top_classes(activations, classes).tolist(), 1):
        yield "explained" if number == 1 else f"explained{number}", image_figure(model, image, title, target)
    if layers := routed_layers(model, image):
        parents = top_classes(activations, MOST_BARS).sort().values.tolist()
        histograms = layers[-1].histograms
        shown = VoteDistances(histograms.edges, histograms.weights[:, parents])
        yield "votes", vote_distances_figure(shown, [model.classes[parent] for parent in parents])


def image_figure(
    model: ImageClassifier, image: Float[Tensor, "c h w"], title: str, target: int | None = None
) -> Figure:
    """Draw one image in [0, 1] and what the capsule of class `target` encodes; None takes the predicted class."""
    with inference(model) as device:
        label = None if target is None else torch.tensor([target], device=device)
        output = model(image.unsqueeze(0).to(device), label)
    activations = output.activations[0].float().cpu().numpy()
    target = int(activations.argmax()) if target is None else target
    decoded = output.reconstruction
    figure = Figure(figsize=(6.5, 3.6) if decoded is None else (11, 8), layout="constrained")
    figure.suptitle(f"{shorten(title, 60)}: taken for {shorten(model.classes[target])}", parse_math=False)
    if decoded is None:
        left, right = figure.subplots(1, 2)
        left.set_xlabel(NO_DECODER, fontsize=9)
    else:
        grid = figure.add_gridspec(3, 2, width_ratios=(1, 2))
        left, right, below = (figure.add_subplot(grid[row, 0]) for row in range(3))
        show(below, decoded[0].float().cpu().clamp(0, 1).permute(1, 2, 0).numpy())
        below.set_title("reconstruction", fontsize=10)
        elements, offsets = largest_elements(model, image, target), offsets_across(model)
        moved = dimension_tweaks(model, image, target, offsets, elements).numpy()
        draw_tweaks(figure.add_subplot(grid[:, 1]), moved, offsets, elements)
    show(left, image.permute(1, 2, 0).numpy())
    left.set_title("input", fontsize=10)
    activation_bars(right, activations, model.classes, MOST_BARS)
    return figure


def _readable(
    model: ImageClassifier, files: Iterable[Path], broken: list[UnreadableFile] | None, losses: UnseenCount
) -> Iterator[tuple[Path, UInt8[Tensor, "c h w"]]]:
    for file in files:
        try:
            pixels, loss = decode(file, str(file), model.preprocessing)
            with errors_of(file):
                loss.check(model.value_range)
        except CapsellaError as error:
            if broken is None:
                raise CapsellaError(f"{error}; --skip-broken leaves such files out") from error
            broken.append(UnreadableFile(file, str(error).removeprefix(f"{file}: ")))
            continue
        losses.add(loss)
        yield file, pixels


def _unused(file: Path, taken: set[str]) -> str:
    """Return the file's stem, or the first of stem_2, stem_3, … not in `taken`, and add it to `taken`."""
    stem = os.fsencode(file.stem)[:MOST_BYTES].decode("utf-8", "ignore")
    name, number = stem, 1
    while name.casefold() in taken:  # on some file systems A.png and a.png are the same file
        number += 1
        name = f"{stem}_{number}"
    taken.add(name.casefold())
    return name
