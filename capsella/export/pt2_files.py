"""PyTorch's own format, .pt2: `torch.export`, with the native kernels where they are built."""

import json
import warnings
from pathlib import Path
from typing import Any

import torch

from capsella import _native
from capsella.errors import CapsellaError
from capsella.export.graph import KEY, describe_model, operators, traced
from capsella.export.parity import Activations
from capsella.models import ImageClassifier
from capsella.routing.backends import register_native_operators


def write_pt2(
    model: ImageClassifier, path: str | Path, *, reconstruction: bool = False, facts: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Write a network as .pt2; returns its description, which the file holds as capsella.json.

    The routing calls the native kernels where `backend="auto"` would; `description["routing"]` says whether it does.
    `load_pt2` reads the file; a program of one's own must `import capsella.export` and call it, so that the kernels are
    known. Raises as `write_onnx`.
    """
    program = traced(model, "auto", reconstruction)
    fused = sorted(name for name in operators(program) if name.startswith("capsella."))
    description = describe_model(
        model,
        format="pt2",
        precision="float32",
        routing="native" if fused else "eager",
        operators=fused,
        torch=torch.__version__,
        **(facts or {}),
    )
    # A path must end in .pt2, and a temporary one does not. A warning says that weights are parts of larger tensors.
    with open(path, "wb") as file, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No complete tensor found")
        torch.export.save(program, file, extra_files={f"{KEY}.json": json.dumps(description)})
    return description


def load_pt2(path: str | Path, output: int = 0) -> tuple[Activations, dict[str, Any]]:
    """A .pt2 file as a function, and what it says of itself; the native kernels that it may call are registered first.

    A file must be trusted: PyTorch's loader may run code that it holds.

    output: 0 for activations, 1 for reconstructions of a file that has them.

    Raises:
        CapsellaError: the file cannot be read, or calls native kernels and there are none here.
    """
    extra = {f"{KEY}.json": ""}
    register_native_operators()
    try:
        with open(path, "rb") as file:  # a path that does not end in .pt2 makes PyTorch warn
            module = torch.export.load(file, extra_files=extra).module()
    except Exception as error:  # zip, serialisation and operator errors share no base class
        reason = f"; {_native.UNAVAILABLE}" if _native.UNAVAILABLE else ""
        raise CapsellaError(f"{path}: cannot be loaded as a .pt2 file: {error}{reason}") from error
    description: dict[str, Any] = json.loads(extra[f"{KEY}.json"] or "{}")

    def run(images: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            answer: torch.Tensor = module(images)[output]
        return answer

    return run, description
