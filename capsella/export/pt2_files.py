"""PyTorch's own format, .pt2: `torch.export`, with the native kernels where they are built."""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from capsella import _native
from capsella.errors import CapsellaError
from capsella.export.graph import KEY, Output, describe_model, export_program
from capsella.export.parity import Activations
from capsella.models import ImageClassifier


def write_pt2(
    model: ImageClassifier,
    path: str | Path,
    *,
    outputs: Sequence[Output] = ("activations",),
    facts: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Write a network as .pt2, and return its description, which the file holds as capsella.json.

    The routing calls the native kernels if `backend="auto"` would; then `description["routing"]` is "native". A program
    must read such a file with `load_pt2`, which registers the kernels. Raises as `write_onnx`.
    """
    program = export_program(model, "auto", outputs)
    graphs = [part for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)]
    operators = {str(node.target) for part in graphs for node in part.graph.nodes if node.op == "call_function"}
    fused = sorted(name for name in operators if name.startswith("capsella.") and "random_couplings" not in name)
    description = describe_model(
        model,
        outputs,
        format="pt2",
        precision="float32",
        routing="native" if fused else "eager",
        operators=fused,
        torch=torch.__version__,
        **(facts or {}),
    )
    # A path must end in .pt2, which a temporary one does not. The warning is about weights inside larger tensors.
    with open(path, "wb") as file, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No complete tensor found")
        torch.export.save(program, file, extra_files={f"{KEY}.json": json.dumps(description)})
    return description


def load_pt2(path: str | Path, output: Output = "activations") -> tuple[Activations, dict[str, Any]]:
    """Load a .pt2 file, and return it as a function with its description; native kernels are registered first.

    Open only files that you trust: PyTorch's loader may run code in a file.

    Args:
        path: the file.
        output: name of the output that the function returns.

    Raises:
        CapsellaError: the file cannot be read, or calls native kernels that are not built here.
    """
    extra = {f"{KEY}.json": ""}
    try:
        with open(path, "rb") as file:  # a path that does not end in .pt2 makes PyTorch warn
            module = torch.export.load(file, extra_files=extra).module()
    except Exception as error:  # zip, serialisation and operator errors share no base class
        reason = f"; {_native.UNAVAILABLE}" if _native.UNAVAILABLE else ""
        raise CapsellaError(f"{path}: cannot be loaded as a .pt2 file: {error}{reason}") from error
    description: dict[str, Any] = json.loads(extra[f"{KEY}.json"] or "{}")
    number = list(description.get("outputs", [output])).index(output)

    def run(images: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            answer: torch.Tensor = module(images)[number]
        return answer

    return run, description
