"""Training in some laboratories and testing in another: the plan, the resumption, the table."""

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from capsella.errors import ArgumentError, CapsellaError
from capsella.experiments.compare import DomainOptions, compare_domains
from capsella.experiments.compare.domains import _row, domain_gains
from capsella.training import load_run

CLASSES = ("columns", "rows")


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Stripes, in three laboratories of other brightness; the third has a class of its own, and one rare image."""
    root, random = tmp_path_factory.mktemp("three"), np.random.default_rng(0)
    lines, _ = np.mgrid[:16, :16]
    for number, bright in enumerate((60, 120, 200)):
        for kind in (*CLASSES, "rings") if number == 2 else CLASSES:
            folder = root / f"lab{number}" / kind
            folder.mkdir(parents=True)
            for image in range(8 + 4 * number):
                wave = bright + 40 * np.sin(lines * 1.6 + random.uniform(0, 6)) + random.normal(0, 5, (16, 16))
                pixels = wave.T if kind == "columns" else wave
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{image}.png")
    return [str(root / f"lab{number}") for number in range(3)]


@pytest.fixture(scope="module")
def options(places, tmp_path_factory):
    short = {"size": 16, "channels": 1, "epochs": 1, "accelerator": "cpu", "seeds": 2}
    out = tmp_path_factory.mktemp("out")
    return DomainOptions(tuple(places), recipes=("images-resnet",), out=out, **short)


@pytest.fixture(scope="module")
def found(options, few_images):
    text = io.StringIO()
    return compare_domains(options, Console(file=text, width=200)), text.getvalue()


@pytest.fixture(scope="module")
def few_images():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("capsella.experiments.compare.domains.CHOSEN_ON", 64)
        yield


def test_each_is_left_out_once(found, options, places):
    results, said = found
    others = {place: [one for one in places if one != place] for place in places}
    assert {one["tested_on"]: one["trained_on"] for one in results} == others
    assert {one["tested_on"]: one["images"] for one in results} == dict(zip(places, (16, 24, 32), strict=True))
    assert "rings (16)" in said  # a class that the others do not have
    run = load_run(options.out / "images-resnet-lab0+lab1-seed1")
    assert (run.model.classes, run.recipe.balance, run.recipe.epoch_images) == (CLASSES, "sampling", 64)


@pytest.mark.usefixtures("few_images")
def test_trained_on_a_named_domain_recipes_are_compared(options, places, tmp_path):
    recipes = ("images-resnet", "images-efficient")
    alone = replace(options, recipes=recipes, train_on=places[1], seeds=1, out=tmp_path / "out")
    results = compare_domains(alone, Console(quiet=True))
    assert {tuple(one["trained_on"]) for one in results} == {(places[1],)}
    resnet, efficient = ([one for one in results if one["recipe"] == name] for name in recipes)
    for first, second in zip(resnet, efficient, strict=True):
        apart = first["accuracy"]["estimate"] - second["accuracy"]["estimate"]
        assert (first["gain"], second["gain"]["estimate"]) == (None, pytest.approx(apart))
        assert second["gain"]["low"] <= apart <= second["gain"]["high"]
    lines = [f"{place}, trained on {places[1]}: images-resnet over images-efficient " for place in places[::2]]
    assert all(line.startswith(start) for line, start in zip(domain_gains(results), lines, strict=True))
    assert replace(options, train_on=f"{places[0]}/").trainings == [(places[0],)]
    with pytest.raises(ArgumentError, match="train_on"):
        replace(options, train_on="lab9")


def test_recipes_keep_their_size_and_a_regression_has_one_epoch(places):
    names = ("images-efficient", "images-backbone-linear", "images-fine-tuned")
    usual, small = (DomainOptions(tuple(places), names, epochs=9, size=size) for size in (None, 32))
    rows = [[_row(options, name, (places[0],), CLASSES).recipe for name in names] for options in (usual, small)]
    assert [recipe.data.size for recipe in rows[0]] == [64, 160, 160]
    assert [recipe.epochs for recipe in rows[0]] == [9, 1, 9]
    assert [[recipe.augment.shift for recipe in row] for row in rows] == [[4, 0, 10], [2, 0, 2]]


def test_the_numbers_are_those_of_the_networks(found, options):
    one = next(one for one in found[0] if one["tested_on"].endswith("lab2"))
    runs = [options.out / f"images-resnet-lab0+lab1-seed{k}" for k in (0, 1)]
    errors = [json.loads(next(run.glob("on-lab2-*.json")).read_text())["error_percent"] for run in runs]
    assert one["error_percent_by_seed"] == pytest.approx(errors)
    assert 100 * (1 - one["accuracy"]["estimate"]) == pytest.approx(np.mean(errors))
    tests = [json.loads((run / "test.json").read_text())["error_percent"] for run in runs]
    assert 100 * (1 - one["in_domain_accuracy"]["estimate"]) == pytest.approx(np.mean(tests))
    saved = json.loads((options.out / "domains.json").read_text())
    assert saved["classes"] == list(CLASSES)
    assert saved["results"] == found[0]


def test_called_again_it_reads_what_is_there(found, options, monkeypatch):
    for name in ("evaluate", "load_run"):
        monkeypatch.delattr(f"capsella.experiments.fit.{name}")
    silent = io.StringIO()
    again = compare_domains(options, Console(file=silent, width=200))
    assert again == found[0]
    assert "run 1" not in silent.getvalue()


@pytest.mark.usefixtures("found")
def test_other_images_than_its_runs_saw_are_an_error(options, places):
    """Also where a run is missing: it would be trained on the new ones, and stand beside the old."""
    new = Path(places[0], "rows", "new.png")
    missing = options.out / "images-resnet-lab0+lab1-seed1"
    Image.new("L", (16, 16)).save(new)
    with pytest.raises(CapsellaError, match="lab0"):
        compare_domains(options, Console(quiet=True))
    result = (missing / "result.json").rename(options.out / "result.away")
    with pytest.raises(CapsellaError, match="lab0"):
        compare_domains(options, Console(quiet=True))
    result.rename(missing / "result.json")
    new.unlink()


def test_laboratories_that_do_not_fit(options, places, tmp_path):
    for brightness, kind in enumerate(("a", "b")):
        (tmp_path / "other" / kind).mkdir(parents=True)
        Image.new("L", (16, 16), 50 * brightness).save(tmp_path / "other" / kind / "1.png")
    other = (places[0], str(tmp_path / "other"))
    with pytest.raises(CapsellaError, match="classes"):
        compare_domains(replace(options, domains=other, out=tmp_path / "out"), Console(quiet=True))
    alike = replace(options, domains=("a/site", "b/site", "c/site-1"))
    assert len(set(map(alike.slug, alike.domains))) == 3
    for twice in (places[0], f"{places[0]}/"):
        with pytest.raises(ArgumentError):
            replace(options, domains=(places[0], twice))
    with pytest.raises(ArgumentError):
        compare_domains(replace(options, recipes=("demo",), out=tmp_path / "out"), Console(quiet=True))
