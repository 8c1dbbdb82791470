"""Pages that are one HTML file each, with their pictures in them: they open from a disk and ask no other machine."""

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from capsella.evaluation import Evaluation
from capsella.report.figures import confusion_figure, printable, roc_figure, write_png


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


def render_page(package: str, template: str, **values: object) -> str:
    """The HTML of a template that extends base.html.jinja, whose style all pages share.

    Args:
        package: that holds the template, as "capsella.compare".
        template: its name.
        values: what it shows; all that it names must be there, `title` among it.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "."), PackageLoader("capsella.report", ".")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    return printable(environment.get_template(template).render(values))


def pictures_of(sections: Iterable[Section], folder: Path) -> dict[str, str]:
    """Write the figures of sections as `folder`/figures/NAME.png, and return the same in base64 by name, for a page."""
    return {
        one.name: embedded(one.figure, folder / "figures" / f"{one.name}.png")
        for one in sections
        if one.figure is not None
    }


def embedded(figure: Figure, path: Path) -> str:
    """Write a figure as PNG to `path`, and return the same in base64, for a page."""
    return base64.b64encode(write_png(figure, path)).decode()
