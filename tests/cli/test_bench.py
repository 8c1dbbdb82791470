"""`capsella bench`, in every backend and with --training."""

import json

import torch

from capsella.bench.backends import BACKENDS
from capsella.data import ImageSet
from capsella.models import create_model


def small():
    model = create_model("sabour2017_cnn", image_size=6)
    pixels = torch.randint(256, (5, 1, 6, 6), dtype=torch.uint8)
    return model, ImageSet(pixels, torch.zeros(5, dtype=torch.long), model.classes)


class TestBackends:
    def test_a_run_as_table_and_json(self, cli, trained, tmp_path):
        words = ["bench", trained, "--backends", "eager", "native", "--threads", 1, "--calls", 100]
        answer = cli(*words, "--out", tmp_path / "b.json")
        assert answer.code == 0, answer.err
        whole = json.loads((tmp_path / "b.json").read_text())
        (values,) = whole["networks"].values()
        assert values["threads"] == whole["environment"]["threads"] == 1
        assert f"{values['model']}, 1 thread;" in answer.out
        assert "training images of images-capsnet" in answer.out
        assert BACKENDS["eager"] in answer.out
        for name, row in values["backends"].items():
            latency = row["latency_ms"]
            assert 0 < latency["p50"] <= latency["p95"] <= latency["p99"], name
            assert f"{latency['p50']:.2f}" in answer.out
            assert latency["calls"] == 100
            assert row["throughput"]["images_per_second"] > 0
            assert row["largest_difference_from_eager"] < 1e-4
        assert set(values["backends"]) | set(values["unavailable"]) == {"eager", "native"}

    def test_several_networks_go_on_where_they_stopped(self, cli, tmp_path, monkeypatch):
        made = []

        def tiny(name):
            made.append(name)
            if name == "sabour2017_cnn" and len(made) == 2:
                raise KeyboardInterrupt
            return *small(), "random images, fresh weights"

        monkeypatch.setattr("capsella.cli.bench._model_and_images", tiny)
        out, words = tmp_path / "b.json", ["--backends", "eager", "--calls", 100, "--threads", 1]
        names = ["sabour2017_capsnet", "sabour2017_cnn", "sabour2017_cn?"]
        cli("bench", *names, *words, "--out", out)
        first = json.loads(out.read_text())["networks"]
        assert list(first) == ["sabour2017_capsnet"]
        answer = cli("bench", *names, *words, "--out", out, "--resume")
        assert answer.code == 0, answer.err
        assert made == ["sabour2017_capsnet", "sabour2017_cnn", "sabour2017_cnn"]  # once each, but for the interruption
        assert "sabour2017_cnn: network 2 of 2" in answer.err
        values = json.loads(out.read_text())
        assert list(values["networks"]) == ["sabour2017_capsnet", "sabour2017_cnn"]
        assert values["networks"]["sabour2017_capsnet"] == first["sabour2017_capsnet"]
        assert values["command"].startswith("capsella bench sabour2017_capsnet sabour2017_cnn 'sabour2017_cn?' --back")

        answer = cli("bench", *names, *words[:-1], 2, "--out", out, "--resume")
        assert "b.json was measured with threads 1, not 2" in answer.err
        for name in ("cpu", "torch", "commit"):
            out.write_text(json.dumps(values | {"environment": values["environment"] | {name: "an abacus"}}))
            answer = cli("bench", *names, *words, "--out", out, "--resume")
            assert f"was measured with {name} an abacus, not {values['environment'][name]}: the times" in answer.err
        out.write_text("[]")
        assert "b.json is no file of capsella bench" in cli("bench", *names, *words, "--out", out, "--resume").err

    def test_names_that_are_none(self, cli):
        assert "networks: must name at least one run or network" in cli("bench").err
        rule = "networks: must be folders of runs or registered networks, got"
        assert f"{rule} 'no*'; `capsella models` lists these" in cli("bench", "no*").err
        assert f"{rule} 'sabour2017_capsnt'; did you mean sabour2017_capsnet" in cli("bench", "sabour2017_capsnt").err
        assert "resume: must come with --out" in cli("bench", "hinton2018_cnn", "--resume").err
        assert "did you mean sabour2017_capsnet" in cli("bench", "sabour2017_capsnt").err
        assert "backends: must be a registered name, got 'egaer'; did you mean eager" in (
            cli("bench", "hinton2018_cnn", "--backends", "egaer").err
        )
        assert "calls: must be at least 100" in cli("bench", "hinton2018_cnn", "--calls", 9, "--backends", "eager").err


class TestTraining:
    QUICK = ("--size", "17", "--classes", "3", "--repeats", "1", "--seconds", "0", "--batch", "1")

    def test_with_and_without_decoder(self, cli, tmp_path):
        out = tmp_path / "t.json"
        words = ["hinton2018_matrix_*_small", "hinton2018_cnn", *self.QUICK, "--channels", "2", "--out", out]
        answer = cli("bench", "--training", *words)
        assert answer.code == 0
        assert "thread" in answer.out
        values = json.loads(out.read_text())
        name = "hinton2018_matrix_capsnet_small"
        assert [row["network"] for row in values["rows"][:3]] == [name, f"{name} + decoder", "hinton2018_cnn"]
        assert [row["decoder"] for row in values["rows"][:3]] == [False, True, False]
        assert values["base"] == name
        assert {(*row["image_size"], row["channels"]) for row in values["rows"]} == {(17, 17, 2)}
