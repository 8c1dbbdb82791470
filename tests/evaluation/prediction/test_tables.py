"""Tables that come back as they were written, whatever the files are called."""

import csv
import importlib.util
import io
import json
import os
import sys
from pathlib import Path

import pytest
import torch

from capsella.errors import CapsellaError
from capsella.evaluation import Broken, Certainty, Prediction, predict_files, print_table, write_broken, write_table
from capsella.models import fit_confidence

ODD = ["a\nb.png", "a\rb.png", 'a",b.png', " a .png", "'=1+1.png", "é,\u2028.png", "\x1b[31m.png", "\udce9.png"]
CLASSES = ("dark, plain", "li\nght")
has_pyarrow = importlib.util.find_spec("pyarrow") is not None


def predictions(names=ODD):
    return [Prediction(Path(name), CLASSES[0], torch.tensor([0.1234567, k / 8])) for k, name in enumerate(names)]


def read_csv(path):
    with open(path, newline="", encoding="utf-8", errors="surrogateescape") as file:
        return list(csv.reader(file))


def test_csv_has_a_row_a_file_and_a_column_a_class(folder, tmp_path, darkness):
    out = tmp_path / "out" / "table.csv"
    assert write_table(predict_files(darkness, [folder]), darkness.classes, out) == 3
    with open(out, newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["file", "class", "dark, plain", "light", "probability", "known", "why_unknown"]
    assert rows[2] == {
        "file": str(folder / "deeper/c.bmp"), "class": "dark, plain", "dark, plain": "0.800000", "light": "0.200000",
        "probability": "", "known": "", "why_unknown": "",
    }  # fmt: skip


def test_csv_round_trips_any_name(tmp_path):
    write_table(predictions(), CLASSES, tmp_path / "t.csv")
    head, *rows = read_csv(tmp_path / "t.csv")
    assert head == ["file", "class", *CLASSES, "probability", "known", "why_unknown"]
    assert [row[0] for row in rows] == ODD
    assert rows[3][1:] == [CLASSES[0], "0.123457", "0.375000", "", "", ""]
    assert b"\xe9.png" in (tmp_path / "t.csv").read_bytes()


def test_broken_files_round_trip_too(tmp_path):
    write_broken([Broken(Path(name), 'it is\n"odd"') for name in ODD], tmp_path / "b.csv")
    assert read_csv(tmp_path / "b.csv") == [["file", "reason"], *([name, 'it is\n"odd"'] for name in ODD)]


def test_jsonl_round_trips_any_name(tmp_path):
    assert write_table(predictions(), CLASSES, tmp_path / "t.jsonl") == len(ODD)
    rows = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text(encoding="ascii").splitlines()]
    assert [row["file"] for row in rows] == ODD
    assert rows[3] == {
        "file": ODD[3], "class": CLASSES[0], "activations": {CLASSES[0]: 0.123457, CLASSES[1]: 0.375},
        "probability": None,
        "known": None,
        "why_unknown": None,
    }  # fmt: skip


@pytest.mark.skipif(not has_pyarrow, reason="pyarrow is not installed")
def test_parquet_round_trips(tmp_path):
    import pyarrow.parquet

    names = [*ODD[:-1], *(f"{k}.png" for k in range(12_000)), ODD[-1]]
    assert write_table(predictions(names), CLASSES, tmp_path / "t.parquet") == len(names)
    table = pyarrow.parquet.read_table(tmp_path / "t.parquet").to_pydict()
    assert table["file"] == [*names[:-1], "\\xe9.png"]
    assert table["class"] == [CLASSES[0]] * len(names)
    assert table[CLASSES[0]][-1] == 0.123457
    assert table[CLASSES[1]][:4] == [0, 0.125, 0.25, 0.375]
    assert pyarrow.parquet.ParquetFile(tmp_path / "t.parquet").num_row_groups == 2  # written as they come


@pytest.mark.skipif(not has_pyarrow, reason="pyarrow is not installed")
def test_parquet_takes_classes_that_are_not_utf8(tmp_path):
    import pyarrow.parquet

    classes = ("h\udce9mo", "b")
    found = Prediction(Path("a.png"), classes[0], torch.tensor([0.75, 0.25]))
    write_table([found], classes, tmp_path / "t.parquet")
    (row,) = pyarrow.parquet.read_table(tmp_path / "t.parquet").to_pylist()
    assert (row["class"], row["h\\xe9mo"]) == ("h\\xe9mo", 0.75)


def test_parquet_without_pyarrow_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr("capsella.errors.find_spec", lambda name: None)
    with pytest.raises(CapsellaError, match=r"Parquet needs pyarrow: pip install 'capsella\[parquet\]', or choose"):
        write_table(predictions(), CLASSES, tmp_path / "t.parquet")


@pytest.mark.parametrize(("ending", "taken"), [(".parquet", "file"), (".csv", "class"), (".csv", "probability")])
def test_columns_have_one_name(ending, taken, tmp_path, monkeypatch):
    monkeypatch.setattr("capsella.errors.find_spec", lambda name: True)
    with pytest.raises(ValueError, match=rf"a class is called '{taken}'; choose \.jsonl"):
        write_table([], ("a", taken), tmp_path / f"t{ending}", Certainty(fit_confidence(torch.eye(2), torch.arange(2))))
    assert write_table([], ("a", taken), tmp_path / "t.jsonl") == 0
    with pytest.raises(ValueError, match=rf"a class is called '{taken}'; choose \.jsonl"):
        print_table([], ("a", taken), Certainty(fit_confidence(torch.eye(2), torch.arange(2))))


def test_other_endings_and_folders_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"out: must end in \.csv, \.jsonl, \.parquet, got 'table\.xlsx'"):
        write_table([], CLASSES, Path("table.xlsx"))
    (tmp_path / "t.csv").mkdir()
    with pytest.raises(CapsellaError, match=r"t\.csv is a folder"):
        write_table([], CLASSES, tmp_path / "t.csv")


def test_csv_goes_to_standard_output(folder, capsys, darkness):
    assert print_table(predict_files(darkness, [folder]), darkness.classes) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == 'file,class,"dark, plain",light,probability,known,why_unknown'
    assert len(lines) == 4


def test_names_that_are_not_utf8_go_to_standard_output_as_their_bytes(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="utf-8"))
    print_table(predictions(["caf\udce9.png"]), CLASSES)
    sys.stdout.flush()
    assert b"\ncaf\xe9.png," in written.getvalue()


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_an_error_half_way_leaves_the_old_table(folder, tmp_path, name, darkness):
    (tmp_path / name).write_text("old")
    (folder / "b.png").write_bytes(b"no image at all")
    with pytest.raises(CapsellaError, match=r"b\.png"):
        write_table(predict_files(darkness, [folder], batch_size=1), darkness.classes, tmp_path / name)
    assert (tmp_path / name).read_text() == "old"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [name]


@pytest.mark.skipif(sys.platform != "linux", reason="file names that are not UTF-8 exist on Linux only")
def test_file_names_that_are_not_utf8_survive(tmp_path, save, darkness):
    save(tmp_path / "x.png", 0)
    os.rename(tmp_path / "x.png", os.fsencode(tmp_path) + b"/caf\xe9.png")
    write_table(predict_files(darkness, [tmp_path]), darkness.classes, tmp_path / "out" / "t.csv")
    assert b"caf\xe9.png" in (tmp_path / "out" / "t.csv").read_bytes()
