"""Rendered 3-D toys with the elevations, azimuths and number of lights of smallNORB.

Five categories, built from ellipsoids and boxes; every instance has its own proportions. They are the same on every
machine and need no download. They are simpler than photographs, so that an error rate does not compare with published
ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt8

from capsella.data.images import ImageSet
from capsella.data.options import NamedData
from capsella.data.sources.base import AZIMUTHS, ELEVATIONS, Source, arrange_viewpoints, resized
from capsella.data.splits import SourceSplits
from capsella.progress import tracked

SIZE = 48
TRAIN_INSTANCES, TEST_INSTANCES = (2, 3, 4), (0, 1)
MANY_TEST_INSTANCES = tuple(range(100, 140))  # 200 objects: ten, as in smallNORB, cannot resolve 1.6 points
OVERSAMPLING = 2  # rays per pixel, along each axis
VIEW = 1.05  # the camera sees from −VIEW to VIEW, in the toys' units
BACKGROUND = 0.55


@dataclass(frozen=True)
class Solid:
    """An ellipsoid or a box, in the toy's frame: x forward, y to the left, z up.

    size: radii of an ellipsoid, half the edges of a box. tilt: rotation about the y axis in radians.
    """

    kind: Literal["ellipsoid", "box"]
    center: tuple[float, float, float]
    size: tuple[float, float, float]
    brightness: float = 0.7
    tilt: float = 0.0


@dataclass(frozen=True)
class Light:
    """A distant light: where it shines from, as seen by the camera (right, up, towards it), and how strongly."""

    direction: tuple[float, float, float]
    strength: float
    ambient: float


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


# A small ray caster: ellipsoids and boxes, orthographic camera, Lambert shading


def render(
    solids: list[Solid], azimuth: float, elevation: float, lights: list[Light], size: int
) -> UInt8[np.ndarray, "lights size size"]:
    """Render a toy from one viewpoint under each light; angles in degrees, rows from the top."""
    axes = _camera_axes(np.deg2rad(azimuth), np.deg2rad(elevation))
    side = size * OVERSAMPLING
    steps = ((np.arange(side) + 0.5) / side * 2 - 1).astype(np.float32) * np.float32(VIEW)
    y, x = (part.ravel() for part in np.meshgrid(-steps, steps, indexing="ij"))  # of each ray
    # The nearest point of each ray so far; a depth of −∞ is the background.
    depth, normal = np.full(len(x), -np.inf, np.float32), np.zeros((len(x), 3), np.float32)
    brightness = np.zeros(len(x), np.float32)
    for solid in solids:
        nearer, depths, normals = _cast(solid, axes, x, y, depth)
        depth[nearer], normal[nearer], brightness[nearer] = depths, normals, solid.brightness
    images = []
    for light in lights:
        direction = np.asarray(light.direction, np.float32) / np.linalg.norm(light.direction).astype(np.float32)
        towards_light = direction[0] * axes[0] + direction[1] * axes[1] + direction[2] * axes[2]
        shade = light.ambient + light.strength * np.maximum(normal @ towards_light, 0)
        grey = np.where(depth > -np.inf, brightness * shade, BACKGROUND * (light.ambient + 0.5 * light.strength))
        grey = grey.reshape(size, OVERSAMPLING, size, OVERSAMPLING).mean((1, 3))
        images.append(np.round(np.clip(grey, 0, 1) * 255).astype(np.uint8))
    return np.stack(images)


def _camera_axes(azimuth: float, elevation: float) -> Float32[np.ndarray, "3 3"]:
    """Return the camera's axes in the toy's frame: right, up, and towards the camera."""
    ca, sa, ce, se = np.cos(azimuth), np.sin(azimuth), np.cos(elevation), np.sin(elevation)
    return np.array([[-sa, ca, 0], [-se * ca, -se * sa, ce], [ce * ca, ce * sa, se]], np.float32)


def _cast(
    solid: Solid,
    axes: Float32[np.ndarray, "3 3"],
    x: Float32[np.ndarray, " r"],
    y: Float32[np.ndarray, " r"],
    depth: Float32[np.ndarray, " r"],
) -> tuple[Int64[np.ndarray, " k"], Float32[np.ndarray, " k"], Float32[np.ndarray, "k 3"]]:
    """Return which of the rays (x, y) meet a solid nearer than at `depth`; the depth at which they do; and normals."""
    right, up, towards = axes
    c, s = np.cos(solid.tilt), np.sin(solid.tilt)
    rotation = np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]], np.float32)  # columns: the solid's axes
    size = np.asarray(solid.size, np.float32)

    def to_unit(direction: np.ndarray) -> np.ndarray:
        """Transform to the frame in which the solid is the unit ball or the cube from −1 to 1."""
        return (direction @ rotation) / size

    # A ray's points there: q + depth · e.
    center = np.asarray(solid.center, np.float32)
    reach = size.max() if solid.kind == "ellipsoid" else np.linalg.norm(size)
    rays = np.flatnonzero((x - center @ right) ** 2 + (y - center @ up) ** 2 <= reach**2)
    q = x[rays, None] * to_unit(right) + y[rays, None] * to_unit(up) - to_unit(center)
    depths, normal = (_meet_ball if solid.kind == "ellipsoid" else _meet_cube)(q, to_unit(towards))
    nearer = depths > depth[rays]
    normal = (normal[nearer] / size) @ rotation.T
    return rays[nearer], depths[nearer], normal / np.linalg.norm(normal, axis=1, keepdims=True)


def _meet_ball(q: np.ndarray, e: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return depth (−∞ for a miss) and normal where q + depth · e enters the unit ball: |q + depth · e| = 1."""
    a, b, c = e @ e, q @ e, (q * q).sum(1) - 1
    discriminant = b * b - a * c
    depth = np.where(discriminant >= 0, (np.sqrt(np.maximum(discriminant, 0)) - b) / a, -np.inf).astype(np.float32)
    return depth, q + np.where(np.isfinite(depth), depth, 0)[:, None] * e


def _meet_cube(q: np.ndarray, e: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return depth and normal for the cube from −1 to 1, where the ray is inside all three pairs of faces."""
    e = np.where(np.abs(e) < 1e-6, np.float32(1e-6), e)
    entry, exit = (np.sign(e) - q) / e, (-np.sign(e) - q) / e
    axis = entry.argmin(1)
    depth = entry.min(1)
    hit = depth >= exit.max(1)
    normal = np.zeros_like(q)
    normal[np.arange(len(q)), axis] = np.sign(e)[axis]
    return np.where(hit, depth, -np.inf).astype(np.float32), normal


def _read(options: NamedData) -> SourceSplits:
    train, test = (resized(render_toys(instances), options) for instances in (TRAIN_INSTANCES, TEST_INSTANCES))
    return arrange_viewpoints(SourceSplits("toys", train=train, test=test), options)


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


_ABOUT = (f"{SIZE}×{SIZE}×1", len(TOYS), (), "comes with this package")
_MANY_TESTED = len(TOYS) * len(MANY_TEST_INSTANCES) * 54
SOURCES = (
    *(
        Source(
            f"toys-{instances}",
            partial(_read_many, instances),
            f"{len(TOYS) * instances * 54 * len(LIGHTS):,} / – / {_MANY_TESTED:,}",
            *_ABOUT,
            "rendered on first use, in half a minute",
        )
        for instances in (5, 20)
    ),
    Source("toys", _read, "14,580 / – / 9,720", *_ABOUT, "rendered on first use, in some seconds"),
)
