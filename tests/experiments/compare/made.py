"""A short comparison of three small networks, from the command line."""

from contextlib import contextmanager

import pytest

from capsella.cli import main
from capsella.experiments.compare import contenders, plan
from capsella.experiments.compare.plan import Cost

NETWORKS = ("hinton2018_matrix_capsnet_small", "hinton2018_cnn", "backbone_linear")
SIZE = 17
FLAGS = ("--networks", *NETWORKS, "--no-fine-tune", "--size", SIZE, "--minutes", 0.01, "--accelerator", "cpu")


@contextmanager
def fixed_speed():
    """Trainings of one epoch, whatever the speed of the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "_measure", lambda each, _: Cost(0.0 if each.is_fitted else 0.03, 1e-4))
        patch.setattr(contenders, "LEAST_EPOCHS", 1)
        patch.setattr(plan, "ENOUGH_EPOCHS", 0.0)
        patch.setattr(plan, "TOLERANCE", 1e9)
        patch.setattr("capsella.bench.stopwatch.MIN_CALLS", 10)
        yield


def call(*words):
    with fixed_speed():
        main(["compare", *map(str, words)])
