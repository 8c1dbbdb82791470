"""Trained networks as files for other programs; each file is compared with PyTorch before it is kept."""

from capsella.export.graph import Output, fitted_outputs
from capsella.export.onnx_files import OPSET, load_onnx, write_int8, write_onnx
from capsella.export.parity import TOLERANCES, Parity, Precision, Tolerance, check_parity, compare, default_tolerance
from capsella.export.pt2_files import load_pt2, write_pt2
from capsella.export.ship import (
    CALIBRATION_IMAGES,
    Exported,
    ExportImages,
    FileCheck,
    Format,
    export_model,
    export_run,
)
