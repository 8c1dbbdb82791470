"""Rendered 3-D toys with the elevations, azimuths and number of lights of smallNORB.

Five categories, built from ellipsoids and boxes; every instance has its own proportions. They are the same on every
machine and need no download. They are simpler than photographs, so that an error rate does not compare with published
ones.
"""

from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np
import torch

from capsella.data.images import ImageSet
from capsella.data.options import NamedData
from capsella.data.sources.base import Source, resized
from capsella.data.sources.toy_render import Light, Solid, render
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


Dice = Callable[[float, float], float]


def toy(category: str, instance: int) -> list[Solid]:
    """Build the solids of one toy, within about one unit of the origin."""
    rng = np.random.default_rng([list(TOYS).index(category), instance])
    return TOYS[category](lambda low, high: float(rng.uniform(low, high)))


def _animal(dice: Dice) -> list[Solid]:
    long, wide, legs = dice(0.4, 0.65), dice(0.16, 0.26), dice(0.28, 0.5)
    neck, grey = dice(0.1, 0.45), dice(0.45, 0.9)
    thick = dice(0.05, 0.09)
    head = dice(0.13, 0.2)
    feet = [(x * 0.75 * long, y * 0.7 * wide) for x in (-1, 1) for y in (-1, 1)]
    return [
        Solid("ellipsoid", (0, 0, 0), (long, wide, wide * dice(0.9, 1.2)), grey),
        Solid("ellipsoid", (long * 1.1, 0, neck), (head * dice(1.2, 1.7), head * 0.85, head), grey),
        Solid("ellipsoid", (long * 0.9, 0, neck / 2), (0.1, 0.09, 0.12 + neck / 2), grey, tilt=0.35),
        Solid("ellipsoid", (-long * 1.1, 0, dice(-0.1, 0.15)), (0.2, 0.04, 0.04), grey, tilt=dice(-0.8, 0.8)),
        *(Solid("box", (x, y, -legs / 2 - wide / 2), (thick, thick, legs / 2 + 0.05), grey) for x, y in feet),
    ]


def _human(dice: Dice) -> list[Solid]:
    tall, broad, grey = dice(0.26, 0.36), dice(0.17, 0.26), dice(0.5, 0.95)
    legs, arms, spread = dice(0.34, 0.46), dice(0.3, 0.42), dice(0.02, 0.12)
    lean = dice(-0.6, 0.6)
    return [
        Solid("box", (0, 0, 0.1), (0.12, broad, tall), grey),
        Solid("ellipsoid", (0, 0, 0.28 + tall), (0.14, 0.14, dice(0.15, 0.19)), dice(0.6, 0.95)),
        *(
            Solid(
                "box", (side * spread, side * broad * 0.55, 0.1 - tall - legs / 2), (0.08, 0.08, legs / 2), grey * 0.8
            )
            for side in (-1, 1)
        ),
        *(
            Solid("box", (side * lean * 0.2, side * (broad + 0.07), 0.1), (0.06, 0.06, arms), grey, tilt=side * lean)
            for side in (-1, 1)
        ),
    ]


def _airplane(dice: Dice) -> list[Solid]:
    long, thick, span = dice(0.75, 0.95), dice(0.09, 0.15), dice(0.6, 0.95)
    chord, sweep, grey = dice(0.13, 0.24), dice(-0.1, 0.15), dice(0.5, 0.95)
    height = dice(-0.05, 0.08)
    engine = dice(0.3, 0.6) * span
    return [
        Solid("ellipsoid", (0, 0, 0), (long, thick, thick), grey),
        Solid("box", (sweep, 0, height), (chord, span, 0.03), grey),
        Solid("box", (-0.85 * long, 0, 0.02), (chord * 0.6, span * 0.4, 0.025), grey),
        Solid("box", (-0.85 * long, 0, 0.16), (chord * 0.6, 0.025, dice(0.14, 0.2)), grey * 0.9, tilt=-0.2),
        *(
            Solid("ellipsoid", (sweep, side * engine, height - 0.08), (0.17, 0.06, 0.06), grey * 0.8)
            for side in (-1, 1)
        ),
    ]


def _truck(dice: Dice) -> list[Solid]:
    long, wide = dice(0.4, 0.55), dice(0.22, 0.3)
    load, cab, grey = dice(0.2, 0.36), dice(0.17, 0.25), dice(0.45, 0.9)
    front = long + cab + 0.03
    return [
        Solid("box", (-0.15, 0, load - 0.1), (long, wide, load), grey),
        Solid("box", (front - 0.15, 0, dice(0.02, 0.14)), (cab, wide * 0.95, dice(0.2, 0.28)), dice(0.5, 0.95)),
        Solid("box", (0.05, 0, -0.16), (long + cab, wide * 0.8, 0.06), 0.3),
        *_wheels([-long - 0.0, -long + 0.3, front - 0.15], wide, dice(0.12, 0.17)),
    ]


def _car(dice: Dice) -> list[Solid]:
    long, wide = dice(0.6, 0.8), dice(0.26, 0.36)
    low, roof, grey = dice(0.1, 0.16), dice(0.14, 0.24), dice(0.45, 0.95)
    cabin = Solid("ellipsoid", (dice(-0.2, 0.0), 0, low), (dice(0.32, 0.45), wide * 0.85, roof), dice(0.3, 0.9))
    return [
        Solid("box", (0, 0, 0), (long, wide, low), grey),
        Solid("ellipsoid", (long * 0.85, 0, 0), (0.22, wide * 0.95, low), grey),
        cabin,
        *_wheels([-long * 0.62, long * 0.62], wide, dice(0.14, 0.2)),
    ]


def _wheels(positions: list[float], wide: float, radius: float) -> list[Solid]:
    return [
        Solid("ellipsoid", (x, side * wide, -0.16), (radius, 0.07, radius), 0.2) for x in positions for side in (-1, 1)
    ]


TOYS: dict[str, Callable[[Dice], list[Solid]]] = {
    "animal": _animal,
    "human": _human,
    "airplane": _airplane,
    "truck": _truck,
    "car": _car,
}


def _read(options: NamedData) -> SourceSplits:
    train, test = (resized(render_toys(instances), options) for instances in (TRAIN_INSTANCES, TEST_INSTANCES))
    return arrange_viewpoints(SourceSplits("toys", train=train, test=test), options)


MANY_TEST_INSTANCES = tuple(range(100, 140))  # 200 objects: ten, as in smallNORB, cannot resolve 1.6 points


def _read_many(instances: int, options: NamedData) -> SourceSplits:
    """Render `instances` training objects of each category under all lights, and 200 test objects, one light per view.

    Each is seen from 54 viewpoints: nine elevations and six azimuths if elevations are split, or else all 18 azimuths
    and three elevations.
    """
    elevations, azimuths = ELEVATIONS[::4], AZIMUTHS
    if options.viewpoints == "elevation":
        elevations, azimuths = ELEVATIONS, AZIMUTHS[::3]
    train = render_toys(tuple(range(instances)), elevations, azimuths)
    test = render_toys(MANY_TEST_INSTANCES, elevations, azimuths)
    views = torch.arange(0, len(test), len(LIGHTS))
    test = test.subset(views + torch.arange(len(views)) % len(LIGHTS))
    splits = SourceSplits(f"toys-{instances}", train=resized(train, options), test=resized(test, options))
    return arrange_viewpoints(splits, options)


def _many(instances: int) -> Source:
    images = len(TOYS) * instances * 54 * len(LIGHTS)
    return Source(
        name=f"toys-{instances}",
        read=partial(_read_many, instances),
        images=f"{images:,} / – / {len(TOYS) * len(MANY_TEST_INSTANCES) * 54:,}",
        size=f"{SIZE}×{SIZE}×1",
        classes=len(TOYS),
        files=(),
        get="rendered on first use, in half a minute",
        citation="comes with this package",
    )


SOURCES = (
    *map(_many, (5, 20)),
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
