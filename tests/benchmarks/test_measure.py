"""Parity that sees small mistakes, and what is measured of a case."""

import json
import math

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks.cases import select
from benchmarks.measure import EAGER, PLAIN, Parity, parity, peak_memory_mib, run_case

CPU = torch.device("cpu")
QUICK = {"device": CPU, "repeats": 2, "seconds": 0.0, "memory": False}


class TestParity:
    def test_right_results(self, em, dense, good):
        for op, tensors in ((em, 9), (dense, 7)):
            rows = parity(op, 2, good, CPU)
            assert len(rows) == tensors
            assert all(row.agrees and row.error == row.eager_error for row in rows)
            assert all(row.agrees for row in parity(op, 2, PLAIN, CPU))

    def test_a_small_mistake(self, em, broken):
        wrong = {row.tensor for row in parity(em, 2, broken, CPU) if not row.agrees}
        gradients = {"gradient of routing_parameters.beta_a", "gradient of routing_parameters.beta_u"}
        assert {"activations", "activations without gradients"} | gradients <= wrong

    def test_errors_are_relative_to_eager_and_nan_is_wrong(self):
        assert Parity("", error=5e-7, eager_error=0.0, factor=4).agrees
        assert Parity("", error=3e-4, eager_error=1e-4, factor=4).agrees
        assert not Parity("", error=5e-4, eager_error=1e-4, factor=4).agrees
        assert not Parity("", error=math.nan, eager_error=1e-4, factor=4).agrees


@pytest.mark.usefixtures("as_users_call")
def test_a_case_has_times_and_ratios_and_contenders_that_are_wrong_or_absent_have_none(case, good, broken, absent):
    result = run_case(case, (PLAIN, EAGER, good, broken, absent), **QUICK)
    assert list(result.timings) == ["plain", "eager", "good"]
    assert list(result.wrong) == ["broken"]
    assert "abacus" in result.unavailable["absent"]
    assert result.ratio("good", "plain") == result.timings["plain"].median / result.timings["good"].median
    assert result.ratio("good", "absent") is None


@pytest.mark.usefixtures("as_users_call")
def test_the_command(case, good, broken, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(command, "select", lambda pattern: (case,))
    quick = ["--repeats", "1", "--seconds", "0", "--no-memory", "--json", str(tmp_path / "bench.json")]
    for words in (["tiny", *quick], ["tiny", "--verify"]):
        assert command.main(words, (EAGER, good)) == 0
        assert "tiny-em/b2/training" in capsys.readouterr().out
        assert command.main(words, (EAGER, broken)) == 1
    document = json.loads((tmp_path / "bench.json").read_text())
    assert {"commit", "threads", "torch"} <= set(document["environment"])
    (entry,) = document["cases"]
    assert (entry["case"], list(entry["timings"]), entry["wrong"]) == ("tiny-em/b2/training", ["eager"], ["broken"])
    assert any(not row["agrees"] for row in entry["parity"]["broken"])


def test_memory_is_measured_in_a_fresh_process():
    """A process that did other work would serve a step from memory that it holds already."""
    (case,) = select("em-classes/b32/training")
    votes_mib = 32 * 512 * 5 * 16 * 4 / 2**20
    assert 3 * votes_mib < peak_memory_mib(case, "plain") < 100 * votes_mib
