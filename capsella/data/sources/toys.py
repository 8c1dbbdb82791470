"""Rendered 3-D toys with the elevations, azimuths and number of lights of smallNORB.

They are the same on every machine and need no download. They are simpler than photographs, so that an error rate does
not compare with published ones.
"""

from itertools import product

import numpy as np
import torch

from capsella.data.images import ImageSet
from capsella.data.options import NamedData
from capsella.data.sources.base import Source, resized
from capsella.data.sources.toy_models import TOYS, toy
from capsella.data.sources.toy_render import Light, render
from capsella.data.sources.viewpoints import AZIMUTHS, ELEVATIONS, arrange_viewpoints
from capsella.data.splits import SourceSplits
from capsella.progress import tracked

SIZE = 48
TRAIN_INSTANCES, TEST_INSTANCES = (2, 3, 4), (0, 1)
LIGHTS = [
    Light((0.3, 0.8, 0.6), 0.6, 0.35),
    Light((-0.8, 0.4, 0.5), 0.6, 0.3),
    Light((0.9, 0.3, 0.3), 0.7, 0.2),
    Light((0.0, 0.2, 1.0), 0.5, 0.3),
    Light((0.0, 1.0, 0.1), 0.8, 0.15),
    Light((-0.3, 0.7, 0.4), 0.35, 0.2),
]


def render_toys(
    instances: tuple[int, ...],
    elevations: tuple[int, ...] = ELEVATIONS,
    azimuths: tuple[int, ...] = AZIMUTHS,
    *,
    size: int = SIZE,
) -> ImageSet:
    """Render every category's `instances` from every elevation and azimuth (degrees), under each of the six lights.

    Returns:
        Grey images [n 1 size size] with instance, elevation, azimuth (degrees) and lighting as metadata, ordered by
        category, instance, elevation, azimuth, lighting.
    """
    views = list(product(range(len(TOYS)), instances, elevations, azimuths))
    names = tuple(TOYS)
    images = np.empty((len(views), len(LIGHTS), size, size), np.uint8)
    progress = tracked(views, "rendering toys")
    for row, (category, instance, elevation, azimuth) in enumerate(progress):
        images[row] = render(toy(names[category], instance), azimuth, elevation, LIGHTS, size)
    columns = torch.tensor(views).repeat_interleave(len(LIGHTS), 0)
    metadata = dict(zip(("instance", "elevation", "azimuth"), columns[:, 1:].unbind(1), strict=True))
    metadata["lighting"] = torch.arange(len(LIGHTS)).repeat(len(views))
    return ImageSet(torch.from_numpy(images).reshape(-1, 1, size, size), columns[:, 0], names, None, metadata)


def _read(options: NamedData) -> SourceSplits:
    train, test = (resized(render_toys(instances), options) for instances in (TRAIN_INSTANCES, TEST_INSTANCES))
    return arrange_viewpoints(SourceSplits("toys", train=train, test=test), options)


SOURCES = (
    Source(
        name="toys",
        read=_read,
        images="14,580 / – / 9,720",
        size=f"{SIZE}×{SIZE}×1",
        classes=len(TOYS),
        files=(),
        get="rendered on first use, in some seconds",
        citation="comes with this package",
    ),
)
