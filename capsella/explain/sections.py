"""Parts of a report, and those on confusions and the ROC."""

from dataclasses import dataclass

from matplotlib.figure import Figure

from capsella.evaluation import Evaluation
from capsella.explain.plots import confusion_figure, roc_figure


@dataclass(frozen=True)
class Section:
    """One part of the report: a figure and a sentence on how to read it, or why there is none."""

    name: str
    title: str
    text: str
    figure: Figure | None = None


def confusion_sections(evaluation: Evaluation) -> list[Section]:
    """The confusion matrix as shares of the true classes, and of the predicted ones."""
    text = (
        "A row is a true class, a column what the model said. Everything off the diagonal is a mistake. The colour is "
        "the share of the row: of the images of a true class, how many were put there. The diagonal is the sensitivity."
    )
    said = (
        "The same counts; the colour is the share of the column: of the images that were called so, how many are what. "
        "The diagonal is the precision: how far an answer can be trusted, on images with as many of each class as here."
    )
    counts, classes = evaluation.confusion, evaluation.classes
    return [
        Section("confusion", "What became of each class", text, confusion_figure(counts, classes)),
        Section("answers", "What is behind each answer", said, confusion_figure(counts, classes, "predicted")),
    ]


def roc_section(evaluation: Evaluation) -> Section:
    """The ROC curve of each class against the rest."""
    name, title = "roc", "Each class against the rest (ROC)"
    curves = {one: curve for one, curve in zip(evaluation.classes, evaluation.roc, strict=True) if curve is not None}
    if not curves:
        return Section(name, title, "All test images are of one class, so there is no rest.")
    text = (
        "If every image were put into a class whose activation is above a threshold: the share of the class that is "
        "found, against the share of all others that is put there by mistake, for every threshold. AUC is the area "
        "below: 1 is perfect, 0.5 is chance."
    )
    return Section(name, title, text, roc_figure(curves))
