"""Smaller ONNX files: int8 and float16 for convolutions and dense layers; the routing stays in float32.

Routing sums thousands of small votes and takes logarithms of variances, for which neither has the digits; and its share
of the weights and of the arithmetic is small.
"""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from capsella.data.batching import batches
from capsella.data.images import ImageSet
from capsella.errors import ArgumentError, check_installed
from capsella.export.onnx_files import write_description
from capsella.export.quiet import quiet

REDUCED = ("Conv", "Gemm", "MatMul")
"""Operators whose weights and arithmetic are reduced; of products of matrices only those of dense layers."""


def write_int8(source: str | Path, path: str | Path, images: ImageSet, description: dict[str, Any]) -> dict[str, Any]:
    """Quantise a float32 ONNX file statically: int8 weights, a scale a channel, and uint8 activations.

    Activations' ranges are the extremes seen on `images`. Weights take 7 bits, so that processors without VNNI
    instructions, whose 16-bit sums would overflow, compute the same.

    Args:
        source: a file that `write_onnx` wrote.
        path: the new file.
        images: training images to calibrate on.
        description: of the source.

    Raises:
        ValueError: no images.
        CapsellaError: the extra `export` is not installed.
    """
    check_installed("an ONNX file", "export", "onnx", "onnxruntime")
    if len(images) == 0:
        raise ArgumentError("images", "hold at least one to calibrate on", None)
    import onnx

    _quantise(source, path, images)
    description = {**description, "precision": "int8", "calibration_images": len(images), "int8_operators": REDUCED}
    proto = onnx.load(str(path))
    write_description(proto, description)
    onnx.save_model(proto, str(path))
    return description


def _quantise(source: str | Path, path: str | Path, images: ImageSet) -> None:
    import onnx
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder, "prepared.onnx")
        # Symbolic inference is for transformers' shapes; ONNX's own knows all of these.
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        graph = onnx.load(str(prepared)).graph
        weights = {weight.name: weight for weight in graph.initializer}
        with quiet():  # it warns that the file was not prepared, also where it was
            quantization.quantize_static(
                str(prepared),
                str(path),
                calibration_reader(images),
                quant_format=quantization.QuantFormat.QDQ,
                op_types_to_quantize=list(REDUCED),
                nodes_to_exclude=[node.name for node in graph.node if not _is_reduced(node, weights)],
                per_channel=True,
                reduce_range=True,
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
            )


def _is_reduced(node: Any, weights: Mapping[str, Any]) -> bool:
    """Whether an operator is a convolution or a dense layer of several outputs.

    Routing multiplies matrices of more dimensions, and reads one number off a capsule.
    """
    if node.op_type != "MatMul":
        return node.op_type in REDUCED
    weight = weights.get(node.input[1])
    return weight is not None and len(weight.dims) == 2 and min(weight.dims) > 1


def calibration_reader(images: ImageSet, batch_size: int = 16) -> Any:
    """Images as ONNX Runtime's calibration asks for them: a batch a call, then None."""
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.parts: Iterator[np.ndarray] = (part.numpy() for part, *_ in batches(images, batch_size))

        def get_next(self) -> dict[str, np.ndarray] | None:
            part = next(self.parts, None)
            return None if part is None else {"images": part}

    return Reader()


def write_float16(source: str | Path, path: str | Path, description: dict[str, Any]) -> dict[str, Any]:
    """Convert the convolutions and dense layers of a float32 ONNX file to float16; inputs and outputs stay float32.

    Not by ONNX Runtime's converter: what is to stay float32 it converts and casts back, two times under one name.

    Raises:
        CapsellaError: the extra `export` is not installed.
    """
    check_installed("an ONNX file", "export", "onnx")
    import onnx

    proto = onnx.load(str(source))
    graph = proto.graph
    weights = {weight.name: weight for weight in graph.initializer}
    nodes: list[Any] = []
    for node in graph.node:
        nodes += _in_float16(node, weights) if _is_reduced(node, weights) else [node]
    used = {name for node in nodes for name in node.input}
    graph.ClearField("node")
    graph.node.extend(nodes)
    graph.ClearField("initializer")
    graph.initializer.extend(weight for name, weight in weights.items() if name in used)
    description = {**description, "precision": "float16", "float16_operators": REDUCED}
    write_description(proto, description)
    onnx.checker.check_model(proto, full_check=True)
    onnx.save_model(proto, str(path))
    return description


def _in_float16(node: Any, weights: dict[str, Any]) -> list[Any]:
    """The operator between two casts; its weights are added to `weights` in float16."""
    from onnx import TensorProto, helper, numpy_helper

    before = []
    for k, name in enumerate(node.input):
        if not name:  # an optional input that is not there
            continue
        half = f"{name}_of_{node.output[0]}_float16"
        if name in weights:
            weights[half] = numpy_helper.from_array(numpy_helper.to_array(weights[name]).astype(np.float16), half)
        else:
            before.append(helper.make_node("Cast", [name], [half], to=TensorProto.FLOAT16))
        node.input[k] = half
    result = node.output[0]
    node.output[0] = f"{result}_float16"
    return [*before, node, helper.make_node("Cast", [node.output[0]], [result], to=TensorProto.FLOAT)]
