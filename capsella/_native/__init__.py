"""The compiled kernels of `csrc/`, where this installation has them."""

from importlib import import_module
from typing import Any

import torch  # first: the kernels then share the OpenMP runtime it brings, and its threads

kernels: Any = None
"""The module that csrc/module.cpp defines, or None."""

UNAVAILABLE: str | None = None
"""Why there are no native kernels here; None where there are."""

try:
    kernels = import_module("capsella._native.kernels")
except ModuleNotFoundError:
    UNAVAILABLE = (
        "capsella was installed without native kernels (CAPSELLA_NATIVE=0); "
        "install it again without that variable, with a C++17 compiler at hand"
    )
except ImportError as error:  # built for another Python or platform
    UNAVAILABLE = f"the native kernels cannot be loaded: {error}"
