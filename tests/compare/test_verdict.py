"""The verdict on constructed predictions, counted by hand."""

import dataclasses

import numpy as np
import pytest

from capsella.compare.sides import Yardstick
from capsella.compare.verdict import judge as judge_by
from capsella.errors import ArgumentError
from tests.compare.sides import CLASSES, EVEN, IMAGES, judge, right, side


class TestWinner:
    def test_capsules_win(self):
        found = judge(side("caps", right(180, 182, 181)), side("net", right(140, 141, 139)), 50)
        assert (found.winner, found.ship) == ("capsules", "caps")
        assert found.difference.estimate == pytest.approx(0.205)
        assert tuple(found.shipped_pair)[:2] == (40, 0)

    def test_the_cnn_wins(self):
        found = judge(side("caps", right(140, 141, 139)), side("net", right(180, 182, 181)), 50)
        assert found.winner == "CNN"
        assert found.difference.estimate == pytest.approx(-0.205)

    def test_within_noise(self):
        found = judge(side("caps", right(150, 152, 148)), side("net", right(148, 149, 147, first=20)), 50)
        assert found.winner is None
        assert found.difference.low < 0 < found.difference.estimate

    def test_groups_need_more_groups(self):
        networks = side("caps", right(150, 152, 148)), side("net", right(148, 149, 147, first=20))
        patients = Yardstick(EVEN, CLASSES, 50, 30, groups=np.arange(8).repeat(IMAGES // 8))
        found = judge_by(*networks, patients)
        assert 8 < found.difference.images_needed(8) < found.difference.images_needed(IMAGES)

    def test_a_tie_ships_the_faster(self):
        same = right(150, 150, 150)
        found = judge(side("caps", same), side("net", same, latency=(2.0, 3.0)), 50)
        assert (found.winner, found.ship, found.shipped_pair.p_value) == (None, "net", 1)

    def test_seeds_that_differ_more_than_the_networks(self):
        apart = [right(180, 120, 150), right(165, 105, 135)]  # 7.5 points on every seed, seeds 30 apart
        assert judge(side("caps", apart[0]), side("net", apart[1]), 50).winner is None
        assert judge(side("caps", apart[0][:1]), side("net", apart[1][:1]), 50).winner == "capsules"


@pytest.mark.parametrize(
    ("capsules", "cnn", "ship"),
    [
        ((5, 6), (2, 3), "caps"),
        ((40, 51), (2, 3), "net"),  # the winner is too slow
        ((60, 70), (80, 90), None),
    ],
)
def test_a_winner_is_shipped_if_it_is_fast_enough(capsules, cnn, ship):
    best, other = right(180, 182), right(140, 141)
    assert judge(side("caps", best, latency=capsules), side("net", other, latency=cnn), 50).ship == ship


class TestChance:
    """35 % of the test images are neutrophils."""

    LABELS = np.where(np.arange(IMAGES) < 70, 4, np.arange(IMAGES) % 4)

    def test_a_network_at_chance_is_not_shipped(self):
        """37.5 % right against 20 %: it wins, and is no use."""
        found = judge(side("caps", right(40, 41, 39)), side("net", right(75, 76, 74)), 50, self.LABELS)
        assert (found.winner, found.ship, found.useful) == ("CNN", None, ())

    def test_a_winner_at_chance_is_not_shipped(self):
        """It is right on two large classes and on no image of three rare ones; the other network knows them all."""
        labels = np.repeat([4, 0, 1, 2, 3], [100, 92, 3, 3, 2])
        large = np.stack([labels % 4 == 0] * 2)
        large[:, labels == 1] = False
        every = np.ones((2, IMAGES), bool)
        every[:, 160:192] = False
        found = judge(side("caps", every), side("net", large), 50, labels)
        assert (found.winner, found.useful, found.ship) == ("CNN", ("caps",), "caps")

    def test_always_the_largest_class_is_no_use_however_often_it_is_right(self):
        labels = np.where(np.arange(IMAGES) < 180, 4, np.arange(IMAGES) % 4)
        assert judge(side("caps", right(180)), side("net", right(180)), 50, labels).ship is None

    def test_rare_classes_must_be_found(self):
        """All of the largest class and hardly any other: more right than by saying that class, and no better."""
        labels = np.where(np.arange(IMAGES) < 192, 4, np.arange(IMAGES) % 4)
        hits = right(192, 192, 192)
        hits[:, 192:194] = True
        assert judge(side("caps", hits), side("net", hits), 50, labels).useful == ()

    def test_the_only_one_that_is_better_is_shipped_though_slower(self):
        capsules = side("caps", right(90, 91, 92), latency=(9, 10))
        found = judge(capsules, side("net", right(75, 76, 120)), 50, self.LABELS)
        assert (found.winner, found.ship, found.useful) == (None, "caps", ("caps",))
        slow = judge(side("caps", right(90, 91, 92), latency=(70, 80)), side("net", right(75)), 50, self.LABELS)
        assert slow.ship is None


class TestClasses:
    """A rare class decides nothing by its share of the images, and may be what matters."""

    NAMES = ("basophil", "eosinophil", "blast")
    LABELS = np.repeat([0, 1, 2], [120, 60, 20])

    def judge(self, capsules, cnn):
        return judge_by(capsules, cnn, Yardstick(self.LABELS, self.NAMES, 50, 30))

    def hits(self, *shares, seeds=3):
        """That share of each class right, with every seed."""
        counts = (np.arange(3)[:, None] == self.LABELS).sum(1)
        row = np.concatenate([np.arange(n) < round(share * n) for n, share in zip(counts, shares, strict=True)])
        return np.stack([row] * seeds)

    def test_a_network_that_never_finds_a_class_is_not_shipped_however_fast(self):
        cnn = side("net", self.hits(1.0, 0.98, 0.0), latency=(2.0, 3.0))
        found = self.judge(side("caps", self.hits(0.9, 0.88, 0.85)), cnn)
        assert (found.winner, found.useful, found.ship) == (None, ("caps", "net"), "caps")
        assert found.classes.never == {"caps": [], "net": [("blast", 20)]}

    def test_the_more_accurate_one_may_never_find_a_class(self):
        cnn = side("net", self.hits(1.0, 1.0, 0.0))
        found = self.judge(side("caps", self.hits(0.8, 0.7, 0.8)), cnn)
        assert (found.winner, found.ship) == ("CNN", "caps")
        assert self.judge(side("caps", self.hits(1.0, 0.95, 0.0)), cnn).ship is None

    def test_of_equals_in_accuracy_the_one_that_finds_more_of_each_class_is_shipped(self):
        cnn = side("net", self.hits(0.98, 0.95, 0.4), latency=(2.0, 3.0))
        found = self.judge(side("caps", self.hits(0.92, 0.92, 0.95)), cnn)
        assert (found.winner, found.classes.ahead, found.ship) == (None, "capsules", "caps")

    def test_few_images_of_a_class_may_all_be_missed(self):
        labels = np.repeat([0, 1, 2], [120, 76, 4])
        hits = np.ones((2, 200), bool)
        hits[:, 196:] = False
        found = judge_by(side("caps", hits), side("net", hits), Yardstick(labels, self.NAMES, 50, 30))
        assert not any(found.classes.never.values())


def test_errors():
    network = side("caps", right(150))
    with pytest.raises(ArgumentError) as error:
        judge(network, network, 0)
    assert error.value.argument == "limit"
    with pytest.raises(ArgumentError):
        judge(network, dataclasses.replace(network, hits=right(50)[:, :100]), 50)


def test_the_words(golden):
    """All sentences of verdicts that differ: a winner, noise, chance, unfinished networks, the data-size curve."""
    pairs = {
        "capsules win": (side("caps", right(180, 182, 181)), side("net", right(140, 141, 139))),
        "within noise": (side("caps", right(150, 152, 148)), side("net", right(148, 149, 147, first=20))),
        "one seed": (side("caps", right(180)), side("net", right(140))),
        "near chance": (side("caps", right(40, 41, 39)), side("net", right(43, 42, 41))),
        "too slow": (side("caps", right(180, 181), latency=(60, 70)), side("net", right(140, 141))),
        "more images": (
            side("caps", right(150, 190, 150), smaller=(0.5, right(100, 101)), smaller_seeds=(0, 2)),
            side("net", right(150, 151, 149), smaller=(0.5, right(150, 149, 151))),
        ),
    }
    unfinished = Yardstick(EVEN, CLASSES, 50, 30, unfinished=("caps", "other"), not_asked=("net",))
    texts = {name: judge(*pair, 50) for name, pair in pairs.items()}
    texts["unfinished"] = judge_by(*pairs["capsules win"], unfinished)
    cosine = Yardstick(EVEN, CLASSES, 50, 30, not_asked=("caps", "net"), asked=False)
    texts["cosine"] = judge_by(*pairs["capsules win"], cosine)
    lines = []
    for name, found in texts.items():
        lines += [f"# {name}", found.headline, *(f"{part}: {text}" for part, text in found.sentences.items()), ""]
    golden("verdict.txt", "\n".join(lines))
