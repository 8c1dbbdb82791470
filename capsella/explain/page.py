"""Pages that are one HTML file each, with their pictures in them: they open from a disk and ask no other machine."""

import base64
from collections.abc import Iterable
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from capsella.explain.plots import printable, write_png
from capsella.explain.sections import Section


def render_page(package: str, template: str, **values: object) -> str:
    """The HTML of a template that extends base.html.jinja, whose style all pages share.

    Args:
        package: that holds the template, as "capsella.compare".
        template: its name.
        values: what it shows; all that it names must be there, `title` among it.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "."), PackageLoader("capsella.explain", ".")]),
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
