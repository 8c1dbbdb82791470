"""What every registered model is: an image classifier that can be saved, loaded, looked into and decoded."""

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Literal, Self

import safetensors
import safetensors.torch
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from capsella.errors import CapsellaError
from capsella.files import write_json, write_whole
from capsella.layers import mask_all_but
from capsella.types import Capsules, Output


class ImageClassifier(nn.Module, ABC):
    """A classifier of [b channels height width] images in [0, 1]. Made by `create_model`, which sets name and options.

    classes: names of the classes. image_size: (height, width). channels: 1 or 3 as a rule.
    name, options: what `create_model` was called with, all defaults filled in.
    """

    name: str
    options: dict[str, Any]

    def __init__(self, image_size: tuple[int, int], channels: int, classes: tuple[str, ...]) -> None:
        super().__init__()
        self.image_size, self.channels, self.classes = image_size, channels, classes

    @abstractmethod
    def forward(self, images: Float[Tensor, "b c h w"], labels: Int[Tensor, "b *k"] | None = None) -> Output:
        """Classify; the decoder, if any, reconstructs from the class in `labels`, or from the predicted one.

        Labels [b 2], of images that overlay two, give a reconstruction from the capsule of each [b 2 c h w].
        """

    @property
    def has_decoder(self) -> bool:
        """Whether `decode` works."""
        return False

    def encode(self, images: Float[Tensor, "b c h w"]) -> Capsules:
        """The class capsules of images: poses [b 1 1 classes d], activations [b 1 1 classes].

        Raises:
            CapsellaError: the model has no capsules.
        """
        raise CapsellaError(f"{self.name} has no capsules to encode into; it is a CNN")

    def decode(self, capsules: Capsules, target: Int[Tensor, " b"]) -> Float[Tensor, "b c h w"]:
        """Images from the pose of each image's `target` class alone.

        Raises:
            CapsellaError: the model has no decoder.
        """
        raise CapsellaError(
            f"{self.name} has no decoder; create it with reconstruction=True if it is a capsule network"
        )

    def check_images(self, images: Tensor) -> None:
        """Images fit the model.

        Raises:
            ValueError: not [b channels height width] of this model's channels and size.
        """
        expected = (self.channels, *self.image_size)
        if images.ndim != 4 or tuple(images.shape[1:]) != expected:
            raise ValueError(
                f"images: must have shape [b c h w] = [b, {', '.join(map(str, expected))}], got {tuple(images.shape)}"
            )

    def save_pretrained(self, folder: str | Path) -> None:
        """Write model.safetensors and model.json to `folder`; `from_pretrained` reads them back."""
        folder = Path(folder)
        write_json(folder / "model.json", {"name": self.name, "options": self.options})
        weights = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        write_whole(folder / "model.safetensors", lambda path: safetensors.torch.save_file(weights, path))

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """The model that `save_pretrained` wrote.

        Raises:
            CapsellaError: a file is missing or damaged, or the weights are not those of the model described.
        """
        from capsella.models.registry import create_model

        folder = Path(folder)
        description = _read_description(folder / "model.json")
        try:
            model = create_model(**description)
        except (ValueError, TypeError) as error:
            raise CapsellaError(f"{folder / 'model.json'} describes no model that can be made: {error}") from error
        load_weights(model, folder / "model.safetensors")
        if not isinstance(model, cls):
            raise CapsellaError(f"{folder} holds a {type(model).__name__}, not a {cls.__name__}")
        return model


class CapsuleClassifier(ImageClassifier):
    """Convolutions, primary capsules, routed capsule layers ending in one capsule a class, and perhaps a decoder."""

    def __init__(
        self,
        backbone: nn.Module,
        primary: nn.Module,
        capsule_layers: nn.Sequential,
        decoder: nn.Module | None,
        *,
        image_size: tuple[int, int],
        channels: int,
        classes: tuple[str, ...],
    ) -> None:
        super().__init__(image_size, channels, classes)
        self.backbone, self.primary, self.capsule_layers, self.decoder = backbone, primary, capsule_layers, decoder

    @property
    def has_decoder(self) -> bool:
        """Whether the model was created with reconstruction."""
        return self.decoder is not None

    def encode(self, images: Float[Tensor, "b c h w"]) -> Capsules:
        """The class capsules: poses [b 1 1 classes d], activations [b 1 1 classes]."""
        self.check_images(images)
        capsules: Capsules = self.capsule_layers(self.primary(self.backbone(images)))
        return capsules

    def decode(self, capsules: Capsules, target: Int[Tensor, " b"]) -> Float[Tensor, "b c h w"]:
        """Images from the pose of each image's `target` class alone, all others masked."""
        if self.decoder is None:
            return super().decode(capsules, target)
        images: Tensor = self.decoder(mask_all_but(capsules, target))
        return images

    def forward(self, images: Float[Tensor, "b c h w"], labels: Int[Tensor, "b *k"] | None = None) -> Output:
        """Activations, class capsules, and the reconstruction from the class in `labels`, or from the longest."""
        capsules = self.encode(images)
        activations = capsules.activations[:, 0, 0, :]
        if self.decoder is None:
            return Output(activations, capsules)
        target = activations.argmax(1) if labels is None else labels
        if target.ndim == 1:
            return Output(activations, capsules, self.decode(capsules, target))
        drawn = torch.stack([self.decode(capsules, one) for one in target.unbind(1)], 1)
        return Output(activations, capsules, drawn)


class ConvolutionalClassifier(ImageClassifier):
    """A CNN baseline: one network from images to logits; activations are their softmax, or the logistic of each.

    Its weights start as He et al. 2015 draw them for ReLUs. PyTorch's default shrinks the signal by √6 a layer, and a
    baseline of six layers then does not leave chance on bright images: the comparison would flatter the capsules.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        image_size: tuple[int, int],
        channels: int,
        classes: tuple[str, ...],
        activation: Literal["softmax", "sigmoid"] = "softmax",
    ) -> None:
        super().__init__(image_size, channels, classes)
        self.network, self.activation = network, activation
        for module in network.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, images: Float[Tensor, "b c h w"], labels: Int[Tensor, "b *k"] | None = None) -> Output:
        """Activations and the logits they come from; `labels` are for decoders, of which there is none."""
        self.check_images(images)
        logits: Tensor = self.network(images)
        activations = logits.float().sigmoid() if self.activation == "sigmoid" else logits.float().softmax(1)
        return Output(activations, logits=logits)


def load_weights(model: nn.Module, path: Path) -> None:
    """Fill `model` from a .safetensors file.

    Raises:
        CapsellaError: the file is missing, damaged, or holds other tensors than the model's.
    """
    try:
        weights = safetensors.torch.load_file(path)
        model.load_state_dict(weights)
    except FileNotFoundError as error:
        raise CapsellaError(f"{path} does not exist; was the run interrupted before its first checkpoint?") from error
    except (safetensors.SafetensorError, OSError) as error:
        raise CapsellaError(f"{path} is no readable .safetensors file: {error}") from error
    except RuntimeError as error:
        raise CapsellaError(f"{path} does not hold the weights of this model: {error}") from error


def _read_description(path: Path) -> dict[str, Any]:
    """{"name", **options} from model.json."""
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
        return {"name": description["name"], **description["options"]}
    except FileNotFoundError as error:
        raise CapsellaError(f"{path} does not exist; is {path.parent} a saved model or a run folder?") from error
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise CapsellaError(f"{path} is damaged or not written by capsella: {error!r}") from error


def count_parameters(module: nn.Module) -> int:
    """Learned numbers in a module."""
    return sum(parameter.numel() for parameter in module.parameters())
