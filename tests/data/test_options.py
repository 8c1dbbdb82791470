"""Data options: one class for each kind of source, with checks, JSON and flags."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from capsella.data import DataOptions, DomainData, FolderData, NamedData, NpzData, PairData, data_from
from capsella.errors import ArgumentError, CapsellaError

EVERY_KIND = (
    FolderData(Path("my cells"), size=32, range=(0.0, 4095.0), split_file=Path("split.csv"), group="(p[0-9]+)"),
    NpzData(Path("cells.npz"), channels=1, duplicates="keep", folds=5, fold=0),
    NamedData("smallnorb", camera="both", viewpoints="azimuth", test_viewpoints="familiar"),
    PairData(of="digits", pair_shift=2, test_pairs=60, per_class=5),
    DomainData(("cells/", "pbc"), classes=("a", "b"), size=64, cells="matched", group="(p[0-9]+)"),
)


@pytest.mark.parametrize(
    ("kind", "fields", "argument"),
    [
        (NamedData, {"validation": 0.0}, "validation"),
        (NamedData, {"size": 20_000}, "size"),
        (NamedData, {"fold": 0}, "fold"),
        (NamedData, {"folds": 3, "fold": 3}, "fold"),
        (NamedData, {"folds": 4, "test": 0.3}, "test"),
        (NamedData, {"name": "toys", "camera": "both"}, "camera"),
        (NamedData, {"name": "pbc", "cells": "cut"}, "cells"),
        (NamedData, {"name": "pbc", "size": 64, "cells": "cut", "cell_radius": -1.0}, "cell_radius"),
        (FolderData, {"path": Path("x"), "group": "("}, "group"),
        (FolderData, {"path": Path("x"), "range": (4095.0, 0.0)}, "range"),
        (PairData, {"folds": 4}, "folds"),
        (PairData, {"of": "pairs"}, "of"),
        (DomainData, {"domains": ()}, "domains"),
    ],
)
def test_errors_name_the_argument(kind: type[DataOptions], fields: dict[str, object], argument: str):
    with pytest.raises(ArgumentError) as error:
        kind(**fields)
    assert error.value.argument == argument


@pytest.mark.parametrize("options", EVERY_KIND, ids=lambda options: options.kind)
def test_json_and_back(options: DataOptions):
    values = json.loads(json.dumps(options.to_dict()))
    assert values["kind"] == options.kind
    assert DataOptions.from_dict(values) == options


@pytest.mark.parametrize("change", [{"kind": "zip"}, {"siz": 3}, {"size": "3"}, {"domains": ["a"]}])
def test_json_of_another_form_is_refused(change: dict[str, object]):
    with pytest.raises(ArgumentError):
        DataOptions.from_dict({**NamedData().to_dict(), **change})


def test_another_source_keeps_the_shared_fields():
    cells = FolderData(Path("cells"), size=32, channels=1, per_class=5, range=(0.0, 9.0))
    assert cells.on("mnist") == NamedData("mnist", size=32, channels=1, per_class=5)
    assert cells.on("other.npz") == NpzData(Path("other.npz"), size=32, channels=1, per_class=5, range=(0.0, 9.0))
    pairs = cells.on("pairs")
    assert pairs == PairData(of="cells/", size=32, channels=1, per_class=5)
    assert pairs.single() == replace(cells, range=None)
    for fit in ("crop", "squash"):
        assert cells.replace(fit=fit).on("pairs").single().fit == fit
    assert pairs.on("digits") == replace(pairs, of="digits")
    toys = NamedData("toys", size=32, group="instance", viewpoints="azimuth", test_viewpoints="familiar")
    assert toys.on("digits") == NamedData("digits", size=32)  # which has no groups and no viewpoints
    assert toys.on("smallnorb") == replace(toys, name="smallnorb")
    assert data_from("multimnist").source == "mnist"
    assert all(data_from(options.text).kind == options.kind for options in EVERY_KIND)


def test_nothing_is_written_among_the_images(tmp_path: Path):
    cells = tmp_path / "cells"
    (cells / "a").mkdir(parents=True)
    (tmp_path / "link").symlink_to(cells)
    FolderData(cells).check_outside(tmp_path / "run")
    for options in (FolderData(cells), PairData(of=f"{cells}/"), DomainData(("pbc", str(cells)))):
        for out in (cells, cells / "runs" / "run", tmp_path / "link" / "run"):
            with pytest.raises(CapsellaError):
                options.check_outside(out)
