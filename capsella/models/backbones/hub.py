"""Backbones of the library `transformers`: read from a folder or the Hugging Face hub, or built from a configuration.

Weights are read only from .safetensors files, and no code that comes with them is run.
"""

import inspect
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsella.errors import ArgumentError, CapsellaError, check_installed

# Supported families, by their names in `transformers`.
FAMILIES = ("convnext", "convnextv2", "dinov2", "dinov2_with_registers", "resnet")
# Mean and standard deviation of ImageNet's channels, for images in [0, 1]; used without a preprocessor_config.json.
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class HubBackbone(nn.Module):
    """A backbone of `transformers` as a module that returns the feature maps of its last stage.

    Shapes: [b channels height width], normalised → [b maps rows columns].
    """

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        for name, weight in backbone.named_parameters():
            if name.rpartition(".")[2] == "mask_token":  # used only in DINO's self-supervised training
                weight.requires_grad_(False)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b maps rows columns"]:
        """Compute the maps."""
        maps: Tensor = self.backbone(images, return_dict=True).feature_maps[-1]
        return maps


def build(config: Mapping[str, Any]) -> nn.Module:
    """Build a backbone with fresh weights from what `read_config` returned.

    Raises:
        ValueError: not the configuration of a known backbone.
        CapsellaError: `transformers` is not installed.
    """
    return HubBackbone(_transformers().AutoBackbone.from_config(_config(config)))


def load(name: str, config: Mapping[str, Any]) -> nn.Module:
    """Load a backbone with the weights in a folder or on the hub.

    Raises:
        CapsellaError: there is no .safetensors file, or it does not fit the configuration.
    """
    described = _config(config)
    kind = _transformers().MODEL_FOR_BACKBONE_MAPPING[type(described)]
    with _read_errors(name):
        backbone, read = kind.from_pretrained(
            name,
            config=described,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=torch.float32,
            output_loading_info=True,
        )
    # A ConvNeXt that was trained as a classifier has none of these norms; they are initialised as the identity.
    missing = sorted(key for key in read["missing_keys"] if not key.startswith("hidden_states_norms."))
    if missing or read["mismatched_keys"]:
        wrong = missing or sorted(map(str, read["mismatched_keys"]))
        raise CapsellaError(f"{name} does not hold the weights that its config.json describes: {wrong[0]} is not there")
    return HubBackbone(backbone)


def read_config(name: str) -> dict[str, Any]:
    """Read the configuration in a folder or on the hub: the options of its family, and "model_type".

    Raises:
        CapsellaError: `transformers` is not installed, there is no configuration, or its family is unknown.
    """
    with _read_errors(name):
        config = _transformers().AutoConfig.from_pretrained(name, trust_remote_code=False)
    if config.model_type not in FAMILIES:
        raise CapsellaError(f"backbone {name} is a {config.model_type}; known are {', '.join(FAMILIES)}")
    values = config.to_dict()
    return {"model_type": config.model_type, **{key: values[key] for key in sorted(_names(config))}}


def normalisation(name: str, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]] | tuple[None, None]:
    """Return mean and standard deviation of channels from preprocessor_config.json, or ImageNet's without that file.

    Raises:
        CapsellaError: the file is damaged.
    """
    path = _transformers().utils.cached_file(
        name,
        "preprocessor_config.json",
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    try:
        values = {} if path is None else json.loads(Path(path).read_text(encoding="utf-8"))
        if not values.get("do_normalize", True):
            return None, None
        mean, std = values.get("image_mean", IMAGENET[0]), values.get("image_std", IMAGENET[1])
        return tuple(float(x) for x in mean[:channels]), tuple(float(x) for x in std[:channels])
    except (ValueError, TypeError, AttributeError) as error:
        raise CapsellaError(f"{path} is damaged: {error!r}") from error


def _transformers() -> Any:
    """Import `transformers`, without its progress bars and its table of unused weights."""
    check_installed("a backbone of this kind", "hub", "transformers")
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def _config(config: Mapping[str, Any]) -> Any:
    """Return the configuration as an object of `transformers`, with no other options than those of its family."""
    family, options = config["model_type"], {key: value for key, value in config.items() if key != "model_type"}
    if family not in FAMILIES:
        raise ArgumentError("backbone", f"be one of {', '.join(FAMILIES)}", family)
    default = _transformers().AutoConfig.for_model(family)
    if unknown := sorted(set(options) - _names(default)):
        raise ArgumentError("backbone", f"have options of {family}", unknown[0])
    return type(default)(**options)


def _names(config: Any) -> set[str]:
    """Return the options of a family, without those that name files, code, dtypes or labels."""
    kinds = type(config), _transformers().PretrainedConfig
    own, shared = (set(inspect.signature(kind).parameters) for kind in kinds)
    return {name for name in own - shared if not name.startswith("_")} - {"kwargs"}


@contextmanager
def _read_errors(name: str) -> Iterator[None]:
    """Turn errors of reading a folder or the hub into a `CapsellaError`."""
    try:
        yield
    except (OSError, ValueError) as error:
        first = str(error).strip().partition("\n")[0]
        if Path(name).is_dir():
            raise CapsellaError(
                f"backbone {name}: must be a run, or a folder with config.json and model.safetensors (pickles are "
                f"not read): {first}"
            ) from error
        raise CapsellaError(
            f"backbone {name}: there is no such folder or registered network here, and the Hugging Face hub does not "
            f"have it or cannot be reached: {first} With internet access, save a copy by `hf download {name} "
            "--local-dir FOLDER`; then name FOLDER"
        ) from error
