"""Whether every file of a folder can be read: no command may leave half of one under its name."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import onnx
import safetensors.torch
import torch
from PIL import Image


def half_written(folder: Path) -> list[str]:
    """Files that are not whole; temporary ones, whose names begin with a dot, may be anything."""
    wrong = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
            try:
                READERS.get(path.suffix, lambda _: None)(path)
            except Exception as error:
                wrong.append(f"{path.relative_to(folder)}: {type(error).__name__} {str(error)[:100]}")
    return wrong


def _read_csv(path: Path) -> None:
    text = path.read_text()
    widths = {len(row) for row in csv.reader(text.splitlines())}
    if len(widths) != 1 or not text.endswith("\n"):
        raise ValueError(f"lines of {sorted(widths)} cells")


def _read_page(path: Path) -> None:
    if "</html>" not in path.read_text():
        raise ValueError("no end")


def _read_image(path: Path) -> None:
    with Image.open(path) as image:
        image.load()


READERS: dict[str, Callable[[Path], object]] = {
    ".json": lambda path: json.loads(path.read_text()),
    ".csv": _read_csv,
    ".html": _read_page,
    ".png": _read_image,
    ".safetensors": lambda path: safetensors.torch.load_file(path),
    ".ckpt": lambda path: torch.load(path, weights_only=True),
    ".onnx": lambda path: onnx.checker.check_model(onnx.load(path)),
}
