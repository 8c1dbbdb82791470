"""The page of speeds says what its JSON says."""

from pathlib import Path

import pytest

from benchmarks.__main__ import main
from capsella.errors import CapsellaError
from tools.speed import markdown


def test_a_row_for_every_case(tmp_path: Path) -> None:
    code = main(
        [
            "dynamic-dense/b1/forward",
            "--repeats",
            "1",
            "--seconds",
            "0",
            "--no-memory",
            "--json",
            f"{tmp_path}/here.json",
        ]
    )
    assert code == 0
    page = markdown(tmp_path)
    (row,) = (line for line in page.splitlines() if line.startswith("| dynamic-dense/b1/forward |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert "## here" in page
    plain, eager, native = (float(cells[column]) for column in (1, 2, 4))
    assert min(plain, eager, native) > 0
    assert float(cells[6]) == pytest.approx(plain / native, rel=0.02)
    assert "times as fast as plain" in cells[-1]


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(
        CapsellaError, match=r"other\.json is not a result of the benchmarks: KeyError\('environment'\)"
    ):
        markdown(tmp_path)
