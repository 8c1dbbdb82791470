"""Trained networks as files for other programs, each compared with PyTorch before it counts as written."""

from capsella.export.onnx_files import OPSET, load_onnx, read_onnx_description, write_onnx
from capsella.export.parity import TOLERANCES, Parity, Precision, Tolerance, check_parity, compare, usual_tolerance
from capsella.export.pt2_files import load_pt2, write_pt2
from capsella.export.reduced import write_float16, write_int8
from capsella.export.ship import (
    CALIBRATION_IMAGES,
    CheckedOn,
    Exported,
    Format,
    export_model,
    write_onnx_as,
)
