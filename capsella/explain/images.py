"""What a model makes of single image files, each on a picture of its own: for `capsella explain`."""

from collections.abc import Iterable
from pathlib import Path

from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from capsella.data.reading import read_image
from capsella.evaluation.inference import inference
from capsella.evaluation.listing import find_images
from capsella.explain.image_grids import show, tweaks
from capsella.explain.perturbation import OFFSETS, dimension_tweaks, largest_elements
from capsella.explain.plots import activation_bars, shorten, write_png
from capsella.explain.vote_distances import class_vote_distances, has_vote_distances, vote_distances_figure
from capsella.models import ImageClassifier

MOST_BARS = 12
NO_DECODER = "no decoder:\nthis model cannot draw\nwhat it found"


def explain_images(model: ImageClassifier, paths: Iterable[Path], out: Path) -> list[Path]:
    """Draw, for each image file, the input, the class activations, the reconstruction and the dimension tweaks.

    Where EM routes the class capsules, a second picture shows the distances of votes to the class capsules' means.

    Args:
        model: any registered model; one without a decoder gets the input and the activations, and the picture says why.
        paths: files and folders, as `find_images` takes them.
        out: folder for the pictures, named NAME_explained.png and NAME_votes.png; files of one name get _2, _3, …

    Returns:
        The pictures, in the order of `find_images`.

    Raises:
        CapsellaError: a file that is missing or cannot be read, or no space on the disk.
    """
    taken: set[str] = set()
    pictures = []
    for file in find_images(paths):
        image = read_image(file, model.image_size, model.channels).float() / 255
        name = _unused(file.stem, taken)
        pictures.append(out / f"{name}_explained.png")
        write_png(image_figure(model, image, file.name), pictures[-1])
        if has_vote_distances(model):
            pictures.append(out / f"{name}_votes.png")
            write_png(vote_distances_figure(class_vote_distances(model, image), model.classes), pictures[-1])
    return pictures


def _unused(stem: str, taken: set[str]) -> str:
    """`stem`, or the first of stem_2, stem_3, … that is not taken; takes it."""
    name, number = stem, 1
    # Some file systems hold A.png and a.png to be the same file.
    while name.casefold() in taken:
        number += 1
        name = f"{stem}_{number}"
    taken.add(name.casefold())
    return name


def image_figure(model: ImageClassifier, image: Float[Tensor, "c h w"], title: str) -> Figure:
    """The picture of one image in [0, 1]."""
    with inference(model) as device:
        output = model(image.unsqueeze(0).to(device))
    activations = output.activations[0].float().cpu().numpy()
    decoded = output.reconstruction
    figure = Figure(figsize=(6.5, 3.6) if decoded is None else (11, 8), layout="constrained")
    figure.suptitle(f"{shorten(title, 60)}: {model.classes[activations.argmax()]}", parse_math=False)
    if decoded is None:
        left, right = figure.subplots(1, 2)
        left.set_xlabel(NO_DECODER, fontsize=9)
    else:
        grid = figure.add_gridspec(3, 2, width_ratios=(1, 2))
        left, right, below = (figure.add_subplot(grid[row, 0]) for row in range(3))
        show(below, decoded[0].float().cpu().clamp(0, 1).permute(1, 2, 0).numpy())
        below.set_title("reconstruction", fontsize=10)
        elements = largest_elements(model, image)
        moved = dimension_tweaks(model, image, elements=elements).numpy()
        tweaks(figure.add_subplot(grid[:, 1]), moved, OFFSETS, elements)
    show(left, image.permute(1, 2, 0).numpy())
    left.set_title("input", fontsize=10)
    activation_bars(right, activations, model.classes, MOST_BARS)
    return figure
