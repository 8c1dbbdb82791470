"""The report of a run: a self-contained HTML file, and its figures as PNG files."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from capsella.data import LabelledImages, PairSet, evenly
from capsella.errors import check_argument
from capsella.evaluation import Evaluation
from capsella.files import write_text
from capsella.layers import DenseDecoder
from capsella.models import CapsuleClassifier, ImageClassifier
from capsella.report.figures import reliability_figure, roc_figure, training_figure
from capsella.report.image_figures import mosaic, two_colours
from capsella.report.pages import Picture, Section, confusion_section, picture, pictures_of, render_page
from capsella.report.prose import (
    Training,
    about_confusions,
    about_result,
    confidence,
    evaluation_notes,
    evaluation_warnings,
    limits,
    next_commands,
    verdict,
)
from capsella.report.reconstructions import (
    decode_pairs,
    dimension_tweaks,
    largest_elements,
    offsets_across,
    pair_name,
    pick_examples,
    reconstruct,
    row_changes,
)
from capsella.report.routing_views import routing_diagnostics
from capsella.report.terminal import percent, with_interval
from capsella.report.vote_distances import (
    VoteDistances,
    class_vote_distances,
    has_vote_distances,
    vote_distances_figure,
)
from capsella.routing import DEAD_BELOW
from capsella.training.metrics import read_metrics

MOST_MISTAKES, SAMPLES, TRACED = 18, 24, 64
DIALS, STEPS, EXAMPLES = 6, 7, 10  # pose elements to show, offsets of each, and images to choose the example from
SAME = 0.01  # pictures whose pixels differ by less on average count as equal
COINCIDE = 0.995  # ROC curves with at least this area are indistinguishable
HEADS = ("class", "images", "sensitivity %", "specificity %", "predicted", "precision %", "F1 %", "AUC")
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
        facts: from `run_facts`.
        training: from `about_training`.
    """
    same = len(evaluation.labels) == len(test_images) and evaluation.labels.equal(test_images.labels)
    check_argument(same, "be of test_images", evaluation="other labels")
    sections = _sections(model, evaluation, test_images, metrics_csv)
    page = render_page(
        "capsella.report",
        "run.html.jinja",
        title=title,
        action=verdict(evaluation),
        confidence=confidence(evaluation),
        warnings=evaluation_warnings(evaluation),
        commands=next_commands(folder, model),
        heads=HEADS,
        classes=_classes(evaluation),
        notes=evaluation_notes(evaluation),
        about=[*(() if training is None else training.paragraphs), *about_result(evaluation)],
        confusions=about_confusions(evaluation),
        limits=limits(evaluation, training),
        facts=facts,
        sections=sections,
        pictures=pictures_of(sections.values(), folder),
    )
    path = folder / "report.html"
    write_text(path, page)
    return path


def _classes(evaluation: Evaluation) -> list[list[str]]:
    """Return the rows of the table of classes."""
    rows = [
        [
            score.name,
            f"{score.support:,}",
            with_interval(score.recall, score.recall_interval),
            with_interval(score.specificity, score.specificity_interval),
            f"{score.predicted:,}",
            percent(score.precision),
            percent(score.f1),
            "–" if score.auc is None else f"{score.auc:.3f}",
        ]
        for score in evaluation.per_class
    ]
    low, high = (end / 100 for end in evaluation.balanced_accuracy_interval)
    mean = with_interval(evaluation.balanced_accuracy / 100, (low, high))
    area = "–" if evaluation.macro_auc is None else f"{evaluation.macro_auc:.3f}"
    return [*rows, ["mean", "", mean, "", "", "", percent(evaluation.macro_f1), area]]


def _sections(
    model: ImageClassifier, evaluation: Evaluation, images: LabelledImages, metrics_csv: Path | None
) -> dict[str, Section]:
    """Return the figures and galleries by name."""
    sections = [
        confusion_section(evaluation),
        _mistakes(evaluation, images),
        reconstruction_section(model, evaluation, images),
        tweak_section(model, evaluation, images),
        _reliability(evaluation),
        _training(metrics_csv),
        _roc(evaluation),
        _votes(model, evaluation, images),
        _routing(model, images),
        _samples(evaluation, images),
    ]
    return {section.name: section for section in sections}


def reconstruction_section(model: ImageClassifier, evaluation: Evaluation, images: LabelledImages) -> Section:
    """Return inputs above their reconstructions, or the reason why there are none."""
    name, title = "reconstructions", "Reconstructions"
    if not model.has_decoder:
        return Section(name, title, NO_DECODER)
    picked = pick_examples(evaluation)
    if isinstance(images, PairSet):
        return _pairs(model, evaluation, images)
    chosen = images.take(picked)
    shown = reconstruct(model, chosen.images.float() / 255, chosen.labels)
    if len(picked) > 1 and float(shown.from_true.std(0).mean()) < SAME:
        return Section(name, title, "The decoder draws the same picture for every image.")
    rows = zip(chosen.images.float() / 255, shown.from_true, shown.from_predicted, strict=True)
    gallery = [
        _captioned(
            mosaic(np.stack(own if evaluation.correct[index] else [*own, wrong.numpy()])[:, None]), evaluation, index
        )
        for index, (image, true, wrong) in zip(picked.tolist(), rows, strict=True)
        for own in [[image.numpy(), true.numpy()]]
    ]
    text = (
        "Top: test images, first correct ones (the first of each class, not hand-picked), then the most confident "
        "mistakes. Below each: the reconstruction from the capsule of its true class, and for mistakes also from the "
        "predicted class."
    )
    return Section(name, title, text, gallery=tuple(gallery))


def _pairs(model: ImageClassifier, evaluation: Evaluation, pairs: PairSet) -> Section:
    picked = pick_examples(evaluation)
    decoded = decode_pairs(model, pairs, evaluation, picked)
    rows = [np.repeat(decoded.images, 3, 1), *map(two_colours, (decoded.parts, *decoded.reconstructions))]
    gallery = [
        _captioned(mosaic(np.stack([row[k] for row in rows])[:, None]), evaluation, index)
        for k, index in enumerate(picked.tolist())
    ]
    text = (
        "From top to bottom: the pair; its two images, orange and blue; the reconstructions from the two predicted "
        "classes; from the two true classes; and, as a control, from the two most active other classes. A network that "
        "fits any class to any image would reproduce the image there too."
    )
    return Section("reconstructions", "Reconstructions", text, gallery=tuple(gallery))


def tweak_section(model: ImageClassifier, evaluation: Evaluation, images: LabelledImages) -> Section:
    """Return the strongest dimension tweaks of one test image, or the reason why there are none."""
    name, title = "dimension_tweaks", "What the numbers of a capsule encode"
    if not model.has_decoder:
        return Section(name, title, NO_DECODER)
    offsets = offsets_across(model, STEPS)
    # Convolutional decoders take too long for more than one image.
    examples = pick_examples(evaluation, EXAMPLES if isinstance(model.decoder, DenseDecoder) else 1, 1)[:EXAMPLES]
    found = []
    for index in examples.tolist():
        image = images.take(torch.tensor([index])).images[0].float() / 255
        target = int(evaluation.predictions[index].flatten()[0])
        elements = torch.tensor(largest_elements(model, image, target))
        ends = dimension_tweaks(model, image, target, (offsets[0], offsets[-1]), elements.tolist())
        changes = row_changes(ends).sort(descending=True)
        found.append((float(changes.values[0]), index, image, target, elements[changes.indices[:DIALS]].tolist()))
    largest, index, image, target, strongest = max(found, key=lambda example: example[0])
    if largest < SAME:
        return Section(name, title, "No element of the pose changes the reconstruction.")
    grid = dimension_tweaks(model, image, target, offsets, strongest)
    gallery = [
        picture(mosaic(row[None].numpy()), f"element {k + 1}: {offsets[0]:+g} to {offsets[-1]:+g}", is_wide=True)
        for k, row in zip(strongest, grid, strict=True)
    ]
    text = (
        f"The capsule of class {images.classes[target]} for test image {index}. In each row one number of its pose is "
        "changed and the result decoded; the middle is the plain reconstruction. Shown are the elements that change "
        "the picture most, for the example image that they change most."
    )
    return Section(name, title, text, gallery=tuple(gallery))


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
    text = "Test images, evenly spaced in the set, with the activation of the predicted class."
    picked = evenly(len(images), SAMPLES)
    return Section("samples", "Sample predictions", text, gallery=_predictions(evaluation, images, picked))


def _mistakes(evaluation: Evaluation, images: LabelledImages) -> Section:
    name, title = "mistakes", "The most confident mistakes"
    picked = evaluation.mistakes()[:MOST_MISTAKES]
    if len(picked) == 0:
        return Section(name, title, "There are none: every test image was classified correctly.")
    count = f"{len(picked)} of {evaluation.errors}" if evaluation.errors > len(picked) else "All"
    text = f"{count} mistakes, the most confident first. Wrong labels in the data show up here first."
    return Section(name, title, text, gallery=_predictions(evaluation, images, picked))


def _predictions(evaluation: Evaluation, images: LabelledImages, picked: Tensor) -> tuple[Picture, ...]:
    gallery = []
    for index, image in zip(picked.tolist(), images.take(picked).images.float() / 255, strict=True):
        after = f" {evaluation.confidence[index]:.2f}"
        if images.files is not None and not evaluation.correct[index]:
            after += f" · {images.files[index]}"
        gallery.append(_captioned(mosaic(image[None, None].numpy()), evaluation, index, after))
    return tuple(gallery)


def _captioned(image: Float[np.ndarray, "h w c"], evaluation: Evaluation, index: int, after: str = "") -> Picture:
    """Return a test image with its class, or with its true and predicted class."""
    true, predicted = (
        pair_name(evaluation.classes, labels[index]) for labels in (evaluation.labels, evaluation.predictions)
    )
    is_right = bool(evaluation.correct[index])
    return picture(image, (true if is_right else f"{true}, taken for {predicted}") + after, is_right)


def _example(evaluation: Evaluation, images: LabelledImages) -> tuple[int, Float[Tensor, "c h w"]]:
    """Return index and pixels in [0, 1] of one image, which is a mistake only if no image is correct."""
    index = pick_examples(evaluation, right=1, wrong=1)[:1]
    return int(index), images.take(index).images[0].float() / 255


def _reliability(evaluation: Evaluation) -> Section:
    text = (
        "Accuracy against confidence: below the dashed line the model is overconfident. The confidence is "
        f"{evaluation.confidence_text}. Capsule lengths do not sum to one over the classes, and the margin loss does "
        "not push them above 0.9, so an accurate capsule network lies above the line."
    )
    return Section("reliability", "Calibration", text, reliability_figure(evaluation.calibration))


def _roc(evaluation: Evaluation) -> Section:
    name, title = "roc", "Each class against the rest (ROC)"
    pairs = zip(evaluation.classes, evaluation.roc, strict=True)
    curves = {class_name: curve for class_name, curve in pairs if curve is not None}
    if not curves:
        return Section(name, title, "All test images are of one class, so there is no rest.")
    if (least := min(curve.auc for curve in curves.values())) >= COINCIDE:
        return Section(name, title, f"The curves coincide: the area under each is at least {least:.3f} of 1.")
    text = (
        "Sensitivity against false-positive rate for every threshold on the activation of the class. The area under "
        "the curve (AUC) is 1 for a perfect network and 0.5 for chance."
    )
    return Section(name, title, text, roc_figure(curves))


def _routing(model: ImageClassifier, images: LabelledImages) -> Section:
    name, title = "routing", "Routing"
    if not isinstance(model, CapsuleClassifier):
        return Section(name, title, "This model has no capsules, so nothing is routed.")
    picked = evenly(len(images), TRACED)
    layers = routing_diagnostics(model, images.take(picked).images.float() / 255)
    if not layers:
        return Section(name, title, "No couplings were recorded: no layer routes between two or more parents.")
    sentences = [
        f"{layer.name.capitalize()}: entropy {' → '.join(f'{value:.3f}' for value in layer.entropy)} over the "
        f"iterations; {percent(layer.dead_share)} % of {layer.parents} capsule types are dead."
        for layer in layers
    ]
    text = (
        f"Entropy of the couplings over {len(picked)} test images: 1 means that every part is shared equally among all "
        "parents, so routing decides nothing; 0 that each part goes to one parent. A capsule type is dead if its "
        f"activation stays below {DEAD_BELOW} on every image; in self-routing, whose activations sum to 1, below a "
        "tenth of a uniform one. "
    )
    return Section(name, title, text + " ".join(sentences))


def _votes(model: ImageClassifier, evaluation: Evaluation, images: LabelledImages) -> Section:
    name, title = "vote_distances", "Distances of votes"
    if not has_vote_distances(model):
        has_layers = isinstance(model, CapsuleClassifier)
        hint = "; capsella explore RUN --data IMAGE --out DIR draws them for any routed layer" if has_layers else ""
        return Section(name, title, f"Drawn for routing by distance only, such as EM{hint}.")
    index, image = _example(evaluation, images)
    histograms = class_vote_distances(model, image)
    shown = evaluation.activations[index].topk(min(4, len(model.classes))).indices.sort().values.tolist()
    text = (
        f"Test image {index}, class {pair_name(images.classes, evaluation.labels[index])}: distances of the votes for "
        "the most active class capsules from their means after each routing iteration, weighted by the couplings. If "
        "the votes for one class agree, its histogram moves to the left, and those of the other classes shrink."
    )
    some = VoteDistances(histograms.edges, histograms.weights[:, shown])
    figure = vote_distances_figure(some, [model.classes[k] for k in shown])
    return Section(name, title, text, figure)
