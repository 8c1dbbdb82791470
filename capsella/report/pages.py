"""Self-contained HTML pages with embedded pictures, and the sections they are made of."""

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from capsella.evaluation import Evaluation
from capsella.report.figures import confusion_figure, printable, roc_figure, write_png

TRUE_AND_PREDICTED: tuple[Literal["true"], Literal["predicted"]] = ("true", "predicted")


@dataclass(frozen=True)
class Section:
    """A part of a report: a figure and how to read it, or the reason why there is none."""

    name: str
    title: str
    text: str
    figure: Figure | None = None


def confusion_sections(evaluation: Evaluation) -> list[Section]:
    """Return the confusion matrix normalised over true classes, and over predicted ones."""
    text = (
        "Rows are true classes, columns predicted ones; everything off the diagonal is a mistake. Colours are "
        "normalised over rows, so the diagonal is the sensitivity."
    )
    by_prediction = (
        "The same counts, with colours normalised over columns, so the diagonal is the precision. It holds for images "
        "with the same class proportions as here."
    )
    counts, classes = evaluation.confusion, evaluation.classes
    return [
        Section("confusion", "Confusion by true class", text, confusion_figure(counts, classes)),
        Section(
            "predicted", "Confusion by predicted class", by_prediction, confusion_figure(counts, classes, "predicted")
        ),
    ]


def roc_section(evaluation: Evaluation) -> Section:
    """Return the ROC curve of each class against the rest."""
    name, title = "roc", "Each class against the rest (ROC)"
    curves = {name: curve for name, curve in zip(evaluation.classes, evaluation.roc, strict=True) if curve is not None}
    if not curves:
        return Section(name, title, "All test images are of one class, so there is no rest.")
    text = (
        "Sensitivity against false-positive rate for every threshold on the activation of the class. AUC is the area "
        "under the curve: 1 is perfect, 0.5 is chance."
    )
    return Section(name, title, text, roc_figure(curves))


def render_page(package: str, template: str, **values: object) -> str:
    """Render a template that extends base.html.jinja.

    Args:
        package: the package with the template, e.g. "capsella.compare".
        template: its file name.
        values: all values that the template uses, among them `title`.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "."), PackageLoader("capsella.report", ".")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    return printable(environment.get_template(template).render(values))


def pictures_of(sections: Iterable[Section], folder: Path) -> dict[str, str]:
    """Write the figures of sections as `folder`/figures/NAME.png; return them in base64 by name."""
    return {
        section.name: embedded(section.figure, folder / "figures" / f"{section.name}.png")
        for section in sections
        if section.figure is not None
    }


def embedded(figure: Figure, path: Path) -> str:
    """Write a figure as PNG to `path`, and return it in base64."""
    return base64.b64encode(write_png(figure, path)).decode()
