"""capsella: a capsule-network workbench.

>>> model = create_model("sabour2017_capsnet", classes=5, channels=3, image_size=32)
>>> model.has_decoder
True
"""

from capsella.models import ImageClassifier, create_model, list_models
from capsella.training import load_run
from capsella.types import Capsules, Output
from capsella.version import __version__

__all__ = ["Capsules", "ImageClassifier", "Output", "__version__", "create_model", "list_models", "load_run"]
