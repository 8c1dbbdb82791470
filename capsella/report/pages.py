"""Self-contained HTML pages with embedded figures, and the sections they are made of.

`base.html.jinja` and `style.css` are the frame of every report, `parts.html.jinja` holds macros for what they share:
decision, tables that wrap, charts, galleries of images, facts, and folded sections.
"""

import base64
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure
from PIL import Image

from capsella.evaluation import Evaluation
from capsella.report.figures import confusion_figure, printable, write_figure

SMALL = 100  # pixels; smaller pictures are enlarged without smoothing


@dataclass(frozen=True)
class Picture:
    """An image in a gallery.

    is_right: colours the caption green or red. is_wide: takes the width of the page, as a row of images does.
    """

    source: str
    caption: str
    is_right: bool | None = None
    is_wide: bool = False
    is_small: bool = True


@dataclass(frozen=True)
class Section:
    """A part of a report: a figure or a gallery and how to read it, or the reason why there is neither."""

    name: str
    title: str
    text: str
    figure: Figure | None = None
    gallery: tuple[Picture, ...] = ()

    @property
    def is_drawn(self) -> bool:
        """True if there is something to see."""
        return self.figure is not None or bool(self.gallery)


def picture(
    image: Float[np.ndarray, "h w c"], caption: str, is_right: bool | None = None, is_wide: bool = False
) -> Picture:
    """Return a picture in [0, 1], channels last, for a gallery."""
    values = (np.clip(image, 0, 1) * 255).round().astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(values[..., 0] if values.shape[2] == 1 else values).save(buffer, format="PNG", optimize=True)
    is_small = values.shape[0] < SMALL
    return Picture(data_uri(buffer.getvalue(), "image/png"), printable(caption), is_right, is_wide, is_small)


def confusion_section(evaluation: Evaluation) -> Section:
    """Return the confusion matrix: each cell has its count, and its share of the true class as its colour."""
    text = (
        "Rows are true classes, columns predicted ones; everything off the diagonal is a mistake. A cell's colour is "
        "its share of the row, so the diagonal is the sensitivity."
    )
    figure = confusion_figure(evaluation.confusion, evaluation.classes)
    return Section("confusion", "Confusion matrix", text, figure)


def render_page(package: str, template: str, **values: object) -> str:
    """Render a template that extends base.html.jinja.

    Args:
        package: the package with the template, e.g. "capsella.experiments.compare".
        template: its file name.
        values: all values that the template uses, among them `title`.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "."), PackageLoader("capsella.report", ".")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters["breakable"] = breakable
    html = printable(environment.get_template(template).render(values))
    return re.sub(r"(\d) (?=%|ms\b|MB\b)", "\\1\N{NO-BREAK SPACE}", html)  # a number keeps its unit


def breakable(name: str) -> Markup:
    """Escape a name; lines may break after its underscores."""
    return Markup(str(escape(name)).replace("_", "_<wbr>"))


def pictures_of(sections: Iterable[Section], folder: Path) -> dict[str, str]:
    """Write the figures of sections as `folder`/figures/NAME.png; return them as data URIs of SVG by name."""
    return {
        section.name: write_figure(section.figure, folder / "figures" / f"{section.name}.png")
        for section in sections
        if section.figure is not None
    }


def data_uri(content: bytes, kind: str) -> str:
    """Return bytes as an address that holds them."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
