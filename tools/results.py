"""Committed results, and docs/reference/results.md, which `make results` generates from them.

- `python -m tools.results add NAME FILE`: add the JSON of a run (result.json), a comparison (comparison.json), a table,
  a figure or `capsella bench` to `results/`.
- `python -m tools.results`: print the page.

`results/` holds runs.csv, a row per single run; tables/NAME.json; figures.json with figures/NAME.png; and speed.json,
which `tools.speed` reads. Pages name whatever else is in it.
"""

import argparse
import csv
import json
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from capsella.environment import hardware
from capsella.errors import CapsellaError
from capsella.papers.table_types import caveated_cells

RESULTS = Path(__file__).parent.parent / "results"
HEADER = """# Results

Generated from `results/` by `make results`. The JSON of each table has more columns and notes on how it was made;
`results/runs.csv` has the machine, commit, interval and speed of each run.

- Error rates are in per cent of the test images. Intervals are 95 %, over test images (objects on smallNORB) and seeds.
- *Few images*: the paper's training saw at least ten times as many. *Short* rows compare with each other only.
- Validation images choose the epoch and the learning rate. Tables that stop networks at an error use test images for
  that.

## Single trainings

One number per seed.

| result | command | epochs | error % |
|---|---|---:|---:|
"""
SHORT_EPOCHS = 12
COLUMNS = (
    *("result", "command", "seed", "data", "images", "errors", "error_percent", "low", "high", "interval_over"),
    *("too_narrow", "epoch", "epochs", "images_per_second", "peak_memory_mib", "hardware", "torch", "commit"),
)
SHORT_TRAININGS = (
    "**Short trainings**: these rows compare with each other, and say nothing of where a network ends; not to be held "
    "against the paper's."
)
FEW_IMAGES = (
    "**Few images**: the rate of these trainings has fallen to nothing, but they saw far fewer images than published "
    "ones. More would still help, and may turn a comparison."
)
ADJUSTED = (
    "p is adjusted within this table; the [findings](../papers/findings.md) adjust it over all comparisons, and decide"
)
MOST_ROWS = 24  # tables of more rows, except those of few images, are left to their JSON
# Heads of columns that readers of the page can do without.
ONLY_IN_JSON = {
    *(
        "gap",
        "train loss",
        "validation loss",
        "images/s",
        "rate",
        "seeds %",
        "training %",
        "gain over CNN (flattened), points",
        "gain over CNN, points",
    ),
    *("unattacked, right %", "attacked, right %", "entropy", "training, images/s", "ms an image", "memory MiB"),
}
FAMILIES = ("capsules", "CNN", "pretrained")
BAR_MS = 50.0  # most milliseconds per image on the instrument of the thesis (Forslöv 2018)


def markdown(folder: Path = RESULTS) -> str:
    """Return docs/reference/results.md.

    Raises:
        CapsellaError: a file is damaged or lacks a field.
    """
    text, path = HEADER, folder / "runs.csv"
    try:
        with path.open(encoding="utf-8", newline="") as file:
            text += _run_rows(list(csv.DictReader(file)))
        for path in sorted((folder / "tables").glob("*.json")):
            text += _section(path.stem, json.loads(path.read_text(encoding="utf-8")))
        path = folder / "figures.json"
        for figure in json.loads(path.read_text(encoding="utf-8")):
            text += _figure(folder, figure)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise CapsellaError(f"{path}: {error!r}") from error
    return text


def _run_rows(rows: Sequence[Mapping[str, str]]) -> str:
    """Return one row for all seeds of a recipe; trainings of fewer than `SHORT_EPOCHS` are left out."""
    series: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        if int(row["epochs"]) >= SHORT_EPOCHS:
            name, command = re.sub(r"-seed\d+", "", row["result"]), re.sub(r" --seed \d+", "", row["command"])
            errors = series.setdefault((name, f"`{command}`", row["epochs"]), [])
            errors.append(f"{float(row['error_percent']):.2f}")
    return "".join(markdown_row(*key, ", ".join(errors)) for key, errors in series.items())


def _section(name: str, values: Mapping[str, Any]) -> str:
    """Return a section of the page, without the columns that only the JSON shows and without tables of many rows.

    If all rows are of one data set, the heading names it.
    """
    about = ". ".join(values["text"].split(". ")[:2]).rstrip(".")
    few = " (few images)" in str(values["tables"])
    caveat = " All of our numbers are from few images." if few else ""
    is_few_images, title = name.startswith("few-images"), values["title"].partition(f": {name}")[0]
    if is_few_images:
        about += f". {ADJUSTED}"
    data = {row[0] for table in values["tables"] for row in table["rows"] if table["heads"][0] == "data"}
    if len(data) == 1:
        title += f": {data.pop()}"
    text = f"\n## {title}\n\n{about}.{caveat} `results/tables/{name}.json`.\n"
    for table in values["tables"]:
        text += f"\n**{table['caption']}**\n" if table["caption"] else ""
        if len(table["rows"]) > MOST_ROWS and not is_few_images:
            text += f"\n*{len(table['rows'])} rows: see the JSON.*\n"
            continue
        heads = table["heads"]
        shown = [at for at, head in enumerate(heads) if at < table["labels"] or head not in ONLY_IN_JSON]
        if "fastest" in heads:  # without the times of every backend
            shown = list(range(6))
        rule = "".join("---|" if at < table["labels"] else "---:|" for at in shown)
        rows = "".join(markdown_row(*(row[at].replace(" (few images)", "") for at in shown)) for row in table["rows"])
        text += f"\n{markdown_row(*(heads[at] for at in shown))}|{rule}\n{rows}"
    return text


def _figure(folder: Path, values: Mapping[str, str]) -> str:
    picture = folder / "figures" / f"{values['name']}.png"
    if not picture.is_file():
        raise ValueError(f"{picture.name} is missing")
    title = values["title"]
    return f"\n## {title}\n\n`{values['command']}`\n\n![{title}](../../results/figures/{picture.name})\n"


def markdown_row(*cells: str) -> str:
    """Return a line of a Markdown table."""
    return f"| {' | '.join(cells)} |\n"


def add(name: str, path: Path, folder: Path = RESULTS) -> None:
    """Add a JSON file to `folder`: of a run, a comparison, a table, the numbers of a figure, or `capsella bench`.

    Raises:
        CapsellaError: the file is none of these.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if "decision" in values:
            _write_table(folder, "comparisons", _comparisons_section(name, values, folder))
        elif "networks" in values:
            _write_table(folder, name, _bench_section(name, values))
        elif "rows" in values:
            _write_table(folder, name, _table_section(name, values))
        elif "test" in values:
            _write_run(folder, name, values)
        else:
            _write_figure(folder, name, path, {key: values[key] for key in ("title", "command", "measured", "note")})
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise CapsellaError(
            f"{path} is not the JSON of a run, comparison, table, figure or bench: {error!r}"
        ) from error


def _write_run(folder: Path, name: str, values: Mapping[str, Any]) -> None:
    test, training, environment = values["test"], values["training"], values["environment"]
    low, high = (f"{bound:.4f}" for bound in test["error_interval_95_percent"])
    over = "groups" if "groups" in test else "images"
    row = [
        *(name, values["command"], values["seed"], values["data"], test["images"], test["errors"]),
        *(f"{test['error_percent']:.4f}", low, high, over, "", training["best"]["epoch"], training["epochs"]),
        *(f"{training['images_per_second']:.3f}", f"{training['peak_memory_mib']:.0f}", hardware(environment)),
        *(environment["torch"], environment["commit"]),
    ]
    path = folder / "runs.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = {row[0]: row for row in csv.reader(file)}
    rows[name] = list(map(str, row))
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(
            [COLUMNS, *(rows[key] for key in sorted(rows) if key != "result")]
        )


def _write_figure(folder: Path, name: str, path: Path, values: dict[str, str]) -> None:
    figures = {figure["name"]: figure for figure in json.loads((folder / "figures.json").read_text(encoding="utf-8"))}
    figures[name] = {"name": name, **values}
    shutil.copyfile(path.with_suffix(".png"), folder / "figures" / f"{name}.png")
    text = json.dumps([figures[key] for key in sorted(figures)], ensure_ascii=False, indent=1)
    (folder / "figures.json").write_text(text + "\n", encoding="utf-8")


def _write_table(folder: Path, name: str, section: Mapping[str, Any]) -> None:
    """Write a row per line, which shows what changes."""
    text = json.dumps(section, ensure_ascii=False).replace('"rows": [', '"rows": [\n  ').replace("], [", "],\n  [")
    (folder / "tables" / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def _table_section(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a published table, without columns that are empty in every row."""
    heads, labels, cells = values["heads"], values["labels"], caveated_cells(values)
    has_caveats = cells != [row["cells"] for row in values["rows"]]
    caveat = f" {FEW_IMAGES if values.get('caveat') else SHORT_TRAININGS}" if has_caveats else ""
    shown = [at for at in range(len(heads)) if at < labels or any(row[at] != "–" for row in cells)]
    text = f"`{values['command']}`. {values['measured']} {values['note']}{caveat}"
    rows = [[row[at] for at in shown] for row in cells]
    return _one_table(f"{values['title']}: {name}", text, [heads[at] for at in shown], labels, rows)


def _bench_section(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row per network: its fastest backend, then the median milliseconds of every backend."""
    backends, environment = values["settings"]["backends"], values["environment"]
    rows = []
    for network, result in values["networks"].items():
        times = {backend: row["latency_ms"]["p50"] for backend, row in result["backends"].items()}
        channels, height, width = result["size"]
        cells = [network, f"{height}×{width}×{channels}", "none", "", "no", ""]
        if times:
            best = min(times, key=lambda backend: times[backend])
            rate = max(row["throughput"]["images_per_second"] for row in result["backends"].values())
            cells[2:] = [best, f"{times[best]:.1f}", "yes" if times[best] < BAR_MS else "no", f"{rate:.0f}"]
        rows.append([*cells, *(f"{times[backend]:.1f}" if backend in times else "" for backend in backends)])
    text = (
        f"`{values['command']}`. One image a call: the median in milliseconds, and the best throughput of any backend. "
        f"{hardware(environment)}; torch {environment['torch']}."
    )
    heads = ["network", "image", "fastest", "p50 ms", f"under {BAR_MS:.0f} ms", "images/s", *backends]
    return _one_table(f"Latency: {name}", text, heads, 3, rows)


def _comparisons_section(name: str, values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the table of comparisons with a row for this one: the best network of each kind, and the decision."""
    decision, networks = values["decision"], {network["network"]: network for network in values["networks"]}
    measure = decision["measure"].replace(" ", "_")
    best = {networks[each]["family"]: networks[each] for each in decision["finalists"]}
    shown = [_percent(best[family][measure]) if family in best else "–" for family in FAMILIES]
    capsules = best.get("capsules", {}).get("network")
    has_cnn = networks[decision["reference"]]["family"] == "CNN"
    difference = decision["difference_from_reference"].get(capsules) if has_cnn else None
    chosen = networks.get(decision["recommended"], {"title": "none"})["title"]
    row = [
        *(
            name,
            str(len(values["classes"])),
            f"{values['images']:,}",
            str(values["folds"]),
            decision["measure"],
            *shown,
        ),
        "–" if difference is None else _percent(difference, "+.1f"),
        f"{100 * decision['detectable_difference']:.1f}",
        chosen,
        f"{values['announced_seconds'] / 60:.0f}",
        f"{values['seconds'] / 60:.0f}",
        hardware(values["environment"]),
    ]
    path, rows = folder / "tables" / "comparisons.json", [row]
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))["tables"][0]["rows"]
        rows = [*(other for other in before if other[0] != name), row]
    text = "`capsella compare IMAGES --minutes …`. Per cent of the tested images, with 95 % intervals."
    heads = [
        *("images of", "classes", "tested", "folds", "measure", *FAMILIES, "capsules − CNN, points", "detects"),
        *("recommended", "minutes announced", "minutes", "machine"),
    ]
    return _one_table("Comparisons: comparisons", text, heads, 1, rows)


def _percent(interval: Mapping[str, float], form: str = ".1f") -> str:
    estimate, low, high = (format(100 * interval[key], form) for key in ("estimate", "low", "high"))
    return f"{estimate} ({low} to {high})"


def _one_table(
    title: str, text: str, heads: Sequence[str], labels: int, rows: Sequence[Sequence[str]]
) -> dict[str, Any]:
    tables = [{"caption": "", "labels": labels, "heads": heads, "rows": rows}]
    return {"title": title, "text": text, "tables": tables}


def main() -> None:
    """Print the page, or add a file."""
    parser = argparse.ArgumentParser(prog="python -m tools.results", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="add NAME FILE")
    words = parser.parse_args().words
    if not words:
        sys.stdout.write(markdown())
    elif len(words) == 3 and words[0] == "add":
        add(words[1], Path(words[2]))
    else:
        parser.error("give nothing, or add NAME FILE")


if __name__ == "__main__":
    main()
