"""What the verdict says of changed images, counted by hand."""

import dataclasses

import numpy as np
import pytest

from capsella.evaluation import Changed, kept_accuracies
from tests.compare.sides import judge, right, side


def changed(clean, images=300, seeds=3, **left):
    """So many right of the unchanged images, and of them so many under a change; strengths make no difference."""
    tables = {name: np.arange(images) < number for name, number in {"clean": clean, **left}.items()}
    tables = {name: np.tile(row, (seeds, 1)) for name, row in tables.items()}
    return Changed(tables.pop("clean"), {name: table.astype(float) for name, table in tables.items()})


class TestChangedImages:
    def test_better_to_begin_with_is_not_holding_better(self):
        """Of 70 and 40 points above a chance of 20 %, both keep half."""
        capsules = side("caps", right(190, 191, 192), changed=changed(270, rotation=165))
        cnn = side("net", right(150, 151, 152), changed=changed(180, rotation=120))
        found = judge(capsules, cnn, 50)
        assert found.kept["rotation"].first.estimate == pytest.approx(0.5)
        assert found.kept["rotation"].second.estimate == pytest.approx(0.5)
        text = found.sentences["changed images"]
        assert "no difference is shown under rotation (50 and 50 %, difference −" in text
        assert "holds better" not in text

    def test_one_holds_better(self):
        capsules = side("caps", right(150, 150), changed=changed(200, noise=190, rotation=100, colour=150))
        cnn = side("net", right(150, 150), changed=changed(240, noise=100, rotation=220, colour=174))
        found = judge(capsules, cnn, 50)
        text = found.sentences["changed images"]
        assert text.startswith("What capsules and CNN keep of the accuracy that they have above 20.0 % on unchanged")
        assert "caps holds better under noise (93 and 22 %, difference +" in text
        assert "net holds better under rotation (29 and 89 %, difference −" in text
        assert "no difference is shown under colour (64 and 63 %" in text

    def test_where_nothing_was_measured_or_is_to_be_kept(self):
        given = changed(150, noise=100)
        plain = judge(side("caps", right(150)), side("net", right(150)), 50)
        assert plain.sentences["changed images"] == "Not measured."
        found = judge(side("caps", right(40), changed=given), side("net", right(150), changed=given), 50)
        assert found.kept == {}
        assert "nothing to keep" in found.sentences["changed images"]

    def test_the_interval_holds_the_truth(self):
        """Two networks that keep the same: 5 % of such comparisons may say otherwise; seeds that differ count."""
        random, wrong = np.random.default_rng(0), 0
        for _ in range(100):
            sides = []
            for accuracy in (0.9, 0.7):
                skill = accuracy + random.normal(0, 0.01, (5, 1))
                clean = random.random((5, 300)) < skill
                sides.append(Changed(clean, {"noise": random.random((5, 300)) < 0.2 + 0.6 * (skill - 0.2)}))
            apart = kept_accuracies(*sides, 0.2)["noise"].difference
            wrong += not apart.low <= 0 <= apart.high
        assert wrong <= 12

    def test_seeds_that_differ_much_part_nothing(self):
        """Three seeds a network, whose accuracy on changed images varies by five points."""
        random, wrong = np.random.default_rng(0), 0
        for _ in range(100):
            sides = []
            for _ in range(2):
                share = np.clip(0.6 + random.normal(0, 0.05, (3, 1)), 0, 1)
                sides.append(Changed(random.random((3, 300)) < 0.9, {"noise": random.random((3, 300)) < share}))
            apart = kept_accuracies(*sides, 0.2)["noise"].difference
            wrong += not apart.low <= 0 <= apart.high
        assert wrong <= 9

    def test_groups_that_are_alike_part_nothing(self):
        """Ten patients of thirty images, on each of which a network does well or badly."""
        random, wrong = np.random.default_rng(0), {"groups": 0, "images": 0}
        groups = np.repeat(np.arange(10), 30)
        for _ in range(40):
            sides = []
            for _ in range(2):
                share = np.clip(random.normal(0.6, 0.2, 10), 0, 1)[groups]
                sides.append((random.random((3, 300)) < 0.9, {"noise": random.random((3, 300)) < share}))
            for name, of in (("groups", groups), ("images", None)):
                apart = kept_accuracies(*(Changed(*one, of) for one in sides), 0.2)["noise"].difference
                wrong[name] += not apart.low <= 0 <= apart.high
        assert wrong["groups"] <= 4
        assert wrong["images"] >= 8

    def test_two_groups_decide_nothing(self):
        groups = np.repeat([0, 1], 150)
        sides = [
            dataclasses.replace(changed(clean, noise=noise), groups=groups) for clean, noise in ((200, 190), (240, 100))
        ]
        with pytest.raises(ValueError, match="of three groups of images or more, or of none that are known, got two"):
            kept_accuracies(*sides, 0.2)
        found = judge(side("caps", right(150), changed=sides[0]), side("net", right(150), changed=sides[1]), 50)
        assert found.kept == {}
        assert found.sentences["changed images"] == (
            "The changed images are of two groups, which say next to nothing of a third."
        )

    def test_what_one_network_keeps_is_over_its_own_seeds(self):
        """Three seeds, whose mean is known to two degrees of freedom; images make no difference."""
        random, held = np.random.default_rng(0), 0
        for _ in range(200):
            tables = [np.repeat(np.clip(0.6 + random.normal(0, 0.05, (3, 1)), 0, 1), 4, 1) for _ in range(2)]
            sides = [Changed(np.ones((3, 4), bool), {"noise": table}) for table in tables]
            first = kept_accuracies(*sides, 0.2)["noise"].first
            held += first.low <= 0.5 <= first.high
        assert held / 200 >= 0.92

    def test_one_seed_is_said(self):
        capsules = side("caps", right(150), changed=changed(200, noise=190))
        found = judge(capsules, side("net", right(150), changed=changed(240, noise=100)), 50)
        assert found.sentences["changed images"].endswith("of these two trainings alone: another seed may turn it.")

    def test_errors(self):
        with pytest.raises(ValueError, match=r"must be of the same images and changes, .* got 300 and 200 images"):
            kept_accuracies(changed(9, noise=5), changed(9, images=200, noise=5), 0.2)
        with pytest.raises(ValueError, match=r"\['noise'\] and \['colour'\], 0\.2$"):
            kept_accuracies(changed(9, noise=5), changed(9, colour=5), 0.2)
