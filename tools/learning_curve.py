"""How many images do I need? Test error by training images per class, for the contenders of `capsella compare`.

`python -m tools.learning_curve RUNS` takes the folder in which `capsella papers run few-images` and
`few-images-pretrained` wrote their tables, and writes results/tables/learning-curve.json and
results/figures/learning-curve.png.
"""

import argparse
import statistics
from pathlib import Path

import numpy as np

from capsella.evaluation import over_seeds
from capsella.files import read_json, write_json
from capsella.papers.few_images import CAPSULES, FINE_TUNED, FINER_RESNET, FROZEN, SOURCES
from capsella.report.figures import accuracy_figure, write_png
from tools.results import RESULTS

NETWORKS = (CAPSULES, FINER_RESNET, FINE_TUNED, FROZEN)
Errors = dict[str, dict[int, list[float]]]


def read_errors(folder: Path) -> tuple[Errors, list[str]]:
    """Return the test errors in per cent, by network and images per class, and the commands of the tables.

    Raises:
        CapsellaError: a table is missing or damaged.
    """
    errors: Errors = {name: {} for name in NETWORKS}
    commands = []
    for end in ("", "-pretrained"):
        values = read_json(folder / f"{folder.resolve().name}{end}.json")
        commands.append(f"`{values['command']}`")
        for row in values["rows"]:
            size, name = row["label"]
            if name in errors:
                errors[name].setdefault(size, row["error_percent"])
    return errors, commands


def main() -> None:
    """Write table and figure."""
    parser = argparse.ArgumentParser(prog="python -m tools.learning_curve", description=__doc__)
    parser.add_argument("runs", type=Path)
    errors, commands = read_errors(parser.parse_args().runs)
    sizes = sorted({size for of_size in errors.values() for size in of_size})
    curves = {}
    for name, of_size in errors.items():
        if not of_size:
            continue
        accuracy = np.array([100 - statistics.mean(values) for values in of_size.values()])
        spread = np.array([statistics.stdev(values) if len(values) > 1 else 0.0 for values in of_size.values()])
        curves[name] = np.stack([np.array([*of_size], dtype=float), accuracy, accuracy - spread, accuracy + spread])
    figure = accuracy_figure({"pbc": ("training images per class", curves)})
    axes = figure.axes[0]
    axes.set(xscale="log", ylim=(50, 101))
    axes.set_xticks(sizes, map(str, sizes))
    axes.minorticks_off()
    write_png(figure, RESULTS / "figures" / "learning-curve.png")
    rows = [[str(size), *(_cell(errors[name].get(size)) for name in NETWORKS)] for size in sizes]
    text = (
        f"{', '.join(commands)}, then `python -m tools.learning_curve`. Test error in per cent, mean and standard "
        f"deviation over draws of the training images, whose number stands in brackets. EfficientNet-Lite0 sees "
        f"{2 * (SOURCES['pbc'].data.size or 0)} pixels per side, the others half of that."
    )
    tables = [{"caption": "", "labels": 1, "heads": ["images per class", *NETWORKS], "rows": rows}]
    section = {"title": "How many images: error by images per class", "text": text, "tables": tables}
    write_json(RESULTS / "tables" / "learning-curve.json", section)


def _cell(errors: list[float] | None) -> str:
    return "–" if errors is None else f"{over_seeds(errors)} ({len(errors)})"


if __name__ == "__main__":
    main()
