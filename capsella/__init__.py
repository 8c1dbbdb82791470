"""capsella: a capsule-network workbench.

>>> from capsella import create_model
>>> model = create_model("sabour2017_capsnet", classes=5, channels=3, image_size=32)
>>> model.has_decoder
True
"""

from typing import TYPE_CHECKING

from capsella.lazy import lazy_imports
from capsella.version import __version__

if TYPE_CHECKING:
    from capsella.experiments.fit import fit
    from capsella.models import ImageClassifier, create_model, list_models
    from capsella.training import load_run
    from capsella.types import Capsules, Output
else:
    __getattr__ = lazy_imports(__name__, __file__)
