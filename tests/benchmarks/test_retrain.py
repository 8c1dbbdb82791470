"""Both backends see the same batches, and their losses agree."""

from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.retrain import Retraining, retrain
from capsella import _native


@pytest.mark.skipif(_native.UNAVAILABLE is not None, reason="needs the native kernels")
def test_native_and_eager_take_the_same_steps() -> None:
    result = retrain(Retraining("demo", Path("unused.json"), steps=3), Console(quiet=True))
    losses = result["losses"]
    assert len(losses["native"]) == len(losses["eager"]) == len(losses["nudged"]) == 3
    assert losses["native"] == pytest.approx(losses["eager"], rel=1e-4)
    assert losses["native"][0] != pytest.approx(losses["native"][1], rel=1e-4)
    assert result["largest_relative_difference_from_eager"]["native"].keys() == {"1"}
    assert result["times_as_fast"] > 0


def test_steps_must_be_positive() -> None:
    with pytest.raises(ValueError, match=r"steps: must be at least 1, got 0"):
        retrain(Retraining("demo", Path("unused.json"), steps=0), Console(quiet=True))
