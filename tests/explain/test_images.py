import numpy as np
import pytest
import torch
from PIL import Image

from capsella.errors import CapsellaError
from capsella.explain import dimension_tweaks, explain_images
from capsella.explain.image_grids import mosaic
from capsella.explain.images import image_figure


@pytest.fixture
def folder(tmp_path):
    for name in ("one/cell.png", "two/cell.png", "two/Cell.bmp"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(path)
    return tmp_path / "in"


def test_every_image_gets_a_picture_of_its_own(capsnet, folder, tmp_path):
    pictures = explain_images(capsnet, [folder], tmp_path / "out")
    assert [path.name for path in pictures] == [
        "cell_explained.png", "Cell_2_explained.png", "cell_3_explained.png"
    ]  # fmt: skip
    for path in pictures:
        assert Image.open(path).format == "PNG"


def test_em_routing_gets_a_picture_of_its_votes(matrix_capsnet, folder, tmp_path):
    pictures = explain_images(matrix_capsnet, [folder / "one", folder / "two" / "cell.png"], tmp_path / "out")
    assert [path.name for path in pictures] == [
        "cell_explained.png", "cell_votes.png", "cell_2_explained.png", "cell_2_votes.png"
    ]  # fmt: skip
    explained, votes = (Image.open(path) for path in pictures[:2])
    assert explained.format == votes.format == "PNG"
    assert explained.size != votes.size


def test_images_beside_the_pictures_are_left_alone(cnn, folder):
    before = (folder / "one/cell.png").read_bytes()
    explain_images(cnn, [folder / "one/cell.png"], folder / "one")
    assert (folder / "one/cell.png").read_bytes() == before
    assert (folder / "one/cell_explained.png").exists()


def test_the_picture_shows_input_activations_reconstruction_and_tweaks(capsnet):
    image = torch.rand(1, *capsnet.image_size)
    figure = image_figure(capsnet, image, "$\\bad{.png")
    shown, bars, reconstruction, tweaks = figure.axes
    with torch.no_grad():
        output = capsnet(image.unsqueeze(0))
    best = output.activations[0].sort(descending=True)
    np.testing.assert_allclose(shown.images[0].get_array(), image[0])
    np.testing.assert_allclose([bar.get_width() for bar in bars.patches], best.values, rtol=1e-5)
    assert bars.get_yticklabels()[0].get_text() == capsnet.classes[best.indices[0]]
    np.testing.assert_allclose(reconstruction.images[0].get_array(), output.reconstruction[0, 0], atol=1e-6)
    expected = mosaic(dimension_tweaks(capsnet, image).numpy())[..., 0]
    np.testing.assert_allclose(tweaks.images[0].get_array(), expected)
    assert figure.get_suptitle().startswith("$\\bad{.png: ")


def test_a_cnn_says_why_there_is_no_reconstruction(cnn):
    figure = image_figure(cnn, torch.rand(1, *cnn.image_size), "x.png")
    assert len(figure.axes) == 2
    assert "no decoder" in figure.axes[0].get_xlabel()


def test_a_broken_file_is_named(capsnet, folder, tmp_path):
    (folder / "two/cell.png").write_bytes(b"broken")
    with pytest.raises(CapsellaError, match=r"two/cell\.png"):
        explain_images(capsnet, [folder / "two/cell.png"], tmp_path / "out")
