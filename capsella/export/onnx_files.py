"""ONNX files: the routing unrolled into standard operators, for any batch size, in float32 or int8.

In int8, the routing stays in float32: it sums thousands of small votes and takes logarithms of variances, for which 8
bits are too few, and its share of the weights and of the arithmetic is small.
"""

import json
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from capsella.data.batching import batches
from capsella.data.images import ImageSet
from capsella.errors import ArgumentError, CapsellaError, check_installed
from capsella.export.graph import KEY, Output, describe_model, export_program
from capsella.export.parity import Activations
from capsella.models import ImageClassifier

OPSET = 18  # the oldest that PyTorch writes without converting, so that old runtimes read it
INT8_OPERATORS = ("Conv", "Gemm", "MatMul")  # MatMul only in dense layers


def write_onnx(
    model: ImageClassifier,
    path: str | Path,
    *,
    outputs: Sequence[Output] = ("activations",),
    facts: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Write a network as ONNX in float32: images [batch c h w] → activations [batch classes] and further outputs.

    The routing comes from the eager backend, since no runtime but PyTorch has the native kernels.

    Args:
        model: any registered network; it is exported in evaluation mode.
        path: the file.
        outputs: see `OUTPUTS`.
        facts: more entries for the description, e.g. the recipe's name.

    Returns:
        The description, which the file holds too.

    Raises:
        ArgumentError: an output that the network does not have.
        CapsellaError: the extra `export` is not installed.
    """
    check_installed("an ONNX file", "export", "onnx", "onnxscript")

    proto = converted(export_program(model, "eager", outputs), ["images"], list(outputs)).model_proto
    opset = {entry.domain: entry.version for entry in proto.opset_import}[""]
    description = describe_model(model, outputs, format="onnx", precision="float32", opset=opset, **(facts or {}))
    _save(proto, path, description)
    return description


def write_int8(source: str | Path, path: str | Path, images: ImageSet, description: dict[str, Any]) -> dict[str, Any]:
    """Quantise a float32 ONNX file statically by ONNX Runtime: int8 weights per channel, and uint8 activations.

    The ranges of activations are the extremes on `images`. Weights take 7 bits, so that processors without VNNI
    instructions, whose 16-bit sums would overflow, compute the same.

    Args:
        source: a file of `write_onnx`.
        path: the new file.
        images: training images to calibrate on.
        description: description of the source.

    Returns:
        The description of the new file.

    Raises:
        ArgumentError: no images.
        CapsellaError: the extra `export` is not installed.
    """
    check_installed("an ONNX file", "export", "onnx", "onnxruntime")
    if len(images) == 0:
        raise ArgumentError("images", "hold at least one to calibrate on", None)
    import onnx
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self.parts = ({"images": part.images.numpy()} for part in batches(images, 16))

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.parts, None)

    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder, "prepared.onnx")
        # Symbolic shape inference is meant for transformers; ONNX's own finds all shapes here.
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        graph = onnx.load(str(prepared)).graph
        weights = {weight.name: weight for weight in graph.initializer}
        with _only_errors():  # ONNX Runtime warns that the file was not prepared, even if it was
            quantization.quantize_static(
                str(prepared),
                str(path),
                Reader(),
                quant_format=quantization.QuantFormat.QDQ,
                op_types_to_quantize=list(INT8_OPERATORS),
                nodes_to_exclude=[node.name for node in graph.node if not _is_layer(node, weights)],
                per_channel=True,
                reduce_range=True,
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
            )
    operators = list(INT8_OPERATORS)
    description = {**description, "precision": "int8", "calibration_images": len(images), "int8_operators": operators}
    _save(onnx.load(str(path)), path, description)
    return description


def _is_layer(node: Any, weights: Mapping[str, Any]) -> bool:
    """Return True for a convolution or a dense layer with several outputs.

    Routing multiplies matrices of more dimensions, and the scores of capsules are products with one column.
    """
    if node.op_type != "MatMul":
        return node.op_type in INT8_OPERATORS
    weight = weights.get(node.input[1])
    return weight is not None and len(weight.dims) == 2 and min(weight.dims) > 1


def converted(graph: torch.export.ExportedProgram, inputs: list[str], outputs: list[str]) -> torch.onnx.ONNXProgram:
    """Convert a graph to ONNX with names for its inputs and outputs, and with the optimisations that are safe here.

    PyTorch's exporter would round numbers below 1e-8 to zero, such as the 1e-12 in ‖s‖² + 1e-12. A capsule of length
    zero, which is common after a ReLU, would then divide zero by zero.

    Raises:
        CapsellaError: ONNX has no operator for a part of the graph, e.g. for random couplings.
    """
    from onnxscript import optimizer

    with _only_errors():
        try:
            program = torch.onnx.export(
                graph,
                (),
                dynamo=True,
                input_names=inputs,
                output_names=outputs,
                opset_version=OPSET,
                verbose=False,
                optimize=False,
                custom_translation_table={torch.ops.aten.searchsorted.Tensor: _searchsorted},
            )
        except torch.onnx.OnnxExporterError as error:
            reason = "this network cannot be written as ONNX, e.g. because of random couplings; --format pt2 can"
            raise CapsellaError(reason) from error
        assert program is not None  # dynamo=True returns it
        optimizer.fold_constants(program.model)
        optimizer.remove_unused_nodes(program.model)
    # Stack traces name folders of this machine, and take up half of a small file.
    main = program.model.graph
    values = [value for node in main.all_nodes() for value in node.outputs]
    parts: list[Any] = [main, *main.all_nodes(), *main.initializers.values(), *main.inputs, *values]
    for part in parts:
        part.metadata_props.clear()
        part.doc_string = None
    return program


def _searchsorted(sorted_sequence: Any, values: Any, **_: Any) -> Any:
    """Count the numbers below each value: ONNX has no operator for it."""
    from onnxscript import opset18

    op: Any = opset18
    first, second = op.Constant(value_ints=[0]), op.Constant(value_ints=[1])
    below = op.Less(op.Unsqueeze(sorted_sequence, first), op.Unsqueeze(values, second))
    return op.ReduceSum(op.Cast(below, to=7), second, keepdims=0)  # 7: int64


def _save(proto: Any, path: str | Path, description: dict[str, Any]) -> None:
    """Add the description to a model, and check and save it."""
    import onnx

    onnx.helper.set_model_props(proto, {KEY: json.dumps(description)})
    onnx.checker.check_model(proto, full_check=True)
    onnx.save_model(proto, str(path))


@contextmanager
def _only_errors() -> Iterator[None]:
    """Hide log messages below errors and all warnings for the length of a block."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def load_onnx(path: str | Path, threads: int | None = None, output: str = "activations") -> Activations:
    """Load an ONNX file into ONNX Runtime on the CPU.

    Args:
        path: the file.
        threads: default: as many as PyTorch has.
        output: name of the output that the function returns.

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
