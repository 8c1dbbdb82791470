"""Two images, or two runs, side by side."""

from collections.abc import Sequence

import gradio as gr

from capsella.explorer import panels
from capsella.explorer.pictures import message
from capsella.explorer.subject import Subject
from capsella.explorer.view import View, look_at
from capsella.explorer.wiring import QUIET


def compare_tab(subjects: Sequence[Subject], view: gr.State) -> None:
    """On the left the image and dials of the page; on the right a test image, of this or another run."""
    runs = [(subject.name, k) for k, subject in enumerate(subjects)]
    most = len(subjects[0].numbers) - 1
    with gr.Row():
        run = gr.Dropdown(runs, value=len(runs) - 1, label="Compare with run", elem_id="other-run", min_width=140)
        place = gr.Number(
            0,
            precision=0,
            minimum=0,
            label=f"Test image on the right, 0 to {most}",
            elem_id="other-image",
            min_width=140,
        )
        same = gr.Checkbox(False, label="The same image as on the left", elem_id="same-image", min_width=140)
        button = gr.Button("Compare", variant="primary", elem_id="compare", min_width=100)
    shown = gr.HTML(elem_id="compared")

    def compare(view: View, run: int, place: int | None, same: bool) -> str:
        other = subjects[run]
        if same:
            if tuple(view.image.shape[1:]) != other.model.image_size or len(view.image) != other.model.channels:
                return message(
                    f"{other.name} takes images of another size or other channels; choose one of its test images.",
                    "problem",
                )
            right = look_at(other.model, view.image, view.title, view.truth)
        elif place is None or not 0 <= place < len(other.numbers):
            return message(f"Test image: must be from 0 to {len(other.numbers) - 1}, got {place}.", "problem")
        else:
            right = look_at(other.model, other.image(place), other.caption(place), other.truth(place))
        return panels.compared((subjects[0], view), (other, right))

    button.click(compare, [view, run, place, same], shown, **QUIET)
