"""The networks of Forslöv's thesis: Table 2 to the digit, the published grids, and what holds at other sizes."""

import pytest
import torch
from torch import nn

from capsella.layers import ConvolutionalDecoder
from capsella.models import CapsuleClassifier, ImageClassifier, create_model, list_models
from capsella.models.forslov2018.parts import init_net
from capsella.report import dimension_tweaks, reconstruct
from capsella.routing import DynamicRouting, EMRouting

# Table 2: a fixed number of weights, and weights a class.
INIT_NETS = {1: 334_401, 2: 360_226}
HEADS = {
    "cnnnet1": (2_563_000, 60),
    "cnnnet2": (13_221_888, 128),
    "cnnnet3": (10_354_688, 256),
    "capsnet1": (5_308_416, 49_152),
    "capsnet2": (7_667_712, 49_152),
    "emnet1": (349_184, 512),
    "emnet2": (496_640, 512),
}
CAPSULE_NETS = [head for head in HEADS if not head.startswith("cnn")]


def weights(module: nn.Module) -> int:
    """As Table 2 counts: without biases, and without β_u and β_a, of which there is one a capsule type."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.ndim > 1)


def on_meta(name: str, **options: object) -> ImageClassifier:
    """Shapes only, no memory."""
    with torch.device("meta"):
        return create_model(name, **options)


def test_fourteen_networks_are_registered() -> None:
    assert list_models("forslov2018_*") == sorted(f"forslov2018_{head}_init{k}" for head in HEADS for k in INIT_NETS)


@pytest.mark.parametrize("init", INIT_NETS)
def test_table_2_init_nets(init: int) -> None:
    assert weights(init_net(init, (224, 224), 3, standardise=True)) == INIT_NETS[init]


@pytest.mark.parametrize("classes", [5, 10, 15])
@pytest.mark.parametrize("init", INIT_NETS)
@pytest.mark.parametrize("head", HEADS)
def test_table_2(head: str, init: int, classes: int) -> None:
    fixed, a_class = HEADS[head]
    model = on_meta(f"forslov2018_{head}_init{init}", classes=classes)
    assert weights(model) == INIT_NETS[init] + fixed + a_class * classes


@pytest.mark.parametrize(("head", "CT"), [("capsnet1", 96), ("emnet2", 16)])
def test_table_2_decoder(head: str, CT: int) -> None:
    """The printed total is the sum of the printed factors; one of them has 256 input channels where 128 arrive."""
    decoder = on_meta(f"forslov2018_{head}_init1", reconstruction=True).decoder
    assert weights(decoder) == 3_341_604 + 675 * CT
    too_many = 6 * 6 * 256 * 256 - 6 * 6 * 128 * 256
    assert weights(decoder) + too_many == 4_521_252 + 675 * CT


@pytest.mark.parametrize("head", CAPSULE_NETS)
def test_capsules_have_as_many_weights_at_any_size(head: str) -> None:
    counts = {weights(on_meta(f"forslov2018_{head}_init1", image_size=size)) for size in (64, 150, 224, (300, 450))}
    assert len(counts) == 1


@pytest.mark.parametrize("init", INIT_NETS)
@pytest.mark.parametrize(
    ("size", "grid"), [((224, 224), (20, 20)), ((64, 64), (20, 20)), ((64, 67), (20, 22)), ((233, 250), (22, 24))]
)
def test_init_nets_end_with_the_published_map(init: int, size: tuple[int, int], grid: tuple[int, int]) -> None:
    assert init_net(init, size, 3, standardise=True)(torch.rand(1, 3, *size)).shape == (1, 128, *grid)


@pytest.mark.parametrize("head", CAPSULE_NETS)
def test_grids_of_the_figures(head: str) -> None:
    model = create_model(f"forslov2018_{head}_init1", classes=3)
    assert isinstance(model, CapsuleClassifier)
    types, pose, class_pose = (64, 8, 96) if head.startswith("caps") else (32, 16, 16)
    capsules = model.primary(model.backbone(torch.rand(1, 3, 224, 224)))
    shapes = [tuple(capsules.poses.shape)]
    for layer in model.capsule_layers:
        capsules = layer(capsules)
        shapes.append(tuple(capsules.poses.shape))
    between = [(1, 4, 4, types, pose)] if head.endswith("2") else []
    assert shapes == [(1, 6, 6, types, pose), *between, (1, 1, 1, 3, class_pose)]


def test_class_capsules_share_their_weights_over_positions() -> None:
    for head, shape in (("capsnet1", (1, 1, 64, 5, 8, 96)), ("emnet1", (1, 1, 32, 5, 4, 4))):
        layer = on_meta(f"forslov2018_{head}_init1", classes=5).capsule_layers[-1]
        assert layer.geometry.tied
        assert tuple(layer.weight.shape) == shape


def test_smaller_first_weights_make_shorter_class_capsules() -> None:
    images = torch.rand(2, 3, 64, 64)
    models = [create_model("forslov2018_capsnet1_init1", image_size=64, class_weight_sd=sd) for sd in (0.1, 0.01)]
    long, short = (model.eval()(images).activations.detach() for model in models)
    assert long.min() > 0.95
    assert short.max() < 0.9


def test_he_s_first_weights_of_primary_capsules() -> None:
    usual, wide = (
        create_model("forslov2018_capsnet1_init1", he_primary=he).primary.conv.weight.detach() for he in (False, True)
    )
    assert (wide.std() / usual.std()).item() == pytest.approx(6**0.5, rel=0.02)


def test_coordinates_are_added_to_the_votes_of_em_nets_alone() -> None:
    offset = create_model("forslov2018_emnet1_init1", image_size=64).capsule_layers[-1].vote_offset
    assert offset.shape == (6, 6, 16)
    # Windows of 9 and then 9 with stride 2 over 28 cells: 17 cells wide, 2 apart.
    torch.testing.assert_close(offset[:, 0, 3], (torch.arange(6) * 2 + 8.5) / 28)
    torch.testing.assert_close(offset[0, :, 7], (torch.arange(6) * 2 + 8.5) / 28)
    assert create_model("forslov2018_capsnet1_init1", image_size=64).capsule_layers[-1].vote_offset is None


def test_defaults_are_the_thesis_s() -> None:
    caps, em = (on_meta(f"forslov2018_{head}_init1") for head in ("capsnet1", "emnet1"))
    assert len(caps.classes) == 15
    assert caps.classes[:5] == ("Segmented Neutrophil", "Eosinophil", "Basophil", "Lymphocyte", "Monocyte")
    assert caps.capsule_layers[0].routing == DynamicRouting(iterations=3)
    routing = em.capsule_layers[0].routing
    assert isinstance(routing, EMRouting)
    assert (routing.competition, routing.standardise_costs) == ("types", True)
    assert [round(routing.inverse_temperature_at(t), 2) for t in range(3)] == [1.0, 1.95, 2.85]


def test_brightness_and_contrast_of_the_whole_image_do_not_matter_unless_asked_for() -> None:
    images = torch.rand(1, 3, 64, 64)
    for standardise in (True, False):
        model = create_model("forslov2018_cnnnet1_init1", image_size=64, standardise=standardise).eval()
        same = torch.allclose(model(images).logits, model(0.5 * images + 0.3).logits, rtol=1e-3, atol=1e-4)
        assert same == standardise


@pytest.mark.parametrize("options", [{"pose_elements": 9}, {"channels": 1, "reconstruction": True}])
def test_em_nets_with_other_poses_and_grey_images(options: dict[str, object]) -> None:
    model = create_model("forslov2018_emnet2_init2", image_size=64, classes=4, **options)
    images = torch.rand(2, model.channels, 64, 64)
    output = model(images)
    assert output.capsules.poses.shape == (2, 1, 1, 4, options.get("pose_elements", 16))
    assert (output.reconstruction is not None) == ("reconstruction" in options)


@pytest.mark.parametrize("head", HEADS)
def test_batch_normalisation_sits_between_each_convolution_and_its_relu(head: str) -> None:
    def kinds(**options: object) -> list[str]:
        model = on_meta(f"forslov2018_{head}_init1", **options)
        return [type(layer).__name__ for layer in (model.network if head.startswith("cnn") else model.backbone)]

    plain, normalised = kinds(), kinds(batch_norm=True)
    assert "BatchNorm2d" not in plain
    assert [kind for kind in normalised if kind != "BatchNorm2d"] == plain
    assert normalised.count("BatchNorm2d") == plain.count("LargeConv2d")
    unpooled = [kind for kind in normalised if kind != "MaxPool2d"]
    triples = zip(unpooled, unpooled[1:], unpooled[2:], strict=False)
    assert list(triples).count(("LargeConv2d", "BatchNorm2d", "ReLU")) == plain.count("LargeConv2d")


def test_dropout_after_both_hidden_layers() -> None:
    for head in ("cnnnet1", "cnnnet2", "cnnnet3"):
        kinds = [type(layer).__name__ for layer in on_meta(f"forslov2018_{head}_init1", dropout=0.3).network]
        assert kinds[-8:] == ["Flatten", "Linear", "ReLU", "Dropout", "Linear", "ReLU", "Dropout", "Linear"]


@pytest.mark.parametrize(("head", "reach"), [("capsnet1", 0.4), ("emnet1", 5.0)])
def test_figures_35_and_36(head: str, reach: float) -> None:
    """RGB reconstructions and perturbations, over the thesis's ranges."""
    model = create_model(f"forslov2018_{head}_init1", image_size=64, classes=3, reconstruction=True).eval()
    images = torch.rand(1, 3, 64, 64)
    shown = reconstruct(model, images, torch.tensor([2]))
    assert shown.from_true.shape == (1, 3, 64, 64)
    grid = dimension_tweaks(model, images[0], 2, offsets=(-reach, 0.0, reach), elements=[0, 15])
    assert grid.shape == (2, 3, 3, 64, 64)
    torch.testing.assert_close(grid[:, 1], shown.from_true.expand(2, -1, -1, -1))
    assert ((grid[:, 0] - grid[:, 2]).abs().amax((1, 2, 3)) > 0).all()


def test_gradients_reach_every_parameter_through_the_decoder() -> None:
    model = create_model("forslov2018_capsnet1_init2", image_size=64, classes=3, reconstruction=True)
    model(torch.rand(1, 3, 64, 64), torch.tensor([1])).reconstruction.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


def test_a_wider_fourth_layer_of_the_decoder() -> None:
    """The other reading of the misprint."""
    with torch.device("meta"):
        assert weights(ConvolutionalDecoder(16, (3, 224, 224), hidden=(64, 256, 256))) == 4_816_164 + 675 * 16


def test_errors() -> None:
    with pytest.raises(
        ValueError, match="image_size: must be at least 64×64 for the networks of the thesis, got 63×80"
    ):
        create_model("forslov2018_capsnet1_init1", image_size=(63, 80))
    with pytest.raises(ValueError, match=r"standardise_costs: must be off for a layer of fewer than three .*, got 2"):
        create_model("forslov2018_emnet1_init1", image_size=64, classes=2)
    two = EMRouting(competition="types")
    assert create_model("forslov2018_emnet1_init1", image_size=64, classes=2, routing=two).classes == ("0", "1")
    with pytest.raises(ValueError, match="pose_elements: must be a square number for matrix poses, got 8"):
        create_model("forslov2018_emnet1_init1", pose_elements=8)
    with pytest.raises(ValueError, match=r"option of model 'forslov2018_capsnet1_init1': .* got 'init'"):
        create_model("forslov2018_capsnet1_init1", init=2)


@pytest.mark.parametrize("network", ["forslov2018_emnet1_init1", "forslov2018_emnet2_init2"])
def test_a_narrower_em_net(network):
    narrow = {"types": 8, "stem_width": 8, "front_width": 16, "caps_width": 12, "kernel": 5}
    model = create_model(network, image_size=64, classes=4, **narrow)
    assert model(torch.rand(1, 3, 64, 64)).activations.shape == (1, 4)
    assert sum(weight.numel() for weight in model.parameters()) < 30_000
    with pytest.raises(ValueError, match="types: must be at least 1, got 0"):
        create_model(network, types=0)
