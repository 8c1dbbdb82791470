"""A trained network for other programs: a graph for any batch size, and a description as JSON."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from capsella.errors import check_argument, warn_once
from capsella.layers import ClusterCapsules
from capsella.models import ImageClassifier
from capsella.models.inference import predict_with_scores, without_unused_decoder
from capsella.routing import Routing
from capsella.routing.backends import Backend
from capsella.uncertainty import FALSE_POSITIVE_RATE, Calibration, OODDetector, is_fitted_to
from capsella.version import __version__

KEY = "capsella"  # metadata key of the description in a file

Output = Literal["activations", "probabilities", "ood_score"]
OUTPUTS: dict[Output, str] = {
    "activations": "batch, classes; in [0, 1]; the largest is the prediction",
    "probabilities": "batch, classes; calibrated on validation images",
    "ood_score": "batch; above the threshold, an image is unlike the training images",
}


class Exportable(nn.Module):
    """A network that maps images to a tuple of chosen outputs.

    Raises:
        ArgumentError: an output that the network does not have.
    """

    def __init__(self, model: ImageClassifier, outputs: Sequence[Output] = ("activations",)) -> None:
        super().__init__()
        fitted = {"activations": model, "probabilities": model.calibration, "ood_score": model.ood_detector}
        for name in outputs:
            check_argument(fitted[name] is not None, f"be outputs of {model.name}", outputs=name)
        self.outputs = tuple(outputs)
        self.model = without_unused_decoder(model, model.ood_detector if "ood_score" in outputs else None)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs, in the order of `outputs`."""
        values: dict[Output, Tensor] = {}
        if "ood_score" in self.outputs and self.model.ood_detector is not None:
            output, scores = predict_with_scores(self.model, images, self.model.ood_detector)
            values["ood_score"] = scores.amax(1)
        else:
            output = self.model(images)
        values["activations"] = output.activations
        if "probabilities" in self.outputs and self.model.calibration is not None:
            values["probabilities"] = self.model.calibration.probabilities(output.activations).float()
        return tuple(values[name] for name in self.outputs)


def fitted_outputs(model: ImageClassifier) -> tuple[Output, ...]:
    """Return which outputs to export: activations, and probabilities and OOD score if fitted to the current weights."""
    outputs: list[Output] = ["activations"]
    fits: dict[Output, Calibration | OODDetector | None] = {"probabilities": model.calibration}
    if model.ood_detector is not None and model.ood_detector.supports(FALSE_POSITIVE_RATE):
        fits["ood_score"] = model.ood_detector
    for name, fit in fits.items():
        if fit is not None and is_fitted_to(model, fit):
            outputs.append(name)
        elif fit is not None:
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
    """Export a model with `torch.export` for any number of images, its routing unrolled into operators of `backend`."""
    module = Exportable(with_backend(model, backend), outputs)
    # Two images, since torch.export treats a batch size of one as a constant.
    images = torch.zeros(2, model.channels, *model.image_size)
    with torch.no_grad():
        return torch.export.export(module, (images,), dynamic_shapes={"images": {0: Dim("batch")}}, strict=False)


def _preprocessing(model: ImageClassifier) -> list[str]:
    """Return the steps from a file to the network's input, in the order of `capsella.data.reading.to_tensor`."""
    if model.value_range is None:
        deep = "not accepted, as the network was trained on 8 bits"
    else:  # before resizing, which would smear hot pixels
        low, high = model.value_range
        deep = f"map {low:.10g} to 0 and {high:.10g} to 255, clip, and round"
    if model.cut is None:
        steps = {
            "crop": "crop the centre to the aspect ratio above, resize",
            "pad": "resize to fit into the size above, pad evenly with the median colour of the image's border; resize",
            "squash": "resize each side by its own factor",
        }
        form = f"{steps[model.fit]} with an antialiased bicubic filter"
    else:
        form = (
            f"cut out the stained cell: capsella.data.cell_crop.cut_cell(image, (height, width), {model.cut}); radius "
            "and stain: capsella.data.cell_crop.measured_cut of your images; here of the training images"
        )
    return [
        "rotate as the EXIF orientation says",
        f"more than 8 bits per channel: {deep}",
        "convert colours with a profile to sRGB",
        "put transparent images on black",
        "convert to the colours above",
        form,
        "divide by 255",
    ]


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
        "preprocessing": _preprocessing(model),
        "outputs": {name: OUTPUTS[name] for name in outputs},
        "thresholds": {
            "ood_score": None if detector is None else detector.threshold(FALSE_POSITIVE_RATE),
            "another_kind": None if detector is None else detector.kind_threshold(FALSE_POSITIVE_RATE),
            "ood_false_positive_rate": FALSE_POSITIVE_RATE,
        },
        "capsella": __version__,
        **more,
    }
