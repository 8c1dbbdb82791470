"""The compiled kernels of `csrc/`, where this installation has them."""

from importlib import import_module
from pathlib import Path
from typing import Any

import torch  # first: the kernels then share the OpenMP runtime it brings, and its threads

kernels: Any = None
"""The module that csrc/module.cpp defines, or None."""

UNAVAILABLE: str | None = None
"""Why there are no native kernels here; None where there are."""


def _not_built(root: Path) -> str:
    """Why there is no module of kernels, and what to do; `root`: the folder that holds the package."""
    if (root / "csrc").is_dir():  # as where Python was started in a checkout, whose sources hide an installed capsella
        return (
            f"capsella is imported from its sources in {root}, without native kernels; "
            f"compile them with `pip install --editable {root}`, or start Python in another folder"
        )
    return (
        "capsella was installed without native kernels (CAPSELLA_NATIVE=0); "
        "install it again without that variable, with a C++17 compiler at hand"
    )


def multiplies_bfloat16() -> bool:
    """Return whether the kernels in use have an instruction for sums of bfloat16 products."""
    return kernels is not None and kernels.instruction_set() == "avx512bf16"


try:
    kernels = import_module("capsella._native.kernels")
except ModuleNotFoundError:
    UNAVAILABLE = _not_built(Path(__file__).parents[2])
except ImportError as error:  # built for another Python or platform
    UNAVAILABLE = f"the native kernels cannot be loaded: {error}"
