"""The verdict on constructed predictions, counted by hand."""

import numpy as np
import pytest

from capsella.compare import verdict
from capsella.compare.words import phrase
from tests.compare.results import IMAGES, judge, result, right


class TestWinner:
    def test_capsules_win(self):
        found = judge(result("caps", right(180, 182, 181)), result("net", right(140, 141, 139)), 50)
        assert (found.winner, found.recommended) == ("capsules", "caps")
        assert found.difference.estimate == pytest.approx(0.205)
        assert tuple(found.best_seeds)[:2] == (40, 0)

    def test_the_cnn_wins(self):
        found = judge(result("caps", right(140, 141, 139)), result("net", right(180, 182, 181)), 50)
        assert found.winner == "CNN"
        assert found.difference.estimate == pytest.approx(-0.205)

    def test_within_noise(self):
        found = judge(result("caps", right(150, 152, 148)), result("net", right(148, 149, 147, first=20)), 50)
        assert found.winner is None
        assert found.difference.low < 0 < found.difference.estimate

    def test_groups_need_more_groups(self):
        networks = result("caps", right(150, 152, 148)), result("net", right(148, 149, 147, first=20))
        found = judge(*networks, 50, groups=np.arange(8).repeat(IMAGES // 8))
        assert 8 < found.images_needed == found.difference.images_needed(8) < found.difference.images_needed(IMAGES)

    def test_a_tie_recommends_the_faster(self):
        same = right(150, 150, 150)
        found = judge(result("caps", same), result("net", same, latency=(2.0, 3.0)), 50)
        assert (found.winner, found.recommended, found.best_seeds.p_value) == (None, "net", 1)

    def test_seeds_that_differ_more_than_the_networks(self):
        apart = [right(180, 120, 150), right(165, 105, 135)]  # 7.5 points on every seed, seeds 30 apart
        assert judge(result("caps", apart[0]), result("net", apart[1]), 50).winner is None
        assert judge(result("caps", apart[0][:1]), result("net", apart[1][:1]), 50).winner == "capsules"


@pytest.mark.parametrize(
    ("capsules", "cnn", "recommended"),
    [
        ((5, 6), (2, 3), "caps"),
        ((40, 51), (2, 3), "net"),  # the winner is too slow
        ((60, 70), (80, 90), None),
    ],
)
def test_a_winner_is_recommended_if_it_is_fast_enough(capsules, cnn, recommended):
    best, other = right(180, 182), right(140, 141)
    assert (
        judge(result("caps", best, latency=capsules), result("net", other, latency=cnn), 50).recommended == recommended
    )


class TestChance:
    """35 % of the test images are neutrophils."""

    LABELS = np.where(np.arange(IMAGES) < 70, 4, np.arange(IMAGES) % 4)

    def test_a_network_at_chance_is_not_recommended(self):
        """37.5 % right against 20 %: it wins, and is no use."""
        found = judge(result("caps", right(40, 41, 39)), result("net", right(75, 76, 74)), 50, self.LABELS)
        assert (found.winner, found.recommended, found.useful) == ("CNN", None, ())

    def test_a_winner_at_chance_is_not_recommended(self):
        """It is right on two large classes and on no image of three rare ones; the other network knows them all."""
        labels = np.repeat([4, 0, 1, 2, 3], [100, 92, 3, 3, 2])
        large = np.stack([labels % 4 == 0] * 2)
        large[:, labels == 1] = False
        every = np.ones((2, IMAGES), bool)
        every[:, 160:192] = False
        found = judge(result("caps", every), result("net", large), 50, labels)
        assert (found.winner, found.useful, found.recommended) == ("CNN", ("caps",), "caps")

    def test_always_the_largest_class_is_no_use_however_often_it_is_right(self):
        labels = np.where(np.arange(IMAGES) < 180, 4, np.arange(IMAGES) % 4)
        assert judge(result("caps", right(180)), result("net", right(180)), 50, labels).recommended is None

    def test_rare_classes_must_be_found(self):
        """All of the largest class and hardly any other: more right than by saying that class, and no better."""
        labels = np.where(np.arange(IMAGES) < 192, 4, np.arange(IMAGES) % 4)
        hits = right(192, 192, 192)
        hits[:, 192:194] = True
        assert judge(result("caps", hits), result("net", hits), 50, labels).useful == ()

    def test_the_only_one_that_is_better_is_recommended_though_slower(self):
        capsules = result("caps", right(90, 91, 92), latency=(9, 10))
        found = judge(capsules, result("net", right(75, 76, 120)), 50, self.LABELS)
        assert (found.winner, found.recommended, found.useful) == (None, "caps", ("caps",))
        slow = judge(result("caps", right(90, 91, 92), latency=(70, 80)), result("net", right(75)), 50, self.LABELS)
        assert slow.recommended is None


class TestClasses:
    """A rare class decides nothing by its share of the images, and may be what matters."""

    NAMES = ("basophil", "eosinophil", "blast")
    LABELS = np.repeat([0, 1, 2], [120, 60, 20])

    def judge(self, capsules, cnn):
        return verdict.judge(capsules, cnn, verdict.TestSetting(self.LABELS, self.NAMES, 50, 30))

    def hits(self, *shares, seeds=3):
        """That share of each class right, with every seed."""
        counts = (np.arange(3)[:, None] == self.LABELS).sum(1)
        row = np.concatenate([np.arange(n) < round(share * n) for n, share in zip(counts, shares, strict=True)])
        return np.stack([row] * seeds)

    def test_a_network_that_never_finds_a_class_is_not_recommended_however_fast(self):
        cnn = result("net", self.hits(1.0, 0.98, 0.0), latency=(2.0, 3.0))
        found = self.judge(result("caps", self.hits(0.9, 0.88, 0.85)), cnn)
        assert (found.winner, found.useful, found.recommended) == (None, ("caps", "net"), "caps")
        assert found.never_found == {"caps": [], "net": [("blast", 20)]}

    def test_the_more_accurate_one_may_never_find_a_class(self):
        cnn = result("net", self.hits(1.0, 1.0, 0.0))
        found = self.judge(result("caps", self.hits(0.8, 0.7, 0.8)), cnn)
        assert (found.winner, found.recommended) == ("CNN", "caps")
        assert self.judge(result("caps", self.hits(1.0, 0.95, 0.0)), cnn).recommended is None

    def test_of_equals_in_accuracy_the_one_that_finds_more_of_each_class_is_recommended(self):
        cnn = result("net", self.hits(0.98, 0.95, 0.4), latency=(2.0, 3.0))
        found = self.judge(result("caps", self.hits(0.92, 0.92, 0.95)), cnn)
        assert (found.winner, found.ahead_per_class, found.recommended) == (None, "capsules", "caps")

    def test_few_images_of_a_class_may_all_be_missed(self):
        labels = np.repeat([0, 1, 2], [120, 76, 4])
        hits = np.ones((2, 200), bool)
        hits[:, 196:] = False
        found = verdict.judge(
            result("caps", hits), result("net", hits), verdict.TestSetting(labels, self.NAMES, 50, 30)
        )
        assert not any(found.never_found.values())


def test_the_words(golden):
    """All sentences of verdicts that differ: a winner, noise, chance, unfinished networks, the data-size curve."""
    pairs = {
        "capsules win": (result("caps", right(180, 182, 181)), result("net", right(140, 141, 139))),
        "within noise": (result("caps", right(150, 152, 148)), result("net", right(148, 149, 147, first=20))),
        "one seed": (result("caps", right(180)), result("net", right(140))),
        "near chance": (result("caps", right(40, 41, 39)), result("net", right(43, 42, 41))),
        "too slow": (result("caps", right(180, 181), latency=(60, 70)), result("net", right(140, 141))),
        "more images": (
            result("caps", right(150, 190, 150), smaller=(0.5, right(100, 101)), smaller_seeds=(0, 2)),
            result("net", right(150, 151, 149), smaller=(0.5, right(150, 149, 151))),
        ),
    }
    texts = {name: judge(*pair, 50) for name, pair in pairs.items()}
    texts["unfinished"] = judge(*pairs["capsules win"], 50, unfinished=("caps", "other"), undecidable=("net",))
    texts["cosine"] = judge(*pairs["capsules win"], 50, undecidable=("caps", "net"), all_undecidable=True)
    lines = [f"# {name}\n{phrase(found, ['third'])}\n" for name, found in texts.items()]
    golden("verdict.txt", "\n".join(lines))
