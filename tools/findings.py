"""The findings: results/findings.csv, its forest plot, and the tables of docs/papers/findings.md.

- `python -m tools.findings`: draw results/figures/findings.png and write the tables between the page's markers.
- `python -m tools.findings collect RUNS`: add what finished in a folder of runs (made by `capsella papers run … --out
  RUNS/NAME`): tables to results/tables, and comparisons of few-images, viewpoint-curves, training-lengths and
  overlapping-digits to findings.csv; also those of `capsella compare DOMAIN DOMAIN… --out RUNS/NAME`.
"""

import csv
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from capsella.errors import CapsellaError
from capsella.evaluation import holm_adjusted
from capsella.files import read_json, write_text
from capsella.papers.few_images import SOURCES
from capsella.report.figures import ForestLine, forest_figure, write_png
from tools.results import RESULTS, add, markdown_row

PAGE = RESULTS.parent / "docs" / "papers" / "findings.md"
COLUMNS = (
    *("finding", "experiment", "better", "worse", "paper_better", "paper_worse", "error_better", "error_worse"),
    *("gain", "low", "high", "p", "detects", "images", "paper_images", "not_tested"),
)
HEADS = (
    *("comparison", "paper %", "ours %", "gain, points", "95 % interval", "p, Holm", "detects"),
    *("images, ours / paper", "outcome"),
)
LEVEL = 0.05
DOMAIN_IMAGES = "90,000"  # seen in a training of `capsella compare` with several domains, by its recipes for cells

Row = dict[str, str]


def read(folder: Path = RESULTS) -> list[Row]:
    """Return the rows of findings.csv, each with its adjusted p-value ("" if it is not tested)."""
    with (folder / "findings.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    tested = [row for row in rows if row["p"] and not row["not_tested"]]
    for row in rows:
        row["holm"] = ""
    for row, p_value in zip(tested, holm_adjusted([float(row["p"]) for row in tested]), strict=True):
        row["holm"] = f"{p_value:.2g}"
    return rows


def outcome(row: Mapping[str, str]) -> str:
    """Return the outcome of a comparison in a few words."""
    if row["not_tested"]:
        return f"not tested: {row['not_tested']}"
    if float(row["holm"]) >= LEVEL:
        return "no difference detected"
    return "lower error" if float(row["gain"]) > 0 else "higher error"


def figure_lines(rows: Sequence[Mapping[str, str]]) -> list[ForestLine]:
    """Return the lines of the forest plot: every row with an interval."""
    return [
        ForestLine(
            label=row["finding"],
            gain=float(row["gain"]),
            low=float(row["low"]),
            high=float(row["high"]),
            p_value=float(row["holm"]) if row["holm"] else None,
        )
        for row in rows
        if row["low"]
    ]


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the Markdown table, tested comparisons first."""
    text = markdown_row(*HEADS) + "|---|" + "---:|" * 6 + "---|---|\n"
    for row in sorted(rows, key=lambda row: bool(row["not_tested"])):
        gain, low, high = (
            f"{float(row[name]):+.2f}".replace("-", "−") if row[name] else "–" for name in ("gain", "low", "high")
        )
        text += markdown_row(
            row["finding"],
            _pair(row, "paper"),
            _pair(row, "error"),
            gain,
            f"{low} to {high}" if row["low"] else "–",
            row["holm"] or "–",
            f"{float(row['detects']):.2f}" if row["detects"] else "–",
            f"{row['images']} / {row['paper_images']}",
            outcome(row),
        )
    return text


def _pair(row: Mapping[str, str], name: str) -> str:
    values = [row[f"{name}_{side}"] for side in ("better", "worse")]
    return " and ".join(f"{float(value):.3g}" for value in values) if all(values) else "–"


def write(folder: Path = RESULTS, page: Path = PAGE) -> None:
    """Draw the forest plot, and write the table into the page, between its markers."""
    rows = read(folder)
    write_png(forest_figure(figure_lines(rows)), folder / "figures" / "findings.png")
    text = page.read_text(encoding="utf-8")
    parts = re.split(r"(?<=<!-- findings -->\n).*?(?=<!-- end -->)", text, maxsplit=1, flags=re.DOTALL)
    write_text(page, table(rows).join(parts))


def collect(runs: Path, folder: Path = RESULTS) -> list[str]:
    """Add the tables and comparisons that a folder of runs has; return the names of the tables.

    Raises:
        CapsellaError: findings.csv or a table is damaged.
    """
    with (folder / "findings.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["finding"]: row for row in csv.DictReader(file)}
    names = []
    for path in sorted(runs.glob("*/*.json")):
        if path.stem not in (path.parent.name, f"{path.parent.name}-pretrained"):
            continue
        add(path.stem, path, folder)
        names.append(path.stem)
        rows |= {row["finding"]: row for row in comparisons(read_json(path))}
    for path in sorted(runs.glob("*/domains.json")):
        rows |= {row["finding"]: row for row in domain_comparisons(read_json(path))}
    with (folder / "findings.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows.values())
    return names


def comparisons(values: Mapping[str, Any]) -> Iterator[Row]:
    """Yield a row of findings.csv for each comparison in a table of our own: see `collect`."""
    own, rows = values["heads"][:2], values["rows"]
    if values["heads"][:3] == ["data", "routing", "images"]:
        for row in rows:
            if row["gain"] is not None:
                data, routing, images = row["label"]
                twin = {"label": [data, "uniform couplings"], "error_percent": row["uniform_error_percent"]}
                name = f"{data}, benchmark network, {images} images: {routing} routing over uniform couplings"
                yield _row(name, "training-lengths", row, twin, row["gain"], images, "error_percent")
    if own == ["images per class", "network"]:
        for row in rows:
            if row["gain"] is not None:
                size, network = row["label"]
                first = next(other for other in rows if other["label"] == [size, "Efficient-CapsNet"])
                data, epochs = row["runs"][0]["data"], first["runs"][0]["recipe"]["epochs"]
                seen = f"{epochs * size * SOURCES[data].classes:,}"
                name = f"{data}, {size} images per class: Efficient-CapsNet over {network}"
                yield _row(name, "few-images", first, row, row["gain"], seen, "error_percent")
    if own == ["data", "class capsules"]:
        for row in rows[:-1]:
            if row["gain"] is not None:
                recipe = row["runs"][0]["recipe"]
                seen = f"{recipe['epochs'] * recipe['epoch_images']:,}"
                name = f"Pairs of digits: {row['label'][1]} over uniform couplings"
                yield _row(name, "overlapping-digits", row, rows[-1], row["gain"], seen, "error_percent")
    if own == ["viewpoints by", "network"]:
        for row in rows:
            if (gain := row["gain_at_equal_familiar_error"]) is not None:
                by, network = row["label"]
                first = next(other for other in rows if other["label"] == [by, "EM"])
                data = row["runs"][0]["data"]
                name = f"{data}, novel {by}s at equal familiar error: EM over {network}"
                yield _row(name, "viewpoint-curves", first, row, gain, "16,000", "novel_error_percent")


def domain_comparisons(values: Mapping[str, Any]) -> Iterator[Row]:
    """Yield a row of findings.csv for each domain and each recipe that is compared with the first one."""
    results = [{**result, "label": [result["tested_on"], result["recipe"]]} for result in values["results"]]
    for second in results:
        if (gain := second.get("gain")) is not None:
            where = second["trained_on"], second["tested_on"]
            first = next(other for other in results if (other["trained_on"], other["tested_on"]) == where)
            home, away = " and ".join(Path(one).stem for one in where[0]), Path(where[1]).stem
            name = f"{away}, trained on {home}: {first['recipe']} over {second['recipe']}"
            yield _row(name, "domains", first, second, gain, DOMAIN_IMAGES, "error_percent_by_seed")


def _row(
    name: str, experiment: str, first: Any, second: Any, gain: Mapping[str, float], images: str, errors: str
) -> Row:
    means = [sum(row[errors]) / len(row[errors]) for row in (first, second)]
    seen = f"{images} × {len(second[errors])} seeds"
    numbers = {
        "error_better": means[0],
        "error_worse": means[1],
        "gain": 100 * gain["estimate"],
        "low": 100 * gain["low"],
        "high": 100 * gain["high"],
        "p": gain["p"],
        "detects": 100 * gain["detectable"],
    }
    texts = {"better": str(first["label"][1]), "worse": str(second["label"][1]), "images": seen, "paper_images": "–"}
    return {
        "finding": name,
        "experiment": experiment,
        **texts,
        **{key: f"{value:.4g}" for key, value in numbers.items()},
    }


def main() -> None:
    """Collect runs if asked, and write figure and page."""
    words = sys.argv[1:]
    if words[:1] == ["collect"] and len(words) == 2:
        print(*collect(Path(words[1])), sep="\n")
    elif words:
        raise CapsellaError("give nothing, or: collect RUNS")
    write()


if __name__ == "__main__":
    main()
