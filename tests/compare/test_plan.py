"""The plan of a comparison, and what it refuses."""

import shutil

import pytest
import torch
from rich.console import Console

from capsella.compare import ComparisonOptions, make_plan, results
from capsella.compare.plan import GROUPS, begin, default_networks
from capsella.errors import CapsellaError
from capsella.experiments import runner as grid
from capsella.models import create_model
from capsella.papers import list_recipes
from capsella.papers.own_images import recipe_for
from capsella.training import TrainingDivergedError
from capsella.training.precision import PrecisionChoice
from tests.compare.made import FLAGS, NETWORKS


class TestPlan:
    def test_sizes_suit_the_rarest_class(self, images, tmp_path):
        shutil.copytree(images, tmp_path / "own")
        for number in range(4, 12):
            (tmp_path / "own" / "red" / f"{number}.png").unlink()
        given = {"models": NETWORKS, "out": tmp_path / "c"}
        plan = make_plan(ComparisonOptions(tmp_path / "own", **given))
        assert plan.options.sizes == (0.5, 1.0)
        begin(plan)
        assert make_plan(ComparisonOptions(tmp_path / "own", **given)).options.sizes == (0.5, 1.0)
        with pytest.raises(CapsellaError, match="sizes"):
            make_plan(ComparisonOptions(tmp_path / "own", models=NETWORKS, sizes=(0.25, 1.0), out=tmp_path / "d"))

    def test_minutes_take_epochs_from_all(self, images, tmp_path):
        options = ComparisonOptions(images, models=NETWORKS, epochs=1000, minutes=10_000, out=tmp_path)
        free = make_plan(options)
        assert free.epochs == 1000
        minutes = free.total_seconds(1) * 5 / 60
        short = make_plan(ComparisonOptions(images, models=NETWORKS, epochs=1000, minutes=minutes, out=tmp_path))
        assert 1 <= short.epochs < 100
        assert short.total_seconds() <= 60 * minutes

    def test_a_comparison_keeps_what_auto_was_when_it_began(self, images, tmp_path, monkeypatch):
        options = ComparisonOptions(images, models=NETWORKS, precision="auto", out=tmp_path)
        for now in ("bf16-mixed", "32-true"):  # the second as on another machine
            choice = PrecisionChoice(now, "as the test says")
            monkeypatch.setattr("capsella.compare.plan.choose_precision", lambda accelerator, choice=choice: choice)
            plan = make_plan(options)
            assert {plan.recipe(one).precision for one in plan.candidates} == {"bf16-mixed"}
            begin(plan)

    def test_every_network_gets_the_same(self, images, tmp_path):
        plan = make_plan(ComparisonOptions(images, models=NETWORKS, flip=False, mirror=True, out=tmp_path))
        recipes = [plan.recipe(one, 1e-3) for one in plan.candidates]
        for name in ("data", "augment", "epochs", "batch_size", "patience"):
            assert getattr(recipes[0], name) == getattr(recipes[1], name)
        assert recipes[0].epoch_images is None
        part = plan.recipe(plan.candidates[0], 1e-3, share=0.5)
        assert part.epoch_images == len(plan.splits.train)  # as many steps as on all images
        assert part.data.split_file == tmp_path / "split-0.5.csv"
        assert recipes[0].loss.name == "spread"
        assert recipes[0].model.options["crop"] is None
        assert not recipes[0].augment.flip
        assert recipes[0].augment.mirror

    def test_defaults_suit_the_images(self):
        assert default_networks((32, 63)) == GROUPS["capsules-small"] + GROUPS["cnn-small"]
        assert default_networks((224, 64)) == ("mazzia2021_efficient_capsnet", *GROUPS["thesis"])
        for size in ((32, 32), (224, 224)):
            assert all(recipe_for(name)[0] in list_recipes() for name in default_networks(size))
        assert recipe_for("sabour2017_capsnet")[0] == "images-capsnet"
        assert recipe_for("forslov2018_capsnet1_init1")[0] == "forslov2018-capsnet1-init1-modern"

    def test_defaults_can_tell_two_classes(self):
        for size in ((32, 32), (64, 64)):
            for name in default_networks(size):
                with torch.device("meta"):
                    create_model(**recipe_for(name)[1].model.to_dict(), image_size=size, channels=3, classes=2)
        assert recipe_for("forslov2018_emnet1_init1")[1].loss.spread_schedule == "linear"


class TestErrors:
    @pytest.mark.parametrize(
        ("flags", "argument"),
        [
            (["--models", "hinton2018_cn"], "models"),
            (["--models", "hinton2018_cnn"], "models"),
            (["--models", "thesis"], "models"),
            (["--seeds", "0"], "seeds"),
            (["--sizes", "0.5"], "sizes"),
            (["--sizes", "0.01", "1"], "sizes"),
            (["--minutes", "0.0001"], "minutes"),
        ],
    )
    def test_before_anything_trains(self, images, tmp_path, wrong, flags, argument):
        assert f"{argument}: " in wrong(images, *FLAGS, *flags, "--out", tmp_path / "c")
        assert not (tmp_path / "c").exists()

    def test_a_damaged_plan(self, images, tmp_path):
        (tmp_path / "plan.json").write_text("{")
        with pytest.raises(CapsellaError, match=r"plan\.json"):
            make_plan(ComparisonOptions(images, out=tmp_path))

    def test_no_network_of_a_kind(self, images, tmp_path, monkeypatch):
        def diverge(*_):
            raise TrainingDivergedError("the loss is nan")

        monkeypatch.setattr(grid, "train_or_resume", diverge)
        plan = make_plan(ComparisonOptions(images, models=NETWORKS, rates=1, sizes=(1,), out=tmp_path))
        with pytest.raises(CapsellaError, match="capsules"):
            results.train_all(plan, Console(quiet=True))
