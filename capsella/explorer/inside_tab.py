"""How each layer routed: drawn when the tab is opened, and as the image or the class changes while it is open."""

from collections.abc import Sequence
from typing import Any

import gradio as gr

from capsella.explorer import panels
from capsella.explorer.pictures import message
from capsella.explorer.subject import Subject
from capsella.explorer.view import View
from capsella.explorer.wiring import QUIET


class InsideTab:
    """The contents of `tab`. Figures take a second: closed, it costs the dials nothing."""

    def __init__(self, subject: Subject, view: gr.State, tab: gr.Tab) -> None:
        self.subject, self.view = subject, view
        titles = panels.layer_titles(subject)
        self.layer = gr.Dropdown(
            [(title, k) for k, title in enumerate(titles)],
            value=len(titles) - 1 if titles else None,
            label="Layer",
            visible=bool(titles),
            elem_id="layer",
        )
        self.shown = gr.HTML(message("Open to see."), elem_id="inside")
        self.is_open = gr.State(False)
        tab.select(self._open, [view, self.layer], [self.shown, self.is_open], **QUIET)
        self.layer.input(self._draw, [view, self.layer], self.shown, **QUIET)

    def unless(self, others: Sequence[gr.Tab]) -> None:
        """Closed while one of the other tabs is open."""
        for other in others:
            other.select(lambda: False, None, self.is_open, **QUIET)

    def follow(self, event: Any) -> None:
        """Draw again after `event`, if it is open."""
        event.then(self._again, [self.view, self.layer, self.is_open], self.shown, **QUIET)

    def _draw(self, view: View, number: int | None) -> str:
        return panels.inside(self.subject, view, number or 0)

    def _open(self, view: View, number: int | None) -> tuple[str, bool]:
        return self._draw(view, number), True

    def _again(self, view: View, number: int | None, is_open: bool) -> Any:
        return self._draw(view, number) if is_open else gr.skip()
