"""Arrays and figures to what a page shows: PNG data inside the HTML, so that no picture is a request of its own."""

import base64
import html
import io
import threading
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from capsella.explain.image_grids import side_by_side
from capsella.explain.plots import png_bytes, printable

LEAST_SIDE = 168  # pixels of a frame in an animation; smaller images are enlarged by a whole factor
FRAME_MILLISECONDS = 90
_drawing = threading.Lock()  # matplotlib's caches of fonts are not made for several threads


def channels_last(image: Float[Tensor, "c h w"]) -> Float[np.ndarray, "h w c2"]:
    """For the eye: grey or RGB, clipped to [0, 1]; two channels, a stereo pair, stand side by side."""
    return side_by_side(image.clamp(0, 1).numpy()).transpose(1, 2, 0)


def to_pillow(image: Float[Tensor, "c h w"]) -> Image.Image:
    """8 bits a channel."""
    pixels = (channels_last(image) * 255).round().astype(np.uint8)
    return Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels)


def data_url(image: Float[Tensor, "c h w"]) -> str:
    """An image as a PNG inside a URL; quick rather than small."""
    buffer = io.BytesIO()
    to_pillow(image).save(buffer, format="PNG", compress_level=1)
    return _url(buffer.getvalue())


def _url(png: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(png).decode()}"


def escape(text: str) -> str:
    """Text from files and class names, for HTML and its attributes."""
    return html.escape(printable(text))


def picture(image: Float[Tensor, "c h w"], caption: str, kind: str = "") -> str:
    """An image with its caption below, which is its alternative text, too."""
    said = escape(caption)
    return (
        f'<figure class="picture {kind}"><img src="{data_url(image)}" alt="{said}">'
        f"<figcaption>{said}</figcaption></figure>"
    )


def figure_png(draw: Callable[[], Figure]) -> bytes:
    """A figure as a PNG file; one at a time."""
    with _drawing:
        return png_bytes(draw())


def figure_html(png: bytes, description: str, kind: str = "png") -> str:
    """A figure, or an animation, with a description for those who do not see it."""
    said = escape(description)
    return f'<figure class="plot"><img src="{_url(png, kind)}" alt="{said}"><figcaption>{said}</figcaption></figure>'


def animation(images: Float[Tensor, "k c h w"]) -> bytes:
    """Images one after the other and back, as a GIF that plays without end."""
    scale = max(1, -(-LEAST_SIDE // min(images.shape[2:])))
    frames = [
        (picture := to_pillow(image)).resize((picture.width * scale, picture.height * scale), Image.Resampling.NEAREST)
        for image in images
    ]
    frames += frames[-2:0:-1]
    buffer = io.BytesIO()
    frames[0].save(buffer, format="GIF", save_all=True, append_images=frames[1:], duration=FRAME_MILLISECONDS, loop=0)
    return buffer.getvalue()


def bars(
    activations: Sequence[float], classes: Sequence[str], truth: Sequence[int], predicted: Sequence[int], most: int = 15
) -> str:
    """Class activations as a table of bars, the largest first; marks and words, not colours, say which are which.

    A true class is always among them, however small its activation.
    """
    order = sorted(range(len(classes)), key=lambda k: -activations[k])
    shown = order[:most] + [k for k in order[most:] if k in truth]
    rows = []
    for k in shown:
        marks = [mark for mark, of in (("◆ predicted", predicted), ("✓ true", truth)) if k in of]
        width = 100 * min(max(activations[k], 0.0), 1.0)
        rows.append(
            f'<tr><th scope="row">{escape(classes[k])}</th><td class="track">'
            f'<div class="bar{" first" if k in predicted else ""}" style="width:{width:.1f}%"></div></td>'
            f"<td>{activations[k]:.3f}</td><td>{' '.join(marks)}</td></tr>"
        )
    left_out = len(classes) - len(shown)
    note = f"<p>{left_out} smaller ones are not shown.</p>" if left_out else ""
    head = "<caption>Class activations</caption>"
    columns = (
        '<thead><tr><th scope="col">class</th><th scope="col">activation, 0 to 1</th>'
        '<th scope="col"><span class="unseen">value</span></th><th scope="col"><span class="unseen">marks</span></th>'
        "</tr></thead>"
    )
    return f'<table class="bars">{head}{columns}<tbody>{"".join(rows)}</tbody></table>{note}'


def message(text: str, problem: bool = False) -> str:
    """A sentence that a screen reader reads out when it appears."""
    kind, word = ("problem", "Problem: ") if problem else ("note", "")
    return f'<p class="{kind}" role="status">{word}{escape(text)}</p>' if text else '<p role="status"></p>'
