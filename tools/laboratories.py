"""How networks fare in other laboratories than their own, as a section of docs/reference/results.md.

A folder of `results/laboratories` is a run, RECIPE-seedN, and holds JSON files of its run folder: result.json, what
`capsella evaluate --data` wrote (LABORATORY-all.json), `--elsewhere` (test-elsewhere.json), adapted.json of runs that
`capsella adapt` made of it (adapted-LABORATORY.json), and attacks.json.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tools.markdown import markdown_row

ABOUT = """
## Other laboratories

Networks trained on `pbc`. Numbers in a cell are seeds. `bccd_cells` is `python -m tools.bccd_cells`.
"""


class Trained(NamedTuple):
    """A recipe and the files of its runs, a dictionary a seed: contents by the file's name without its ending; seed."""

    recipe: str
    runs: list[dict[str, Any]]

    def each(self, file: str) -> list[dict[str, Any]]:
        """The contents of a file, of the runs that have it."""
        return [run[file] for run in self.runs if file in run]

    def files(self, start: str, end: str) -> list[str]:
        """Names of files of any run."""
        return sorted({name for run in self.runs for name in run if name.startswith(start) and name.endswith(end)})


def laboratories_section(folder: Path) -> str:
    """The tables for which `folder` has files; nothing where it is not there."""
    trained = list(_read(folder)) if folder.is_dir() else []
    tables = (_elsewhere(trained), _adapted(trained), _known(trained), _attacked(trained))
    return ABOUT + "".join(tables) if any(tables) else ""


def _read(folder: Path) -> Iterator[Trained]:
    recipes: dict[str, list[dict[str, Any]]] = {}
    for run in sorted(one for one in folder.iterdir() if one.is_dir()):
        recipe, _, seed = run.name.rpartition("-seed")
        files = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(run.glob("*.json"))}
        recipes.setdefault(recipe, []).append({"seed": seed, **files})
    return (Trained(recipe, runs) for recipe, runs in recipes.items())


def _table(title: str, heads: tuple[str, ...], rows: list[list[str]], labels: int) -> str:
    if not rows:
        return ""
    line = f"|{'---|' * labels}{'---:|' * (len(heads) - labels)}\n"
    return f"\n**{title}**\n\n{markdown_row(*heads)}{line}{''.join(markdown_row(*row) for row in rows)}"


def _seeds(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values)


def _elsewhere(trained: list[Trained]) -> str:
    rows = []
    for one in trained:
        home = _seeds(run["test"]["error_percent"] for run in one.each("result"))
        for name in one.files("", "-all"):
            tests = one.each(name)
            accuracy = _seeds(100 - test["error_percent"] for test in tests)
            balanced = _seeds(test["balanced_accuracy_percent"] for test in tests)
            images = str(tests[0]["images"])
            rows.append([f"`{one.recipe}`", name.removesuffix("-all"), images, accuracy, balanced, home])
    heads = ("recipe", "tested in", "images", "accuracy %", "balanced accuracy %", "error % at home")
    return _table("As trained", heads, rows, 2)


def _adapted(trained: list[Trained]) -> str:
    rows = []
    for one in trained:
        for name in one.files("adapted-", ""):
            runs = one.each(name)
            place = name.removeprefix("adapted-")
            tests = [next(test for where, test in run["tests"].items() if where != "own laboratory") for run in runs]
            errors = [f"{test['before']['errors']} → {test['after']['errors']}" for test in tests]
            balanced = _seeds(test["after"]["balanced_accuracy_percent"] for test in tests)
            options = runs[0]["options"]
            way = options["how"] + (", replay" if options["replay"] else "")
            labelled = str(options["per_class"])
            rows.append([f"`{one.recipe}`", place, way, labelled, ", ".join(errors), balanced])
    heads = ("recipe", "adapted to", "way", "labelled a class", "errors on the others", "balanced accuracy %")
    return _table("Adapted with `capsella adapt`", heads, rows, 3)


def _known(trained: list[Trained]) -> str:
    rows = []
    for one in trained:
        runs = [test["elsewhere"] for test in one.each("test-elsewhere")]
        for place in [found["name"] for found in runs[0]["elsewhere"]] if runs else []:
            sets = [found for run in runs for found in run["elsewhere"] if found["name"] == place]
            areas = ", ".join(f"{found['auc']['known']['auc']:.3f}" for found in sets)
            refused = _seeds(100 * found["refused"] / found["images"] for found in sets)
            home = _seeds(100 * run["home"]["refused"] / run["home"]["images"] for run in runs)
            rows.append([f"`{one.recipe}`", place, areas, refused, home])
    heads = ("recipe", "images from", "area under the ROC curve of `known`", "refused %", "refused % at home")
    return _table("Known or not", heads, rows, 2)


def _attacked(trained: list[Trained]) -> str:
    rows: list[list[str]] = []
    steps: list[float] = []
    for one in trained:
        for seed, report in [(run["seed"], run["attacks"]) for run in one.runs if "attacks" in run]:
            if steps not in ([], report["options"]["epsilons"]):
                raise ValueError(
                    f"epsilons: must be {steps} in every attacks.json, as in the first, got others of {one.recipe}"
                )
            steps = report["options"]["epsilons"]
            for network in report["networks"].values():
                for attack in (one for one in network["attacks"] if "fooled_and_not_known" in one):
                    pairs = zip(attack["fooled_and_not_known"], attack["fooled"], strict=True)
                    found = [f"{flagged}/{fooled}" for flagged, fooled in pairs]
                    rows.append([f"`{one.recipe}`", seed, attack["attack"], *found])
    heads = ("recipe", "seed", "attack", *(f"ε = {step:g}" for step in steps))
    table = _table("Attacks that succeed and are found out", heads, rows, 3)
    return f"{table}\n9/12: of 12 images that an attack fooled, 9 are not known.\n" if table else ""
