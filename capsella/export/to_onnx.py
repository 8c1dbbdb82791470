"""ONNX: the routing unrolled into standard operators, any batch size, what one must know in the file's metadata."""

import json
import warnings
from pathlib import Path
from typing import Any

import torch

from capsella.export.description import KEY, describe_model
from capsella.export.graph import traced
from capsella.export.needs import check_installed, quiet
from capsella.models import ImageClassifier

OPSET = 18
"""Of ONNX's standard operators: the oldest that PyTorch writes without converting, so that old runtimes read it."""


def write_onnx(
    model: ImageClassifier, path: str | Path, *, reconstruction: bool = False, facts: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Write a network as ONNX in float32: images [batch c h w] → activations [batch classes]; returns its description.

    The routing comes from the eager backend, since no runtime but PyTorch knows the native kernels.

    Args:
        model: any registered model, in any mode; exported in evaluation mode.
        path: the file.
        reconstruction: also put the decoder in, whose second output is the reconstruction from the predicted class.
        facts: more entries for the description, as the recipe's name.

    Raises:
        ValueError: a reconstruction of a model without a decoder.
        CapsellaError: the extra `export` is not installed.
    """
    check_installed("onnx", "onnxscript")
    import onnx

    outputs = ["activations", "reconstruction"] if reconstruction else ["activations"]
    program = _converted(traced(model, "eager", reconstruction), outputs)
    proto = program.model_proto
    _name_batch(proto)
    opset = {entry.domain: entry.version for entry in proto.opset_import}[""]
    description = describe_model(model, format="onnx", precision="float32", opset=opset, **(facts or {}))
    write_description(proto, description)
    onnx.checker.check_model(proto, full_check=True)
    onnx.save_model(proto, str(path))
    return description


def write_description(proto: Any, description: dict[str, Any]) -> None:
    """Put the description into a model, in place of an earlier one."""
    import onnx

    onnx.helper.set_model_props(proto, {KEY: json.dumps(description, ensure_ascii=False)})


def _converted(graph: torch.export.ExportedProgram, outputs: list[str]) -> torch.onnx.ONNXProgram:
    """In ONNX, with all of the exporter's optimisation that is safe here.

    Its rewriting takes a number below 1e-8 for zero, and so the 1e-12 out of ‖s‖² + 1e-12: a capsule of length zero,
    which is common behind a ReLU, would divide zero by zero.
    """
    from onnxscript import optimizer

    with quiet("torch.onnx"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            graph,
            (),
            dynamo=True,
            input_names=["images"],
            output_names=outputs,
            opset_version=OPSET,
            verbose=False,
            optimize=False,
        )
        assert program is not None  # dynamo=True returns it
        optimizer.fold_constants(program.model)
        optimizer.remove_unused_nodes(program.model)
    return program


def _name_batch(proto: Any) -> None:
    """The batch's symbol reads "batch" wherever it stands: PyTorch names it as its compiler does, s34."""
    symbol = proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param == symbol:
                dimension.dim_param = "batch"
