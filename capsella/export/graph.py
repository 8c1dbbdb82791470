"""A trained network for other programs: a graph for any batch size, and a description as JSON."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from capsella.errors import ArgumentError, check_argument, warn_once
from capsella.layers import ClusterCapsules
from capsella.models import ImageClassifier
from capsella.models.scoring import predict_with_scores, without_unused_decoder
from capsella.routing import Routing
from capsella.routing.backends import Backend
from capsella.uncertainty import FALSE_POSITIVE_RATE, Calibration, OODDetector, is_fitted_to
from capsella.version import __version__

KEY = "capsella"  # metadata key of the description in a file


Output = Literal["activations", "probabilities", "ood_score", "reconstruction"]


OUTPUTS: dict[Output, str] = {
    "activations": "batch, classes; in [0, 1]; the largest is the prediction",
    "probabilities": "batch, classes; calibrated on validation images",
    "ood_score": "batch; above the threshold, an image is unlike the training images",
    "reconstruction": "batch, channels, height, width; of the predicted class",
}


class Exportable(nn.Module):
    """A network that maps images to a tuple of chosen outputs.

    Raises:
        ArgumentError: an output that the network does not have.
    """

    def __init__(self, model: ImageClassifier, outputs: Sequence[Output] = ("activations",)) -> None:
        super().__init__()
        parts = {"probabilities": model.calibration, "ood_score": model.ood_detector}
        has = {"activations": True, "reconstruction": model.has_decoder, **{k: v is not None for k, v in parts.items()}}
        for name in outputs:
            check_argument(has[name], f"be outputs of {model.name}", outputs=name)
        self.outputs = tuple(outputs)
        detector = model.ood_detector if "ood_score" in outputs else None
        self.model = model if "reconstruction" in outputs else without_unused_decoder(model, detector)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs, in the order of `outputs`."""
        found: dict[str, Tensor | None] = {}
        if "ood_score" in self.outputs and self.model.ood_detector is not None:
            output, scores = predict_with_scores(self.model, images, self.model.ood_detector)
            found["ood_score"] = scores.amax(1)
        else:
            output = self.model(images)
        if "probabilities" in self.outputs and self.model.calibration is not None:
            found["probabilities"] = self.model.calibration.probabilities(output.activations).float()
        found |= {"activations": output.activations, "reconstruction": output.reconstruction}
        return tuple(cast(Tensor, found[name]) for name in self.outputs)


def fitted_outputs(model: ImageClassifier) -> tuple[Output, ...]:
    """Return which outputs to export: activations, and probabilities and OOD score if fitted to the current weights."""
    outputs: list[Output] = ["activations"]
    fits: dict[Output, Calibration | OODDetector | None] = {"probabilities": model.calibration}
    if model.ood_detector is not None and model.ood_detector.supports(FALSE_POSITIVE_RATE):
        fits["ood_score"] = model.ood_detector
    for name, fitted in fits.items():
        if fitted is not None and is_fitted_to(model, fitted):
            outputs.append(name)
        elif fitted is not None:
            warn_once(f"export {name}", f"the weights have changed since the fit: exported without {name}")
    return tuple(outputs)


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


def export_program(
    model: ImageClassifier, backend: Backend, outputs: Sequence[Output] = ("activations",)
) -> ExportedProgram:
    """Export a model with `torch.export` for any number of images, its routing unrolled into operators of `backend`.

    Raises:
        ArgumentError: a routing with random couplings.
    """
    module = Exportable(with_backend(model, backend), outputs)
    # Two images, since torch.export treats a batch size of one as a constant.
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
    """Return the steps that set an image's size and colours, in the order of `capsella.data.reading.to_tensor`."""
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


def describe_model(model: ImageClassifier, outputs: Sequence[Output], **more: Any) -> dict[str, Any]:
    """Describe a network for JSON: classes, preprocessing, outputs and thresholds, with `more` entries at the end.

    The network's own cropping and standardisation are part of the exported file. Programs must do the rest: read an
    image, crop it to the aspect ratio, resize it, convert its colours, and scale its values.
    """
    height, width = model.image_size
    detector = model.ood_detector if "ood_score" in outputs else None
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
            "cuts_cells": model.cut is not None,
            "fit": model.fit,
        },
        "value_range": None if model.value_range is None else list(model.value_range),
        "preprocessing": [
            "rotate as the EXIF orientation says",
            _deep_values(model),
            "convert colours with a profile to sRGB",
            "put transparent images on black",
            *_form(model),
            "divide by 255",
        ],
        "outputs": {name: OUTPUTS[name] for name in outputs},
        "thresholds": {
            "ood_score": None if detector is None else detector.threshold(FALSE_POSITIVE_RATE),
            "ood_false_positive_rate": FALSE_POSITIVE_RATE,
        },
        "capsella": __version__,
        **more,
    }
