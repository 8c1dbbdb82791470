"""capsella: a capsule-network workbench.

>>> from capsella import create_model
>>> model = create_model("sabour2017_capsnet", classes=5, channels=3, image_size=32)
>>> model.has_decoder
True
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from capsella.version import __version__

if TYPE_CHECKING:
    from capsella.models import ImageClassifier, create_model, list_models
    from capsella.training import load_run
    from capsella.types import Capsules, Output


_HOMES = {
    "Capsules": "capsella.types",
    "ImageClassifier": "capsella.models",
    "Output": "capsella.types",
    "create_model": "capsella.models",
    "list_models": "capsella.models",
    "load_run": "capsella.training",
}


def __getattr__(name: str) -> Any:
    """Import on first use: PyTorch takes seconds, for which `capsella --help` should not wait."""
    if name not in _HOMES:
        raise AttributeError(f"module 'capsella' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
