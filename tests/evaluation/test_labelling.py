"""The images to label first are uncertain, and different from each other."""

import csv

import pytest

from capsella.errors import ArgumentError
from capsella.evaluation.labelling import choose_to_label, write_candidates
from capsella.evaluation.tables import PredictOptions


@pytest.fixture
def unlabelled(tmp_path, save):
    """Many images that are certainly dark or light, and two kinds that are neither, one of them rare."""
    for kind, (value, number) in {"dark": (0, 20), "light": (255, 20), "grey": (118, 30), "pale": (140, 2)}.items():
        for k in range(number):
            save(tmp_path / "images" / f"{kind}{k:02}.png", value)
    (tmp_path / "images" / "broken.png").write_bytes(b"no image")
    return tmp_path / "images"


def test_one_image_of_each_uncertain_kind_is_chosen(darkness, unlabelled):
    chosen, unreadable = choose_to_label(darkness, [unlabelled], 2, PredictOptions(batch_size=16, workers=2))
    assert [outcome.file.name for outcome in unreadable] == ["broken.png"]
    assert {candidate.file.name[:4] for candidate in chosen} == {"grey", "pale"}
    assert {candidate.class_name for candidate in chosen} == {"dark, plain", "light"}
    assert all(0.5 < candidate.probability < 0.6 for candidate in chosen)
    assert chosen == choose_to_label(darkness, [unlabelled], 2)[0]


def test_a_long_list_names_each_image_once(darkness, unlabelled, tmp_path):
    write_candidates(tmp_path / "next.csv", choose_to_label(darkness, [unlabelled], 40)[0])
    with (tmp_path / "next.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len({row["file"] for row in rows}) == len(rows) == 40
    assert sum(float(row["probability"]) < 0.6 for row in rows) == 32
    with pytest.raises(ArgumentError):
        choose_to_label(darkness, [unlabelled], 73)  # the 73rd cannot be read
