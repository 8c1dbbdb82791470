"""Exported networks as functions from images to activations."""

import json
from pathlib import Path
from typing import Any

import torch

from capsella import _native
from capsella.errors import CapsellaError
from capsella.export.description import KEY
from capsella.export.needs import check_installed
from capsella.export.parity import Activations


def load_onnx(path: str | Path, threads: int | None = None) -> Activations:
    """An ONNX file in ONNX Runtime, on the CPU with this many threads (default: as many as PyTorch has).

    Raises:
        CapsellaError: ONNX Runtime is not installed, or cannot read the file.
    """
    check_installed("onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors only: it warns of machines without a GPU
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's own errors share no base class
        raise CapsellaError(f"{path}: ONNX Runtime cannot read it: {error}") from error
    return lambda images: torch.from_numpy(session.run(["activations"], {"images": images.numpy()})[0])


def read_onnx_description(path: str | Path) -> dict[str, Any]:
    """What the file says of itself; see `describe_model`.

    Raises:
        CapsellaError: no ONNX file, or not one of capsella's.
    """
    check_installed("onnx")
    import onnx

    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's errors differ from version to version
        raise CapsellaError(f"{path}: cannot be read as an ONNX file: {error}") from error
    for entry in model.metadata_props:
        if entry.key == KEY:
            description: dict[str, Any] = json.loads(entry.value)
            return description
    raise CapsellaError(f"{path}: not written by capsella, it describes no classes")


def load_pt2(path: str | Path) -> tuple[Activations, dict[str, Any]]:
    """A .pt2 file as a function, and what it says of itself; the native kernels that it may call are registered first.

    Raises:
        CapsellaError: the file cannot be read, or calls native kernels and there are none here.
    """
    extra = {f"{KEY}.json": ""}
    if _native.UNAVAILABLE is None:
        from capsella.routing.dynamic import native as _dynamic  # noqa: F401  registers its operators
        from capsella.routing.em import native as _em  # noqa: F401
    try:
        with open(path, "rb") as file:  # a path that does not end in .pt2 makes PyTorch warn
            module = torch.export.load(file, extra_files=extra).module()
    except Exception as error:  # zip, serialisation and operator errors share no base class
        reason = f"; {_native.UNAVAILABLE}" if _native.UNAVAILABLE else ""
        raise CapsellaError(f"{path}: cannot be loaded as a .pt2 file: {error}{reason}") from error
    description: dict[str, Any] = json.loads(extra[f"{KEY}.json"] or "{}")

    def activations(images: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            answer: torch.Tensor = module(images)[0]
        return answer

    return activations, description
