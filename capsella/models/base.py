"""What every registered model is: an image classifier that can be saved, loaded, looked into and decoded."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self

import safetensors
import safetensors.torch
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from capsella.errors import CapsellaError
from capsella.files import write_json, write_whole
from capsella.layers import mask_all_but, start_for_relus
from capsella.types import Capsules, Output

_MOST_BYTES = 50_000_000  # of model.json: a million classes' names


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

        Whatever the files say, it takes no more memory than the model whose weights are there: the model described is
        first made without memory, and compared with the names and shapes of the weights.

        Raises:
            CapsellaError: a file is missing or damaged, or the weights are not those of the model described.
        """
        from capsella.models.registry import create_model

        folder = Path(folder)
        description = _read_description(folder / "model.json")
        try:
            with torch.device("meta"):
                outline = create_model(**description)
        except (ValueError, TypeError, RuntimeError, OverflowError, AttributeError) as error:
            raise CapsellaError(f"{folder / 'model.json'} describes no model that can be made: {error}") from error
        check_weights(outline, folder / "model.safetensors")
        model = create_model(**description)
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

    Its weights start by `start_for_relus`. With PyTorch's default a baseline of six layers does not leave chance on
    bright images: the comparison would flatter the capsules.
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
        start_for_relus(network)

    def forward(self, images: Float[Tensor, "b c h w"], labels: Int[Tensor, "b *k"] | None = None) -> Output:
        """Activations and the logits they come from; `labels` are for decoders, of which there is none."""
        self.check_images(images)
        logits: Tensor = self.network(images)
        activations = logits.float().sigmoid() if self.activation == "sigmoid" else logits.float().softmax(1)
        return Output(activations, logits=logits)


def check_weights(model: nn.Module, path: Path) -> None:
    """A .safetensors file has the names, shapes and kinds of `model`'s tensors; reads its header alone.

    Raises:
        CapsellaError: the file is missing, damaged, or holds other tensors than the model's.
    """
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    with _readable(path), safetensors.safe_open(path, framework="pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no dict)
        found = {name: tuple(part.get_shape()) for name, part in slices.items()}
        kinds = {name: part.get_dtype() for name, part in slices.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise CapsellaError(
                f"{path} does not hold the weights of this model: size mismatch of {name!r}: "
                f"{found.get(name, 'missing')} in the file, {expected.get(name, 'missing')} in the model"
            )
        if not kinds[name].startswith(("F", "BF", "I64")):
            raise CapsellaError(f"{path} does not hold the weights of this model: {name!r} is of type {kinds[name]}")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Errors of reading a .safetensors file in our words."""
    try:
        yield
    except FileNotFoundError as error:
        raise CapsellaError(f"{path} does not exist; was the run interrupted before its first checkpoint?") from error
    except (safetensors.SafetensorError, OSError) as error:
        raise CapsellaError(f"{path} is no readable .safetensors file: {error}") from error


def load_weights(model: nn.Module, path: Path) -> None:
    """Fill `model` from a .safetensors file.

    Raises:
        CapsellaError: the file is missing, damaged, or holds other tensors than the model's.
    """
    with _readable(path):
        weights = safetensors.torch.load_file(path)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise CapsellaError(f"{path} does not hold the weights of this model: {error}") from error


def _read_description(path: Path) -> dict[str, Any]:
    """{"name", **options} from model.json."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise CapsellaError(f"{path} is not written by capsella: it has more than {_MOST_BYTES:,} bytes")
        description = json.loads(path.read_text(encoding="utf-8"))
        return {"name": description["name"], **description["options"]}
    except FileNotFoundError as error:
        raise CapsellaError(f"{path} does not exist; is {path.parent} a saved model or a run folder?") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CapsellaError(f"{path} is damaged or not written by capsella: {error!r}") from error


def count_parameters(module: nn.Module) -> int:
    """Learned numbers in a module."""
    return sum(parameter.numel() for parameter in module.parameters())
