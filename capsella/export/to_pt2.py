"""PyTorch's own format: `torch.export`, with the native kernels where they are built."""

import json
from pathlib import Path
from typing import Any

import torch

from capsella.export.description import KEY, describe_model
from capsella.export.graph import operators, traced
from capsella.models import ImageClassifier


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
    with open(path, "wb") as file:  # a path must end in .pt2, and a temporary one does not
        torch.export.save(program, file, extra_files={f"{KEY}.json": json.dumps(description)})
    return description
