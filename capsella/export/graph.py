"""A trained network for other programs: a graph for any batch size, and a description as JSON."""

import copy
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from capsella.errors import ArgumentError, warn_once
from capsella.layers import ClusterCapsules
from capsella.models import ImageClassifier
from capsella.models.inference import without_decoder
from capsella.routing import Routing
from capsella.routing.backends import Backend
from capsella.uncertainty import is_fitted_to
from capsella.uncertainty.calibration import LEAST, MOST
from capsella.version import __version__

KEY = "capsella"  # of the description in a file


class Exportable(nn.Module):
    """A network from images to activations, and to the reconstruction if `reconstruction`.

    Raises:
        ArgumentError: a reconstruction of a network without a decoder.
    """

    def __init__(self, model: ImageClassifier, reconstruction: bool = False) -> None:
        super().__init__()
        if reconstruction and not model.has_decoder:
            raise ArgumentError("reconstruction", f"be False for {model.name}, which has no decoder", True)
        self.model, self.reconstruction = model if reconstruction else without_decoder(model), reconstruction

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return activations [b classes], and perhaps images [b channels height width]."""
        output = self.model(images)
        return (output.activations, output.reconstruction) if self.reconstruction else (output.activations,)


def with_backend(model: ImageClassifier, backend: Backend) -> ImageClassifier:
    """Return a copy of `model` in evaluation mode on the CPU, whose routings run on `backend` if they have several."""
    model = copy.deepcopy(model).cpu().eval()
    for module in model.modules():
        routing = getattr(module, "routing", None)
        if isinstance(routing, Routing) and routing.fused:  # the others have one implementation
            setattr(module, "routing", replace(cast(Any, routing), backend=backend))  # noqa: B010  some modules have it
        elif isinstance(module, ClusterCapsules):  # it contains its routing
            module.backend = backend
    return model


def traced(model: ImageClassifier, backend: Backend, reconstruction: bool = False) -> ExportedProgram:
    """Export a model with `torch.export` for any number of images, its routing unrolled into operators of `backend`.

    Raises:
        ArgumentError: a routing with random couplings.
    """
    module = Exportable(with_backend(model, backend), reconstruction)
    # Two images, since torch.export takes a batch size of one for a constant.
    images = torch.zeros(2, model.channels, *model.image_size)
    with torch.no_grad():
        program = torch.export.export(module, (images,), dynamic_shapes={"images": {0: Dim("batch")}}, strict=False)
    refuse_random(program)
    return program


def refuse_random(program: ExportedProgram) -> None:
    """Raise `ArgumentError` if the program draws random numbers."""
    if random := sorted(name for name in operators(program) if name.startswith(("aten.rand", "capsella.random"))):
        rule = "not draw random numbers, as random couplings do, to be exported"
        raise ArgumentError("model", rule, random, shown=", ".join(random))


def operators(program: ExportedProgram) -> set[str]:
    """Return the operators that a program calls, e.g. "capsella.em_capsule_conv.default", also in nested graphs."""
    graphs = [part for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)]
    return {str(node.target) for part in graphs for node in part.graph.nodes if node.op == "call_function"}


def _form(model: ImageClassifier) -> list[str]:
    """Return how an image gets its size and colours, in the order of `capsella.data.reading.to_tensor`."""
    colours = "convert to the colours above"
    if model.cut is None:
        steps = {
            "crop": "crop the centre to the aspect ratio above, resize",
            "pad": "resize to fit into the size above, pad evenly with the median colour of the image's border; resize",
            "squash": "resize each side by its own factor",
        }
        return [colours, f"{steps[model.fit]} with an antialiased bicubic filter"]
    cut = f"cut out the stained cell: capsella.data.cell_crop.cut_cell(image, (height, width), {model.cut})"
    return [colours, f"{cut}; radius: of a typical nucleus in pixels of your images; here that of the training images"]


def _deep_values(model: ImageClassifier) -> str:
    """Return how to scale files of more than 8 bits per channel: before resizing, which would smear hot pixels."""
    if model.value_range is None:
        return "more than 8 bits per channel: not accepted, as the network was trained on 8 bits"
    low, high = model.value_range
    return f"more than 8 bits per channel: map {low:.10g} to 0 and {high:.10g} to 255, clip, and round"


def _calibration(model: ImageClassifier) -> dict[str, Any]:
    """Return how to compute probabilities from activations a, if the network is calibrated."""
    calibration = model.calibration
    if calibration is None:
        return {}
    if not is_fitted_to(model, calibration):
        warn_once("export", "the weights have changed since probabilities were calibrated: exported without them")
        return {}
    logits = {"log": "ln max(a, LEAST)", "logit": "ln max(a, LEAST) - ln(1 - min(a, MOST))"}[calibration.logits]
    return {
        "calibration": {
            "probabilities": "softmax over the classes of (logits + prior) / temperature, in float64",
            "prior": list(calibration.prior or [0.0] * len(model.classes)),
            "logits": logits,
            "least": LEAST,
            "most": MOST,
            "temperature": calibration.temperature,
            "validation_images": calibration.images,
        }
    }


def describe_model(model: ImageClassifier, **more: Any) -> dict[str, Any]:
    """Describe a network for JSON: sizes, classes, and the preprocessing of an image, with `more` entries at the end.

    Cropping and standardising are in the file. Programs must do the rest: read an image, crop it to the aspect ratio,
    resize it, convert its colours, and scale its values.
    """
    height, width = model.image_size
    only_here = {"out-of-distribution detection": model.ood_detector, "prediction sets": model.calibration}
    missing = [name for name, fitted in only_here.items() if fitted is not None]
    return {
        "model": model.name,
        "classes": list(model.classes),
        "input": {
            "name": "images",
            "layout": "batch, channels, height, width",
            "channels": model.channels,
            "colours": {1: "grey (Rec. 601 luma)", 2: "grey stereo pair, left and right", 3: "RGB"}.get(model.channels),
            "height": height,
            "width": width,
            "range": [0.0, 1.0],
            "value_range": None if model.value_range is None else list(model.value_range),
            "cuts_cells": model.cut is not None,
            "fit": model.fit,
        },
        "preprocessing": [
            "rotate as the EXIF orientation says",
            _deep_values(model),
            "put transparent images on black",
            *_form(model),
            "divide by 255",
        ],
        "output": {"name": "activations", "layout": "batch, classes", "range": [0.0, 1.0], "prediction": "the largest"},
        **_calibration(model),
        **({"not_in_this_file": missing} if missing else {}),
        "capsella": __version__,
        **more,
    }
