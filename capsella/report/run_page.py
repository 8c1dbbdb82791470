"""The report of a run: a self-contained HTML file, and its figures as PNG files."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from capsella.data import LabelledImages, PairSet
from capsella.errors import check_argument
from capsella.evaluation import Evaluation
from capsella.files import write_text
from capsella.models import CapsuleClassifier, ImageClassifier
from capsella.report.figures import confusion_figure, reliability_figure, training_figure
from capsella.report.image_figures import mosaic
from capsella.report.pages import Picture, Section, picture, pictures_of, render_page
from capsella.report.prose import (
    Training,
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
from capsella.report.terminal import percent, with_interval
from capsella.training.metrics import read_metrics

MOST_MISTAKES = 18
DIALS, STEPS = 6, 7  # pose elements to show, and offsets of each
SAME = 0.01  # pictures whose pixels differ by less on average count as equal
HEADS = ("class", "images", "sensitivity %", "specificity %", "precision %", "F1 %", "AUC")


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
    pictured = _sections(model, evaluation, test_images, metrics_csv)
    sections = {section.name: section for section in pictured if section is not None}
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
        about=() if training is None else training.paragraphs,
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
            percent(score.precision),
            percent(score.f1),
            "–" if score.auc is None else f"{score.auc:.3f}",
        ]
        for score in evaluation.per_class
    ]
    low, high = (end / 100 for end in evaluation.balanced_accuracy_interval)
    mean = with_interval(evaluation.balanced_accuracy / 100, (low, high))
    area = "–" if evaluation.macro_auc is None else f"{evaluation.macro_auc:.3f}"
    return [*rows, ["mean", "", mean, "", "", percent(evaluation.macro_f1), area]]


def _sections(
    model: ImageClassifier, evaluation: Evaluation, images: LabelledImages, metrics_csv: Path | None
) -> list[Section | None]:
    """Return the figures and galleries; None for those that would show nothing."""
    confusion = (
        "Rows are true classes, columns predicted ones; everything off the diagonal is a mistake. A cell's colour is "
        "its share of the row, so the diagonal is the sensitivity."
    )
    reliability = (
        "Accuracy against confidence: below the dashed line the model is overconfident. The confidence is "
        f"{evaluation.confidence_text}."
    )
    if _activations_are_lengths(model):
        reliability += (
            " Capsule lengths do not sum to one over the classes, and the margin loss does not push them above 0.9, so "
            "an accurate capsule network lies above the line."
        )
    training = (
        "Loss, error rate and learning rate after each epoch. If the validation curve rises while the training curve "
        "falls, the network overfits."
    )
    matrix = confusion_figure(evaluation.confusion, evaluation.classes)
    curves = None if metrics_csv is None else training_figure(read_metrics(metrics_csv))
    return [
        Section("confusion", "Confusion matrix", confusion, matrix),
        _mistakes(evaluation, images),
        _reconstructions(model, evaluation, images) if model.has_decoder else None,
        _tweaks(model, evaluation, images) if model.has_decoder else None,
        Section("reliability", "Calibration", reliability, reliability_figure(evaluation.calibration)),
        None if curves is None else Section("training", "Training curves", training, curves),
    ]


def _activations_are_lengths(model: ImageClassifier) -> bool:
    if not isinstance(model, CapsuleClassifier) or model.scores is not None or model.class_routing is None:
        return False
    return model.class_routing.activation_kind == "lengths"


def _mistakes(evaluation: Evaluation, images: LabelledImages) -> Section | None:
    picked = evaluation.mistakes()[:MOST_MISTAKES]
    if len(picked) == 0:
        return None
    count = f"{len(picked)} of {evaluation.errors}" if evaluation.errors > len(picked) else "All"
    text = f"{count} mistakes, the most confident first. Wrong labels in the data show up here first."
    gallery = []
    for index, image in zip(picked.tolist(), images.take(picked).images.float() / 255, strict=True):
        file = "" if images.files is None else f" · {images.files[index]}"
        after = f" {evaluation.confidence[index]:.2f}{file}"
        gallery.append(_captioned(mosaic(image[None, None].numpy()), evaluation, index, after))
    return Section("mistakes", "The most confident mistakes", text, gallery=tuple(gallery))


def _reconstructions(model: ImageClassifier, evaluation: Evaluation, images: LabelledImages) -> Section | None:
    picked = pick_examples(evaluation)
    if isinstance(images, PairSet):
        columns = list(zip(*decode_pairs(model, images, evaluation, picked), strict=True))
        text = (
            "From top to bottom: the pair; its two images, orange and blue; the reconstructions from the two predicted "
            "classes; from the two true classes; and, as a control, from the two most active other classes. A network "
            "that fits any class to any image would reproduce the image there too."
        )
    else:
        chosen = images.take(picked)
        pixels = chosen.images.float() / 255
        shown = reconstruct(model, pixels, chosen.labels)
        if len(picked) > 1 and float(shown.from_true.std(0).mean()) < SAME:  # the same picture for every image
            return None
        rows = (pixels, shown.from_true, shown.from_predicted)
        columns = [
            tuple(row[k].numpy() for row in (rows[:2] if evaluation.correct[index] else rows))
            for k, index in enumerate(picked.tolist())
        ]
        text = (
            "Top: test images, first correct ones (the first of each class, not hand-picked), then the most confident "
            "mistakes. Below each: the reconstruction from the capsule of its true class, and for mistakes also from "
            "the predicted class."
        )
    gallery = [
        _captioned(mosaic(np.stack(column)[:, None]), evaluation, index)
        for column, index in zip(columns, picked.tolist(), strict=True)
    ]
    return Section("reconstructions", "Reconstructions", text, gallery=tuple(gallery))


def _tweaks(model: ImageClassifier, evaluation: Evaluation, images: LabelledImages) -> Section | None:
    """Return the strongest dimension tweaks of the first example."""
    picked = pick_examples(evaluation, right=1, wrong=1)[:1]
    image, target = images.take(picked).images[0].float() / 255, int(evaluation.predictions[picked].flatten()[0])
    offsets, elements = offsets_across(model, STEPS), torch.tensor(largest_elements(model, image, target))
    ends = dimension_tweaks(model, image, target, (offsets[0], offsets[-1]), elements.tolist())
    changes = row_changes(ends).sort(descending=True)
    if float(changes.values[0]) < SAME:
        return None
    strongest = elements[changes.indices[:DIALS]].tolist()
    grid = dimension_tweaks(model, image, target, offsets, strongest)
    gallery = [
        picture(mosaic(row[None].numpy()), f"element {k + 1}: {offsets[0]:+g} to {offsets[-1]:+g}", is_wide=True)
        for k, row in zip(strongest, grid, strict=True)
    ]
    text = (
        f"The capsule of class {images.classes[target]} for test image {int(picked)}. In each row one number of its "
        "pose is changed and the result decoded; the middle is the plain reconstruction. Shown are the numbers that "
        "change the picture most."
    )
    return Section("dimension_tweaks", "What the numbers of a capsule encode", text, gallery=tuple(gallery))


def _captioned(image: Float[np.ndarray, "h w c"], evaluation: Evaluation, index: int, after: str = "") -> Picture:
    """Return a test image with its class, or with its true and predicted class."""
    true, predicted = (
        pair_name(evaluation.classes, labels[index]) for labels in (evaluation.labels, evaluation.predictions)
    )
    is_right = bool(evaluation.correct[index])
    return picture(image, (true if is_right else f"{true}, taken for {predicted}") + after, is_right)
