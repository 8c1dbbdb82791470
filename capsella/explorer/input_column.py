"""Where images come from: the test set, a file, or a drawing."""

from pathlib import Path
from typing import Any

import gradio as gr

from capsella.errors import CapsellaError
from capsella.explorer import panels
from capsella.explorer.pictures import message
from capsella.explorer.style import QUIET
from capsella.explorer.subject import Subject
from capsella.explorer.uploads import read_drawing, read_upload
from capsella.explorer.view import look_at

CANVAS = """
<canvas width="224" height="224" role="img" aria-label="Drawing area, light on dark: draw with mouse, pen or finger.
Without one of them, upload an image instead."></canvas>
<div><button type="button" class="clear">Clear the drawing</button></div>
"""
# On a canvas of 224 pixels a stroke of 18 is as thick as one of a handwritten digit at 28.
DRAW = """
const canvas = element.querySelector('canvas'), pen = canvas.getContext('2d');
const clear = () => { pen.fillStyle = 'black'; pen.fillRect(0, 0, canvas.width, canvas.height); };
const at = (event) => {
  const box = canvas.getBoundingClientRect();
  return [(event.clientX - box.left) * canvas.width / box.width,
          (event.clientY - box.top) * canvas.height / box.height];
};
let last = null;
clear();
canvas.addEventListener('pointerdown', (event) => {
  event.preventDefault(); canvas.setPointerCapture(event.pointerId); last = at(event); });
canvas.addEventListener('pointermove', (event) => {
  if (!last) return;
  const here = at(event);
  pen.strokeStyle = 'white'; pen.lineWidth = 18; pen.lineCap = 'round';
  pen.beginPath(); pen.moveTo(...last); pen.lineTo(...here); pen.stroke();
  last = here; });
canvas.addEventListener('pointerup', () => {
  if (last) trigger('drawn', {png: canvas.toDataURL('image/png')});
  last = null; });
canvas.addEventListener('pointercancel', () => { last = null; });
element.querySelector('.clear').addEventListener('click', clear);
"""
PICK = """
element.addEventListener('click', (event) => {
  const button = event.target.closest('button[data-place]');
  if (button) trigger('pick', {place: Number(button.dataset.place)});
});
"""
OUTCOMES = [("right and wrong", "all"), ("right", "right"), ("wrong", "wrong")]


def input_column(subject: Subject, view: gr.State) -> list[Any]:
    """The three sources; each sets `view`, or says why it cannot. Returns the events after which `view` is new."""
    status = gr.HTML(message(""), elem_id="status")
    with gr.Tabs():
        with gr.Tab("Test images"):
            events = [_test_images(subject, view, status)]
        with gr.Tab("Upload"):
            events.append(_upload(subject, view, status))
        with gr.Tab("Draw"):
            if subject.model.channels == 1:
                events.append(_draw(subject, view, status))
            else:
                gr.HTML(message("Drawing is for networks of grey images; this one takes colour. Upload one instead."))
    return events


def _test_images(subject: Subject, view: gr.State, status: gr.HTML) -> Any:
    every = [("any class", ""), *((name, name) for name in subject.model.classes)]
    with gr.Row():
        class_name = gr.Dropdown(every, value="", label="True class", elem_id="class-filter", min_width=120)
        outcome = gr.Dropdown(OUTCOMES, value="all", label="Right or wrong", elem_id="outcome-filter", min_width=150)
    sheet = gr.HTML(panels.thumbnails(subject, subject.places(), 0), js_on_load=PICK, elem_id="thumbnails")
    first = gr.State(0)
    with gr.Row():
        before = gr.Button("Earlier images", size="sm", elem_id="earlier", min_width=100)
        after = gr.Button("Later images", size="sm", elem_id="later", min_width=100)

    def turn(class_name: str, outcome: Any, first: int, by: int) -> tuple[str, int]:
        places = subject.places(class_name or None, outcome)
        first += by if 0 <= first + by < len(places) else 0
        return panels.thumbnails(subject, places, first), first

    def choose(event: gr.EventData) -> tuple[Any, str]:
        place = int(event.place)
        return subject.look_at(place), message(f"{subject.caption(place)}.")

    step = panels.THUMBNAILS
    filters = [class_name, outcome]
    gr.on([class_name.input, outcome.input], lambda c, o: turn(c, o, 0, 0), filters, [sheet, first], **QUIET)
    before.click(lambda c, o, f: turn(c, o, f, -step), [*filters, first], [sheet, first], **QUIET)
    after.click(lambda c, o, f: turn(c, o, f, step), [*filters, first], [sheet, first], **QUIET)
    return sheet.pick(choose, None, [view, status], **QUIET)


def _upload(subject: Subject, view: gr.State, status: gr.HTML) -> Any:
    button = gr.UploadButton("Upload an image", elem_id="upload")
    gr.HTML(
        message(
            "PNG, JPEG, BMP, TIFF, GIF, WebP; up to 20 MB and 40 megapixels. It stays on this machine, for this visit."
        )
    )

    def read(file: str) -> tuple[Any, str]:
        path = Path(file)
        try:
            image, changes = read_upload(path, path.name, subject.model)
        except CapsellaError as error:
            return gr.skip(), message(str(error), problem=True)
        finally:
            path.unlink()  # read once; nobody needs it again
        return look_at(subject.model, image, path.name), message("; ".join([f"uploaded {path.name}", *changes]) + ".")

    return button.upload(read, button, [view, status], **QUIET)


def _draw(subject: Subject, view: gr.State, status: gr.HTML) -> Any:
    canvas = gr.HTML(CANVAS, js_on_load=DRAW, elem_id="canvas")

    def read(event: gr.EventData) -> tuple[Any, str]:
        try:
            image = read_drawing(str(event.png), subject.model)
        except CapsellaError as error:
            return gr.skip(), message(str(error), problem=True)
        height, width = subject.model.image_size
        return look_at(subject.model, image, "your drawing"), message(f"your drawing, resized to {width}×{height}.")

    return canvas.drawn(read, None, [view, status], **QUIET)
