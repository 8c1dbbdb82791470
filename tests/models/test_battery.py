"""One battery for every registered model: whoever registers a model gets these tests."""

import re
from functools import cache
from itertools import product
from pathlib import Path

import pytest
import torch

from capsella.losses import LossOptions, total_loss
from capsella.models import ImageClassifier, create_model, list_models
from capsella.routing import SelfRouting

CHANNELS, CLASSES = 2, ("rod", "cone", "glia")
every_model = pytest.mark.parametrize("name", list_models())


@cache
def least_size(name: str) -> int:
    """The least image size, as the model's own error states it."""
    with pytest.raises(ValueError, match=r"image_size: must be at least \d+×\d+") as error:
        create_model(name, image_size=0)
    return int(re.search(r"at least (\d+)×\1", str(error.value))[1])


def small(name: str, **options: object) -> ImageClassifier:
    """The model for images that are neither square nor grey nor of ten classes."""
    height = max(least_size(name), 8)
    return create_model(name, image_size=(height, height + 1), channels=CHANNELS, classes=CLASSES, **options)


def images_for(model: ImageClassifier, batch: int = 2) -> torch.Tensor:
    return torch.rand(batch, model.channels, *model.image_size)


@every_model
def test_forward_and_backward(name: str) -> None:
    """Every parameter has a part in the loss, a little away from where training starts.

    There, couplings of self-routing are zero whatever the poses are, so that the poses have no part yet. A bias that is
    added to the scores of all classes alike never has one: its gradient is 0 but for rounding.
    """
    model = small(name).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    images, labels = images_for(model, 4), torch.tensor([0, 2, 1, 2])
    output = model(images, labels)
    assert output.activations.shape == (4, len(CLASSES))
    assert output.activations.dtype == torch.float32
    assert output.activations.min() >= 0
    assert output.activations.max() <= 1
    total_loss(output, images, labels, LossOptions()).total.backward()
    for path, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{path} has no gradient"
        assert parameter.grad.isfinite().all(), f"the gradient of {path} is not finite"
        if path != "scores.linear.bias":
            assert parameter.grad.abs().max() > 0, f"the gradient of {path} is zero"


@every_model
def test_capsules_and_reconstructions_fit(name: str) -> None:
    model = small(name)
    images = images_for(model)
    output = model(images)
    if output.capsules is not None:
        assert output.capsules.poses.shape[:4] == (2, 1, 1, len(CLASSES))
        torch.testing.assert_close(output.capsules.activations[:, 0, 0], output.activations)
        torch.testing.assert_close(model.encode(images).poses, output.capsules.poses)
    assert model.has_decoder == (output.reconstruction is not None)
    if output.reconstruction is not None:
        assert output.reconstruction.shape == images.shape
        assert 0 <= output.reconstruction.min() <= output.reconstruction.max() <= 1


@every_model
def test_smallest_image_and_one_below(name: str) -> None:
    least = least_size(name)
    model = create_model(name, image_size=least, classes=3)
    assert model(images_for(model)).activations.shape == (2, 3)
    with pytest.raises(
        ValueError, match=rf"image_size: must be at least {least}×{least} .*got {least + 3}×{least - 1}"
    ):
        create_model(name, image_size=(least + 3, least - 1))


@every_model
def test_any_batch_and_no_image_depends_on_its_neighbours(name: str) -> None:
    model = small(name).eval()
    if name == "ribeiro2020_capsnet":  # at the start it answers nearly the same whatever it sees
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(3)
    images = images_for(model, 3)

    def answers(images: torch.Tensor) -> torch.Tensor:
        output = model(images)
        poses = [] if output.capsules is None else [output.capsules.poses.flatten(1)]
        return torch.cat([output.activations, *poses], 1)

    # Products are summed in another order for other batches, and Gaussians in float32 make 4e-5 of that.
    tolerance = 2e-4 if re.search("emnet|matrix|heinsen|league_cluster", name) else 1e-5
    together = answers(images)
    torch.testing.assert_close(answers(images[1:2]), together[1:2], rtol=tolerance, atol=tolerance)
    assert (together[0] - together[1]).abs().max() > 5 * tolerance  # a neighbour's answer would not pass
    assert model(images[:0]).activations.shape == (0, len(CLASSES))


@every_model
def test_evaluation_is_deterministic(name: str) -> None:
    model = small(name).eval()
    images = images_for(model)
    assert torch.equal(model(images).activations, model(images).activations)


@every_model
def test_bf16_autocast_stays_close(name: str) -> None:
    model = small(name).eval()
    images = images_for(model)
    with torch.autocast("cpu", torch.bfloat16):
        activations = model(images).activations
    assert activations.dtype == torch.float32
    torch.testing.assert_close(activations, model(images).activations, rtol=0.1, atol=0.05)


# Large convolutions in float16 take minutes on a CPU. The thesis's networks are made of the same layers; CAPSNETs and
# CNNs also of those of sabour2017_capsnet and sabour2017_multimnist_cnn.
OF_THE_SAME_LAYERS = {name for name in list_models() if name.startswith("forslov2018_")} - {
    "forslov2018_emnet1_init1"
} | {"sabour2017_cnn"}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *product(list_models(), (torch.float64, torch.bfloat16)),
        *((name, torch.float16) for name in list_models() if name not in OF_THE_SAME_LAYERS),
    ],
)
def test_other_types(name: str, dtype: torch.dtype) -> None:
    """A model made another type classifies and learns in it; in float64 it does so exactly."""
    model = small(name)
    images, labels = images_for(model), torch.tensor([0, 2])
    expected = model.eval()(images).activations
    output = model.to(dtype)(images.to(dtype), labels)
    close = {torch.float64: 2e-4, torch.bfloat16: 0.1, torch.float16: 0.02}[dtype]
    torch.testing.assert_close(output.activations.float(), expected, rtol=close, atol=close)
    assert dtype != torch.float64 or output.activations.dtype == dtype
    total_loss(output, images.to(dtype), labels, LossOptions()).total.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)


@every_model
def test_save_and_load(name: str, tmp_path: Path) -> None:
    model = small(name).eval()
    model.save_pretrained(tmp_path / "new" / "folder")
    loaded = ImageClassifier.from_pretrained(tmp_path / "new" / "folder").eval()
    assert type(loaded) is type(model)
    assert (loaded.name, loaded.options) == (model.name, model.options)
    assert (loaded.image_size, loaded.channels, loaded.classes) == (model.image_size, CHANNELS, CLASSES)
    weights = loaded.state_dict()
    assert weights.keys() == model.state_dict().keys()
    for path, tensor in model.state_dict().items():
        assert torch.equal(weights[path], tensor), path
    images = images_for(model)
    assert torch.equal(loaded(images).activations, model(images).activations)


@every_model
@pytest.mark.usefixtures("as_users_call")
def test_export(name: str) -> None:
    model = small(name).eval()
    images = images_for(model)
    exported = torch.export.export(model, (images,)).module()
    torch.testing.assert_close(exported(images).activations, model(images).activations)


@every_model
def test_images_of_another_shape(name: str) -> None:
    model = small(name)
    height, width = model.image_size
    expected = re.escape(f"[b c h w] = [b, 2, {height}, {width}], got ")
    for shape in [(2, 1, height, width), (2, 2, width, height), (2, height, width), (2, 2, height + 1, width)]:
        with pytest.raises(ValueError, match="images: must have shape " + expected + re.escape(str(shape))):
            model(torch.rand(shape))


@every_model
def test_unknown_option(name: str) -> None:
    with pytest.raises(ValueError, match=f"option of model '{name}': .* got 'channel'; did you mean channels"):
        create_model(name, channel=3)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mazzia2021_efficient_capsnet", {"reconstruction": False}),
        ("sabour2017_capsnet", {"reconstruction": False}),
        ("hinton2018_matrix_capsnet_small", {}),
        ("forslov2018_capsnet2_init1", {"image_size": 64}),
    ],
)
def test_self_routing_leaves_no_weight_to_learn_that_nothing_reads(name, options):
    """Its class poses are read by a decoder alone; several devices stop at a weight without a gradient."""
    given = {"image_size": 28, "classes": 3, "routing": SelfRouting(), **options}
    model = create_model(name, **given).train()
    images, labels = torch.rand(2, model.channels, *model.image_size), torch.tensor([0, 2])
    total_loss(model(images, labels), images, labels, LossOptions()).total.backward()
    learned = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    assert [name for name, weight in learned.items() if weight.grad is None] == []
    assert not model.last_layer().weight.requires_grad
    drawn = create_model("sabour2017_capsnet", image_size=28, routing=SelfRouting())
    assert drawn.last_layer().weight.requires_grad
