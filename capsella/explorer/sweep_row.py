"""One dial played through its range, and saved."""

import tempfile
from pathlib import Path
from typing import Any

import gradio as gr

from capsella.explorer import panels
from capsella.explorer.subject import Subject
from capsella.explorer.view import View, dial_names
from capsella.explorer.wiring import QUIET


def sweep_row(subject: Subject, view: gr.State, d: int) -> tuple[gr.components.Component, ...]:
    """Choose one of a capsule's d dials, play it, save it; returns what shows and saves it."""
    if panels.why_no_dials(subject):
        return ()
    names = dial_names(subject.model, d)
    every = [(name, k) for k, name in enumerate(names)]
    with gr.Row(elem_id="sweep-row"):
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
