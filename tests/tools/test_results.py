"""The pages of results and of speed."""

import json
from pathlib import Path

import pytest

from capsella.errors import CapsellaError
from tools import results, speed

ROOT = Path(results.__file__).parents[1]
ENVIRONMENT = {"gpu": "none", "threads": 2, "cpu": "A processor", "torch": "2", "commit": "c"}
RUN = {
    "command": "capsella train demo --epochs 30",
    "seed": 0,
    "data": "digits",
    "environment": ENVIRONMENT,
    "test": {"images": 359, "errors": 7, "error_percent": 1.9499, "error_interval_95_percent": [0.9474, 3.9706]},
    "training": {"best": {"epoch": 2}, "epochs": 30, "images_per_second": 123.456, "peak_memory_mib": 800.4},
}
TABLE = {
    "title": "A paper, Table 1",
    "command": "capsella papers run x --budget small",
    "measured": "M.",
    "note": "N.",
    "heads": ["data", "paper %", "ours %", "gap"],
    "labels": 1,
    "rows": [{"cells": ["digits", "1.0", "2.0", "+1.0"]}, {"cells": ["others", "1.5", "not run", "–"]}],
}


def timed(milliseconds, rate):
    return {"latency_ms": {"p50": milliseconds}, "throughput": {"images_per_second": rate}}


BENCH = {
    "command": "capsella bench '*'",
    "settings": {"backends": ["eager", "native"]},
    "environment": ENVIRONMENT,
    "networks": {
        "fast": {
            "size": [1, 28, 28], "unavailable": {}, "backends": {"eager": timed(9.94, 120.4), "native": timed(4.06, 80)}
        },
        "none": {"size": [3, 96, 128], "unavailable": {"eager": "differs"}, "backends": {}},
    },
}  # fmt: skip
SHARE = {"estimate": 0.9, "low": 0.85, "high": 0.94}
COMPARISON = {
    "decision": {
        "measure": "accuracy", "finalists": ["a", "b"], "recommended": "b", "detectable_difference": 0.03,
        "reference": "b", "difference_from_reference": {"a": {"estimate": -0.02, "low": -0.05, "high": 0.01}},
    },
    "networks": [
        {"network": "a", "family": "capsules", "title": "A", "accuracy": SHARE},
        {"network": "b", "family": "CNN", "title": "B", "accuracy": SHARE},
    ],
    "classes": {"x": 1, "y": 2}, "images": 400, "folds": 5, "announced_seconds": 900, "seconds": 960,
    "environment": ENVIRONMENT,
}  # fmt: skip
FIGURE = {"title": "Figure 1", "command": "capsella papers run 1", "measured": "M.", "note": "N."}


def test_what_is_added_is_on_the_page(tmp_path):
    folder, source = tmp_path / "results", tmp_path / "new.json"
    for made in (folder / "tables", folder / "figures"):
        made.mkdir(parents=True)
    (folder / "figures.json").write_text("[]")
    (folder / "runs.csv").write_text(",".join(results.COLUMNS) + "\n")
    source.with_suffix(".png").write_bytes(b"")
    pretrained = [COMPARISON["networks"][0], {**COMPARISON["networks"][1], "family": "pretrained"}]
    other = {**COMPARISON, "networks": pretrained, "environment": {**ENVIRONMENT, "gpu": "a GPU"}}
    runs = [(f"run-seed{seed}", {**RUN, "command": f"{RUN['command']} --seed {seed}"}) for seed in (0, 1, 1)]
    for name, values in (
        *runs,
        ("table", TABLE),
        ("latency", BENCH),
        ("cells", COMPARISON),
        ("others", other),
        ("figure", FIGURE),
    ):
        source.write_text(json.dumps(values))
        results.add(name, source, folder)
    page = results.markdown(folder).removeprefix(results.HEADER)
    rows = [line for line in page.splitlines() if line.startswith("|") and "---" not in line]
    assert rows == [
        "| run | `capsella train demo --epochs 30` | 30 | 1.95, 1.95 |",
        "| images of | classes | tested | folds | measure | capsules | CNN | pretrained | capsules − CNN, points | "
        "detects | recommended | minutes announced | minutes | machine |",
        "| cells | 2 | 400 | 5 | accuracy | 90.0 (85.0 to 94.0) | 90.0 (85.0 to 94.0) | – | -2.0 (-5.0 to +1.0) | "
        "3.0 | B | 15 | 16 | 2 threads, A processor |",
        "| others | 2 | 400 | 5 | accuracy | 90.0 (85.0 to 94.0) | – | 90.0 (85.0 to 94.0) | – | 3.0 | B | "
        "15 | 16 | a GPU |",
        "| network | image | fastest | p50 ms | under 50 ms | images/s |",
        "| fast | 28×28×1 | native | 4.1 | yes | 120 |",
        "| none | 96×128×3 | none |  | no |  |",
        "| data | paper % | ours % |",  # the JSON has the gap
        "| digits | 1.0 | 2.0 (short) |",
        "| others | 1.5 | not run |",
    ]
    assert page.endswith("![Figure 1](../../results/figures/figure.png)\n")
    source.write_text('{"test": 1}')
    with pytest.raises(CapsellaError, match="new"):
        results.add("run", source, folder)
    (folder / "figures" / "figure.png").unlink()
    with pytest.raises(CapsellaError, match="figure"):
        results.markdown(folder)


def test_the_committed_pages_are_what_the_committed_results_make():
    for name, page in (("results", results.markdown()), ("speed", speed.markdown())):
        assert (ROOT / "docs" / "reference" / f"{name}.md").read_text(encoding="utf-8") == page, "run `make results`"


def case(op, batch, training, **seconds):
    timings = {name: {"median": median, "rounds": 3} for name, median in seconds.items()}
    shown = {"case": f"{op}/b{batch}", "op": op, "batch": batch, "training": training}
    return {**shown, "memory_mib": {}, "timings": timings}


def test_the_summary_of_speed_has_the_largest_batch_of_the_largest_measurement(tmp_path):
    values = {"device": "cpu", "environment": ENVIRONMENT}
    many = [
        case("em-classes", 8, False, plain=0.2, native=0.01),
        case("em-classes", 32, False, plain=0.8, eager=0.04, native=0.02),
        case("em-classes", 32, True, plain=3.0, native=0.1),
        case("em-classes", 64, True, native=0.2),
    ]
    for name, cases in (("all", many), ("before", [case("em-classes", 32, False, plain=0.3, native=0.1)])):
        (tmp_path / "measured.json").write_text(json.dumps(values | {"cases": cases}))
        speed.add(name, tmp_path / "measured.json", tmp_path / "speed.json")
    page = speed.markdown(tmp_path / "speed.json")
    summary = page.partition("## Where")[0]
    assert [line for line in summary.splitlines() if line.startswith("| ")][1:] == [
        "| EM routing, class capsules | forward | 32 | 20 | 800 | 40 | 2 | – | – |",
        "| EM routing, class capsules | forward, backward | 32 | 100 | 3,000 | 30 | – | – | – |",
    ]
    (tmp_path / "speed.json").write_text('{"a": {}}')
    with pytest.raises(CapsellaError, match="speed"):
        speed.markdown(tmp_path / "speed.json")
