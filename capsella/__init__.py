"""capsella: a capsule-network workbench.

import capsella
model = capsella.create_model("sabour2017_capsnet", classes=5, channels=3, image_size=32)
run = capsella.load_run("runs/demo")
"""

from capsella.models import create_model, list_models
from capsella.training import load_run
from capsella.types import Capsules, Output
from capsella.version import __version__

__all__ = ["Capsules", "Output", "__version__", "create_model", "list_models", "load_run"]
