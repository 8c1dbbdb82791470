"""ImageSet and batches."""

import pytest
import torch

from capsella.data import ImageSet, batches
from capsella.data.images import join


def make_set(number: int = 6, **changes: object) -> ImageSet:
    images = torch.arange(number * 3 * 4 * 5).reshape(number, 3, 4, 5).remainder(256).to(torch.uint8)
    fields: dict[str, object] = {"images": images, "labels": torch.arange(number) % 2, "classes": ("a", "b", "none")}
    return ImageSet(**(fields | changes))  # type: ignore[arg-type]


def test_subset_takes_everything_along_in_order():
    images = make_set(4, files=("p", "q", "r", "s"), metadata={"group": torch.tensor([7, 8, 9, 7])})
    part = images.subset(torch.tensor([3, 0]))
    assert torch.equal(part.images, images.images[[3, 0]])
    assert part.labels.tolist() == [1, 0]
    assert part.files == ("s", "p")
    assert part.metadata["group"].tolist() == [7, 7]
    assert len(images.subset([])) == 0


def test_a_mask_is_not_mistaken_for_positions():
    with pytest.raises(ValueError, match="indices"):
        make_set(3).subset(torch.tensor([True, False, True]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": torch.zeros(6, 3, 4, 5)}, r"must be uint8 of shape \[n c h w\] .* got torch.float32"),
        ({"labels": torch.zeros(5, dtype=torch.int64)}, "one for each of the 6 images, got torch.int64 of shape"),
        ({"labels": torch.tensor([0, 1, -1, 0, 0, 0])}, "must be from 0 to 2, got -1 for image 2"),
        ({"files": ("one",)}, "files: must name every image, got 1 for 6"),
        ({"metadata": {"group": torch.zeros(2)}}, "metadata 'group'"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        make_set(**changes)  # type: ignore[arg-type]


def test_batches_are_scaled_to_one_and_leave_nothing_out():
    images = make_set(7)
    seen = list(batches(images, 3))
    assert [len(labels) for _, labels, _ in seen] == [3, 3, 1]
    pixels = torch.cat([batch for batch, *_ in seen])
    assert pixels.dtype == torch.float32
    assert torch.equal((pixels * 255).round().to(torch.uint8), images.images)
    assert pixels.max() == 1.0  # 255 is among the bytes
    assert torch.equal(torch.cat([labels for _, labels, _ in seen]), images.labels)


def test_some_classes_alone():
    images = ImageSet(
        torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1),
        torch.tensor([0, 1, 2, 1, 0]),
        ("a", "b", "c"),
        tuple("vwxyz"),
    )
    some = images.of_classes(["c", "a"])
    assert some.classes == ("c", "a")
    assert some.labels.tolist() == [1, 0, 1]
    assert some.files == ("v", "x", "z")
    with pytest.raises(ValueError, match="names"):
        images.of_classes(["a", "d"])


def test_sets_are_joined_with_what_all_of_them_have():
    def one(value: int, metadata: tuple[str, ...], files: tuple[str, ...] | None = ("x",)) -> ImageSet:
        pixels = torch.full((1, 1, 2, 2), value, dtype=torch.uint8)
        return ImageSet(pixels, torch.tensor([0]), ("a",), files, {name: torch.tensor([value]) for name in metadata})

    both = join([one(3, ("slide", "row")), one(4, ("row",))])
    assert both.images[:, 0, 0, 0].tolist() == both.metadata["row"].tolist() == [3, 4]
    assert list(both.metadata) == ["row"]
    assert both.files == ("x", "x")
    assert join([one(3, ()), one(4, (), None)]).files is None
    with pytest.raises(ValueError, match="sets"):
        join([])
    with pytest.raises(ValueError, match="sets"):
        join([one(3, ()), ImageSet(one(3, ()).images, torch.tensor([0]), ("b",))])
