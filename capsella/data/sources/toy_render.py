"""A small ray caster: ellipsoids and boxes, orthographic camera, Lambert shading, in numpy."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float32, UInt8

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


class View(NamedTuple):
    """The camera's axes in the toy's frame, and its rays (x, y) [r]."""

    right: Float32[np.ndarray, "3"]
    up: Float32[np.ndarray, "3"]
    towards: Float32[np.ndarray, "3"]
    x: Float32[np.ndarray, " r"]
    y: Float32[np.ndarray, " r"]


@dataclass
class Surface:
    """The nearest point of each ray so far: depth, normal and brightness; depth −∞ is the background."""

    depth: Float32[np.ndarray, " r"]
    normal: Float32[np.ndarray, "r 3"]
    brightness: Float32[np.ndarray, " r"]


def render(
    solids: list[Solid], azimuth: float, elevation: float, lights: list[Light], size: int
) -> UInt8[np.ndarray, "lights size size"]:
    """Render a toy from one viewpoint under each light; angles in degrees, rows from the top."""
    view = _view(np.deg2rad(azimuth), np.deg2rad(elevation), size * OVERSAMPLING)
    rays = len(view.x)
    surface = Surface(np.full(rays, -np.inf, np.float32), np.zeros((rays, 3), np.float32), np.zeros(rays, np.float32))
    for solid in solids:
        _cast(solid, view, surface)
    toy = surface.depth > -np.inf
    images = []
    for light in lights:
        direction = np.asarray(light.direction, np.float32) / np.linalg.norm(light.direction).astype(np.float32)
        towards_light = direction[0] * view.right + direction[1] * view.up + direction[2] * view.towards
        shade = light.ambient + light.strength * np.maximum(surface.normal @ towards_light, 0)
        grey = np.where(toy, surface.brightness * shade, BACKGROUND * (light.ambient + 0.5 * light.strength))
        grey = grey.reshape(size, OVERSAMPLING, size, OVERSAMPLING).mean((1, 3))
        images.append(np.round(np.clip(grey, 0, 1) * 255).astype(np.uint8))
    return np.stack(images)


def _view(azimuth: float, elevation: float, side: int) -> View:
    ca, sa, ce, se = np.cos(azimuth), np.sin(azimuth), np.cos(elevation), np.sin(elevation)
    axes = np.array([[-sa, ca, 0], [-se * ca, -se * sa, ce], [ce * ca, ce * sa, se]], np.float32)
    steps = ((np.arange(side) + 0.5) / side * 2 - 1).astype(np.float32) * np.float32(VIEW)
    y, x = np.meshgrid(-steps, steps, indexing="ij")
    return View(axes[0], axes[1], axes[2], x.ravel(), y.ravel())


def _cast(solid: Solid, view: View, surface: Surface) -> None:
    """Intersect all rays with a solid, and update `surface` where it is the nearest."""
    c, s = np.cos(solid.tilt), np.sin(solid.tilt)
    rotation = np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]], np.float32)  # columns: the solid's axes
    size = np.asarray(solid.size, np.float32)

    def to_unit(direction: np.ndarray) -> np.ndarray:
        """Transform to the frame in which the solid is the unit ball or the cube from −1 to 1."""
        return (direction @ rotation) / size

    # A ray's points there: q + depth · e.
    center = np.asarray(solid.center, np.float32)
    reach = size.max() if solid.kind == "ellipsoid" else np.linalg.norm(size)
    rays = np.flatnonzero((view.x - center @ view.right) ** 2 + (view.y - center @ view.up) ** 2 <= reach**2)
    q = view.x[rays, None] * to_unit(view.right) + view.y[rays, None] * to_unit(view.up) - to_unit(center)
    e = to_unit(view.towards)
    depth, normal = (_meet_ball if solid.kind == "ellipsoid" else _meet_cube)(q, e)
    nearer = depth > surface.depth[rays]
    rays, normal = rays[nearer], (normal[nearer] / size) @ rotation.T
    surface.depth[rays] = depth[nearer]
    surface.normal[rays] = normal / np.linalg.norm(normal, axis=1, keepdims=True)
    surface.brightness[rays] = solid.brightness


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
