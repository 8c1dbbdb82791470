"""The plan of a comparison: networks, folds, epochs within the time, and what it refuses."""

import shutil

import pytest
from PIL import Image, ImageOps

from capsella.data import load_data
from capsella.errors import ArgumentError, CapsellaError
from capsella.experiments.compare import ComparisonOptions, make_plan, plan
from capsella.experiments.compare.contenders import GROUPS, network_names, side_for
from capsella.experiments.compare.plan import Cost, begin
from capsella.models.backbones import efficientnet
from tests.experiments.compare.conftest import write_images
from tests.experiments.compare.made import FLAGS, NETWORKS


@pytest.fixture
def planned(images, backbone, tmp_path, monkeypatch):
    """A plan with given seconds for each training image."""

    def made(*seconds, **options):
        costs = dict(zip(NETWORKS, (*seconds, 0.0), strict=False))
        monkeypatch.setattr(plan, "_measure", lambda contender, _: Cost(costs[contender.name], 1e-3))
        given = {"networks": NETWORKS, "fine_tune": False, "size": 17, "backbone": str(backbone), "out": tmp_path / "c"}
        return make_plan(ComparisonOptions(**{"images": str(images), **given, **options}))

    return made


class TestTime:
    def test_with_enough_time_trainings_are_as_long_as_their_recipes_say(self, planned):
        made = planned(1e-3, 1e-3, minutes=1000)
        assert {made.epochs(each) for each in made.contenders if not each.is_fitted} == {100}

    def test_time_is_divided_evenly_and_kept(self, planned):
        made = planned(0.1, 0.1, minutes=4)
        capsules, cnn, fitted = made.contenders
        assert made.epochs(capsules) == made.epochs(cnn) < 100
        assert made.epochs(fitted) == 1
        assert made.total_seconds() == pytest.approx(4 * 60, rel=0.1)

    def test_a_slow_network_takes_no_time_from_a_quick_one(self, planned):
        made = planned(0.2, 1e-3, minutes=5)
        slow, quick, _ = made.contenders
        assert made.epochs(quick) == 100
        assert made.epochs(slow) < 50
        assert made.total_seconds() <= 1.05 * 5 * 60

    def test_too_little_time(self, planned, tmp_path):
        with pytest.raises(ArgumentError) as raised:
            planned(10.0, 10.0, minutes=1)
        assert raised.value.argument == "minutes"
        assert not (tmp_path / "c").exists()

    def test_in_a_hurry_epochs_come_before_the_curve_and_further_seeds(self, planned):
        for minutes, curve, seeds, epochs in (
            (6, True, 3, 33),
            (2.5, False, 3, 33),
            (1, False, 2, 5),
            (0.4, False, 1, 5),
        ):
            made = planned(0.02, 0.02, folds=1, minutes=minutes)
            assert (made.has_curve, made.seed_count) == (curve, seeds)
            assert len(made.notes) == (not curve) + (seeds < 3) + 1  # few training images
            assert made.has_repeats == (seeds > 1)
            assert all(made.epochs(each) >= epochs for each in made.contenders if not each.is_fitted)
            assert made.total_seconds() <= 1.05 * 60 * minutes
        assert planned(0.02, 0.02, folds=1, minutes=1, seeds=3).seed_count == 3


class TestFineTuning:
    """By default, EfficientNet is trained if the others still get a third of their epochs."""

    @pytest.fixture(autouse=True)
    def usual(self, monkeypatch, backbone):
        monkeypatch.setattr(efficientnet, "NAME", str(backbone))

    def test_another_backbone_stays_frozen(self, planned, monkeypatch):
        monkeypatch.setattr(efficientnet, "NAME", "another")
        assert planned(1e-3, 1e-3, 1e-3, fine_tune=None).contenders[2].is_fitted

    def test_with_enough_time(self, planned):
        made = planned(1e-3, 1e-3, 1e-3, fine_tune=None)
        assert made.contenders[2].recipe_name == "images-fine-tuned"
        assert made.epochs(made.contenders[2]) == 100
        assert made.contenders[2].title.endswith(", fine-tuned")

    @pytest.mark.parametrize(("others", "seconds"), [(1e-3, 1e9), (0.2, 1.0)])
    def test_with_too_little_it_stays_frozen(self, planned, others, seconds):
        made = planned(others, others, seconds, fine_tune=None, minutes=12)
        assert made.contenders[2].is_fitted
        assert any("frozen" in note for note in made.notes)
        assert made.contenders[2].title.endswith(", frozen")

    def test_a_begun_comparison_keeps_the_choice(self, planned, tmp_path):
        for slow in (False, True):
            first = planned(1e-3, 1e-3, 1e9 if slow else 1e-3, fine_tune=None, minutes=30, out=tmp_path / str(slow))
            begin(first)
            again = planned(1e-3, 1e-3, 1e-3 if slow else 1e9, fine_tune=None, minutes=30, out=tmp_path / str(slow))
            assert again.contenders[2].is_fitted == first.contenders[2].is_fitted == slow
            assert again.fractions == first.fractions


class TestFolds:
    def test_by_default_five(self, planned):
        assert len(planned(1e-3, 1e-3).folds) == 5
        assert planned(1e-3, 1e-3).seed_count == 1

    def test_a_rare_class_has_fewer(self, tmp_path, planned):
        folder = write_images(tmp_path / "own", {"a": 20, "rare": 4})
        made = planned(1e-3, 1e-3, images=str(folder))
        assert len(made.folds) == 4
        assert made.measure == "balanced accuracy"

    def test_one_held_out_set(self, planned):
        made = planned(1e-3, 1e-3, folds=1)
        assert len(made.folds) == 1
        assert [made.seeds(each) for each in made.contenders] == [(0, 1, 2), (0, 1, 2), (0,)]

    def test_a_class_that_is_left_out_does_not_count(self, tmp_path, planned):
        folder = write_images(tmp_path / "own", {"a": 10, "b": 10, "single": 1})
        made = planned(1e-3, 1e-3, images=str(folder), classes=("a", "b"))
        assert (len(made.folds), len(made.tested)) == (5, 20)
        begin(made)
        splits = load_data(made.row(made.contenders[0], 0).recipe.data)
        assert splits.classes == ("a", "b")
        assert splits.digests(test=True) == made.splits.digests(test=True)

    def test_a_fraction_has_whole_groups(self, planned):
        made = planned(1e-3, 1e-3, folds=1, group=r"(\w+/\d)")
        tables = {share: plan._with_share(made.folds[0], share).rows for share in (0.25, 0.5, 1.0)}
        drawn = {share: {key for key in rows if rows[key].split == "train"} for share, rows in tables.items()}
        groups = {share: {key[: key.index("/") + 2] for key in keys} for share, keys in drawn.items()}
        assert drawn[0.25] < drawn[0.5] < drawn[1.0]
        for share in (0.25, 0.5):
            assert drawn[share] == {key for key in drawn[1.0] if key[: key.index("/") + 2] in groups[share]}
            for name, count in made.splits.train.counts().items():
                assert share * count - 1 <= sum(key.startswith(name) for key in drawn[share]) <= share * count + 3


def test_every_network_gets_the_same(planned):
    made = planned(1e-3, 1e-3, flip=False, mirror=True)
    capsules, cnn, fitted = (made.row(each, 0).recipe for each in made.contenders)
    for name in ("data", "augment", "epochs", "batch_size", "balance"):
        assert getattr(capsules, name) == getattr(cnn, name)
    assert capsules.augment.mirror
    assert not capsules.augment.flip
    assert capsules.model.options["crop"] is None
    assert fitted.augment.changes() == {}
    assert fitted.model.options["backbone"] == made.options.backbone


def test_a_short_training_is_not_all_warm_up(planned):
    made = planned(0.1, 0.1, minutes=4)
    capsules = made.contenders[0]
    for share in (0.25, 1.0):
        recipe = made.row(capsules, 0, share).recipe
        steps = recipe.epochs * -(-made.images(share) // recipe.batch_size)
        assert recipe.optimizer.warmup_steps == min(capsules.recipe.optimizer.warmup_steps, steps // 10)
        assert recipe.optimizer.learning_rate_at(steps // 10, steps) > 0.9 * recipe.optimizer.learning_rate


def test_names():
    assert network_names(("default", "he2016_resnet10")) == GROUPS["default"]
    assert network_names(("thesis",)) == GROUPS["thesis"]
    with pytest.raises(ArgumentError):
        network_names(("hinton2018_cn",))
    assert [side_for(side, 64) for side in (16, 50, 64, 300)] == [32, 48, 64, 64]


def test_without_the_package_the_others_are_compared(images, tmp_path, monkeypatch):
    monkeypatch.setattr("capsella.errors.find_spec", lambda name: None)
    monkeypatch.setattr(plan, "_measure", lambda *_: Cost(1e-3, 1e-3))
    options = {"images": str(images), "out": tmp_path / "c"}
    with pytest.warns(UserWarning, match="pretrained"):
        made = make_plan(ComparisonOptions(**options))
    assert [each.family for each in made.contenders] == ["capsules", "CNN"]
    begin(made)
    with pytest.warns(UserWarning, match="began without the pretrained network"):
        make_plan(ComparisonOptions(**options))
    with pytest.raises(CapsellaError):
        make_plan(ComparisonOptions(networks=NETWORKS, **options))


def test_a_begun_comparison_keeps_its_epochs(planned):
    first = planned(0.1, 0.1, minutes=4)
    begin(first)
    again = planned(9.0, 9.0, minutes=4, seeds=2)
    assert again.fractions == first.fractions
    assert again.seed_count == 2
    with pytest.raises(CapsellaError):
        planned(0.1, 0.1, minutes=5)
    (first.options.output / "plan.json").write_text("{")
    with pytest.raises(CapsellaError):
        planned(0.1, 0.1, minutes=4)


@pytest.mark.parametrize("change", ["moved", "saved again"])
def test_a_begun_comparison_keeps_its_images(images, tmp_path, planned, change):
    folder = shutil.copytree(images, tmp_path / "own")
    begin(planned(1e-3, 1e-3, images=str(folder), folds=3))
    planned(1e-3, 1e-3, images=f"{folder}/", folds=3)  # the same folder
    if change == "moved":
        (folder / "red" / "3.png").rename(folder / "blue" / "red3.png")
    else:
        ImageOps.invert(Image.open(folder / "red" / "3.png")).save(folder / "red" / "3.png")
    with pytest.raises(CapsellaError, match="have changed"):
        planned(1e-3, 1e-3, images=str(folder), folds=3)


@pytest.mark.parametrize(
    ("flags", "argument"),
    [
        (["--networks", "hinton2018_cn"], "networks"),
        (["--networks", "hinton2018_cnn"], "networks"),
        (["--classes", "read"], "classes"),
    ],
)
def test_errors_before_anything_trains(images, tmp_path, wrong, flags, argument):
    assert f"{argument}: " in wrong(images, *FLAGS, *flags, "--out", tmp_path / "c")
    assert not (tmp_path / "c").exists()
