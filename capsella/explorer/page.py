"""The page: Gradio's controls, and which function answers which of them. All that is computed lies in `panels`."""

from collections.abc import Sequence

import gradio as gr

from capsella.explorer import panels
from capsella.explorer.input_column import input_column
from capsella.explorer.pictures import escape
from capsella.explorer.style import QUIET
from capsella.explorer.subject import Subject
from capsella.explorer.tabs import DialTab, InsideTab, compare_tab
from capsella.explorer.view import View


def build_page(subjects: Sequence[Subject]) -> gr.Blocks:
    """The page about the first of `subjects`; the others can be compared with it.

    Raises:
        ValueError: no subject.
    """
    if not subjects:
        raise ValueError("subjects: must be at least one run, got none")
    subject = subjects[0]
    start = subject.look_at(0)
    with gr.Blocks(title=f"capsella explore {subject.name}", delete_cache=(600, 3600)) as page:
        gr.HTML(_heading(subject))
        view = gr.State(start, time_to_live=24 * 3600)
        with gr.Row(equal_height=False):
            with gr.Column(scale=2, min_width=320):
                new_image = input_column(subject, view)
            with gr.Column(scale=5, min_width=320):
                seen = gr.HTML(panels.seen(subject, start), elem_id="seen")
                target = _class_chooser(subject, start)
                with gr.Tabs():
                    with gr.Tab("Dials", id="dials") as first:
                        dials = DialTab(subject, start, view, target)
                    with gr.Tab("Inside", id="inside") as inside:
                        look_inside = InsideTab(subject, view, inside)
                    with gr.Tab("Compare", id="compare") as last:
                        compare_tab(subjects, view)
        look_inside.unless([first, last])
        dials.wire(look_inside)
        for event in new_image:  # is shown everywhere, wherever it comes from
            shown = event.then(
                lambda view: [panels.seen(subject, view), *dials.show(view)], view, [seen, *dials.outputs], **QUIET
            )
            look_inside.follow(shown)
            dials.clear_sweep(shown)
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
