"""Trained networks as files for other programs, each compared with PyTorch before it counts as written."""

from capsella.export.parity import TOLERANCES, Parity, Precision, Tolerance, check_parity, compare
from capsella.export.reduced import write_float16, write_int8
from capsella.export.runtime import load_onnx, load_pt2, read_onnx_description
from capsella.export.ship import CALIBRATION_IMAGES, Exported, Format, export_model, spread_over, write_onnx_as
from capsella.export.to_onnx import OPSET, write_onnx
from capsella.export.to_pt2 import write_pt2
