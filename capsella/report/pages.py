"""Self-contained HTML reports with embedded figures, and the sections they are made of.

`base.html.jinja` and `style.css` are the base of every report. `parts.html.jinja` has macros for their common parts:
the decision box, responsive tables, charts, galleries of images, facts, and folded sections.
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

from capsella.report.figures import printable, write_figure

SMALL = 100  # pixels; smaller pictures are enlarged without smoothing


@dataclass(frozen=True)
class Picture:
    """An image in a gallery.

    is_right: colours the caption green or red. is_wide: the picture takes the full width. is_small: it is enlarged
    without smoothing.
    """

    source: str
    caption: str
    is_right: bool | None = None
    is_wide: bool = False
    is_small: bool = True


@dataclass(frozen=True)
class Section:
    """A section of a report: a figure or gallery with a text on how to read it, or the reason why there is neither."""

    name: str
    title: str
    text: str
    figure: Figure | None = None
    gallery: tuple[Picture, ...] = ()

    @property
    def is_drawn(self) -> bool:
        """True if there is a figure or a gallery."""
        return self.figure is not None or bool(self.gallery)


def picture(
    image: Float[np.ndarray, "h w c"], caption: str, is_right: bool | None = None, is_wide: bool = False
) -> Picture:
    """Return a gallery picture of an image in [0, 1]."""
    values = (np.clip(image, 0, 1) * 255).round().astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(values[..., 0] if values.shape[2] == 1 else values).save(buffer, format="PNG", optimize=True)
    is_small = values.shape[0] < SMALL
    return Picture(data_uri(buffer.getvalue(), "image/png"), printable(caption), is_right, is_wide, is_small)


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
    return re.sub(r"(\d) (?=%|ms\b|MB\b)", "\\1\N{NO-BREAK SPACE}", html)  # no line break between number and unit


def breakable(name: str) -> Markup:
    """Escape a name for HTML and allow line breaks after its underscores."""
    return Markup(str(escape(name)).replace("_", "_<wbr>"))


def pictures_of(sections: Iterable[Section], folder: Path) -> dict[str, str]:
    """Write the figures of sections as `folder`/figures/NAME.png; return them as data URIs of SVG by name."""
    return {
        section.name: write_figure(section.figure, folder / "figures" / f"{section.name}.png")
        for section in sections
        if section.figure is not None
    }


def data_uri(content: bytes, kind: str) -> str:
    """Return a data URI that contains the bytes. kind: their MIME type."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
