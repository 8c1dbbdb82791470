import json

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks.cases import CASES, cases_of, select
from benchmarks.contenders import COMPILE, EAGER, PLAIN, UnavailableError, contenders_of
from benchmarks.memory import largest_batch, peak_memory_mib
from benchmarks.runner import Options, Verdict, run_case

CPU = torch.device("cpu")
QUICK = Options(CPU, repeats=2, seconds=0.0, memory=False)


def test_a_case_has_times_ratios_and_bars(case, yardsticks, good):
    result = run_case(case, (*yardsticks, good), QUICK, {})
    assert list(result.timings) == ["plain", "eager", "good"]
    assert not result.refused
    ratio = result.timings["plain"].median / result.timings["good"].median
    assert result.ratio("good", "plain") == ratio
    assert result.ratio("good", "compile") is None
    met = {row.what: row.met for row in result.verdicts("good")}
    assert met == {"times as fast as plain": True, "images/s": False}


def test_bars_are_lower_or_upper_bounds():
    assert Verdict("", 2.0, 1.0, least=True).met
    assert not Verdict("", 2.0, 1.0, least=False).met
    assert Verdict("", 1.0, 1.0, least=False).met


def test_wrong_results_have_no_speed(case, yardsticks, good, broken):
    result = run_case(case, (*yardsticks, broken, good), QUICK, {})
    assert list(result.timings) == ["plain", "eager", "good"]
    assert list(result.refused) == ["broken"]
    assert result.verdicts("broken") == []


@pytest.mark.usefixtures("as_users_call")
def test_what_is_not_there_is_named(case, yardsticks, absent):
    result = run_case(case, (*yardsticks, absent), QUICK, {})
    assert "abacus" in result.unavailable["absent"]
    assert list(result.timings) == ["plain", "eager"]


@pytest.mark.parametrize("words", [["tiny"], ["verify", "tiny"]])
def test_exit_codes(words, case, good, broken, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(command, "cases_of", lambda device: (case,))
    quick = [] if words[0] == "verify" else ["--repeats", "1", "--seconds", "0", "--no-memory"]
    assert command.main([*words, *quick], (EAGER, good)) == 0
    out = capsys.readouterr().out
    assert "refused" not in out
    assert ("% of peak" in out) == (words[0] != "verify")
    assert command.main([*words, *quick], (EAGER, broken)) == 1
    out = capsys.readouterr().out
    assert "tiny-em/b2/training: broken refused" in out
    assert "images/s, bar" not in out


@pytest.mark.usefixtures("as_users_call")
def test_json(case, good, broken, absent, monkeypatch, tmp_path):
    monkeypatch.setattr(command, "cases_of", lambda device: (case,))
    path = tmp_path / "bench.json"
    words = ["--repeats", "1", "--seconds", "0", "--no-memory", "--json", str(path)]
    assert command.main(words, (PLAIN, EAGER, good, broken, absent)) == 1
    document = json.loads(path.read_text())
    assert {"commit", "threads", "torch"} <= set(document["environment"])
    assert document["peak_flops_per_second"] > 0
    (entry,) = document["cases"]
    assert entry["case"] == "tiny-em/b2/training"
    assert set(entry["timings"]) == {"plain", "eager", "good"}
    assert entry["refused"] == ["broken"]
    assert set(entry["unavailable"]) == {"absent"}
    assert [bar["met"] for bar in entry["bars"]["good"]] == [True, False]
    assert any(not row["agrees"] for row in entry["parity"]["broken"])


def test_errors_are_one_line(capsys):
    assert command.main(["capsnett/b1"]) == 1
    assert "pattern: must be a registered name, got 'capsnett/b1'" in capsys.readouterr().out


def test_the_registry():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert {case.name for case in select(CASES, "em-conv1-types")} == {
        "em-conv1-types/b8/forward",
        "em-conv1-types/b8/training",
    }
    assert {case.batch for case in select(CASES, "*/training")} == {1, 8, 16, 32, 128}
    on_gpu = cases_of(torch.device("cuda"))
    assert {case.batch for case in on_gpu} == {64, 128, 256}
    assert {case.op for case in on_gpu} == {case.op for case in CASES}
    assert [one.name for one in contenders_of(torch.device("cuda"), compiled=True)] == [
        *("plain", "eager", "compile", "triton", "bare")
    ]


def test_memory_is_measured_in_a_fresh_process():
    """A process that ran other work would serve a step from memory that it holds already."""
    (case,) = select(CASES, "em-classes/b32/training")
    votes_mib = 32 * 512 * 5 * 16 * 4 / 2**20
    assert 3 * votes_mib < peak_memory_mib(case, PLAIN, CPU) < 100 * votes_mib


def test_the_largest_batch_needs_a_gpu(case):
    with pytest.raises(ValueError, match="device: must be cuda for the largest batch, got cpu"):
        largest_batch(case, EAGER, CPU)


def test_what_torch_compile_gets_wrong_is_not_run() -> None:
    (case,) = select(CASES, "dynamic-dense/b1/training")
    with pytest.raises(UnavailableError, match="corrupts memory"):
        COMPILE.step(case, torch.device("cpu"))
