"""A trained network as other programs see it: a graph for any batch size, and a description as JSON."""

import copy
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from capsella.errors import warn_once
from capsella.layers import ClusterCapsules
from capsella.models import ImageClassifier
from capsella.models.inference import without_decoder
from capsella.routing import Routing
from capsella.routing.backends import Backend
from capsella.uncertainty import is_fitted_to
from capsella.uncertainty.calibration import LEAST, MOST
from capsella.version import __version__

KEY = "capsella"
"""Under which a file holds what a program that runs it must know."""


class Exportable(nn.Module):
    """A model as a program sees it: images in; activations out, and the reconstruction where asked for.

    Raises:
        ValueError: a reconstruction of a model without a decoder.
    """

    def __init__(self, model: ImageClassifier, reconstruction: bool = False) -> None:
        super().__init__()
        if reconstruction and not model.has_decoder:
            raise ValueError(f"reconstruction: must be False for a model without a decoder, got True for {model.name}")
        self.model, self.reconstruction = model if reconstruction else without_decoder(model), reconstruction

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Activations [b classes], and images [b channels height width] where asked for."""
        output = self.model(images)
        return (output.activations, output.reconstruction) if self.reconstruction else (output.activations,)


def with_backend(model: ImageClassifier, backend: Backend) -> ImageClassifier:
    """A copy of `model` in evaluation mode on the CPU, whose routings run on `backend` where they know any."""
    model = copy.deepcopy(model).cpu().eval()
    for module in model.modules():
        routing = getattr(module, "routing", None)
        if isinstance(routing, Routing) and routing.fused:  # the others have one implementation
            setattr(module, "routing", replace(cast(Any, routing), backend=backend))  # noqa: B010  of some modules
        elif isinstance(module, ClusterCapsules):  # which has its routing in itself
            module.backend = backend
    return model


def traced(model: ImageClassifier, backend: Backend, reconstruction: bool = False) -> ExportedProgram:
    """`torch.export` of a model for any number of images, its routing unrolled into operators of `backend`.

    Raises:
        ValueError: a routing with random couplings, which a graph cannot hold.
    """
    module = Exportable(with_backend(model, backend), reconstruction)
    # Two images, since torch.export takes one for a constant.
    images = torch.zeros(2, model.channels, *model.image_size)
    with torch.no_grad():
        program = torch.export.export(module, (images,), dynamic_shapes={"images": {0: Dim("batch")}}, strict=False)
    refuse_random(program)
    return program


def refuse_random(program: ExportedProgram) -> None:
    """Raises:
    ValueError: the program draws random numbers.
    """
    if random := sorted(name for name in operators(program) if name.startswith(("aten.rand", "capsella.random"))):
        raise ValueError(
            f"model: must not draw random numbers to be exported, as random couplings do, got {', '.join(random)}"
        )


def operators(program: ExportedProgram) -> set[str]:
    """Names of the operators that a program calls, as "capsella.em_capsule_conv.default", in nested graphs too."""
    graphs = [part for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)]
    return {str(node.target) for part in graphs for node in part.graph.nodes if node.op == "call_function"}


def _form(model: ImageClassifier) -> list[str]:
    """How an image gets its size and colours; stained cells are a program of their own, which an instrument needs too.

    In the order of `capsella.data.reading.to_tensor`.
    """
    colours = "convert to the colours above"
    if model.cut is None:
        return [colours, "crop the centre to the aspect ratio above, resize with an antialiased bicubic filter"]
    cut = f"cut out the stained cell: capsella.data.stained.cut_cell(image, (height, width), {model.cut})"
    return [colours, f"{cut}; radius: of a usual nucleus in pixels of your images, here of the training's"]


def _deep_values(model: ImageClassifier) -> str:
    """What to do about files of more than 8 bits a channel; before anything is resized, as hot pixels would smear."""
    if model.value_range is None:
        return "of more than 8 bits a channel: not taken, as the network was trained on 8 bits"
    low, high = model.value_range
    values = f"bring {low:.10g} to 0 and {high:.10g} to 255, cut off what is beyond, and round"
    return f"of more than 8 bits a channel: {values}"


def _calibration(model: ImageClassifier) -> dict[str, Any]:
    """How to make probabilities of activations a, where the network is calibrated."""
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


def _left_out(model: ImageClassifier) -> dict[str, list[str]]:
    """What `capsella predict` says of an image, and a file does not."""
    parts = {"whether an image is out of distribution": model.ood_detector, "prediction sets": model.calibration}
    missing = [name for name, fitted in parts.items() if fitted is not None]
    return {"not_in_this_file": missing} if missing else {}


def describe_model(model: ImageClassifier, **more: Any) -> dict[str, Any]:
    """Sizes, classes and what has to be done to an image first, JSON-ready, with `more` entries behind.

    Cropping and standardising belong to the network and are in the file. What remains outside: reading, an aspect ratio
    and a size, grey or colour, the scale.
    """
    height, width = model.image_size
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
        },
        "preprocessing": [
            "turn upright as EXIF says",
            _deep_values(model),
            "what is transparent becomes black",
            *_form(model),
            "divide by 255",
        ],
        "output": {"name": "activations", "layout": "batch, classes", "range": [0.0, 1.0], "prediction": "the largest"},
        **_calibration(model),
        **_left_out(model),
        "capsella": __version__,
        **more,
    }
