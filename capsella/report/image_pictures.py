"""Pictures of what a model makes of single image files: activations, reconstruction, dimension tweaks, votes."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from capsella.data.reading import decode, unseen_notes
from capsella.errors import CapsellaError, errors_of, warn_once
from capsella.evaluation import UnreadableFile, find_images
from capsella.losses import top_classes
from capsella.models import ImageClassifier
from capsella.models.inference import inference
from capsella.progress import tracked
from capsella.report.figures import activation_bars, shorten, write_png
from capsella.report.image_figures import draw_tweaks, show
from capsella.report.reconstructions import dimension_tweaks, largest_elements, offsets_across
from capsella.report.routing_views import VoteDistances, routed_layers, vote_distances_figure

MOST_BARS = 12


def explain_images(
    model: ImageClassifier, paths: Iterable[Path], out: Path, *, skip_broken: bool = False
) -> tuple[list[Path], list[UnreadableFile]]:
    """Draw what the model makes of each image file.

    NAME_explained.png has the input, the class activations, the reconstruction and the dimension tweaks (Sabour et al.
    2017, Figure 4; Forslöv 2018, Figures 35 and 36). For capsule networks NAME_votes.png has the distances of the votes
    in the last routed layer. A second file of the same name is called NAME_2.

    Args:
        model: any registered model.
        paths: files and folders, as for `find_images`.
        out: folder for the pictures.
        skip_broken: skip files that cannot be read, instead of stopping at the first.

    Returns:
        The pictures, and the files that were skipped.
    """
    readable, broken, losses = [], [], []
    for file in find_images(paths):  # a broken file stops before anything is drawn
        try:
            pixels, loss = decode(file, str(file), model.preprocessing)
            with errors_of(file):
                loss.check(model.value_range)
        except CapsellaError as error:
            if not skip_broken:
                raise CapsellaError(f"{error}; --skip-broken leaves such files out") from error
            broken.append(UnreadableFile(file, str(error).removeprefix(f"{file}: ")))
            continue
        losses.append(loss)
        readable.append((file, pixels))
    for line in unseen_notes(losses):
        warn_once(f"unseen: {out}: {line}", line)
    names: set[str] = set()
    pictures = []
    for file, pixels in tracked(readable, "Drawing"):
        name, number = file.stem, 1
        while name.casefold() in names:  # on some file systems A.png and a.png are the same file
            number += 1
            name = f"{file.stem}_{number}"
        names.add(name.casefold())
        title = f"{file.parent.name}/{file.name}".removeprefix("/")
        for view, figure in image_figures(model, pixels.float() / 255, title).items():
            pictures.append(out / f"{name}_{view}.png")
            write_png(figure, pictures[-1])
    return pictures, broken


def image_figures(model: ImageClassifier, image: Float[Tensor, "c h w"], title: str) -> dict[str, Figure]:
    """Return each view of one image in [0, 1] by name: "explained", and "votes" if the model routes."""
    with inference(model) as device:
        output = model(image.unsqueeze(0).to(device))
    target = int(output.activations[0].argmax())
    figure = Figure(figsize=(6.5, 3.6) if output.reconstruction is None else (11, 8), layout="constrained")
    figure.suptitle(f"{shorten(title, 60)}: taken for {shorten(model.classes[target])}", parse_math=False)
    if output.reconstruction is None:
        left, right = figure.subplots(1, 2)
    else:
        grid = figure.add_gridspec(3, 2, width_ratios=(1, 2))
        left, right, below = (figure.add_subplot(grid[row, 0]) for row in range(3))
        show(below, output.reconstruction[0].float().cpu().clamp(0, 1).permute(1, 2, 0).numpy())
        below.set_title("reconstruction", fontsize=10)
        elements, offsets = largest_elements(model, image, target), offsets_across(model)
        moved = dimension_tweaks(model, image, target, offsets, elements).numpy()
        draw_tweaks(figure.add_subplot(grid[:, 1]), moved, offsets, elements)
    show(left, image.permute(1, 2, 0).numpy())
    left.set_title("input", fontsize=10)
    activation_bars(right, output.activations[0].float().cpu().numpy(), model.classes, MOST_BARS)
    figures = {"explained": figure}
    if layers := routed_layers(model, image):
        parents: Sequence[int] = top_classes(output.activations[0], MOST_BARS).sort().values.tolist()
        shown = VoteDistances(layers[-1].histograms.edges, layers[-1].histograms.weights[:, parents])
        classes = [model.classes[parent] for parent in parents]
        figures["votes"] = vote_distances_figure(image[None], [shorten(title)], [shown], classes)
    return figures
