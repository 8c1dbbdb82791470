"""The page of speeds says what its JSON says."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from capsella.errors import CapsellaError
from tools.speed import markdown


def test_a_row_for_every_case(tmp_path: Path) -> None:
    code = main(
        [
            "dynamic-dense/b1/forward",
            "--repeats",
            "1",
            "--seconds",
            "0",
            "--no-memory",
            "--json",
            f"{tmp_path}/here.json",
        ]
    )
    assert code == 0
    page = markdown(tmp_path)
    (row,) = (line for line in page.splitlines() if line.startswith("| dynamic-dense/b1/forward |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert "## here" in page
    plain, eager, native = (float(cells[column]) for column in (1, 2, 4))
    assert min(plain, eager, native) > 0
    assert float(cells[6]) == pytest.approx(plain / native, rel=0.02)
    assert "times as fast as plain" in cells[-1]
    assert "| dynamic routing, CapsNet's digit capsules | forward | 1 | " in page.partition("## here")[0]


def _case(op: str, batch: int, training: bool, **seconds: float) -> dict[str, Any]:
    return {
        "case": f"{op}/b{batch}", "op": op, "batch": batch, "training": training, "flops": 2e6,
        "bars": {}, "memory_mib": {},
        "timings": {name: {"median": median} for name, median in seconds.items()},
    }  # fmt: skip


def test_the_summary_has_the_largest_batch_of_each_op_and_direction(tmp_path: Path) -> None:
    values = {
        "device": "cpu",
        "environment": {"threads": 2, "cpu": "A processor", "torch": "2", "commit": "c"},
        "peak_flops_per_second": 1e9,
        "cases": [
            _case("em-classes", 8, False, plain=0.2, native=0.01),
            _case("em-classes", 32, False, plain=0.8, eager=0.04, native=0.02),
            _case("em-classes", 32, True, plain=3.0, native=0.1),
            _case("em-classes", 64, True, native=0.2),
        ],
    }
    (tmp_path / "here.json").write_text(json.dumps(values))
    summary = markdown(tmp_path).partition("## Summary")[2].partition("## Where")[0]
    assert [line for line in summary.splitlines() if line.startswith("| ")][1:] == [
        "| EM routing, class capsules | forward | 32 | 20 | 800 | 40 | 2 | 0.002 | 10 | [here](#here) |",
        "| EM routing, class capsules | forward, backward | 32 | 100 | 3,000 | 30 | – | 0.002 | 2 | [here](#here) |",
    ]


def test_the_summary_prefers_the_file_with_the_most_cases(tmp_path: Path) -> None:
    values = {
        "device": "cpu",
        "environment": {"threads": 2, "cpu": "A processor", "torch": "2", "commit": "c"},
        "peak_flops_per_second": 1e9,
    }
    more = [_case("em-classes", 8, False, plain=0.2, native=0.1), _case("em-classes", 8, True, plain=3.0, native=1.0)]
    one = [_case("em-classes", 8, False, plain=0.3, native=0.1)]
    for name, cases in (("all", more), ("before", one), ("after", one)):
        (tmp_path / f"{name}.json").write_text(json.dumps(values | {"cases": cases}))
    summary = markdown(tmp_path).partition("## Summary")[2].partition("## Where")[0]
    assert "| 200 | 2 |" in summary
    assert "(#before)" not in summary
    assert "(#after)" not in summary


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(
        CapsellaError, match=r"other\.json is not a result of the benchmarks: KeyError\('environment'\)"
    ):
        markdown(tmp_path)
