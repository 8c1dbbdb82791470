"""All sentences about a run, in one golden file, which `--update-golden` rewrites."""

from dataclasses import replace
from types import SimpleNamespace

import torch

from capsella.data import NamedData, load_data
from capsella.evaluation import Evaluation
from capsella.papers.sabour2017 import recipes
from capsella.report import about_training
from capsella.report.prose import Training, confidence, evaluation_notes, evaluation_warnings, limits, verdict

DIGITS = NamedData("digits", size=28)
NAMES = ("a", "b", "c", "d")


def training(stopped, splits, **changes):
    """The paragraphs about a run of digits, of which epoch 3 of 9 was kept."""
    recipe = replace(recipes.sabour2017_affnist(), data=DIGITS, **changes)
    run = SimpleNamespace(recipe=recipe, model=SimpleNamespace(name="sabour2017_capsnet"))
    summary = {"best": {"epoch": 3.0, "validation_error": 12.5}, "epochs": 9, "stopped": stopped}
    return about_training(run, splits, summary).paragraphs


def evaluations():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(80) % 3
    activations = torch.rand(80, 4, generator=generator) + 0.5 * torch.eye(4)[labels]
    single = Evaluation(activations, labels, NAMES)
    pairs = Evaluation(activations[:4], torch.tensor([[0, 1], [1, 2], [2, 0], [3, 1]]), NAMES)
    constant = Evaluation(torch.eye(4)[torch.zeros(80).long()], labels, NAMES)
    return {
        "one class per image": single,
        "groups": replace(single, group=torch.arange(80) // 20),
        "one group": replace(single, group=torch.zeros(80).long()),
        "a constant prediction": constant,
        "pairs": pairs,
    }


def test_prose(golden):
    splits, stop = load_data(DIGITS), {"reached": True, "at_error": 0.77}
    trainings = {
        "best epoch": training(None, splits),
        "last epoch": training(None, splits, keep="last"),
        "stopped by test images": training({**stop, "on": "test"}, splits),
        "stopped by validation images": training({**stop, "on": "validation"}, splits, stop_on="validation"),
    }
    lines = []
    for name, paragraphs in trainings.items():
        lines += [f"# training: {name}", *paragraphs, ""]
    for name, evaluation in evaluations().items():
        lines += [f"# evaluation: {name}"]
        for function in (evaluation_warnings, lambda of: [verdict(of)], confidence, evaluation_notes):
            lines += [f"- {line}" for line in function(evaluation)]
        lines += [""]
    for name in ("one class per image", "groups", "pairs"):
        lines += [f"# limits: {name}", *limits(evaluations()[name], Training((), name == "pairs")), ""]
    golden("prose.txt", "\n".join(lines))
