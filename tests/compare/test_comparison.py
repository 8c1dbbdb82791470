"""`capsella compare` from a folder of tiny colour images to its report, in seconds."""

import csv
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from capsella.bench import execution_times
from capsella.cli import main
from capsella.compare import ComparisonOptions, compare, make_plan, trained
from capsella.compare.networks import GROUPS, names_of, suited
from capsella.compare.plan import begin
from capsella.data.split.table import read_split_file
from capsella.errors import CapsellaError
from capsella.files import alone_in
from capsella.grid import grid
from capsella.models import create_model
from capsella.papers import list_recipes
from capsella.papers.own_images import recipe_for
from capsella.training import TrainingDivergedError
from capsella.training.precision import PrecisionChoice

NETWORKS = ("hinton2018_matrix_capsnet_small", "hinton2018_cnn")
SIZE = 17
WHOLE = ("--models", *NETWORKS, "--epochs", "1", "--seeds", "0", "1", "--rates", "1", "--accelerator", "cpu")
FLAGS = (*WHOLE, "--sizes", "0.5", "1")


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """Red, green and blue noise, 12 images a class: 9 to train on or so."""
    folder = tmp_path_factory.mktemp("own") / "colours"
    random = np.random.default_rng(0)
    for channel, kind in enumerate(("red", "green", "blue")):
        (folder / kind).mkdir(parents=True)
        for number in range(12):
            pixels = random.integers(0, 120, (SIZE, SIZE, 3))
            pixels[..., channel] += 120
            Image.fromarray(pixels.astype(np.uint8)).save(folder / kind / f"{number}.png")
    return folder


def call(*words):
    main(["compare", *map(str, words)])


@pytest.fixture(scope="session")
def done(images):
    folder = images.parent / "comparison"
    call(images, *FLAGS, "--out", folder)
    return folder


@pytest.fixture
def wrong(capsys):
    """What a command that fails says."""

    def fail(*words):
        with pytest.raises(SystemExit):
            call(*words)
        return capsys.readouterr().err

    return fail


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids, self.pictures, self.open, self.links = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if "id" in values:
            self.ids.append(values["id"])
        if tag == "img":
            self.pictures.append(values)
        self.links += [values[name] for name in ("src", "href") if name in values]
        if tag not in ("meta", "img", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


class TestDone:
    def test_the_report_has_every_part(self, done):
        text = (done / "report.html").read_text(encoding="utf-8")
        page = Page(text)
        assert page.open == []
        assert page.ids == [
            *("verdict", "networks", "protocol", "accuracy", "learning", "sizes", "robustness"),
            *("confusion-capsules", "confusion-cnn", "reconstructions", "dimension_tweaks"),
        ]
        assert len(page.pictures) == 6  # neither network has a decoder, and the report says so
        assert all(len(picture["alt"]) > 40 for picture in page.pictures)
        assert all(link.startswith("data:image/png;base64,") for link in page.links)
        assert not re.search(r"https?://", text)
        assert "This model has no decoder" in text
        assert "the same 1 epoch in batches of 32" in text

    def test_the_numbers_agree(self, done):
        values = json.loads((done / "compare.json").read_text(encoding="utf-8"))
        with open(done / "test_predictions.csv", newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == values["images"]["test"]
        table = read_split_file(done / "split.csv")
        assert {row["file"] for row in rows} == {key for key, row in table.rows.items() if row.split == "test"}
        for network in values["networks"]:
            hits = [[row["class"] == row[f"{network['network']} seed {seed}"] for row in rows] for seed in (0, 1)]
            assert network["accuracy"]["estimate"] == pytest.approx(np.mean(hits))
            assert [network["seeds"][seed]["test"]["errors"] for seed in "01"] == [row.count(False) for row in hits]
            assert set(network["shares"]) == {"0.5"}
            assert set(network["accuracy_on_changed_images_percent"]) == {"rotation", "translation", "colour", "noise"}
        one, other = (network["accuracy"]["estimate"] for network in values["networks"])
        assert values["verdict"]["difference"]["estimate"] == pytest.approx(one - other)
        assert (values["verdict"]["capsules"], values["verdict"]["cnn"]) == NETWORKS
        assert values["options"]["seeds"] == [0, 1]
        useful = values["verdict"]["better_than_chance"]
        assert values["verdict"]["ship"] in (None, *useful)
        assert set(values["verdict"]["kept_under_changes"]) == (
            {"rotation", "translation", "colour", "noise"} if len(useful) == 2 else set()
        )
        assert values["verdict"]["not_trained_to_the_end"] == []  # of one epoch nothing is said

    def test_only_chosen_runs_are_tested_and_none_by_training(self, done):
        runs = sorted(path.name for path in (done / "runs").iterdir())
        assert len(runs) == 8  # two networks, two seeds, all and half of the images
        assert not list((done / "runs").glob("*/test.json"))

    def test_no_run_is_tested_on_what_it_learned_from(self, done, images, tmp_path, wrong):
        """Without its plan a comparison may be asked for with another split, and its runs are there."""
        shutil.copytree(done, tmp_path / "kept")
        (done / "plan.json").unlink()
        said = wrong(images, *FLAGS, "--test", "0.4", "--sizes", "1", "--out", done)
        shutil.rmtree(done)
        shutil.copytree(tmp_path / "kept", done)
        assert "colours has changed since this training began" in said

    def test_half_of_the_images_is_half_of_each_class(self, done, images):
        whole, half = (read_split_file(done / name).rows for name in ("split.csv", "split-0.5.csv"))
        for split in ("validation", "test"):
            assert {k for k, row in whole.items() if row.split == split} == {
                k for k, row in half.items() if row.split == split
            }
        train = [key for key, row in whole.items() if row.split == "train"]
        kept = [key for key, row in half.items() if row.split == "train"]
        assert set(kept) < set(train)
        for kind in ("red", "green", "blue"):
            count = sum(key.startswith(kind) for key in train)
            assert sum(key.startswith(kind) for key in kept) == round(count / 2)

    def test_called_again_it_reads(self, done, images, monkeypatch, capsys):
        before = json.loads((done / "compare.json").read_text(encoding="utf-8"))
        monkeypatch.setattr("capsella.grid.run.train", None)
        monkeypatch.setattr("capsella.grid.run.resume", None)
        call(images, *FLAGS, "--out", done)
        after = json.loads((done / "compare.json").read_text(encoding="utf-8"))
        for network in (*before["networks"], *after["networks"]):
            del network["latency_ms"]
        assert before["networks"] == after["networks"]
        assert "run 1 of 8" not in capsys.readouterr().out

    def test_other_options_are_refused(self, done, images, wrong):
        text = " ".join(wrong(images, *FLAGS, "--out", done, "--epochs", "2").split())
        assert "holds a comparison with epochs = 1, not 2; call it with the same options to go on" in text


def test_an_interrupted_comparison_goes_on(images, done, tmp_path, monkeypatch):
    real, calls = grid.trained_run, []

    def interrupted(recipe, folder, name, console, machine):
        calls.append(folder.name)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(recipe, folder, name, console, machine)

    monkeypatch.setattr(grid, "trained_run", interrupted)
    flags = (*WHOLE, "--sizes", "1")  # the halves have no part in the verdict
    with pytest.raises(SystemExit):
        call(images, *flags, "--out", tmp_path / "c")
    assert not (tmp_path / "c" / "compare.json").exists()
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "c").glob("runs/*/summary.json")}
    assert len(stamps) == 2
    monkeypatch.undo()
    call(images, *flags, "--out", tmp_path / "c")
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    ours, unbroken = (json.loads((folder / "compare.json").read_text()) for folder in (tmp_path / "c", done))
    assert ours["verdict"]["difference"] == unbroken["verdict"]["difference"]


def test_a_dry_run_writes_nothing(images, tmp_path, capsys):
    call(images, *FLAGS, "--out", tmp_path / "c", "--dry-run")
    out = capsys.readouterr().out
    assert all(name in out for name in NETWORKS)
    assert "4 more runs for the data-size curve" in " ".join(out.split())
    assert "Estimated training: " in out
    assert not (tmp_path / "c").exists()


def test_a_rate_that_diverges_is_not_chosen(images, tmp_path, monkeypatch):
    def fake(recipe, folder, name, console, machine):
        rate = recipe.optimizer.learning_rate
        if rate > 2e-3 or (recipe.model.name == NETWORKS[1] and recipe.seed == 7):
            raise TrainingDivergedError("the loss is nan")
        folder.mkdir(parents=True, exist_ok=True)
        best = {"validation_error": 50 - 1000 * rate, "validation_loss": 1.0, "epoch": 1}
        (folder / "summary.json").write_text(json.dumps({"best": best, "seconds": 1.0}))

    monkeypatch.setattr(grid, "trained_run", fake)
    options = ComparisonOptions(
        images, models=(*NETWORKS, "sabour2017_cnn"), seeds=(0, 7), sizes=(1,), out=tmp_path / "c"
    )
    plan = make_plan(options)
    networks, champions = trained.train_all(plan, Console(quiet=True))
    assert [one.search.rate for one in networks] == [1e-3, 1e-3, 9e-5]
    assert networks[0].search.tried[3e-3].error == float("inf")
    assert champions["CNN"].candidate.network == "sabour2017_cnn"  # the other diverged with a seed
    again, _ = trained.train_all(plan, Console(quiet=True))
    assert again == networks


class TestPlan:
    def test_a_few_images_are_timed(self, images, tmp_path, monkeypatch):
        timed = []
        usual = execution_times

        def spy(networks, batch_sizes, **options):
            timed.append(batch_sizes)
            return usual(networks, batch_sizes, **options)

        monkeypatch.setattr("capsella.compare.plan.execution_times", spy)
        assert make_plan(ComparisonOptions(images, models=NETWORKS, out=tmp_path)).batch_size == 32
        assert timed == [(8,), (8,)]

    def test_sizes_suit_the_rarest_class(self, images, tmp_path, monkeypatch):
        monkeypatch.setattr("capsella.errors._warned", set())
        shutil.copytree(images, tmp_path / "own")
        for number in range(4, 12):
            (tmp_path / "own" / "red" / f"{number}.png").unlink()
        given = {"models": NETWORKS, "out": tmp_path / "c"}
        with pytest.warns(
            UserWarning, match=r"^sizes: 0\.25 of the 2 training images of the class 'red' is less than one"
        ):
            plan = make_plan(ComparisonOptions(tmp_path / "own", **given))
        assert plan.options.sizes == (0.5, 1.0)
        begin(plan)
        assert make_plan(ComparisonOptions(tmp_path / "own", **given)).options.sizes == (0.5, 1.0)
        with pytest.raises(
            CapsellaError, match=r"^sizes: 0\.25 of the 2 .*; leave out the data-size curve with --sizes 1"
        ):
            make_plan(ComparisonOptions(tmp_path / "own", models=NETWORKS, sizes=(0.25, 1.0), out=tmp_path / "d"))

    def test_copies_are_looked_for_once(self, images, tmp_path):
        shutil.copytree(images, tmp_path / "own")
        shutil.copy(images / "red" / "0.png", tmp_path / "own" / "blue" / "wrong.png")
        with pytest.raises(CapsellaError, match=r"the same image is in two classes: blue/wrong\.png and red/0\.png"):
            make_plan(ComparisonOptions(tmp_path / "own", models=NETWORKS, out=tmp_path / "c"))
        plan = make_plan(ComparisonOptions(tmp_path / "own", models=NETWORKS, duplicates="keep", out=tmp_path / "c"))
        assert plan.data().duplicates == "ignore"

    def test_a_folder_in_use(self, images, tmp_path):
        plan = make_plan(ComparisonOptions(images, models=NETWORKS, out=tmp_path / "c"))
        with alone_in(tmp_path / "c"), pytest.raises(CapsellaError, match=r"c: capsella is at work there already"):
            compare(plan, Console(quiet=True))
        assert not (tmp_path / "c").exists()

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
        plan = make_plan(ComparisonOptions(images, models=NETWORKS, flip=False, out=tmp_path))
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

    def test_defaults_suit_the_images(self):
        assert suited((32, 63)) == GROUPS["capsules-small"] + GROUPS["cnn-small"]
        assert suited((224, 64)) == ("mazzia2021_efficient_capsnet", *GROUPS["thesis"])
        for size in ((32, 32), (224, 224)):
            assert all(recipe_for(name)[0] in list_recipes() for name in suited(size))
        assert recipe_for("sabour2017_capsnet")[0] == "images-capsnet"
        assert recipe_for("forslov2018_capsnet1_init1")[0] == "forslov2018-capsnet1-init1-modern"

    def test_defaults_can_tell_two_classes(self):
        for size in ((32, 32), (64, 64)):
            for name in suited(size):
                with torch.device("meta"):
                    create_model(**recipe_for(name)[1].model.to_dict(), image_size=size, channels=3, classes=2)
        assert recipe_for("forslov2018_emnet1_init1")[1].loss.spread_schedule == "linear"

    def test_words_for_networks(self):
        assert names_of(["cnn-small", "hinton2018_cnn"]) == GROUPS["cnn-small"]
        assert names_of(["hinton*small", "hinton2018_cnn"]) == NETWORKS


class TestErrors:
    @pytest.mark.parametrize(
        ("flags", "text"),
        [
            (
                ["--models", "hinton2018_cn"],
                "models: must be a registered name, got 'hinton2018_cn'; did you mean hint",
            ),
            (["--models", "hinton2018_cnn"], "models: must have at least one capsule network and one CNN to compare"),
            (["--models", "thesis"], "models: forslov2018_capsnet1_init1 must be able to take the images of colours, "),
            (["--seeds", "0", "0"], "seeds: must be at least one, and each only once, got (0, 0)"),
            (["--sizes", "0.5"], "sizes: must be different shares above 0, the largest 1, got (0.5,)"),
            (["--sizes", "0.01", "1"], "is less than one; leave out the data-size curve with --sizes 1"),
            (["--minutes", "0.0001"], "minutes: must be at least "),
            (["--epochs", "0"], "epochs: must be at least 1, got 0"),
            (["--latency-limit", "0"], "latency_limit: must be above 0 and finite, got 0.0"),
            (["--shift", "-1"], "shift: must not be negative, got -1"),
        ],
    )
    def test_before_anything_trains(self, images, tmp_path, wrong, flags, text):
        assert text in " ".join(wrong(images, *FLAGS, *flags, "--out", tmp_path / "c").split())
        assert not (tmp_path / "c").exists()

    def test_folders_that_cannot_be_compared(self, images, tmp_path, wrong):
        shutil.copytree(images / "red", tmp_path / "one" / "red")
        assert "must have one sub-folder a class, 2 or more, got ['red']" in wrong(tmp_path / "one")
        (tmp_path / "one" / "lone").mkdir()
        shutil.copy(images / "blue" / "1.png", tmp_path / "one" / "lone")
        assert "the class 'lone' has 1 image to part" in wrong(tmp_path / "one")
        (tmp_path / "one" / "red" / "0.png").write_bytes(b"\x89PNG")
        assert str(Path("red") / "0.png") in " ".join(wrong(tmp_path / "one").split())

    def test_a_damaged_plan(self, images, tmp_path):
        (tmp_path / "plan.json").write_text("{")
        with pytest.raises(CapsellaError, match=r"plan.json is damaged: .*; choose another --out$"):
            make_plan(ComparisonOptions(images, out=tmp_path))

    def test_no_network_of_a_kind(self, images, tmp_path, monkeypatch):
        def diverge(recipe, folder, name, console, machine):
            raise TrainingDivergedError("the loss is nan")

        monkeypatch.setattr(grid, "trained_run", diverge)
        plan = make_plan(ComparisonOptions(images, models=NETWORKS, rates=1, sizes=(1,), out=tmp_path))
        with pytest.raises(CapsellaError, match=r"^every network of the capsules diverged in training"):
            trained.train_all(plan, Console(quiet=True))
