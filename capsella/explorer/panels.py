"""The parts of the page, each from a run and a view: what is seen and drawn, sweeps, the inside, comparisons."""

import numpy as np

from capsella.explain.image_grids import tweak_figure
from capsella.explain.plots import entropy_figure
from capsella.explain.routing_figures import GRAPH_NOTE, graph_figure, layer_figure
from capsella.explain.routing_views import RoutedLayer, routed_layers, strongest_path
from capsella.explain.tweaks import offsets_across
from capsella.explain.vote_distances import vote_distances_figure
from capsella.explorer.pictures import (
    animation,
    bars,
    channels_last,
    data_url,
    escape,
    figure_html,
    figure_png,
    message,
    picture,
)
from capsella.explorer.subject import Subject
from capsella.explorer.view import View, drawn_classes, reconstructions, sweep

NO_DECODER = (
    "The dials are off: this run was trained without a decoder, so there is nothing that could draw what its capsules "
    "hold. Train it with --reconstruction to have them."
)
NO_CAPSULES = (
    "The dials are off: this network is a CNN. It has no capsules, so there is nothing to turn, and no routing."
)
FRAMES, STRIP = 21, 11  # of a sweep: the animation, and the strip, which shows every second one
THUMBNAILS = 24


def why_no_dials(subject: Subject) -> str:
    """Why the dials are off; empty where they are on."""
    if not subject.has_capsules:
        return NO_CAPSULES
    return "" if subject.model.has_decoder else NO_DECODER


def seen(subject: Subject, view: View) -> str:
    """The input, and the class activations with the true label where it is known."""
    predicted = view.activations.topk(subject.classes_shown).indices.tolist()
    known = "" if view.truth else "<p>The true class of this image is not known.</p>"
    table = bars(view.activations.tolist(), subject.model.classes, view.truth, predicted)
    return f'<div class="seen">{picture(view.image, view.title, "input")}<div>{table}{known}</div></div>'


def drawn(subject: Subject, view: View) -> str:
    """The reconstruction, or the two of a pair, as the dials stand: all that is sent again while one drags."""
    if reason := why_no_dials(subject):
        return message(reason)
    classes = drawn_classes(view, subject.classes_shown)
    images = reconstructions(subject.model, view, classes)
    figures = []
    for target, image in zip(classes, images, strict=True):
        name = subject.model.classes[target]
        moved = int((view.offsets[target] != 0).sum())
        turned = f", {moved} of {view.offsets.shape[1]} dials turned" if moved else ""
        dials = " ◂ dials" if target == view.target and len(classes) > 1 else ""
        figures.append(picture(image, f"from the capsule of {name}{turned}{dials}", "reconstruction"))
    return f'<div class="drawn">{"".join(figures)}</div>'


def swept(subject: Subject, view: View, dial: int, name: str) -> tuple[str, bytes, bytes]:
    """One dial through its range: HTML with the animation and the strip; the strip as PNG, the animation as GIF.

    Raises:
        ValueError: a run without a decoder, or no such dial.
    """
    offsets = offsets_across(subject.model, FRAMES)
    images = sweep(subject.model, view, dial, offsets)
    gif = animation(images)
    every = slice(None, None, (FRAMES - 1) // (STRIP - 1))
    png = figure_png(lambda: tweak_figure(images[None, every].numpy(), offsets[every], [dial]))
    of, low, high = subject.model.classes[view.target], offsets[0], offsets[-1]
    said = f"The capsule of {of}, dial {name}, from {low:+.2f} to {high:+.2f}"
    html = f'<div class="swept">{figure_html(gif, said, "gif")}{figure_html(png, said + ", as a strip")}</div>'
    return html, png, gif


def inside(subject: Subject, view: View, number: int) -> str:
    """How routed layer `number`, from 0, treated the image, and the graph of all layers.

    Raises:
        ValueError: no such layer.
    """
    layers = routed_layers(subject.model, view.image)
    if not layers:
        return message("This network has no capsules, so nothing is routed.")
    if not 0 <= number < len(layers):
        raise ValueError(f"number: must be in 0…{len(layers) - 1}, got {number}")
    layer, parent = layers[number], strongest_path(layers, view.target)[number]
    is_last = number == len(layers) - 1
    name = (
        f"class {subject.model.classes[parent]}" if is_last else f"type {parent + 1}, which gave most to what follows"
    )
    parts = [
        figure_html(
            _layer_png(layer, view, parent, name),
            f"{layer.title}, iteration by iteration. Above: activity that went to {name}, laid over the input at the "
            f"centres of the receptive fields, each of {layer.fields.side[0]:.0f}×{layer.fields.side[1]:.0f} pixels. "
            "Below: coupling entropy at each position, 1 where children spread evenly, 0 where each chose one parent. "
            "Right: which types below fed it.",
        ),
        entropies(layers),
        figure_html(
            figure_png(lambda: graph_figure(layers, subject.model.classes, view.target)),
            f"{GRAPH_NOTE} Solid lines lead to {subject.model.classes[view.target]}; thin lines carry less; lines "
            "under a twentieth of the strongest are left out.",
        ),
    ]
    if is_last:
        parts.append(
            figure_html(
                figure_png(lambda: vote_distances_figure(layer.histograms, subject.model.classes)),
                "Distances of the votes to each class capsule's mean vote, after each iteration; a vote counts as much "
                "as it is coupled to the class. Agreement shows as mass moving to the left.",
            )
        )
    return "".join(parts)


def layer_titles(subject: Subject) -> list[str]:
    """Of the routed layers, in order; none for a network without capsules."""
    return [layer.title for layer in routed_layers(subject.model, subject.image(0))]


def _layer_png(layer: RoutedLayer, view: View, parent: int, name: str) -> bytes:
    """One layer's figure over the image, over the left one of a stereo pair."""
    ground = channels_last(view.image[:1] if len(view.image) == 2 else view.image)
    return figure_png(lambda: layer_figure(layer, ground, parent, name))


def entropies(layers: list[RoutedLayer]) -> str:
    """Mean coupling entropy of each layer and iteration, as a table; a curve where there is more than one point."""
    most = max(layer.iterations for layer in layers)
    head = "".join(f'<th scope="col">iteration {k + 1}</th>' for k in range(most))
    rows = []
    for layer in layers:
        known = [f"{value:.4f}" if np.isfinite(value) else "one parent" for value in layer.entropy]
        cells = "".join(f"<td>{cell}</td>" for cell in [*known, *["–"] * (most - len(known))])
        rows.append(f'<tr><th scope="row">{escape(layer.title)}</th>{cells}</tr>')
    table = (
        '<table class="numbers"><caption>Coupling entropy, from 0 (each child to one parent) to 1 (spread evenly: '
        f'routing decided nothing)</caption><thead><tr><th scope="col">layer</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
    curves = {layer.title: layer.entropy.tolist() for layer in layers if np.isfinite(layer.entropy).all()}
    if most < 2 or not curves:
        return table
    drawn_curves = figure_html(figure_png(lambda: entropy_figure(curves)), "The same as curves")
    return f'<div class="pair">{table}{drawn_curves}</div>'


def compared(left: tuple[Subject, View], right: tuple[Subject, View]) -> str:
    """Two images, or two runs, side by side: what is seen, what is drawn, and how the last layer routed."""
    return f'<div class="pair">{_side(*left)}{_side(*right)}</div>'


def _side(subject: Subject, view: View) -> str:
    parts = [f"<h3>{escape(subject.name)}</h3>", seen(subject, view), drawn(subject, view)]
    layers = routed_layers(subject.model, view.image)
    if layers:
        last, name = layers[-1], f"class {subject.model.classes[view.target]}"
        png = _layer_png(last, view, view.target, name)
        parts += [figure_html(png, f"{last.title}: what went to {name}"), entropies(layers)]
    return f"<section>{''.join(parts)}</section>"


def thumbnails(subject: Subject, places: list[int], first: int) -> str:
    """Test images to choose from, as buttons; `first` of `places` and those after it."""
    shown = places[first : first + THUMBNAILS]
    if not shown:
        return message("No test image is like that.")
    buttons = []
    for place in shown:
        caption, mark = escape(subject.caption(place)), "✓" if subject.evaluation.correct[place] else "✗"
        buttons.append(
            f'<button type="button" data-place="{place}" title="{caption}"><img src="{data_url(subject.image(place))}" '
            f'alt="{caption}"><span aria-hidden="true">{mark}</span></button>'
        )
    note = (
        f"{first + 1} to {first + len(shown)} of {len(places)} such images; ✓ right, ✗ wrong. "
        f"The page holds {len(subject.numbers):,} of the {subject.of:,} test images."
    )
    return f'<p>{note}</p><div class="thumbnails">{"".join(buttons)}</div>'
