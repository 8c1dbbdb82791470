"""A figure's numbers as JSON, and the picture drawn from them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from capsella.files import write_json
from capsella.papers.kinds.panels import Panel, panels_figure
from capsella.report.figures import write_png


def write_panels(
    path: Path,
    panels: Sequence[Panel],
    *,
    title: str,
    note: str,
    measured: str,
    command: str,
    more: Mapping[str, Any],
) -> dict[str, Any]:
    """Draw panels as a picture at `path` and write what is drawn as JSON beside it.

    Args:
        path: of the PNG.
        panels: of the figure.
        title, note, measured, command: as for `table_values`.
        more: what else the JSON holds.

    Returns:
        What the JSON holds.
    """
    values: dict[str, Any] = {"title": title, "note": note, "measured": measured, "command": command}
    values |= {"panels": [asdict(panel) for panel in panels], **more}
    write_png(panels_figure(panels), path)
    write_json(path.with_suffix(".json"), values)  # last: where it is, all is
    return values
