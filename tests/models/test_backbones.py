"""Pretrained backbones: those of `transformers`, saved by the tests, and networks of capsella."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from capsella.data import ImageSet
from capsella.errors import CapsellaError
from capsella.losses import LossOptions, total_loss
from capsella.models import ImageClassifier, create_model
from capsella.models.backbones import Backbone, hub
from capsella.models.inference import optimize_for_inference
from capsella.training.adapt import update_batch_norms

transformers = pytest.importorskip("transformers")

STAGES = {"hidden_sizes": [8, 12, 16, 20], "depths": [1, 1, 1, 1]}
VIT = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 56}
CONFIGS = {
    "resnet": transformers.ResNetConfig(embedding_size=8, layer_type="basic", **STAGES),
    "convnext": transformers.ConvNextConfig(**STAGES),
    "convnextv2": transformers.ConvNextV2Config(**STAGES),
    "dinov2": transformers.Dinov2Config(**VIT),
    "dinov2_with_registers": transformers.Dinov2WithRegistersConfig(**VIT),
}
HEADS = ("backbone_capsules", "backbone_linear")


def saved(folder: Path, family: str, **preprocessor: object) -> Path:
    """Save a whole network with random weights, as its makers would put it on the hub."""
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


def backbone_of(model: ImageClassifier) -> Backbone:
    return next(module for module in model.modules() if isinstance(module, Backbone))


def train(model: ImageClassifier, steps: int = 2) -> dict[str, torch.Tensor]:
    """Take a few steps; return the values before."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(steps):
        images, labels = torch.rand(4, model.channels, *model.image_size), torch.tensor([0, 1, 2, 0])
        loss = total_loss(model.train()(images, labels), images, labels, LossOptions()).total
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return before


def moved(model: ImageClassifier, before: dict[str, torch.Tensor]) -> set[str]:
    return {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}


@pytest.mark.parametrize("family", CONFIGS)
def test_maps_are_those_of_the_backbone(family, tmp_path):
    """Images are normalised as the backbone expects."""
    folder = saved(tmp_path / "b", family, image_mean=[0.1, 0.2, 0.3], image_std=[0.5, 0.25, 0.2])
    config = transformers.AutoConfig.from_pretrained(folder)
    whole = type(transformers.AutoBackbone.from_config(config)).from_pretrained(folder, config=config).eval()
    model = create_model("backbone_linear", backbone=str(folder), image_size=(140, 168), classes=3).eval()
    images = torch.rand(2, 3, 140, 168)
    normalised = (images - torch.tensor([0.1, 0.2, 0.3])[:, None, None]) / torch.tensor([0.5, 0.25, 0.2])[:, None, None]
    with torch.no_grad():
        expected = whole(normalised).feature_maps[0]
        torch.testing.assert_close(backbone_of(model)(images), expected, rtol=1e-4, atol=1e-5)
    assert tuple(expected.shape[1:]) == backbone_of(model).description.maps


@pytest.mark.parametrize(("family", "head"), [(family, HEADS[k % 2]) for k, family in enumerate(CONFIGS)])
def test_a_frozen_backbone_stays_and_a_saved_network_needs_no_folder(family, head, tmp_path, monkeypatch):
    folder = saved(tmp_path / "b", family)
    model = create_model(head, backbone=str(folder), image_size=40, channels=1, classes=3)
    changed = moved(model, train(model))
    inside = tuple(f"{name}." for name, module in model.named_modules() if isinstance(module, Backbone))
    assert changed
    assert not any(name.startswith(inside) for name in changed)
    assert not any(module.training for module in backbone_of(model).network.modules())
    model.eval().save_pretrained(tmp_path / "saved")
    shutil.rmtree(folder)
    monkeypatch.setattr(hub, "read_config", None)  # it would ask the folder or the hub
    loaded = ImageClassifier.from_pretrained(tmp_path / "saved").eval()
    images = torch.rand(2, 1, 40, 40)
    assert loaded.options == model.options
    assert torch.equal(loaded(images).activations, model(images).activations)
    assert not any(parameter.requires_grad for parameter in backbone_of(loaded).parameters())
    fast = optimize_for_inference(model)
    torch.testing.assert_close(fast(images).activations, model(images).activations, rtol=1e-4, atol=1e-5)


def test_fine_tuning_moves_the_backbone(folder, tmp_path):
    """A fine-tuned backbone can be taken over again."""
    model = create_model("backbone_linear", backbone=str(folder), image_size=42, classes=3, fine_tune=True)
    before = train(model)
    inside = [name for name in before if name.startswith("network.0.")]
    assert len(moved(model, before) & set(inside)) > len(inside) / 2
    model.save_pretrained(tmp_path / "first")
    second = create_model("backbone_capsules", backbone=str(tmp_path / "first"), image_size=42, classes=2).eval()
    images = torch.rand(1, 3, 42, 42)
    torch.testing.assert_close(backbone_of(second)(images), backbone_of(model.eval())(images))


def test_statistics_of_a_frozen_backbone_are_not_adapted(folder):
    """They belong to its weights: with others, the network would see other maps."""
    images = ImageSet(torch.randint(256, (12, 3, 40, 40)).byte(), torch.zeros(12).long(), ("a", "b", "c"))
    for fine_tune in (False, True):
        model = create_model("backbone_linear", backbone=str(folder), image_size=40, classes=3, fine_tune=fine_tune)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        update_batch_norms(model, images)
        changed = moved(model, before)
        assert "network.1.running_mean" in changed
        assert any(name.startswith("network.0.") for name in changed) == fine_tune


@pytest.mark.parametrize(
    ("name", "head"), [("he2016_resnet10", "backbone_linear"), ("mazzia2021_efficient_capsnet", "backbone_capsules")]
)
def test_the_backbone_of_a_run(name, head, tmp_path):
    """At another size, and loaded again without the run."""
    run = create_model(name, image_size=28, channels=3, classes=4)
    train(run, 1)
    run.save_pretrained(tmp_path / "run")
    model = create_model(head, backbone=str(tmp_path / "run"), image_size=(40, 36), channels=3, classes=3).eval()
    images = torch.rand(2, 3, 40, 36)
    with torch.no_grad():
        torch.testing.assert_close(backbone_of(model)(images), run.eval().feature_layers()(images))
    assert moved(model, train(model))
    assert torch.equal(backbone_of(model)(images), backbone_of(model.eval())(images))
    model.save_pretrained(tmp_path / "saved")
    shutil.rmtree(tmp_path / "run")
    loaded = ImageClassifier.from_pretrained(tmp_path / "saved").eval()
    assert torch.equal(loaded(images).activations, model(images).activations)


def fails(argument, kind=ValueError, **options):
    with pytest.raises(kind, match=argument):
        create_model("backbone_linear", **{"image_size": 40, "classes": 3, **options})


def test_wrong_options(folder, tmp_path, monkeypatch):
    fails("backbone", backbone="")
    fails("backbone", backbone="nowhere")
    fails("channels", backbone=str(folder), channels=2)
    fails("weights", backbone="zhao2021_cluster_capsnet", channels=1)
    fails("1024", CapsellaError, backbone="heinsen2019_capsnet")
    transformers.BertConfig().save_pretrained(tmp_path / "bert")
    fails("bert", CapsellaError, backbone=str(tmp_path / "bert"))
    monkeypatch.setattr("capsella.errors.find_spec", lambda name: None)
    fails(r"capsella\[hub\]", CapsellaError, backbone=str(folder))


def test_pickled_weights_are_not_read(folder):
    torch.save({}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    fails(r"model\.safetensors", CapsellaError, backbone=str(folder))


def test_a_mistyped_run_is_not_looked_up_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", lambda *_, **__: pytest.fail("asked the hub"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/images-efficient").mkdir(parents=True)
    fails("runs/image-efficient", backbone="runs/image-efficient")
    fails("/gone/run", backbone="/gone/run")


def test_code_beside_a_backbone_is_not_run(folder):
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoBackbone": "evil.Backbone"}
    config["attn_implementation"] = "somebody/kernels"
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text("raise SystemExit('run')")
    model = create_model("backbone_linear", backbone=str(folder), image_size=40, classes=3)
    assert not {"auto_map", "attn_implementation"} & set(model.options["backbone"]["config"])


def test_damaged_descriptions(folder, tmp_path):
    create_model("backbone_linear", backbone=str(folder), image_size=40, classes=3).save_pretrained(tmp_path / "saved")
    path = tmp_path / "saved" / "model.json"
    written = path.read_text()
    for change in [
        {"kind": "pickle"},
        {"size": [10**6, 10**6]},
        {"more": 1},
        {"config": {"model_type": "resnet", "depths": [1], "auto_map": {}}},
        {"mean": [0.5]},
    ]:
        description = json.loads(written)
        description["options"]["backbone"] |= change
        path.write_text(json.dumps(description))
        with pytest.raises(CapsellaError, match=r"model\.json"):
            ImageClassifier.from_pretrained(tmp_path / "saved")
