"""The learning curve: both tables of few images in one table and one figure."""

import json
import sys

from PIL import Image

from capsella.papers.few_images import CAPSULES, FINE_TUNED, FINER_RESNET
from tools import learning_curve


def test_both_tables_become_one(tmp_path, monkeypatch):
    def row(size, name, errors):
        return {"label": [size, name], "error_percent": errors}

    own = [row(5, CAPSULES, [9.0, 8.0]), row(5, "uniform couplings", [7.0]), row(20, CAPSULES, [4.0])]
    pretrained = [row(5, CAPSULES, [1.0]), row(5, FINE_TUNED, [3.0, 5.0])]
    runs = tmp_path / "few"
    runs.mkdir()
    for end, rows in (("", [*own, row(20, FINER_RESNET, [6.0])]), ("-pretrained", pretrained)):
        (runs / f"few{end}.json").write_text(json.dumps({"command": f"run{end}", "rows": rows}))
    monkeypatch.setattr(learning_curve, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(sys, "argv", ["learning_curve", str(runs)])
    learning_curve.main()
    written = json.loads((tmp_path / "results" / "tables" / "learning-curve.json").read_text())
    assert written["tables"][0]["rows"] == [
        ["5", "8.50 ± 0.71 (2)", "–", "4.00 ± 1.41 (2)", "–"],
        ["20", "4.00 (1)", "6.00 (1)", "–", "–"],
    ]
    assert "`run`, `run-pretrained`" in written["text"]
    with Image.open(tmp_path / "results" / "figures" / "learning-curve.png") as picture:
        assert min(picture.size) > 200
