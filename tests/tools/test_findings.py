"""The table of findings: adjusted p-values, what runs add, and the page."""

import csv
import json

from tools import findings

GAIN = {"estimate": 0.02, "low": 0.01, "high": 0.03, "p": 0.001, "detectable": 0.015}
RUN = {"recipe": {"epochs": 100}, "data": "pbc"}


def row(name, p, not_tested=""):
    numbers = {"gain": "1.5", "low": "0.5", "high": "2.5", "p": p, "not_tested": not_tested}
    return dict.fromkeys(findings.COLUMNS, "") | {"finding": name} | numbers


def few_images(gain):
    errors = {"Efficient-CapsNet": [5.0, 6.0], "average pooling": [7.0, 8.0]}
    rows = [
        {"cells": ["5", name], "label": [5, name], "error_percent": error, "runs": [RUN], "gain": gain if n else None}
        for n, (name, error) in enumerate(errors.items())
    ]
    heads = ["images per class", "network"]
    return {"title": "t", "command": "c", "measured": "m", "note": "n", "heads": heads, "labels": 2, "rows": rows}


def test_findings_from_runs_to_the_page(tmp_path):
    results, runs, page = tmp_path / "results", tmp_path / "runs" / "few", tmp_path / "page.md"
    for folder in (results / "tables", results / "figures", runs):
        folder.mkdir(parents=True)
    with (results / "findings.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, findings.COLUMNS)
        writer.writeheader()
        writer.writerows([row("an old one", "0.03"), row("untested", "0.001", "one seed of a row")])
    (runs / "few.json").write_text(json.dumps(few_images(GAIN)))
    assert findings.collect(runs.parent, results) == ["few"]
    old, untested, new = findings.read(results)
    assert (old["holm"], untested["holm"], new["holm"]) == ("0.03", "", "0.002")
    assert (new["gain"], new["error_better"], new["error_worse"]) == ("2", "5.5", "7.5")
    assert [findings.outcome(found) for found in (old, untested)] == ["lower error", "not tested: one seed of a row"]
    findings.collect(runs.parent, results)
    assert len(findings.read(results)) == 3  # the same comparison replaces itself
    results_of = [
        {
            "recipe": name,
            "trained_on": ["pbc"],
            "tested_on": "labs/one.npz",
            "error_percent_by_seed": errors,
            "gain": gain,
        }
        for name, errors, gain in (("capsules", [20.0, 22.0], None), ("cnn", [25.0, 23.0], GAIN))
    ]
    (runs / "domains.json").write_text(json.dumps({"results": results_of}))
    findings.collect(runs.parent, results)
    moved = findings.read(results)[-1]
    assert moved["finding"] == "one, trained on pbc: capsules over cnn"
    assert (moved["gain"], moved["error_better"], moved["error_worse"]) == ("2", "21", "24")
    page.write_text("before\n<!-- findings -->\nold\n<!-- end -->\nafter\n")
    findings.write(results, page)
    text = page.read_text()
    assert text.startswith("before\n<!-- findings -->\n| comparison |")
    assert text.endswith("<!-- end -->\nafter\n")
    assert text.index("pbc, 5 images per class") < text.index("untested")
    assert (results / "figures" / "findings.png").stat().st_size > 1000
