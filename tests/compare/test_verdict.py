"""The verdict on constructed predictions, counted by hand."""

import dataclasses

import numpy as np
import pytest

from capsella.compare.verdict import Side, judge

IMAGES = 200


def right(*counts, first=0):
    """A row a seed: that many images right, from the image `first` on."""
    table = np.zeros((len(counts), IMAGES), bool)
    for row, count in zip(table, counts, strict=True):
        row[first : first + count] = True
    return table


def side(network, hits, **changes):
    given = {"shipped": 0, "latency": (5.0, 6.0), "parameters": 1000, "changed": {}}
    return Side(network, hits, **{**given, **changes})


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


def test_changed_images_need_every_seed():
    capsules = side("caps", right(150, 150), changed={"noise": (90, 85), "colour": (80, 70), "rotation": (50, 60)})
    cnn = side("net", right(150, 150), changed={"noise": (60, 84), "colour": (75, 85), "rotation": (70, 61)})
    text = judge(capsules, cnn, 50).sentences["changed images"]
    assert "caps holds better under noise (87.5 and 72.0 %)" in text
    assert "net holds better under rotation (55.0 and 65.5 %)" in text
    assert "seeds do not agree on colour (75.0 and 80.0 %)" in text
    assert judge(side("caps", right(9)), side("net", right(9)), 50).sentences["changed images"] == "Not measured."


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


def test_errors():
    one = side("caps", right(150))
    with pytest.raises(ValueError, match=r"^limit: must be above 0 milliseconds, got 0$"):
        judge(one, one, 0)
    with pytest.raises(ValueError, match=r"^second: must be of the same 200 images as first, got 100$"):
        judge(one, dataclasses.replace(one, hits=right(50)[:, :100]), 50)
