import pytest
import torch

from capsella.errors import CapsellaError
from capsella.evaluation import find_images, predict_files


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_files_are_classified_in_order(folder, batch_size, darkness):
    found = list(predict_files(darkness, [folder], batch_size=batch_size))
    assert [p.file.name for p in found] == ["a.PNG", "b.png", "c.bmp"]
    assert [p.class_name for p in found] == ["light", "dark, plain", "dark, plain"]
    torch.testing.assert_close(found[2].activations, torch.tensor([0.8, 0.2]))


def test_a_broken_file_is_named(folder, darkness):
    (folder / "b.png").write_bytes(b"no image at all")
    with pytest.raises(CapsellaError, match=r"b\.png"):
        list(predict_files(darkness, [folder]))


def test_broken_files_are_listed_where_asked(folder, darkness):
    (folder / "b.png").write_bytes(b"no image at all")
    broken = []
    found = list(predict_files(darkness, [folder], broken=broken))
    assert [p.file.name for p in found] == ["a.PNG", "c.bmp"]
    assert [entry.file for entry in broken] == [folder / "b.png"]
    assert broken[0].reason.startswith("cannot be read as an image")


def test_nothing_but_broken_files_is_an_error(folder, darkness):
    for file in find_images([folder]):
        file.write_bytes(b"")
    with pytest.raises(CapsellaError, match="none of the 3 images could be read"):
        list(predict_files(darkness, [folder], batch_size=2, broken=[]))


def test_broken_weights_and_batch_size_zero_are_errors(folder, darkness):
    model = darkness
    model.scale.data.fill_(float("inf"))
    with pytest.raises(CapsellaError, match=r"a\.PNG: the model answers NaN or infinity"):
        list(predict_files(model, [folder]))
    with pytest.raises(ValueError, match="batch_size: must be at least 1, got 0"):
        list(predict_files(darkness, [folder], batch_size=0))
    with pytest.raises(ValueError, match="workers: must be at least 0, got -1"):
        list(predict_files(darkness, [folder], workers=-1))
