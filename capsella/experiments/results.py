"""A number exists only as a JSON in results/; docs/results.md is generated from them.

`make results` calls `python -m capsella.experiments.results results > docs/results.md`.
"""

import json
import sys
from pathlib import Path
from typing import Any

from capsella.errors import CapsellaError

HEADER = """# Results

Generated from the JSON files in `results/` by `make results`; each file holds the command, commit, seed, hardware,
versions and the complete recipe of its row. The epoch is chosen on validation images; the test images are used once.
Speeds are the median over epochs of a training that may have shared its processor.

| result | command | test error % | 95 % interval | best epoch | images/s | peak memory MiB | hardware |
|---|---|---:|---:|---:|---:|---:|---|
"""


def markdown(folder: Path) -> str:
    """docs/results.md from every JSON in `folder` that is the result of a run.

    Raises:
        CapsellaError: a file is damaged or lacks a field.
    """
    return HEADER + "".join(_row(path) for path in sorted(folder.glob("*.json")))


def _row(path: Path) -> str:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        test, training, environment = values["test"], values["training"], values["environment"]
        low, high = test["error_interval_95_percent"]
        cells = [
            path.stem,
            f"`{values['command']}`",
            f"{test['error_percent']:.2f}",
            f"{low:.2f}–{high:.2f}",
            f"{training['best']['epoch']} of {training['epochs']}",
            f"{training['images_per_second']:.0f}",
            f"{training['peak_memory_mib']:.0f}",
            _hardware(environment),
        ]
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise CapsellaError(f"{path} is not the result of a run: {error!r}") from error
    return f"| {' | '.join(cells)} |\n"


def _hardware(environment: dict[str, Any]) -> str:
    if environment["gpu"] != "none":
        return str(environment["gpu"])
    return f"{environment['threads']} threads, {environment['cpu']}"


if __name__ == "__main__":
    sys.stdout.write(markdown(Path(sys.argv[1])))
