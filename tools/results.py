"""A number exists only as a JSON in results/; docs/reference/results.md is generated from them.

`make results` calls `python -m tools.results results > docs/reference/results.md`.
"""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from capsella.environment import hardware
from capsella.errors import CapsellaError
from capsella.papers.table_types import SHORT, caveated_cells
from capsella.training import Recipe
from capsella.training.recipes import train_command
from tools.laboratories import laboratories_section
from tools.latency import latency_section
from tools.markdown import markdown_row

HEADER = """# Results

Generated from the JSON files in `results/` by `make results`. Each file holds the commit, seed, hardware, versions and
the complete recipe of its row.

- **Command.** It is written from the run's recipe. It names every field in which the registered recipe has changed
  since.
- **Interval.** It is of one network, over test images (Wilson 1927). On smallNORB it is over the 25 test toys. Where
  the single answers were not kept, the cell says so: such an interval is far too narrow.
- **Seeds.** Before 26 November 2026, seeds changed the first weights alone (LOG.md, L072). Their spread may be too
  small.
- **Epoch.** Validation images choose it. With `--keep last` it is the last one. Two rows that differ only in this are
  one training.
- **Test images.** They choose no epoch and no rate. Tables that stop networks at an error use them, and say so
  (affNIST, novel viewpoints, attacks). But later recipes were made after the test errors of earlier ones were known:
  `efficient-capsnet-mnist` has `--keep last` since a test error of 0.47 % (L032), `emnet-cells` has its 60 epochs since
  others were tested (L062).
- **Short.** Fewer than 12 epochs. Such rows compare with each other, as float32 with bfloat16; they rank no networks.
  The league says after how many images its ranks hold.
- **Speed.** The median over epochs of a training that may have shared its processor.
- **Peak memory.** Of the process. In runs until 28 November 2026 it may be that of a training before it in the process.

| result | command | test error % | 95 % interval | epoch kept | images/s | peak memory MiB | hardware |
|---|---|---:|---:|---:|---:|---:|---|
"""


LEAST_EPOCHS = 12
SHORT_TRAININGS = (
    "**Short trainings**: these rows compare with each other, and say nothing of where a network ends; not to be held "
    "against the paper's."
)
FEW_IMAGES = (
    "**Few images**: the rate of these trainings has fallen to nothing, but they saw far fewer images than published "
    "ones. More would still help, and may turn a comparison."
)


def markdown(folder: Path) -> str:
    """docs/reference/results.md from every JSON in `folder`: a row for a run's result, a section for a published table.

    What `capsella bench` measured is a section, too, and so are the runs of `folder`/laboratories and each published
    figure, whose numbers and picture are in `folder`/figures.

    Raises:
        CapsellaError: a file is damaged or lacks a field.
    """
    rows, sections, figures = [], [], []
    for path in sorted(folder.glob("*.json")):
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            if "networks" in values:
                sections.append(latency_section(path.stem, values))
            elif "rows" in values:
                sections.append(_section(path.stem, values))
            else:
                rows.append(_row(path.stem, values))
        except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise CapsellaError(f"{path} is not the result of a run or a table: {error!r}") from error
    for path in sorted((folder / "figures").glob("*.json")):
        try:
            figures.append(_figure(path, json.loads(path.read_text(encoding="utf-8"))))
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise CapsellaError(f"{path} is not the numbers of a figure: {error!r}") from error
    try:
        elsewhere = laboratories_section(folder / "laboratories")
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise CapsellaError(f"{folder / 'laboratories'} is not what runs hold: {error!r}") from error
    return HEADER + "".join([*rows, elsewhere, *sections, *figures])


def _row(name: str, values: dict[str, Any]) -> str:
    test, training, environment = values["test"], values["training"], values["environment"]
    low, high = test["error_interval_95_percent"]
    alone = values["recipe"]["data"]["name"].startswith("smallnorb") and "groups" not in test
    return markdown_row(
        name,
        f"`{_command(values)}`",
        f"{test['error_percent']:.2f}" + (f" ({SHORT})" if training["epochs"] < LEAST_EPOCHS else ""),
        f"{low:.2f}–{high:.2f}" + (" (over images)" if alone else ""),
        f"{training['best']['epoch']} of {training['epochs']}",
        f"{training['images_per_second']:.0f}",
        f"{training['peak_memory_mib']:.0f}",
        hardware(environment),
    )


def _command(values: dict[str, Any]) -> str:
    """What trains the recipe of a result today: a flag for all that its registered recipe has changed in since."""
    words = shlex.split(values["command"])
    if words[:2] != ["capsella", "train"]:
        return str(values["command"])
    try:
        return train_command(words[2], Recipe.from_dict(values["recipe"]))
    except CapsellaError:  # fields have other names now; the command is that of then
        return str(values["command"])


def _section(name: str, values: dict[str, Any]) -> str:
    """A published table, the paper's values beside ours, without columns that are empty in every row."""
    heads, labels = values["heads"], values["labels"]
    cells = caveated_cells(values)
    marked = cells != [row["cells"] for row in values["rows"]]
    short = f" {FEW_IMAGES if values.get('caveat') else SHORT_TRAININGS}" if marked else ""
    shown = [at for at in range(len(heads)) if at < labels or any(row[at] != "–" for row in cells)]
    return (
        f"\n## {values['title']}: {name}\n\n`{values['command']}`. {values['measured']} {values['note']}{short}\n\n"
        + markdown_row(*(heads[at] for at in shown))
        + f"|{'---|' * labels}{'---:|' * (len(shown) - labels)}\n"
        + "".join(markdown_row(*(row[at] for at in shown)) for row in cells)
    )


def _figure(path: Path, values: dict[str, Any]) -> str:
    """The picture beside its numbers, as the page in docs/ finds it."""
    picture = path.with_suffix(".png")
    if not picture.is_file():
        raise CapsellaError(f"{picture} must be there, the picture of the numbers beside it")
    text = f"`{values['command']}`. {values['measured']} {values['note']}"
    return f"\n## {values['title']}\n\n{text}\n\n![{values['title']}](../../results/figures/{picture.name})\n"


if __name__ == "__main__":
    sys.stdout.write(markdown(Path(sys.argv[1])))
