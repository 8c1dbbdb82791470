"""The verdict on constructed predictions, counted by hand."""

import dataclasses
import re

import numpy as np
import pytest

from capsella.compare.sides import Yardstick
from capsella.compare.verdict import judge as judge_by
from tests.compare.sides import CLASSES, EVEN, IMAGES, judge, right, side


class TestWinner:
    def test_capsules_win(self):
        found = judge(side("caps", right(180, 182, 181)), side("net", right(140, 141, 139)), 50)
        assert found.winner == "capsules"
        assert found.headline.startswith("The capsule network wins: caps is right 20.5 points more often than net (")
        assert found.difference.estimate == pytest.approx(0.205)
        assert tuple(found.shipped_pair)[:2] == (40, 0)
        assert found.ship == "caps"
        assert "Confirm it on images from another day" in found.sentences["what to do next"]

    def test_the_cnn_wins(self):
        found = judge(side("caps", right(140, 141, 139)), side("net", right(180, 182, 181)), 50)
        assert found.winner == "CNN"
        assert "The CNN wins: net is right 20.5 points more often than caps (95 % interval 1" in found.headline
        assert "a difference of −20.5 points" in found.sentences["accuracy"]

    def test_within_noise(self):
        found = judge(side("caps", right(150, 152, 148)), side("net", right(148, 149, 147, first=20)), 50)
        assert found.winner is None
        assert found.headline == "No difference that these 200 test images and 3 seeds could show."
        assert found.difference.low < 0 < found.difference.estimate
        assert "find four times in five is" in found.sentences["accuracy"]
        assert (
            "a difference as small as the one measured, 1.0 points, would take about"
            in found.sentences["what to do next"]
        )

    def test_of_groups_more_groups_are_needed(self):
        sides = side("caps", right(150, 152, 148)), side("net", right(148, 149, 147, first=20))
        patients = Yardstick(EVEN, CLASSES, 50, 30, groups=np.arange(8).repeat(IMAGES // 8))
        found = judge_by(*sides, patients)
        (number,) = re.findall(r"take about ([\d,]+) groups of test images", found.sentences["what to do next"])
        assert int(number.replace(",", "")) == found.difference.images_needed(8)
        assert 8 < int(number.replace(",", "")) < found.difference.images_needed(IMAGES)

    def test_a_tie(self):
        same = right(150, 150, 150)
        found = judge(side("caps", same), side("net", same, latency=(2.0, 3.0)), 50)
        assert (found.winner, found.ship) == (None, "net")
        assert found.shipped_pair.p_value == 1
        assert "small as the one measured" not in found.sentences["what to do next"]
        assert "+0.0 points" in found.sentences["accuracy"]

    def test_seeds_that_differ_more_than_the_networks(self):
        apart = [right(180, 120, 150), right(165, 105, 135)]  # 7.5 points on every seed, seeds 30 apart
        assert judge(side("caps", apart[0]), side("net", apart[1]), 50).winner is None
        assert judge(side("caps", apart[0][:1]), side("net", apart[1][:1]), 50).winner == "capsules"

    def test_one_seed_is_said(self):
        found = judge(side("caps", right(180)), side("net", right(140)), 50)
        assert "With a single seed" in found.sentences["accuracy"]
        assert "Confirm it with more seeds." in found.sentences["what to do next"]
        assert found.headline.endswith(" But by one seed: another may turn it.")
        assert "But by" not in judge(side("caps", right(180, 181)), side("net", right(140, 141)), 50).headline
        close = judge(side("caps", right(150)), side("net", right(150, first=1)), 50)
        assert "these 200 test images and 1 seed could show" in close.headline


class TestWhatToShip:
    @pytest.mark.parametrize(
        ("capsules", "cnn", "ship", "why"),
        [
            ((5, 6), (2, 3), "caps", "ship caps: the more accurate, and fast enough."),
            ((60, 70), (2, 3), "net", "ship net: the winner is too slow as it is"),
            ((40, 51), (2, 3), "net", "ship net: the winner is too slow as it is"),
            ((60, 70), (80, 90), None, "Neither stays within 50 ms"),
        ],
    )
    def test_a_winner(self, capsules, cnn, ship, why):
        best, other = right(180, 182), right(140, 141)
        found = judge(side("caps", best, latency=capsules), side("net", other, latency=cnn), 50)
        assert found.ship == ship
        assert why in found.sentences["speed and size"]

    def test_of_equals_the_only_one_that_is_fast_enough(self):
        same = right(150, 150)
        found = judge(side("caps", same, latency=(60, 70)), side("net", same), 50)
        assert found.sentences["speed and size"].endswith("ship net: the only one within the limit.")


class TestChance:
    """35 % of the test images are neutrophils."""

    LABELS = np.where(np.arange(IMAGES) < 70, 4, np.arange(IMAGES) % 4)

    def test_a_network_at_chance_is_not_shipped(self):
        """37.5 % right against 20 %: it wins, and is no use."""
        found = judge(side("caps", right(40, 41, 39)), side("net", right(75, 76, 74)), 50, self.LABELS)
        assert (found.winner, found.ship, found.useful) == ("CNN", None, ())
        assert found.headline == (
            "Neither is to be shipped yet: these test images do not show that caps or net is better than chance. "
            "Always saying neutrophil is right for 35.0 %, and guessing finds 20.0 % of a class on average."
        )
        assert (
            "net is not shown to be better than chance: it is right +2.5 points ("
            in (found.sentences["better than chance"])
        )
        assert "Ship neither" in found.sentences["speed and size"]
        assert "train longer or collect more images, and compare again." in found.sentences["what to do next"]
        assert "choose by speed" not in found.sentences["what to do next"]

    def test_a_winner_at_chance_is_called_so(self):
        """It is right on two large classes and on no image of three rare ones; the other network knows them all."""
        labels = np.repeat([4, 0, 1, 2, 3], [100, 92, 3, 3, 2])
        large = np.stack([labels % 4 == 0] * 2)
        large[:, labels == 1] = False
        every = np.ones((2, IMAGES), bool)
        every[:, 160:192] = False
        found = judge(side("caps", every), side("net", large), 50, labels)
        assert (found.winner, found.useful, found.ship) == ("CNN", ("caps",), "caps")
        assert " But it is not shown to be better than chance. But caps finds 5" in found.headline

    def test_always_the_largest_class_is_no_use_however_often_it_is_right(self):
        labels = np.where(np.arange(IMAGES) < 180, 4, np.arange(IMAGES) % 4)
        found = judge(side("caps", right(180)), side("net", right(180)), 50, labels)
        assert found.ship is None
        assert "finds 20.0 % (" in found.sentences["better than chance"]

    def test_of_rare_classes_some_must_be_found(self):
        """All of the largest class and hardly any other: more right than by saying that class, and no better."""
        labels = np.where(np.arange(IMAGES) < 192, 4, np.arange(IMAGES) % 4)
        hits = right(192, 192, 192)
        hits[:, 192:194] = True
        assert judge(side("caps", hits), side("net", hits), 50, labels).useful == ()

    def test_the_only_one_that_is_better_is_shipped_though_slower(self):
        capsules = side("caps", right(90, 91, 92), latency=(9, 10))
        found = judge(capsules, side("net", right(75, 76, 120)), 50, self.LABELS)
        assert (found.winner, found.ship, found.useful) == (None, "caps", ("caps",))
        assert found.sentences["speed and size"].endswith("ship caps: the only one that is better than chance.")
        slow = judge(side("caps", right(90, 91, 92), latency=(70, 80)), side("net", right(75)), 50, self.LABELS)
        assert slow.ship is None
        assert "caps, which alone beats chance, does not stay within 50 ms" in slow.sentences["speed and size"]


def test_what_still_learned_is_named():
    given = side("caps", right(140, 141, 139)), side("net", right(180, 182, 181)), 50
    found = judge(*given, unfinished=("caps", "other"))
    assert found.headline.endswith(" But caps still learned when the training ended.")
    assert found.sentences["training"].startswith("Not trained to the end: caps, other. The training loss or error")
    assert "Train longer: --epochs 60, with another --out." in found.sentences["what to do next"]
    done = judge(*given)
    assert "still learned" not in done.headline
    assert done.sentences["training"].startswith("No network's training loss or error still fell")
    yardstick = Yardstick(EVEN, CLASSES, 50, 30, not_asked=("net", "other", "third"))
    said = judge_by(*given[:2], yardstick).sentences["training"]
    assert said.endswith(
        " Not asked of net, other and third: a learning rate that falls to nothing as a cosine brings every curve down."
    )
    of_none = Yardstick(EVEN, CLASSES, 50, 30, not_asked=("caps", "net"), asked=False)
    said = judge_by(*given[:2], of_none).sentences["training"]
    assert said.startswith(
        "Whether the training of 30 epochs was long enough cannot be told: the learning rate of all networks"
    )


@pytest.mark.parametrize(
    ("before", "says"),
    [
        ((100, 101, 102), "still learns from more images; collect more"),
        ((150, 149, 151), "within noise: this test cannot show that more images help"),
        ((190, 191, 189), "more images made it worse"),
    ],
)
def test_the_slope_of_the_data_size_curve(before, says):
    capsules = side("caps", right(150, 151, 149), smaller=(0.5, right(*before)))
    text = judge(capsules, side("net", right(150, 150, 150)), 50).sentences["what to do next"]
    assert text.startswith("caps: from 50 % of the training images to all, ")
    assert says in text
    assert "net: from" not in text


def test_the_slope_is_over_the_seeds_that_both_have():
    """The second seed diverged on half of the images: the first is compared with itself, and is the same."""
    capsules = side("caps", right(150, 190, 150), smaller=(0.5, right(150, 150)), smaller_seeds=(0, 2))
    text = judge(capsules, side("net", right(150, 150, 150)), 50).sentences["what to do next"]
    assert text.startswith(
        "caps: from 50 % of the training images to all, +0.0 points over 2 of 3 seeds (the others diverged)"
    )


def test_errors():
    one = side("caps", right(150))
    with pytest.raises(ValueError, match=r"^limit: must be above 0 milliseconds, got 0$"):
        judge(one, one, 0)
    with pytest.raises(ValueError, match=r"^second: must be of the same 200 images as first, got 100$"):
        judge(one, dataclasses.replace(one, hits=right(50)[:, :100]), 50)


class TestClasses:
    """A rare class decides nothing by its share of the images, and may be what matters."""

    NAMES = ("basophil", "eosinophil", "blast")
    LABELS = np.repeat([0, 1, 2], [120, 60, 20])

    def judge(self, capsules, cnn, limit=50):
        return judge_by(capsules, cnn, Yardstick(self.LABELS, self.NAMES, limit, 30))

    def hits(self, *shares, seeds=3):
        """That share of each class right, with every seed."""
        counts = (np.arange(3)[:, None] == self.LABELS).sum(1)
        row = np.concatenate([np.arange(n) < round(share * n) for n, share in zip(counts, shares, strict=True)])
        return np.stack([row] * seeds)

    def test_a_network_that_never_finds_a_class_is_not_shipped_however_fast(self):
        cnn = side("net", self.hits(1.0, 0.98, 0.0), latency=(2.0, 3.0))
        found = self.judge(side("caps", self.hits(0.9, 0.88, 0.85)), cnn)
        assert (found.winner, found.useful) == (None, ("caps", "net"))
        assert found.ship == "caps"
        assert found.sentences["speed and size"].endswith("finds more of a class, and fast enough.")
        assert "No difference that these 200 test images and 3 seeds could show. But caps finds " in found.headline
        assert found.headline.endswith(" net never found blast (20 test images).")
        assert found.classes.never == {"caps": [], "net": [("blast", 20)]}
        assert "net never found blast (20 test images)." in found.sentences["classes"]

    def test_the_more_accurate_one_that_never_finds_a_class_is_told(self):
        cnn = side("net", self.hits(1.0, 1.0, 0.0))
        found = self.judge(side("caps", self.hits(0.8, 0.7, 0.8)), cnn)
        assert (found.winner, found.ship) == ("CNN", "caps")
        assert found.headline.startswith("The CNN wins: net is right ")
        assert " But caps finds " in found.headline
        assert found.sentences["speed and size"].endswith("ship caps: the only one that finds every class.")
        both = self.judge(side("caps", self.hits(1.0, 0.95, 0.0)), cnn)
        assert both.ship is None
        assert "Ship neither: caps and net never found a class" in both.sentences["speed and size"]

    def test_of_equals_in_accuracy_the_one_that_finds_more_of_each_class_is_shipped(self):
        cnn = side("net", self.hits(0.98, 0.95, 0.4), latency=(2.0, 3.0))
        found = self.judge(side("caps", self.hits(0.92, 0.92, 0.95)), cnn)
        assert (found.winner, found.classes.ahead, found.ship) == (None, "capsules", "caps")
        why = "of two equally accurate ones, the one that finds more of a class, and fast enough"
        assert found.sentences["speed and size"].endswith(f"ship caps: {why}.")

    def test_few_images_of_a_class_may_all_be_missed(self):
        labels = np.repeat([0, 1, 2], [120, 76, 4])
        hits = np.ones((2, 200), bool)
        hits[:, 196:] = False
        found = judge_by(side("caps", hits), side("net", hits), Yardstick(labels, self.NAMES, 50, 30))
        assert not any(found.classes.never.values())
        assert "never found" not in found.headline
