"""Images of another domain: `evaluate --data`, `adapt`, and comparisons of several domains."""

import json
import shutil

import numpy as np
import pytest
import torch
from jaxtyping import config
from PIL import Image

from capsella.data import ImageSet, pixel_digests, read_image
from capsella.training import load_run
from tests.trained import PER_CLASS, draw

SHORT = ("--per-class", 3, "--how", "last", "--steps", 2)


def read(path):
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def domain(tmp_path_factory):
    """Darker images: two classes of the run, one that it does not know, and a file that is no image."""
    folder, random = tmp_path_factory.mktemp("domain") / "lab 2", np.random.default_rng(1)
    for kind, name, number in (("rows", "Rows", 6), ("columns", "columns", 9), ("rings", "spots", 4)):
        (folder / name).mkdir(parents=True)
        for image in range(number):
            draw(kind, random).point(lambda value: value // 2).save(folder / name / f"{image}.png")
    (folder / "columns" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    return folder


def test_all_images_of_known_classes_are_tested(cli, copied, domain, tmp_path):
    images, run = copied
    assert cli("evaluate", run, "--data", domain).code == 1  # an image is broken
    answer = cli("evaluate", run, "--data", domain, "--skip-broken")
    assert answer.code == 0, answer.err
    values = read(run / "lab 2-all.json")
    assert {score["name"]: score["support"] for score in values["classes"]} == {"columns": 9, "rings": 0, "rows": 6}
    about = values["laboratory"]
    assert (about["left_out"], about["copies_of_training_images"]) == ({"spots": 4}, 0)
    same_name = shutil.copytree(domain, tmp_path / "of another domain" / domain.name)
    assert "choose another --out" in cli("evaluate", run, "--data", same_name, "--skip-broken").err
    own = cli("evaluate", run, "--data", images)
    assert f"27 of {3 * PER_CLASS} images" in own.out
    assert cli("evaluate", run, "--data", "digits").code == 1
    assert cli("evaluate", run, "--data", "nowhere").code == 1


def test_an_adapted_run_can_be_tested_predicted_with_and_exported(cli, copied, domain, tmp_path):
    _, run = copied
    out, short = tmp_path / "adapted", (*SHORT, "--skip-broken", "--batch-size", 4)
    answer = cli("adapt", run, domain, *short, "--out", out)
    assert answer.code == 0, answer.err
    about = read(out / "adapted.json")
    assert about["tests"]["lab 2"]["before"]["images"] == 9
    assert about["labelled"]["columns"] == about["labelled"]["rows"] == 3
    assert cli("predict", out, domain / "Rows" / "1.png", "--coverage", 0.5).code == 0
    assert cli("evaluate", out, "--data", domain).code == 0
    values = read(out / "lab 2-all.json")
    assert values["error_percent"] == about["tests"]["lab 2"]["after"]["error_percent"]
    assert cli("evaluate", out, "--selective").code == 1
    assert cli("adapt", out, domain, "--out", tmp_path / "third").code == 1
    assert cli("adapt", run, domain, *short, "--out", out).code == 1
    pytest.importorskip("onnxscript", reason="needs the extra `export`")
    config.update("jaxtyping_disable", True)  # sizes are symbols while torch.export traces
    try:
        answer = cli("export", out)
    finally:
        config.update("jaxtyping_disable", False)
    assert answer.code == 0, answer.err
    parity = read(out / "export" / "model.json")["parity"]
    assert parity["images"] == 9  # of that domain, not of the training's


def test_no_patient_is_both_learned_from_and_tested(cli, trained, tmp_path):
    folder, random = tmp_path / "patients", np.random.default_rng(3)
    for kind in ("rows", "columns"):
        (folder / kind).mkdir(parents=True)
        for image in range(12):
            draw(kind, random).save(folder / kind / f"{kind[0]}{image // 2}-{image}.png")
    out, group = tmp_path / "adapted", ("--group", "([rc][0-9])-")
    assert cli("adapt", trained, folder, "--per-class", 2, *SHORT[2:], *group, "--out", out).code == 0
    files = sorted(folder.rglob("*.png"))
    digests = pixel_digests(ImageSet(torch.stack([read_image(file) for file in files]), torch.zeros(24).long(), "a"))
    known, left_out = dict(zip(digests, files, strict=True)), read(out / "adapted.json")["not_to_test"]
    patients = {known[digest].name.split("-")[0] for digest in left_out}
    assert (len(left_out), len(patients)) == (8, 4)
    draw("rows", random).save(folder / "rows" / f"{next(p for p in patients if p[0] == 'r')}-new.png")
    assert cli("evaluate", out, "--data", folder).code == 0
    assert read(out / "patients-all.json")["images"] == 16


def test_files_that_came_since_do_not_let_it_be_tested_on_what_it_learned(cli, trained, tmp_path):
    folder, random = tmp_path / "deep", np.random.default_rng(2)
    for kind in ("rows", "columns"):
        (folder / kind).mkdir(parents=True)
        for image in range(8):
            deep = np.asarray(draw(kind, random).convert("L")).astype(np.uint16) * 100
            Image.fromarray(deep).save(folder / kind / f"{image}.png")
    out = tmp_path / "adapted"
    assert cli("adapt", trained, folder, *SHORT, "--out", out).code == 0
    Image.fromarray(np.full((64, 64), 60_000, np.uint16)).save(folder / "rows" / "bright.png")
    assert cli("evaluate", out, "--data", folder).code == 0
    assert read(out / "deep-all.json")["images"] == 11  # 17 less 6


class TestDeepImages:
    """Images of a camera of 12 bits in files of 16, from training to prediction."""

    @pytest.fixture
    def camera(self, tmp_path):
        random = np.random.default_rng(0)
        for label, name in enumerate(("dim", "lit")):
            (tmp_path / "camera" / name).mkdir(parents=True)
            for number in range(10):
                values = random.normal(300, 20, (20, 20))
                values[5:15, 5:15] += 500 + 2500 * label
                pixels = values.clip(0, 4095).astype(np.uint16)
                Image.fromarray(pixels).save(tmp_path / "camera" / name / f"{number}.tif")
        return tmp_path / "camera"

    def test_training_prediction_and_another_camera(self, cli, camera, tmp_path):
        run, other = tmp_path / "run", tmp_path / "other"
        short = ("--size", 28, "--epochs", 1, "--accelerator", "cpu")
        assert cli("train", "images-efficient", "--data", camera, *short, "--out", run).code == 0
        low, high = load_run(run).model.value_range
        assert 200 < low < 300
        assert 3000 < high < 4096
        assert load_run(run).recipe.data.range == (low, high)
        assert read(run / "model.json")["value_range"] == [low, high]
        file = camera / "lit" / "1.tif"
        rows = [cli("predict", run, file, *flags).out.splitlines()[1] for flags in ((), ("--range", 0, 65535))]
        assert rows[0] != rows[1]
        for path in camera.glob("*/*.tif"):  # the same scenes, five times as bright
            (other / path.parent.name).mkdir(parents=True, exist_ok=True)
            values = np.asarray(Image.open(path)).astype(np.uint32) * 5 + 4000
            Image.fromarray(values.astype(np.uint16)).save(other / path.parent.name / path.name)
        for folder in (camera, other):
            assert cli("evaluate", run, "--data", folder).code == 0
        at_home, there = (read(run / f"{name}-all.json") for name in ("camera", "other"))
        assert at_home["errors"] == there["errors"]
        assert there["laboratory"]["range"][0] > 5000
        given = cli("evaluate", run, "--data", other, "--range", 4000, 24475)
        assert given.code == 0
        assert read(run / "other-all-range4000-24475.json")["laboratory"]["range"] == [4000, 24475]


def save_cell(file, size, lobes):
    """A cell with a nucleus of one or two lobes; shape and place are drawn, with `size` the seed."""
    random = np.random.default_rng(size)
    rows, columns = np.mgrid[:size, :size] / size
    away = np.hypot(rows - random.uniform(0.35, 0.65), columns - random.uniform(0.35, 0.65))
    pixels = np.tile(np.array([250, 245, 235], np.uint8), (size, size, 1))
    pixels[away < 0.25] = (225, 190, 200)
    middle, turn = np.unravel_index(away.argmin(), away.shape), random.uniform(0, np.pi)
    for side in (-1, 1):
        row, column = middle + side * size * random.uniform(0.06, 0.1) * np.array([np.sin(turn), np.cos(turn)])
        lobe = np.hypot(rows - row / size, columns - column / size)
        pixels[lobe < (0.06 if lobes == 2 else 0.12) * random.uniform(0.9, 1.2)] = (80, 40, 160)
    Image.fromarray(pixels).save(file)


@pytest.fixture
def cells(tmp_path):
    for place, start in (("lab", 70), ("other", 200)):
        for lobes, name in ((1, "round"), (2, "lobed")):
            (tmp_path / place / name).mkdir(parents=True)
            for k in range(8):
                save_cell(tmp_path / place / name / f"{k}.png", start + 9 * k, lobes)
    return tmp_path / "lab"


def test_stained_cells_are_cropped_in_training_and_prediction(cli, cells, tmp_path):
    short = ("--epochs", 1, "--size", 32, "--test", 0.3, "--validation", 0.3, "--duplicates", "ignore")
    run = tmp_path / "run"
    answer = cli("train", "images-cells-efficient", cells, *short, "--out", run)
    assert answer.code == 0, answer.err
    cut = load_run(run).model.cut
    assert cut.matched
    assert cut.radius > 5
    Image.fromarray(np.full((50, 50, 3), 240, np.uint8)).save(tmp_path / "empty.png")
    save_cell(tmp_path / "new.png", 200, 2)
    assert cli("predict", run, tmp_path / "new.png", "--cell-radius", 40).code == 0
    assert cli("predict", run, tmp_path / "empty.png").code == 1
    words = ("explore", run, "--data", tmp_path / "new.png")
    for radius in (40, 20):
        assert cli(*words, "--cell-radius", radius, "--out", tmp_path / str(radius)).code == 0
    pictures = [(tmp_path / str(radius) / "new_explained.png").read_bytes() for radius in (40, 20)]
    assert pictures[0] != pictures[1]


@pytest.mark.slow
def test_a_comparison_of_domains(cli, cells, tmp_path, monkeypatch):
    monkeypatch.setattr("capsella.experiments.compare.domains.CHOSEN_ON", 16)
    recipes = ("--recipes", "images-efficient", "images-cells-efficient")
    quick = ("--epochs", 1, "--size", 32, "--seeds", 1, "--out", tmp_path / "runs")
    answer = cli("compare", cells, tmp_path / "other", *recipes, *quick)
    assert answer.code == 0, answer.err
    assert {load_run(file.parent).model.cut is None for file in (tmp_path / "runs").rglob("model.json")} == {
        True,
        False,
    }
