"""The rendered toys, their ray caster, and splits by viewpoint and instance."""

from functools import partial

import numpy as np
import pytest
import torch

from capsella.data import NamedData, load_data
from capsella.data.sources.toys import LIGHTS, TOYS, VIEW, Light, Solid, render, render_toys

HEAD_ON = [Light((0, 0, 1), 1.0, 0.0)]


def bright(image: np.ndarray) -> np.ndarray:
    """Where the solid is: lit from the camera on a background that is lit by half."""
    return image != np.uint8(round(0.55 * 0.5 * 255))


def test_a_ball_is_round_and_lit_as_lambert_says() -> None:
    size = 64
    ball = [Solid("ellipsoid", (0, 0, 0), (0.5, 0.5, 0.5), 1.0)]
    for azimuth, elevation in [(0, 0), (130, 40)]:
        image = render(ball, azimuth, elevation, HEAD_ON, size)[0]
        steps = ((np.arange(size) + 0.5) / size * 2 - 1) * VIEW
        squared = steps[:, None] ** 2 + steps[None, :] ** 2
        inside = squared < 0.44**2
        assert np.abs(image[inside] / 255 - np.sqrt(1 - squared[inside] / 0.25)).max() < 0.03
        assert not bright(image)[squared > 0.56**2].any()


def test_a_box_from_above_and_from_the_front() -> None:
    """Half edges 0.8 forward, 0.4 to the side, 0.2 up: from above 2·0.8 by 2·0.4, from the front 2·0.2 by 2·0.4."""
    box, size = [Solid("box", (0, 0, 0), (0.8, 0.4, 0.2), 1.0)], 105
    for elevation, expected in [(90, (1.6, 0.8)), (0, (0.4, 0.8))]:
        seen = bright(render(box, 0, elevation, HEAD_ON, size)[0])
        height, width = (np.ptp(where) + 1 for where in np.nonzero(seen))
        assert np.allclose(np.array([height, width]) / size * 2 * VIEW, expected, atol=0.05)


def test_images_are_ordered_deterministic_and_all_different() -> None:
    toys = render_toys((0, 3), (30, 60), (0, 40, 200), size=16)
    assert len(toys) == 5 * 2 * 2 * 3 * 6
    assert toys.classes == tuple(TOYS) == ("animal", "human", "airplane", "truck", "car")
    again = render_toys((3,), (60,), (200,), size=16)
    chosen = (toys.metadata["instance"] == 3) & (toys.metadata["elevation"] == 60) & (toys.metadata["azimuth"] == 200)
    assert torch.equal(toys.images[chosen], again.images)
    assert again.labels.tolist() == [label for label in range(5) for _ in LIGHTS]
    assert again.metadata["lighting"].tolist() == list(range(6)) * 5
    assert len(toys.images.flatten(1).unique(dim=0)) == len(toys)


@pytest.fixture
def few_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve of the 162 viewpoints, so that loading takes no time."""
    fewer = partial(render_toys, elevations=(30, 70), azimuths=(0, 60, 120, 180, 300, 320), size=16)
    monkeypatch.setattr("capsella.data.sources.toys.render_toys", fewer)


@pytest.mark.usefixtures("few_views")
def test_the_source() -> None:
    splits = load_data(NamedData("toys", size=12, group="instance"))
    assert splits.train.images.shape[1:] == (1, 12, 12)
    assert [len(images) for images in splits.named().values()] == [5 * 2 * 72, 5 * 72, 5 * 2 * 72]
    assert set(splits.test.metadata["instance"].tolist()) == {0, 1}
    toys = [{*zip(s.labels.tolist(), s.metadata["instance"].tolist(), strict=True)} for s in splits.named().values()]
    assert sum(map(len, toys)) == len(set.union(*toys))


@pytest.mark.usefixtures("few_views")
@pytest.mark.parametrize("by", ["azimuth", "elevation"])
def test_viewpoint_splits(by: str) -> None:
    novel = load_data(NamedData("toys", viewpoints=by))
    familiar = load_data(NamedData("toys", viewpoints=by, test_viewpoints="familiar"))
    trained = {"azimuth": {0, 300, 320}, "elevation": {30}}[by]
    unseen = {"azimuth": {60, 120, 180}, "elevation": {70}}[by]
    for images in (novel.train, novel.validation, familiar.train, familiar.test):
        assert set(images.metadata[by].tolist()) == trained
    assert set(novel.test.metadata[by].tolist()) == unseen
    assert len(novel.test) + len(familiar.test) == len(load_data(NamedData("toys")).test)
