"""Another laboratory on the command line: evaluate --data, and adapt."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from jaxtyping import config
from PIL import Image

from capsella.data import ImageSet, pixel_digests, read_image
from tests.trained import draw


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """Darker images: two classes of the run, one that it does not know, and a file that is no image."""
    folder, random = tmp_path_factory.mktemp("elsewhere") / "lab 2", np.random.default_rng(1)
    for kind, name, number in (("rows", "Rows", 6), ("columns", "columns", 9), ("rings", "spots", 4)):
        (folder / name).mkdir(parents=True)
        for image in range(number):
            draw(kind, random).point(lambda value: value // 2).save(folder / name / f"{image}.png")
    (folder / "columns" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A run that skips broken files, as the folder above has one."""
    copy = tmp_path / "run"
    shutil.copytree(trained, copy)
    config = json.loads((copy / "config.json").read_text())
    config["recipe"]["data"]["skip_broken"] = True
    (copy / "config.json").write_text(json.dumps(config))
    return copy


class TestEvaluate:
    def test_all_images_of_known_classes(self, cli, run, elsewhere):
        answer = cli("evaluate", run, "--data", elsewhere)
        assert answer.code == 0, answer.err
        assert "lab 2: 15 images tested\nleft out 1 broken image:" in answer.out
        assert "lab 2: left out 4 images of other classes: spots (4)" in answer.out
        assert "note: no test images, so no recall and no F1: rings" in answer.out
        values = json.loads((run / "lab 2-all.json").read_text())
        assert [(one["name"], one["support"]) for one in values["classes"]] == [
            ("columns", 9),
            ("rings", 0),
            ("rows", 6),
        ]
        assert values["laboratory"] == {
            "data": str(elsewhere),
            "group": None,
            "range": None,
            "left_out": {"spots": 4},
            "copies_of_training_images": 0,
        }


class TestAdapt:
    def test_a_run_that_predict_takes(self, cli, run, elsewhere, tmp_path):
        out = tmp_path / "adapted"
        short = ("--per-class", 3, "--how", "last", "--steps", 2, "--batch-size", 4, "--replay", "--out", out)
        answer = cli("adapt", run, elsewhere, *short)
        assert answer.code == 0, answer.err
        assert "lab 2: 6 labelled images (columns 3, rows 3), 9 others tested" in answer.out
        assert "own laboratory" in answer.out
        assert re.search(r"errors on 9 images: \d before, \d after; accuracy", answer.out)
        about = json.loads((out / "adapted.json").read_text())
        assert about["tests"]["lab 2"]["before"]["images"] == 9
        assert about["options"]["how"] == "last"
        assert cli("predict", out, elsewhere / "Rows" / "1.png", "--coverage", 0.5).code == 0
        tested = cli("evaluate", out, "--data", elsewhere).out
        assert "lab 2: 9 images tested" in tested
        pytest.importorskip("onnxscript", reason="needs the extra `export`")
        config.update("jaxtyping_disable", True)  # sizes are symbols while torch.export traces
        try:
            answer = cli("export", out)
        finally:
            config.update("jaxtyping_disable", False)
        assert answer.code == 0, answer.err
        assert "of 9 images (at most 0 %)" in answer.out  # of that laboratory, not of the training's
        assert "note: probabilities and sets are for as many images of each class" in answer.err
        (described,) = [json.loads(path.read_text())["description"] for path in out.glob("*.onnx.json")]
        assert described["images"] == f"{elsewhere}, without those of the adaptation"
        assert "left out 6 images that the run was adapted with" in tested
        values = json.loads((out / "lab 2-all.json").read_text())
        assert values["error_percent"] == about["tests"]["lab 2"]["after"]["error_percent"]
        assert "was adapted to" in cli("evaluate", out, "--reject").err
        assert "was adapted before" in cli("adapt", out, elsewhere, "--out", tmp_path / "third").err
        assert "holds a run already" in cli("adapt", run, elsewhere, *short).err

    def test_files_that_came_since_do_not_let_it_be_tested_on_what_it_learned(self, cli, trained, tmp_path):
        folder, random = tmp_path / "deep", np.random.default_rng(2)
        for kind in ("rows", "columns"):
            (folder / kind).mkdir(parents=True)
            for image in range(8):
                deep = np.asarray(draw(kind, random).convert("L")).astype(np.uint16) * 100
                Image.fromarray(deep).save(folder / kind / f"{image}.png")
        out = tmp_path / "adapted"
        answer = cli("adapt", trained, folder, "--per-class", 3, "--how", "last", "--steps", 1, "--out", out)
        assert answer.code == 0, answer.err
        assert cli("predict", out, folder / "rows" / "1.png").code == 0
        Image.fromarray(np.full((64, 64), 60_000, np.uint16)).save(folder / "rows" / "bright.png")
        tested = cli("evaluate", out, "--data", folder).out
        assert "left out 6 images that the run was adapted with" in tested
        assert "deep: 11 images tested" in tested

    def test_no_patient_is_both_learned_from_and_tested(self, cli, trained, tmp_path):
        folder, random = tmp_path / "patients", np.random.default_rng(3)
        for kind in ("rows", "columns"):
            (folder / kind).mkdir(parents=True)
            for image in range(12):
                draw(kind, random).save(folder / kind / f"{kind[0]}{image // 2}-{image}.png")
        out, group = tmp_path / "adapted", ("--group", "([rc][0-9])-")
        short = ("--per-class", 2, "--how", "last", "--steps", 1, "--out", out)
        answer = cli("adapt", trained, folder, *short, *group)
        assert answer.code == 0, answer.err
        assert "patients: 4 labelled images (columns 2, rows 2), 16 others tested" in answer.out
        about = json.loads((out / "adapted.json").read_text())
        assert len(about["not_to_test"]) == 8
        files = sorted(folder.rglob("*.png"))
        digests = pixel_digests(
            ImageSet(torch.stack([read_image(file) for file in files]), torch.zeros(24).long(), "a")
        )
        known = dict(zip(digests, files, strict=True))
        patients = {known[digest].name.split("-")[0] for digest in about["not_to_test"]}
        assert len(patients) == 4
        draw("rows", random).save(folder / "rows" / f"{next(p for p in patients if p[0] == 'r')}-new.png")
        tested = cli("evaluate", out, "--data", folder).out
        assert "patients: 16 images tested" in tested
        assert "intervals are over these" in tested
        other = cli("evaluate", trained, "--data", folder, *group, "--json").out
        assert json.loads(other)["laboratory"]["group"] == group[1]
        assert (trained / "patients-all-group.json").exists()
        assert not (trained / "patients-all.json").exists()
        assert "group: only for the images of --data" in cli("evaluate", trained, *group).err


@pytest.mark.slow
def test_an_adapted_run_knows_its_patients_from_any_folder_and_leaves_out_what_is_broken(
    cli, run, elsewhere, tmp_path, monkeypatch
):
    lab, out, other = tmp_path / "new lab", tmp_path / "adapted", tmp_path / "other"
    shutil.copytree(elsewhere, lab)
    kinds = sorted(path for path in lab.iterdir() if path.is_dir())
    for kind in kinds:
        for number, file in enumerate(sorted(kind.iterdir())):
            file.rename(kind / f"p{number // 2}_{file.name}")
    (kinds[0] / "p0_zero.png").write_bytes(b"")
    other.mkdir()
    monkeypatch.chdir(tmp_path)
    config = json.loads((run / "config.json").read_text())
    config["recipe"]["data"]["skip_broken"] = False
    (run / "config.json").write_text(json.dumps(config))
    words = ("adapt", run, "new lab", "--per-class", 2, "--how", "last", "--steps", 2, "--group", "(p[0-9]+)_")
    refused = cli(*words, "--out", out)
    assert refused.code == 1
    assert "--skip-broken leaves such files out" in refused.err
    answer = cli(*words, "--skip-broken", "--out", out)
    assert answer.code == 0, answer.err
    assert json.loads((out / "adapted.json").read_text())["laboratory"] == str(lab)
    monkeypatch.chdir(other)
    tested = cli("evaluate", out, "--data", "../new lab", "--json")
    assert tested.code == 0, tested.err
    assert json.loads(tested.out)["laboratory"]["group"] == "(p[0-9]+)_"
