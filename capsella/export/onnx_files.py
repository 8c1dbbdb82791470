"""ONNX files: the routing unrolled into standard operators, any batch size, what one must know in their metadata."""

import json
import warnings
from pathlib import Path
from typing import Any

import torch

from capsella.errors import CapsellaError, check_installed
from capsella.export.graph import KEY, describe_model, traced
from capsella.export.parity import Activations
from capsella.export.quiet import quiet
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
    check_installed("an ONNX file", "export", "onnx", "onnxscript")
    import onnx

    outputs = ["activations", "reconstruction"] if reconstruction else ["activations"]
    proto = converted(traced(model, "eager", reconstruction), ["images"], outputs).model_proto
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

    onnx.helper.set_model_props(proto, {KEY: json.dumps(description)})


def converted(graph: torch.export.ExportedProgram, inputs: list[str], outputs: list[str]) -> torch.onnx.ONNXProgram:
    """A graph in ONNX with names for its inputs and outputs, and all of the exporter's optimisation that is safe here.

    Its rewriting takes a number below 1e-8 for zero, and so the 1e-12 out of ‖s‖² + 1e-12: a capsule of length zero,
    which is common behind a ReLU, would divide zero by zero. The exporter's notes on each operator are left out:
    they are lines of this program, with folders of the machine that it ran on.
    """
    from onnxscript import optimizer

    with quiet("torch.onnx"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            graph,
            (),
            dynamo=True,
            input_names=inputs,
            output_names=outputs,
            opset_version=OPSET,
            verbose=False,
            optimize=False,
        )
        assert program is not None  # dynamo=True returns it
        optimizer.fold_constants(program.model)
        optimizer.remove_unused_nodes(program.model)
    _forget_origins(program.model)
    return program


def _forget_origins(model: Any) -> None:
    """Stack traces and the exporter's names of modules, which are half of a small file."""
    graph = model.graph
    for part in (graph, *graph.all_nodes(), *graph.initializers.values(), *graph.inputs):
        part.metadata_props.clear()
        part.doc_string = None
    for node in graph.all_nodes():
        for value in node.outputs:
            value.metadata_props.clear()
            value.doc_string = None


def _name_batch(proto: Any) -> None:
    """The batch's symbol reads "batch" wherever it stands: PyTorch names it as its compiler does, s34."""
    symbol = proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param == symbol:
                dimension.dim_param = "batch"


def load_onnx(path: str | Path, threads: int | None = None, output: str = "activations") -> Activations:
    """An ONNX file in ONNX Runtime, on the CPU with this many threads (default: as many as PyTorch has).

    output: "activations", or "reconstruction" of a file that has it.

    Raises:
        CapsellaError: ONNX Runtime is not installed, or cannot read the file.
    """
    check_installed("an ONNX file", "export", "onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors only: it warns of machines without a GPU
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's own errors share no base class
        raise CapsellaError(f"{path}: ONNX Runtime cannot read it: {error}") from error
    return lambda images: torch.from_numpy(session.run([output], {"images": images.numpy()})[0])


def read_onnx_description(path: str | Path) -> dict[str, Any]:
    """What the file says of itself; see `describe_model`.

    Raises:
        CapsellaError: no ONNX file, or not one of capsella's.
    """
    check_installed("an ONNX file", "export", "onnx")
    import onnx

    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's errors differ from version to version
        raise CapsellaError(f"{path}: cannot be read as an ONNX file: {error}") from error
    entries = {entry.key: entry.value for entry in model.metadata_props}
    if KEY not in entries:
        raise CapsellaError(f"{path}: not written by capsella, it describes no classes")
    description: dict[str, Any] = json.loads(entries[KEY])
    return description
