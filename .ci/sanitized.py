"""A pytest plug-in: the kernels in the folder CAPSELLA_KERNELS instead of those installed (.ci/sanitize)."""

import importlib.util
import os
import sys
from pathlib import Path

import torch  # noqa: F401  before the kernels, for its OpenMP runtime

(path,) = Path(os.environ["CAPSELLA_KERNELS"]).glob("kernels*.so")
spec = importlib.util.spec_from_file_location("capsella._native.kernels", path)
assert spec is not None
assert spec.loader is not None
sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[spec.name])
