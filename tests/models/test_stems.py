"""Stems: backbones of `transformers` saved by the tests, and networks of capsella."""

import json
import shutil

import pytest
import torch
from torch import nn

from capsella.data import ImageSet
from capsella.errors import CapsellaError
from capsella.losses import LossOptions, total_loss
from capsella.models import ImageClassifier, create_model
from capsella.models.multi_crop import MultiCrop
from capsella.models.packed import packed
from capsella.models.stems import Stem, backbones, find_stem
from capsella.training.adapt import take_statistics

transformers = pytest.importorskip("transformers")

CONFIGS = {
    "resnet": transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 12, 16, 20], depths=[1, 1, 1, 1], layer_type="basic"
    ),
    "convnext": transformers.ConvNextConfig(hidden_sizes=[8, 12, 16, 20], depths=[1, 1, 1, 1]),
    "convnextv2": transformers.ConvNextV2Config(hidden_sizes=[8, 12, 16, 20], depths=[1, 1, 1, 1]),
    "dinov2": transformers.Dinov2Config(hidden_size=16, num_hidden_layers=3, num_attention_heads=2, image_size=56),
    "dinov2_with_registers": transformers.Dinov2WithRegistersConfig(
        hidden_size=16, num_hidden_layers=3, num_attention_heads=2, image_size=56
    ),
}
HEADS = ("stem_capsules", "stem_linear")
every_family = pytest.mark.parametrize("family", CONFIGS)
both_heads = pytest.mark.parametrize("head", HEADS)
OWN = ("he2016_resnet10", "sabour2017_cnn", "mazzia2021_efficient_capsnet", "sabour2017_capsnet")


def test_every_known_family_is_tested():
    assert set(CONFIGS) == set(backbones.FAMILIES)


def saved(folder, family, **preprocessor):
    """A whole network with random weights, as its makers would put it on the hub."""
    torch.manual_seed(1)
    kind = transformers.AutoModel if "dinov2" in family else transformers.AutoModelForImageClassification
    model = kind.from_config(CONFIGS[family])
    with torch.no_grad():
        for tensor in (*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())):
            tensor.add_(0.1 * torch.rand_like(tensor))  # no norm is the identity
    model.save_pretrained(folder)
    if preprocessor:
        (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return folder


@pytest.fixture
def folder(tmp_path, request):
    return saved(tmp_path / "backbone", getattr(request, "param", "resnet"))


def stem_of(model):
    return next(module for module in model.modules() if isinstance(module, Stem))


def steps(model, count=2):
    """A few steps of training; returns the values before."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(count):
        images, labels = torch.rand(4, model.channels, *model.image_size), torch.tensor([0, 1, 2, 0])
        loss = total_loss(model.train()(images, labels), images, labels, LossOptions()).total
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return before


def test_statistics_of_a_frozen_stem_stay_where_others_are_taken_anew(folder):
    """They belong to its weights: the network would see other maps with those of another laboratory."""
    images = ImageSet(torch.randint(256, (12, 3, 40, 40)).byte(), torch.zeros(12).long(), ("a", "b", "c"))
    for freeze in (True, False):
        model = create_model("stem_linear", stem=str(folder), image_size=40, classes=3, freeze=freeze)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        take_statistics(model, images)
        moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
        assert "network.1.running_mean" in moved
        assert any(name.startswith("network.0.") for name in moved) != freeze


@every_family
@pytest.mark.parametrize("stage", [2, 3])
def test_maps_are_those_of_the_whole_backbone(family, stage, tmp_path):
    """The stages behind are left out, and the images normalised as the backbone wants them."""
    folder = saved(tmp_path / "b", family, image_mean=[0.1, 0.2, 0.3], image_std=[0.5, 0.25, 0.2])
    config = transformers.AutoConfig.from_pretrained(folder, out_features=[f"stage{stage}"])
    whole = transformers.AutoBackbone.from_config(config)
    whole = type(whole).from_pretrained(folder, config=config).eval()
    model = create_model("stem_linear", stem=str(folder), image_size=(70, 84), classes=3, stage=stage).eval()
    images = torch.rand(2, 3, 70, 84)
    normalised = (images - torch.tensor([0.1, 0.2, 0.3])[:, None, None]) / torch.tensor([0.5, 0.25, 0.2])[:, None, None]
    with torch.no_grad():
        expected = whole(normalised).feature_maps[0]
        torch.testing.assert_close(stem_of(model)(images), expected, rtol=1e-4, atol=1e-5)
    assert tuple(expected.shape[1:]) == stem_of(model).description.maps


@every_family
@both_heads
def test_a_saved_network_needs_no_folder(family, head, tmp_path, monkeypatch):
    folder = saved(tmp_path / "b", family)
    model = create_model(head, stem=str(folder), image_size=40, channels=1, classes=3)
    steps(model)
    model.eval().save_pretrained(tmp_path / "saved")
    shutil.rmtree(folder)
    monkeypatch.setattr(backbones, "read_config", None)  # which asks folder or hub
    loaded = ImageClassifier.from_pretrained(tmp_path / "saved").eval()
    images = torch.rand(2, 1, 40, 40)
    assert loaded.options == model.options
    assert torch.equal(loaded(images).activations, model(images).activations)
    assert not any(parameter.requires_grad for parameter in stem_of(loaded).parameters())
    torch.testing.assert_close(packed(model)(images).activations, model(images).activations, rtol=1e-4, atol=1e-5)


@every_family
@both_heads
def test_a_frozen_stem_stays_and_the_head_learns(family, head, tmp_path):
    model = create_model(head, stem=str(saved(tmp_path / "b", family)), image_size=40, classes=3)
    before = steps(model)
    inside = {f"{name}." for name, module in model.named_modules() if isinstance(module, Stem)}
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved
    assert not any(name.startswith(tuple(inside)) for name in moved)
    assert not any(module.training for module in stem_of(model).network.modules())
    assert model.training


@every_family
def test_fine_tuning_moves_the_stem(family, tmp_path):
    model = create_model("stem_linear", stem=str(saved(tmp_path / "b", family)), image_size=40, classes=3, freeze=False)
    before = steps(model)
    assert stem_of(model).network.training
    stem = [name for name in before if name.startswith("network.0.")]
    assert sum(not torch.equal(model.state_dict()[name], before[name]) for name in stem) > len(stem) / 2


@both_heads
def test_grey_images_are_repeated(head, folder):
    torch.manual_seed(0)
    grey = create_model(head, stem=str(folder), image_size=70, channels=1, classes=3).eval()
    colour = create_model(head, stem=str(folder), image_size=70, channels=3, classes=3).eval()
    colour.load_state_dict(grey.state_dict())
    images = torch.rand(2, 1, 70, 70)
    torch.testing.assert_close(grey(images).activations, colour(images.repeat(1, 3, 1, 1)).activations)


@pytest.mark.parametrize(
    ("folder", "image_size", "options", "size", "maps"),
    [
        ("resnet", 128, {}, (128, 128), (20, 4, 4)),  # the last stage has 4×4: stride 32
        ("resnet", 100, {}, (100, 100), (16, 7, 7)),  # it would have 3×3 or so: stride 16
        ("resnet", 20, {"positions": 2}, (20, 20), (16, 2, 2)),
        ("resnet", 20, {"stage": 1}, (20, 20), (8, 5, 5)),
        ("convnext", 32, {}, (64, 64), (16, 4, 4)),
        ("dinov2", (28, 42), {}, (56, 84), (16, 4, 6)),
        ("dinov2", 224, {}, (224, 224), (16, 16, 16)),
    ],
    indirect=["folder"],
)
def test_stage_and_size(folder, image_size, options, size, maps):
    model = create_model("stem_linear", stem=str(folder), image_size=image_size, classes=3, **options)
    description = stem_of(model).description
    assert (description.size, description.maps) == (size, maps)


@pytest.mark.parametrize("name", OWN)
@both_heads
def test_the_stem_of_a_run(name, head, tmp_path):
    """At another size, of other channels, and loaded again without the run."""
    run = create_model(name, image_size=28, channels=1, classes=4)
    steps(run, 1)
    run.save_pretrained(tmp_path / "run")
    model = create_model(head, stem=str(tmp_path / "run"), image_size=(40, 36), channels=3, classes=3).eval()
    images = torch.rand(2, 3, 40, 36)
    grey = (images * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)
    with torch.no_grad():
        torch.testing.assert_close(stem_of(model)(images), run.eval().feature_layers()(grey))
    before = steps(model)
    assert torch.equal(stem_of(model)(images), stem_of(model.eval())(images))
    assert any(not torch.equal(value, before[key]) for key, value in model.state_dict().items())
    model.save_pretrained(tmp_path / "saved")
    shutil.rmtree(tmp_path / "run")
    loaded = ImageClassifier.from_pretrained(tmp_path / "saved").eval()
    assert torch.equal(loaded(images).activations, model(images).activations)


def test_a_fine_tuned_stem_is_a_stem_again(folder, tmp_path):
    first = create_model("stem_linear", stem=str(folder), image_size=70, classes=3, freeze=False)
    steps(first)
    first.save_pretrained(tmp_path / "first")
    second = create_model("stem_capsules", stem=str(tmp_path / "first"), image_size=70, classes=2).eval()
    images = torch.rand(1, 3, 70, 70)
    torch.testing.assert_close(stem_of(second)(images), stem_of(first.eval())(images))
    assert stem_of(second).description.kind == "backbone"


def test_a_fresh_stem_learns():
    model = create_model("stem_linear", stem="he2016_resnet10", image_size=20, classes=3)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert stem_of(model).network.training


def test_an_outline_reads_no_weights(folder, monkeypatch):
    monkeypatch.setattr(backbones, "load", None)
    with torch.device("meta"):
        model = create_model("stem_capsules", stem=str(folder), image_size=70, classes=3)
    assert all(parameter.is_meta for parameter in model.parameters())


def test_stages_behind_are_not_kept(folder):
    names = [name for name, _ in stem_of(create_model("stem_linear", stem=str(folder), stage=2)).named_modules()]
    assert any(name.endswith("stages.1") for name in names)
    assert not any(name.endswith("stages.2") for name in names)


def wrong_stem(text, kind=ValueError, **options):
    with pytest.raises(kind, match=text):
        create_model("stem_linear", **{"image_size": 40, "classes": 3, **options})


def test_wrong_options(folder):
    wrong_stem(r"stem: must be a name on the Hugging Face hub, .* got ''; give one with --stem", stem="")
    wrong_stem("stem: must be a name on the Hugging Face hub", stem="nowhere")
    wrong_stem("stage: must be from 1 to 4, the stages of this stem, got 5", stem=str(folder), stage=5)
    wrong_stem("stage: must be None, for this stem has no stages", stem="he2016_resnet10", stage=1)
    wrong_stem("positions: must be at least 2, got 1", stem=str(folder), positions=1)
    wrong_stem("channels: must be 3 for this stem, or grey or RGB, got 2", stem=str(folder), channels=2)


def test_pickled_weights_are_not_read(folder):
    weights = folder / "model.safetensors"
    torch.save({}, folder / "pytorch_model.bin")
    weights.unlink()
    wrong_stem(
        r"config.json and model.safetensors of a backbone \(pickled weights are not read\)",
        CapsellaError,
        stem=str(folder),
    )


def test_a_folder_without_what_it_says(folder, tmp_path):
    import safetensors.torch

    weights = safetensors.torch.load_file(folder / "model.safetensors")
    weights.pop("resnet.embedder.embedder.convolution.weight")
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    wrong_stem("does not hold the weights .*embedder.convolution.weight is not there", CapsellaError, stem=str(folder))
    (folder / "config.json").write_text("{")
    wrong_stem("must be a folder with config.json", CapsellaError, stem=str(folder))
    (tmp_path / "empty").mkdir()
    wrong_stem("must be a folder with config.json", CapsellaError, stem=str(tmp_path / "empty"))


def test_a_mistyped_run_is_not_asked_for_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", lambda *_, **__: pytest.fail("asked the hub"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/images-efficient").mkdir(parents=True)
    wrong_stem("got 'runs/image-efficient'; there is no such folder", stem="runs/image-efficient")


def test_another_family(tmp_path):
    transformers.BertConfig().save_pretrained(tmp_path)
    wrong_stem("is a bert; the backbones known here are convnext, ", CapsellaError, stem=str(tmp_path))


def test_code_beside_a_backbone_is_not_run(folder):
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoBackbone": "evil.Backbone"}
    config["attn_implementation"] = "somebody/kernels"
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text("raise SystemExit('run')")
    model = create_model("stem_linear", stem=str(folder), image_size=40, classes=3)
    assert not {"auto_map", "attn_implementation"} & set(model.options["stem"]["config"])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"kind": "pickle"}, "kind: must be 'backbone' or 'network'"),
        ({"size": [0, 40]}, "must be at least 1"),
        ({"size": [10**6, 10**6]}, "must have at most"),
        ({"more": 1}, "must be described as capsella writes it"),
        ({"config": {"model_type": "bert"}}, "stem: must be one of convnext, "),
        ({"config": {"model_type": "resnet", "depths": [1], "auto_map": {}}}, "'auto_map' must be an option of resnet"),
        ({"mean": [0.5]}, "mean: must have 3 numbers"),
    ],
)
def test_a_wrong_description(folder, tmp_path, change, text):
    create_model("stem_linear", stem=str(folder), image_size=40, classes=3).save_pretrained(tmp_path / "saved")
    path = tmp_path / "saved" / "model.json"
    description = json.loads(path.read_text())
    description["options"]["stem"] |= change
    path.write_text(json.dumps(description))
    with pytest.raises(CapsellaError, match="describes no model that can be made: .*" + text):
        ImageClassifier.from_pretrained(tmp_path / "saved")


def test_without_transformers(folder, monkeypatch):
    monkeypatch.setattr("capsella.errors.find_spec", lambda name: None)
    wrong_stem(r"needs transformers: pip install 'capsella\[pretrained\]'", CapsellaError, stem=str(folder))


def test_networks_that_cannot_be_stems(tmp_path):
    create_model("hinton2018_cnn", image_size=40, crop=32).save_pretrained(tmp_path)
    wrong_stem("must be a network that takes whole images, without a crop", stem=str(tmp_path), channels=1)
    with pytest.raises(CapsellaError, match="cannot be a stem"):
        MultiCrop(create_model("hinton2018_cnn", image_size=40, crop=32)).feature_layers()


def test_find_stem_gives_description_and_network(folder):
    description, network = find_stem(str(folder), (70, 70), 3)
    assert isinstance(network, nn.Module)
    assert description.build().state_dict().keys() == network.state_dict().keys()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("size", "classes"), [(32, 2), (128, 5), (224, 12)])
def test_class_capsules_start_where_the_squash_has_a_slope(folder, size, classes, tied):
    model = create_model("stem_capsules", stem=str(folder), image_size=size, classes=classes, tied=tied, stage=3)
    lengths = model.train()(torch.rand(8, 3, size, size)).activations
    assert 0.05 < lengths.mean() < 0.8
    assert lengths.max() < 0.95


def test_networks_that_are_no_stems_say_so():
    sizes = {"image_size": (32, 32), "channels": 1, "stage": None, "positions": 4}
    with pytest.raises(ValueError, match="stem: must be a network with weights before its capsules, got 'zhao2021"):
        find_stem("zhao2021_cluster_capsnet", **sizes)
    with pytest.raises(CapsellaError, match=r"even for images enlarged to 1024 pixels: .*"):
        find_stem("heinsen2019_capsnet", **{**sizes, "image_size": (40, 40)})
    with pytest.raises(
        ValueError, match=r"got '/gone/run'; there is no such folder: put it back, or give another with"
    ):
        find_stem("/gone/run", **sizes)
