"""The page's tabs: the dials and their sweep, how each layer routed, and two images or runs side by side."""

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from capsella.explain.tweaks import dial_names, dial_range
from capsella.explorer import panels
from capsella.explorer.pictures import message
from capsella.explorer.style import QUIET
from capsella.explorer.subject import Subject
from capsella.explorer.view import DIALS, View, look_at, move, reset, turn_to

FOLLOW = {**QUIET, "queue": False, "trigger_mode": "always_last"}  # for what is dragged: no queue, the last value wins


class DialTab:
    """The dials of one class capsule, and the pictures that follow them."""

    def __init__(self, subject: Subject, start: View, view: gr.State, target: gr.Dropdown) -> None:
        self.subject, self.view, self.target = subject, view, target
        on, d = not panels.why_no_dials(subject), start.poses.shape[1]
        pages = [(f"{k * DIALS + 1}–{min((k + 1) * DIALS, d)}", k) for k in range(start.pages)]
        more = start.pages > 1
        with gr.Row():
            self.page = gr.Radio(pages, value=0, label="Page of dials", visible=more, interactive=on, elem_id="page")
            self.reset = gr.Button("Reset this capsule", interactive=on, elem_id="reset", min_width=120)
            self.reset_all = gr.Button("Reset all capsules", interactive=on, elem_id="reset-all", min_width=120)
        self.drawn = gr.HTML(panels.drawn(subject, start), elem_id="drawn")
        most = dial_range(subject.model)
        with gr.Row(elem_id="dials"):
            self.sliders = [
                gr.Slider(-most, most, step=most / 100, min_width=150, buttons=[], elem_classes="dial", **slider)
                for slider in (self.settings(start) if on else [])
            ]
        self.swept = sweep_row(subject, view, d)

    def settings(self, view: View) -> list[dict[str, Any]]:
        """Label, value and visibility of each slider: the label says where the dial started."""
        dials = view.dials
        names = dial_names(self.subject.model, view.poses.shape[1])
        return [
            {
                "label": f"{names[k]}: start {float(view.poses[view.target, k]):+.3f}",
                "value": round(float(view.offsets[view.target, k]), 6),
                "visible": True,
            }
            for k in dials
        ] + [{"label": "unused", "value": 0, "visible": False}] * (min(DIALS, view.poses.shape[1]) - len(dials))

    @property
    def outputs(self) -> list[gr.components.Component]:
        """What `show` fills."""
        return [self.target, self.page, self.drawn, *self.sliders]

    def show(self, view: View) -> list[Any]:
        """The controls and pictures of a view, for `outputs`."""
        settings = self.settings(view) if self.sliders else []
        return [view.target, view.page, panels.drawn(self.subject, view), *(gr.update(**each) for each in settings)]

    def wire(self, look_inside: "InsideTab") -> None:
        """Let the sliders and buttons answer; a new class is looked inside for, too."""
        view, everything = self.view, [self.view, *self.outputs]
        for place, slider in enumerate(self.sliders):
            answer = partial(self._move, place)
            slider.input(answer, [view, self.target, self.page, slider], [view, self.drawn], **FOLLOW)
        self.page.input(self._turn, [view, self.target, self.page], everything, **QUIET)
        turned = self.target.input(self._turn, [view, self.target, self.page], everything, **QUIET)
        look_inside.follow(turned)
        self.clear_sweep(turned)
        self.reset.click(lambda view: self._all(reset(view)), view, everything, **QUIET)
        self.reset_all.click(lambda view: self._all(reset(view, everything=True)), view, everything, **QUIET)

    def clear_sweep(self, event: Any) -> None:
        """After `event`, another capsule is shown: an old sweep must not pass for its own."""
        if self.swept:
            event.then(lambda: ["", *[gr.update(value=None, interactive=False)] * 2], None, list(self.swept), **QUIET)

    def _move(self, place: int, view: View, target: int, page: int, value: float | None) -> Any:
        # A slider let go as another class was chosen sends the old capsule's value; an emptied number is none.
        if (target, page) != (view.target, view.page) or value is None:
            return gr.skip(), gr.skip()
        view = move(view, view.dials[place], value)
        return view, panels.drawn(self.subject, view)

    def _turn(self, view: View, target: int, page: int) -> list[Any]:
        return self._all(turn_to(view, target, page))

    def _all(self, view: View) -> list[Any]:
        return [view, *self.show(view)]


def sweep_row(subject: Subject, view: gr.State, d: int) -> tuple[gr.components.Component, ...]:
    """Choose one of a capsule's d dials, play it, save it; returns what shows and saves it."""
    if panels.why_no_dials(subject):
        return ()
    names = dial_names(subject.model, d)
    with gr.Row(elem_id="sweep-row"):
        every = [(name, k) for k, name in enumerate(names)]
        dial = gr.Dropdown(every, value=0, label="Dial to sweep", elem_id="sweep-dial", min_width=140)
        start = gr.Button("Sweep", variant="primary", elem_id="sweep", min_width=100)
        png = gr.DownloadButton("Save the strip (PNG)", interactive=False, elem_id="save-png", min_width=120)
        gif = gr.DownloadButton("Save the animation (GIF)", interactive=False, elem_id="save-gif", min_width=120)
    shown = gr.HTML(elem_id="swept")

    def play(view: View, dial: int) -> tuple[Any, ...]:
        page, strip, animation = panels.swept(subject, view, dial, names[dial])
        folder = Path(tempfile.mkdtemp(prefix="sweep-"))
        stem = f"class{view.target}-dial{dial + 1}"
        files = [folder / f"{stem}.png", folder / f"{stem}.gif"]
        for file, content in zip(files, (strip, animation), strict=True):
            file.write_bytes(content)
        return page, *(gr.update(value=str(file), interactive=True) for file in files)

    start.click(play, [view, dial], [shown, png, gif], **QUIET)
    return shown, png, gif


class InsideTab:
    """How each layer routed: drawn when `tab` is opened, and as the image or the class changes while it is open.

    Figures take a second: closed, it costs the dials nothing.
    """

    def __init__(self, subject: Subject, view: gr.State, tab: gr.Tab) -> None:
        self.subject, self.view = subject, view
        layers = [(title, k) for k, title in enumerate(panels.layer_titles(subject))]
        last = len(layers) - 1 if layers else None
        self.layer = gr.Dropdown(layers, value=last, label="Layer", visible=bool(layers), elem_id="layer")
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


def compare_tab(subjects: Sequence[Subject], view: gr.State) -> None:
    """On the left the image and dials of the page; on the right a test image, of this or another run."""
    runs = [(subject.name, k) for k, subject in enumerate(subjects)]
    label = f"Test image on the right, 0 to {len(subjects[0].numbers) - 1}"
    with gr.Row():
        run = gr.Dropdown(runs, value=len(runs) - 1, label="Compare with run", elem_id="other-run", min_width=140)
        place = gr.Number(0, precision=0, minimum=0, label=label, elem_id="other-image", min_width=140)
        same = gr.Checkbox(False, label="The same image as on the left", elem_id="same-image", min_width=140)
        button = gr.Button("Compare", variant="primary", elem_id="compare", min_width=100)
    shown = gr.HTML(elem_id="compared")

    def compare(view: View, run: int, place: int | None, same: bool) -> str:
        other = subjects[run]
        if same:
            if tuple(view.image.shape[1:]) != other.model.image_size or len(view.image) != other.model.channels:
                return message(
                    f"{other.name} takes images of another size or other channels; choose one of its test images.",
                    problem=True,
                )
            right = look_at(other.model, view.image, view.title, view.truth)
        elif place is None or not 0 <= place < len(other.numbers):
            return message(f"Test image: must be from 0 to {len(other.numbers) - 1}, got {place}.", problem=True)
        else:
            right = other.look_at(place)
        return panels.compared((subjects[0], view), (other, right))

    button.click(compare, [view, run, place, same], shown, **QUIET)
