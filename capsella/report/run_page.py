"""The page of a trained model: one self-contained HTML file, and each figure as PNG."""

from collections.abc import Mapping
from pathlib import Path

from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from capsella.data import LabelledImages, PairSet, evenly
from capsella.errors import check_argument
from capsella.evaluation import Evaluation
from capsella.files import write_text
from capsella.models import CapsuleClassifier, ImageClassifier
from capsella.report.figures import entropy_figure, reliability_figure, training_figure
from capsella.report.image_figures import prediction_figure, reconstruction_figure, tweak_figure
from capsella.report.pages import Section, confusion_sections, pictures_of, render_page, roc_section
from capsella.report.prose import (
    Training,
    about_confusions,
    about_result,
    evaluation_notes,
    evaluation_warnings,
    limits,
)
from capsella.report.reconstructions import (
    MOST_ELEMENTS,
    dimension_tweaks,
    largest_elements,
    offsets_across,
    pair_name,
    pairs_figure,
    pick_examples,
    reconstruct,
)
from capsella.report.routing_views import routing_diagnostics
from capsella.report.terminal import percent, with_interval
from capsella.report.vote_distances import class_vote_distances, has_vote_distances, vote_distances_figure
from capsella.routing import DEAD_BELOW
from capsella.training.metrics import read_metrics

MOST_MISTAKES, SAMPLES, TRACED = 18, 18, 64
PAIRS = (
    "Top: pairs of test images, correct ones (green: both classes found), then the most confident mistakes (red). "
    "Below: the two images of the pair, the first orange and the second blue, and the reconstructions from the two "
    "predicted classes, together and each alone. A class that was found has the colour of its image. Last, the "
    "reconstructions from the two true classes and, as a control, from the two most active other classes: a network "
    "that fits any class to any image would reproduce the image there too."
)
NO_DECODER = "This model has no decoder, so it cannot reconstruct images."


def write_report(
    folder: Path,
    model: ImageClassifier,
    evaluation: Evaluation,
    test_images: LabelledImages,
    metrics_csv: Path | None,
    title: str,
    facts: Mapping[str, str],
    training: Training | None = None,
) -> Path:
    """Write `folder`/report.html and `folder`/figures/*.png; return the path of the page.

    Args:
        folder: usually the run folder.
        model: the evaluated model.
        evaluation: of `model` on `test_images`.
        test_images: the labelled set.
        metrics_csv: the training's metrics, if there are any.
        title: heading of the page.
        facts: recipe, seed, data, versions.
        training: from `about_training`.
    """
    same = len(evaluation.labels) == len(test_images) and evaluation.labels.equal(test_images.labels)
    check_argument(same, "be of test_images", evaluation="other labels")
    sections = _sections(model, evaluation, test_images, metrics_csv)
    shown: dict[str, object] = {"title": title, "facts": facts, "sections": sections}
    shown["pictures"] = pictures_of(sections, folder)
    shown |= {**_words(evaluation, training), "percent": percent, "with_interval": with_interval}
    path = folder / "report.html"
    write_text(path, render_page("capsella.report", "run.html.jinja", **shown))
    return path


def _words(evaluation: Evaluation, training: Training | None) -> dict[str, object]:
    """Return what the page says before its figures."""
    return {
        "evaluation": evaluation,
        "about": [*(() if training is None else training.paragraphs), *about_result(evaluation)],
        "confusions": about_confusions(evaluation),
        "warnings": evaluation_warnings(evaluation),
        "notes": evaluation_notes(evaluation),
        "limits": limits(evaluation, training),
    }


def _sections(
    model: ImageClassifier, evaluation: Evaluation, images: LabelledImages, metrics_csv: Path | None
) -> list[Section]:
    """Return the report from top to bottom."""
    return [
        _mistakes(evaluation, images),
        *confusion_sections(evaluation),
        roc_section(evaluation),
        reconstruction_section(model, evaluation, images),
        tweak_section(model, evaluation, images),
        _training(metrics_csv),
        _samples(evaluation, images),
        _reliability(evaluation),
        _entropy(model, images),
        _votes(model, evaluation, images),
    ]


def reconstruction_section(model: ImageClassifier, evaluation: Evaluation, images: LabelledImages) -> Section:
    """Return inputs beside their reconstructions, or the reason why there are none."""
    name, title = "reconstructions", "Inputs beside reconstructions"
    if not model.has_decoder:
        return Section(name, title, NO_DECODER)
    picked = pick_examples(evaluation)
    if isinstance(images, PairSet):
        return Section(name, title, PAIRS, pairs_figure(model, images, evaluation, picked))
    chosen = images.take(picked)
    shown = reconstruct(model, chosen.images.float() / 255, chosen.labels)
    figure = reconstruction_figure(
        chosen.images.numpy() / 255,
        shown.from_true.numpy(),
        shown.from_predicted.numpy(),
        [images.classes[k] for k in shown.labels],
        [images.classes[k] for k in shown.predictions],
    )
    text = (
        "Top: test images, correct ones (green; the first of each class, not hand-picked), then the most confident "
        "mistakes (red). Below: reconstructions from the capsule of the true class alone, and of the predicted class. "
        "They differ only for mistakes."
    )
    return Section(name, title, text, figure)


def tweak_section(model: ImageClassifier, evaluation: Evaluation, images: LabelledImages) -> Section:
    """Return the dimension tweaks of one test image, or the reason why there are none."""
    name, title = "dimension_tweaks", "Dimension tweaks"
    if not model.has_decoder:
        return Section(name, title, NO_DECODER)
    index, image = _example(evaluation, images)
    target = int(evaluation.predictions[index].flatten()[0])
    elements = largest_elements(model, image, target)
    offsets = offsets_across(model)
    grid = dimension_tweaks(model, image, target, offsets, elements)
    text = (
        f"The capsule of class {images.classes[target]} for test image {index}. Each row adds the column's offset to "
        "one element of its pose and decodes the result; the middle column is the plain reconstruction. A row that "
        "changes shows what the element encodes: thickness, slant, size. "
        f"Of more than {MOST_ELEMENTS} elements, the largest are shown."
    )
    return Section(name, title, text, tweak_figure(grid.numpy(), offsets, elements))


def _training(metrics_csv: Path | None) -> Section:
    name, title = "training", "Training curves"
    if metrics_csv is None:
        return Section(name, title, "No training metrics were given for this model.")
    text = (
        "Loss, error rate and learning rate after each epoch. If the validation curve rises while the training curve "
        "falls, the network overfits."
    )
    return Section(name, title, text, training_figure(read_metrics(metrics_csv)))


def _samples(evaluation: Evaluation, images: LabelledImages) -> Section:
    text = (
        "Test images, evenly spaced in the set. Green: correct. Red: wrong, with the true and the predicted class. The "
        "number is the activation of the predicted class."
    )
    picked = evenly(len(images), SAMPLES)
    return Section("samples", "Sample predictions", text, _predictions(evaluation, images, picked))


def _mistakes(evaluation: Evaluation, images: LabelledImages) -> Section:
    name, title = "mistakes", "The most confident mistakes"
    picked = evaluation.mistakes()[:MOST_MISTAKES]
    if len(picked) == 0:
        return Section(name, title, "There are none: every test image was classified correctly.")
    text = (
        f"{len(picked)} of {evaluation.errors} mistakes, the most confident first: true class, predicted class and its "
        "activation. Wrong labels in the data show up here first."
    )
    if images.files is not None:
        text += " Files: " + ", ".join(images.files[k] for k in picked) + "."
    return Section(name, title, text, _predictions(evaluation, images, picked))


def _predictions(evaluation: Evaluation, images: LabelledImages, picked: Tensor) -> Figure:
    return prediction_figure(
        images.take(picked).images.numpy() / 255,
        [pair_name(images.classes, label) for label in evaluation.labels[picked]],
        [pair_name(images.classes, label) for label in evaluation.predictions[picked]],
        evaluation.confidence[picked].numpy(),
    )


def _example(evaluation: Evaluation, images: LabelledImages) -> tuple[int, Float[Tensor, "c h w"]]:
    """Return index and pixels in [0, 1] of one image, a mistake only if nothing is correct."""
    index = pick_examples(evaluation, right=1, wrong=1)[:1]
    return int(index), images.take(index).images[0].float() / 255


def _reliability(evaluation: Evaluation) -> Section:
    text = (
        "Accuracy against confidence: below the dashed line the model is overconfident. The confidence is "
        f"{evaluation.confidence_text}. Capsule lengths do not sum to one over the classes, and the margin loss does "
        "not push them above 0.9, so an accurate capsule network lies above the line."
    )
    return Section("reliability", "Calibration", text, reliability_figure(evaluation.calibration))


def _entropy(model: ImageClassifier, images: LabelledImages) -> Section:
    name, title = "coupling_entropy", "Routing"
    if not isinstance(model, CapsuleClassifier):
        return Section(name, title, "This model has no capsules, so nothing is routed.")
    picked = evenly(len(images), TRACED)
    layers = routing_diagnostics(model, images.take(picked).images.float() / 255)
    if not layers:
        return Section(name, title, "No couplings were recorded: no layer routes between two or more parents.")
    text = (
        f"Entropy of the couplings, over {len(picked)} test images: 1 is uniform (nothing is routed), 0 is all to one "
        "parent. Dynamic routing starts at 1. A capsule type is dead if its activation stays below "
        f"{DEAD_BELOW} on every image; in self-routing, whose activations sum to 1, below a tenth of a uniform one. "
    )
    text += " ".join(
        f"{layer.name.capitalize()}: {layer.entropy[-1]:.4f} after the last iteration, "
        f"{percent(layer.dead_share)} % of {layer.parents} capsule types dead."
        for layer in layers
    )
    return Section(name, title, text, entropy_figure({layer.name: layer.entropy for layer in layers}))


def _votes(model: ImageClassifier, evaluation: Evaluation, images: LabelledImages) -> Section:
    name, title = "vote_distances", "Distances of votes"
    if not has_vote_distances(model):
        has_layers = isinstance(model, CapsuleClassifier)
        hint = "; `capsella explore RUN --data IMAGE --out DIR` draws them for any routed layer" if has_layers else ""
        return Section(name, title, f"Drawn for routing by distance only, such as EM{hint}.")
    index, image = _example(evaluation, images)
    histograms = class_vote_distances(model, image)
    text = (
        f"Test image {index}, class {pair_name(images.classes, evaluation.labels[index])}: distances of the votes for "
        "each class capsule from its mean after each routing iteration, weighted by the couplings. If the votes agree, "
        "those of one class move to the left and the other classes lose theirs."
    )
    return Section(name, title, text, vote_distances_figure(histograms, model.classes))
