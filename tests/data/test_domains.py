"""Images of another laboratory: classes by name, all images, copies, what is drawn to learn from."""

import shutil
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from capsella.data import (
    DataOptions,
    DomainData,
    FolderData,
    ImageSet,
    copies_among,
    draw_labelled,
    load_data,
    match_classes,
    read_domain,
    without_images,
)
from capsella.data.domains import common_classes
from capsella.data.images import join
from capsella.errors import CapsellaError

SIZE = 32


def picture(random: np.random.Generator) -> np.ndarray:
    """Blobs, so that no two look alike."""
    small = Image.fromarray(random.integers(40, 200, (16, 16), dtype=np.uint8))
    return np.asarray(small.resize((SIZE, SIZE), Image.Resampling.BILINEAR))


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three laboratories: a folder, one that is split and writes large letters, an .npz file with another class."""
    random, root = np.random.default_rng(0), tmp_path_factory.mktemp("laboratories")
    for folder in ("a/blast", "a/lymph", "a/mono", "b/train/Blast", "b/train/Mono", "b/test/Blast", "b/test/Mono"):
        (root / folder).mkdir(parents=True)
        for number in range(20 if folder == "a/lymph" else 8):
            Image.fromarray(picture(random)).save(root / folder / f"{number}.png")
    images = np.stack([picture(random) for _ in range(20)])
    np.savez(root / "c.npz", images=images, labels=np.arange(20) % 2, classes=np.array(["mono", "blast"]))
    return {name: root / name for name in ("a", "b", "c.npz")}


@pytest.fixture
def options(places: dict[str, Path]) -> DataOptions:
    return FolderData(places["a"], size=SIZE, channels=1, split_seed=3)


def test_all_images_are_taken_whatever_their_split(places, options):
    found = read_domain(str(places["b"]), options).of_classes(("blast", "lymph", "mono"))
    assert found.images.counts() == {"blast": 16, "lymph": 0, "mono": 16}
    assert {name.split("/")[-2] for name in found.images.subset([0, 1]).files} == {"Blast"}
    assert found.lines() == []


def test_classes_are_matched_by_name_and_others_are_left_out(places, options):
    read = read_domain(str(places["c.npz"]), options)
    found = read.of_classes(("blast", "lymph"))
    assert (found.images.counts(), found.left_out) == ({"blast": 10, "lymph": 0}, {"mono": 10})
    assert found.lines() == ["c: left out 10 images of other classes: mono (10)"]
    rows = (read.images.labels == 1).nonzero().flatten()
    assert torch.equal(found.images.images, read.images.images[rows])
    with pytest.raises(CapsellaError):
        read.of_classes(("x", "y"))


def test_copies_are_found_also_where_one_is_brighter(places, options):
    images = read_domain(str(places["a"]), options).images
    few = images.subset([0, 5])
    brighter = few.images.clone()
    brighter[1] += 20
    shown = ImageSet(torch.cat([images.images[10:12], brighter]), torch.zeros(4).long(), images.classes)
    assert copies_among(shown, images.subset(range(9))).tolist() == [2, 3]


def test_what_is_drawn_and_its_copies_are_not_tested():
    images = torch.arange(40, dtype=torch.uint8).view(40, 1, 1, 1).expand(-1, 1, 2, 2)
    group = torch.arange(40) // 4  # ten groups of four
    labels = torch.cat([torch.zeros(28), torch.ones(12)]).long()
    drawn, rest, digests = draw_labelled(ImageSet(images, labels, ("a", "b"), metadata={"group": group}), 3, 0)
    assert drawn.counts() == {"a": 3, "b": 1}  # of b, half of the three groups
    assert not set(drawn.metadata["group"].tolist()) & set(rest.metadata["group"].tolist())
    assert len(set(drawn.metadata["group"].tolist())) == 4
    assert (len(rest), len(digests)) == (24, 16)
    whole = ImageSet(images, labels, ("a", "b"))
    assert len(without_images(whole, digests)) == 24
    again = draw_labelled(ImageSet(images, labels, ("a", "b"), metadata={"group": group}), 3, 0)[0]
    assert torch.equal(again.images, drawn.images)


def test_an_umlaut_is_the_same_however_it_is_written():
    """A Mac writes it in two characters."""
    one, two = (unicodedata.normalize(form, "Stäbchen") for form in ("NFC", "NFD"))
    assert one != two
    images = ImageSet(torch.zeros(4, 1, 2, 2).byte(), torch.tensor([0, 0, 1, 1]), (two, "x"))
    mapped = match_classes(images, (one, "x"))
    assert mapped.counts() == {one: 2, "x": 2}
    assert common_classes([images, mapped], ["there", "here"]) == (two, "x")


class TestSeveralInOneTraining:
    @pytest.fixture
    def together(self, places) -> DataOptions:
        two = tuple(str(places[name]) for name in ("a", "c.npz"))
        return DomainData(two, size=SIZE, channels=1)

    def test_each_is_split_for_itself(self, together):
        splits = load_data(together)
        assert splits.classes == ("blast", "mono")  # those that both have
        for images in splits.named().values():
            cells = 2 * images.metadata["domain"] + images.labels
            assert cells.unique().tolist() == [0, 1, 2, 3]

    @pytest.mark.parametrize("in_a_table", [False, True])
    def test_patients_stay_on_one_side(self, places, tmp_path, in_a_table):
        lines = ["file,group"]
        for lab in ("one", "two"):
            for name in ("blast", "mono"):
                (tmp_path / lab / name).mkdir(parents=True)
                for k in range(8):
                    image = picture(np.random.default_rng([k, len(name), len(lab) + (lab == "two")]))
                    file = f"{lab}/{name}/{name[0]}{k // 2}_{k}.png"
                    Image.fromarray(image).save(tmp_path / file)
                    lines.append(f"{file},{name[0]}{k // 2}")
        (table := tmp_path / "patients.csv").write_text("\n".join(lines))
        two = tuple(str(tmp_path / lab) for lab in ("one", "two"))
        asked = DomainData(two, size=SIZE, channels=1, group=str(table) if in_a_table else "([bm][0-9])_")
        patients = [
            {(int(lab), Path(file).name[:2]) for lab, file in zip(one.metadata["domain"], one.files, strict=True)}
            for one in load_data(asked).named().values()
        ]
        assert sum(map(len, patients)) == len(set.union(*patients)) == 16

    def test_test_images_that_another_laboratory_trains_on_are_counted(self, places, tmp_path):
        for name in ("blast", "mono"):
            (tmp_path / "b" / name).mkdir(parents=True)
            for number in range(8):  # in another order, so that others are drawn for the test
                shutil.copy(places["a"] / name / f"{number}.png", tmp_path / "b" / name / f"{7 - number}.png")
        splits = load_data(DomainData((str(places["a"]), str(tmp_path / "b")), size=SIZE, channels=1))
        shared = len(copies_among(splits.test, join([splits.train, splits.validation])))
        assert shared > 0
        (note,) = splits.notes
        assert f"{shared} of {len(splits.test)} test images" in note


@pytest.mark.parametrize("patients", [4, 10, 20])
def test_classes_share_the_patients_that_have_all_of_them(patients):
    """Each class in turn takes an image of a patient who gave none, and half of the patients are left to test."""
    number = 4 * 3 * patients
    labels, group = torch.arange(number) % 4, torch.arange(number) // 12
    images = torch.arange(number).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    source = ImageSet(images, labels, ("a", "b", "c", "d"), metadata={"group": group})
    drawn, rest, _ = draw_labelled(source, 10, 0)
    counts = drawn.counts().values()
    assert (sum(counts), max(counts) - min(counts)) == (patients // 2, int(patients % 8 > 0))
    assert len(drawn.metadata["group"].unique()) == len(drawn)
    assert rest.counts() == dict.fromkeys("abcd", 3 * (patients - patients // 2))
