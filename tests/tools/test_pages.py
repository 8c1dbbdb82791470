"""The showcase pages: every training is a command line that capsella takes, and every class fits on the page."""

import numpy as np

from tools.pages import PAGES, write_cells


def test_every_training_is_understood(understood):
    lines = [f"capsella train {words} --epochs 1" for page in PAGES.values() for words in page.trainings.values()]
    assert [line for line in lines if not understood(line)] == []


def test_cells_of_the_comparison_keep_the_proportions_of_classes(tmp_path, monkeypatch):
    (tmp_path / "wbc").mkdir()
    labels = np.repeat([0, 1], (300, 100))
    np.savez(
        tmp_path / "wbc/pbc_full_128.npz",
        image=np.arange(400).astype(np.uint8),
        image_offset=np.arange(401),
        label=labels,
        split=(np.arange(400) % 4 == 0).astype(int),
        name=np.array([f"CELL_{row}.jpg" for row in range(400)]),
        classes=np.array(["first", "second"]),
    )
    monkeypatch.setenv("CAPSELLA_DATA", str(tmp_path))
    write_cells(tmp_path / "cells", images=40, least=5)
    written = {path.name: sorted(path.iterdir()) for path in (tmp_path / "cells").iterdir()}
    assert {name: len(paths) for name, paths in written.items()} == {"first": 30, "second": 10}
    row = int(written["second"][0].stem.removeprefix("CELL_"))
    assert row >= 300
    assert row % 4 != 0
    assert written["second"][0].read_bytes() == bytes([row % 256])
