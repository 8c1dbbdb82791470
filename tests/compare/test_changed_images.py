"""The verdict on changed images, counted by hand."""

import dataclasses

import numpy as np
import pytest

from capsella.evaluation import Changed, kept_accuracies
from tests.compare.results import judge, result, right


def changed(clean, images=300, seeds=3, **left):
    """So many right of the unchanged images, and of them so many under a change; strengths make no difference."""
    tables = {name: np.arange(images) < number for name, number in {"clean": clean, **left}.items()}
    tables = {name: np.tile(row, (seeds, 1)) for name, row in tables.items()}
    return Changed(tables.pop("clean"), {name: table.astype(float) for name, table in tables.items()})


def test_better_to_begin_with_is_not_holding_better():
    """Of 70 and 40 points above a chance of 20 %, both keep half."""
    capsules = result("caps", right(190, 191, 192), changed=changed(270, rotation=165))
    cnn = result("net", right(150, 151, 152), changed=changed(180, rotation=120))
    kept = judge(capsules, cnn, 50).kept["rotation"]
    assert (kept.first.estimate, kept.second.estimate) == pytest.approx((0.5, 0.5))
    assert kept.difference.low < 0 < kept.difference.high


def test_which_network_holds_better():
    capsules = result("caps", right(150, 150), changed=changed(200, noise=190, rotation=100, colour=150))
    cnn = result("net", right(150, 150), changed=changed(240, noise=100, rotation=220, colour=174))
    found = judge(capsules, cnn, 50).kept
    assert found["noise"].difference.low > 0 > found["rotation"].difference.high
    assert found["colour"].difference.low < 0 < found["colour"].difference.high


def test_nothing_is_kept_by_a_network_at_chance():
    given = changed(150, noise=100)
    assert judge(result("caps", right(40), changed=given), result("net", right(150), changed=given), 50).kept == {}


def test_two_groups_decide_nothing():
    groups = np.repeat([0, 1], 150)
    pair = [
        dataclasses.replace(changed(clean, noise=noise), groups=groups) for clean, noise in ((200, 190), (240, 100))
    ]
    with pytest.raises(ValueError, match="groups"):
        kept_accuracies(*pair, 0.2)
    assert judge(result("caps", right(150), changed=pair[0]), result("net", right(150), changed=pair[1]), 50).kept == {}


def test_other_images_or_changes_are_errors():
    for other in (changed(9, images=200, noise=5), changed(9, colour=5)):
        with pytest.raises(ValueError, match=r"^first, second, chance: "):
            kept_accuracies(changed(9, noise=5), other, 0.2)


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "spread", "patients"), [(5, 0.01, 0), (3, 0.05, 0), (3, 0.0, 10)])
def test_the_interval_holds_the_truth(seeds, spread, patients):
    """Two networks that keep the same: 5 % of such comparisons may say otherwise, whatever seeds and patients do."""
    random, wrong = np.random.default_rng(0), 0
    groups = np.repeat(np.arange(10), 30) if patients else None
    for _ in range(100):
        pair = []
        for _ in range(2):
            share = np.clip(0.6 + random.normal(0, spread, (seeds, 1)), 0, 1)
            if groups is not None:
                share = np.clip(random.normal(0.6, 0.2, 10), 0, 1)[groups]
            shape = (seeds, 300)
            noise = (random.random(shape) < share).astype(float)
            pair.append(Changed(random.random(shape) < 0.9, {"noise": noise}, groups))
        apart = kept_accuracies(*pair, 0.2)["noise"].difference
        wrong += not apart.low <= 0 <= apart.high
    assert wrong <= 10
