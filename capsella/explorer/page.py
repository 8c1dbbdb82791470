"""The page: Gradio's controls, and which function answers which of them. All that is computed lies in `panels`."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import gradio as gr

from capsella.explain.tweaks import dial_range
from capsella.explorer import panels
from capsella.explorer.compare_tab import compare_tab
from capsella.explorer.input_column import Inputs, input_column
from capsella.explorer.inside_tab import InsideTab
from capsella.explorer.pictures import escape
from capsella.explorer.subject import Subject
from capsella.explorer.sweep_row import sweep_row
from capsella.explorer.view import DIALS, View, dial_names, look_at, move, reset, turn_to
from capsella.explorer.wiring import QUIET

FOLLOW = {**QUIET, "queue": False, "trigger_mode": "always_last"}  # for what is dragged: no queue, the last value wins


def build_page(subjects: Sequence[Subject]) -> gr.Blocks:
    """The page about the first of `subjects`; the others can be compared with it.

    Raises:
        ValueError: no subject.
    """
    if not subjects:
        raise ValueError("subjects: must be at least one run, got none")
    subject = subjects[0]
    start = look_at(subject.model, subject.image(0), subject.caption(0), subject.truth(0))
    with gr.Blocks(title=f"capsella explore {subject.name}", delete_cache=(600, 3600)) as page:
        gr.HTML(_heading(subject))
        view = gr.State(start, time_to_live=24 * 3600)
        with gr.Row(equal_height=False):
            with gr.Column(scale=2, min_width=320):
                inputs = input_column(subject, view)
            with gr.Column(scale=5, min_width=320):
                seen = gr.HTML(panels.seen(subject, start), elem_id="seen")
                target = _class_chooser(subject, start)
                with gr.Tabs():
                    with gr.Tab("Dials", id="dials") as first:
                        dials = DialTab(subject, start, target)
                        dials.swept = sweep_row(subject, view, start.poses.shape[1])
                    with gr.Tab("Inside", id="inside") as inside:
                        look_inside = InsideTab(subject, view, inside)
                    with gr.Tab("Compare", id="compare") as last:
                        compare_tab(subjects, view)
        look_inside.unless([first, last])
        dials.wire(view, look_inside)
        _wire_inputs(inputs, view, seen, dials, look_inside)
    return page


def _class_chooser(subject: Subject, start: View) -> gr.Dropdown:
    """Whose capsule all tabs are about."""
    classes = [(name, k) for k, name in enumerate(subject.model.classes)]
    return gr.Dropdown(
        classes, value=start.target, label="Class capsule", interactive=subject.has_capsules, elem_id="target"
    )


def _heading(subject: Subject) -> str:
    wrong = subject.evaluation.errors
    facts = (
        f"{subject.model.name}, {len(subject.model.classes)} classes, images of {subject.model.image_size[1]}×"
        f"{subject.model.image_size[0]}; of {len(subject.numbers):,} test images here, {wrong} are taken wrongly"
    )
    return f"<h1>{escape(subject.name)}</h1><p>{escape(facts)}</p>"


class DialTab:
    """The dials of one class capsule, and the pictures that follow them."""

    def __init__(self, subject: Subject, start: View, target: gr.Dropdown) -> None:
        self.subject, self.target = subject, target
        off = bool(panels.why_no_dials(subject))
        with gr.Row():
            self.page = gr.Radio(
                [(f"{k * DIALS + 1}–{min((k + 1) * DIALS, start.poses.shape[1])}", k) for k in range(start.pages)],
                value=0,
                label="Page of dials",
                visible=start.pages > 1,
                interactive=not off,
                elem_id="page",
            )
            self.reset = gr.Button("Reset this capsule", interactive=not off, elem_id="reset", min_width=120)
            self.reset_all = gr.Button("Reset all capsules", interactive=not off, elem_id="reset-all", min_width=120)
        self.drawn = gr.HTML(panels.drawn(subject, start), elem_id="drawn")
        self.swept: Sequence[gr.components.Component] = ()
        most = dial_range(subject.model)
        with gr.Row(elem_id="dials"):
            self.sliders = [
                gr.Slider(-most, most, step=most / 100, min_width=150, buttons=[], elem_classes="dial", **slider)
                for slider in ([] if off else self.settings(start))
            ]

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

    def wire(self, view: gr.State, look_inside: InsideTab) -> None:
        """Let the sliders and buttons answer; a new class is looked inside for, too."""
        everything = [view, *self.outputs]
        for place, slider in enumerate(self.sliders):
            answer = partial(self._move, place)
            slider.input(answer, [view, self.target, self.page, slider], [view, self.drawn], **FOLLOW)
        self.page.input(self._turn, [view, self.target, self.page], everything, **QUIET)
        turned = self.target.input(self._turn, [view, self.target, self.page], everything, **QUIET)
        look_inside.follow(turned)
        self.clear_sweep(turned)
        self.reset.click(partial(self._reset, everything=False), view, everything, **QUIET)
        self.reset_all.click(partial(self._reset, everything=True), view, everything, **QUIET)

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
        view = turn_to(view, target, page)
        return [view, *self.show(view)]

    def _reset(self, view: View, everything: bool) -> list[Any]:
        view = reset(view, everything)
        return [view, *self.show(view)]


def _wire_inputs(inputs: Inputs, view: gr.State, seen: gr.HTML, dials: DialTab, look_inside: InsideTab) -> None:
    """A new image, wherever it comes from, is shown everywhere."""
    subject = dials.subject

    def show(view: View) -> list[Any]:
        return [panels.seen(subject, view), *dials.show(view)]

    for event in inputs.new_image:
        shown = event.then(show, view, [seen, *dials.outputs], **QUIET)
        look_inside.follow(shown)
        dials.clear_sweep(shown)
