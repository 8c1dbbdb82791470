import numpy as np
import pytest
import torch
from PIL import Image

from capsella.models import create_model
from capsella.report import OFFSETS, dimension_tweaks, explain_images
from capsella.report.image_grids import mosaic
from capsella.report.image_pictures import image_figure, image_figures
from capsella.report.tweaks import dial_range, offsets_across
from tests.pictures import write_empty


@pytest.fixture
def folder(tmp_path):
    for name in ("one/cell.png", "two/cell.png", "two/Cell.bmp"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(path)
    return tmp_path / "in"


VIEWS = ("explained", "layer1", "graph", "votes")


def test_every_image_gets_pictures_of_its_own(capsnet, folder, tmp_path):
    pictures = explain_images(capsnet, [folder], tmp_path / "out")
    names = [f"{name}_{view}.png" for name in ("cell", "Cell_2", "cell_3") for view in VIEWS]
    assert [path.name for path in pictures] == names
    for path in pictures:
        assert Image.open(path).format == "PNG"


def test_every_routed_layer_gets_a_picture(matrix_capsnet, folder, tmp_path, monkeypatch):
    monkeypatch.setattr("capsella.report.image_pictures.write_png", write_empty)
    pictures = explain_images(matrix_capsnet, [folder / "one"], tmp_path / "out")
    views = ("explained", "layer1", "layer2", "layer3", "graph", "votes")
    assert [path.name for path in pictures] == [f"cell_{view}.png" for view in views]


def test_of_a_pair_both_capsules_are_drawn(capsnet):
    image = torch.rand(1, *capsnet.image_size)
    figures = dict(image_figures(capsnet, image, "x.png", classes=2))
    with torch.no_grad():
        strongest = capsnet(image.unsqueeze(0)).activations[0].topk(2).indices.tolist()
        drawn = [capsnet(image.unsqueeze(0), torch.tensor([k])).reconstruction[0, 0] for k in strongest]
    for view, target, expected in zip(("explained", "explained2"), strongest, drawn, strict=True):
        np.testing.assert_allclose(figures[view].axes[2].images[0].get_array(), expected, atol=1e-6)
        assert figures[view].get_suptitle() == f"x.png: taken for {capsnet.classes[target]}"


def test_of_a_stereo_pair_both_images_are_drawn():
    torch.manual_seed(0)
    model = create_model("sabour2017_capsnet", image_size=17, channels=2, classes=3)
    image = torch.rand(2, 17, 17)
    figures = dict(image_figures(model, image, "x.png"))
    assert {"explained", "layer1"} <= set(figures)
    sizes = [axes.images[0].get_array().shape for axes in figures["explained"].axes if axes.images]
    assert sizes.count((17, 34)) == 2  # input and reconstruction
    inputs = [axes.images[0].get_array() for axes in figures["explained"].axes if axes.get_title() == "input"]
    np.testing.assert_array_equal(inputs[0], np.hstack(image.numpy()))


def test_tweaks_go_as_far_as_the_papers_did(capsnet, matrix_capsnet):
    assert offsets_across(capsnet) == OFFSETS
    assert offsets_across(matrix_capsnet) == (-5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5)
    thesis = create_model("forslov2018_capsnet1_init1", image_size=64, classes=3)
    assert (dial_range(thesis), offsets_across(thesis, 3)) == (0.4, (-0.4, 0, 0.4))
    assert dial_range(create_model("forslov2018_emnet1_init1", image_size=64, classes=3)) == 5


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


def test_files_of_one_name_are_told_apart_by_their_folders(cnn, folder, tmp_path, monkeypatch):
    titles = []
    monkeypatch.setattr("capsella.report.image_pictures.image_figures", lambda *given: titles.append(given[2]) or ())
    explain_images(cnn, [folder], tmp_path)
    explain_images(cnn, [folder / "one/cell.png"], tmp_path)
    assert {"one/cell.png", "two/cell.png"} <= set(titles[:-1])
    assert titles[-1] == "cell.png"


def test_among_many_a_broken_file_is_passed_over_and_listed(cnn, folder, tmp_path):
    (folder / "two/cell.png").write_bytes(b"broken")
    broken = []
    pictures = explain_images(cnn, [folder], tmp_path / "out", broken=broken)
    assert [path.name for path in pictures] == ["cell_explained.png", "Cell_2_explained.png"]
    assert [file.file for file in broken] == [folder / "two/cell.png"]
    assert "cannot be read as an image" in broken[0].reason


def test_equal_activations_are_taken_as_predictions_take_them():
    """Where all children are dead every class is as likely, and the first is named."""
    model = create_model("sabour2017_capsnet", image_size=17, channels=1, classes=8, primary_relu=True)
    torch.nn.init.constant_(model.primary.conv.bias, -0.5)
    figures = dict(image_figures(model.eval(), torch.zeros(1, 17, 17), "x.png"))
    assert figures["explained"].get_suptitle() == f"x.png: taken for {model.classes[0]}"


def test_of_many_classes_the_most_active_have_their_votes_drawn():
    torch.manual_seed(0)
    model = create_model("hinton2018_matrix_capsnet_small", image_size=17, channels=1, classes=40)
    image = torch.rand(1, 17, 17)
    figure = dict(image_figures(model, image, "x.png"))["votes"]
    with torch.no_grad():
        strongest = model(image[None]).activations[0].topk(12).indices.sort().values.tolist()
    assert [axes.get_title() for axes in figure.axes[:12]] == [model.classes[k] for k in strongest]
    assert len(figure.axes) % 12 == 0
