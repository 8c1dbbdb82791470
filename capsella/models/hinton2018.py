"""Networks of Hinton, Sabour, Frosst 2018, "Matrix Capsules with EM Routing" (OpenReview HJWLfGWRb), and our own."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from capsella.errors import check_argument
from capsella.layers import (
    CapsuleConv2d,
    CropImages,
    DenseCapsules,
    DenseDecoder,
    MatrixPrimaryCapsules,
    PrepareImages,
    receptive_field_centres,
)
from capsella.layers import coordinate_addition as coordinate_offset
from capsella.layers.convolution import PoseKind
from capsella.models.base import ImageClassifier, grid_after, register_model, register_variant
from capsella.models.classifiers import CapsuleClassifier, ConvolutionalClassifier
from capsella.models.sabour2017 import conv_relu, dense_layers
from capsella.routing import EMRouting, Routing
from capsella.types import Output

SMALLNORB = ("animal", "human", "airplane", "truck", "car")
# The thirteen crops of the authors' code: the centre, and 1, 2 and 3 pixels off it along both diagonals.
CROPS = ((0, 0), *((r * row, r * column) for r in (1, 2, 3) for row in (-1, 1) for column in (-1, 1)))


def _matrix_capsnet(
    types: tuple[int, int, int, int],
    *,
    image_size: tuple[int, int] = (32, 32),
    channels: int = 1,
    classes: tuple[str, ...] = SMALLNORB,
    routing: Routing = EMRouting(),
    pose: PoseKind = "matrix",
    pose_elements: int = 16,
    coordinate_addition: bool = True,
    crop: int | None = None,
    standardise: bool = True,
    brightness: float = 0.0,
    contrast: float = 0.0,
    reconstruction: bool = False,
    maps: int | None = None,
    logits: bool = False,
) -> CapsuleClassifier:
    """Build a network as in Figure 1, with `types` = (A, B, C, D).

    Args:
        image_size: (height, width), at least 17×17 (after the crop); the paper's is 32×32, cut from 48×48.
        channels: channels of the images; 2 for both cameras of smallNORB.
        routing: routing of all three routed layers.
        pose: "matrix", or "vector" for Table 1's 16-D vectors with 16×16 weights.
        pose_elements: 16 for 4×4 matrices, 9 for 3×3 (Forslöv 2018 §7.5, for planar scenes).
        coordinate_addition: add the position of each child to its votes for the classes.
        crop: crop a square of this many pixels, at random in training and at the centre otherwise; the paper's is 32.
        standardise: bring each image to zero mean and unit variance first, as the paper does.
        brightness: in training, add a random number of up to ± this many standard deviations to each image.
        contrast: in training, scale each image about its mean by a random factor between 1 − this and 1 + this.
        reconstruction: add the decoder of Sabour et al. 2017 on the class poses; the paper has none.
        maps: channels of the first convolution; None takes A. The paper's network for CIFAR-10 has 256.
        logits: the cross-entropy takes the log-odds of the class capsules as logits, instead of their activations.
    """
    A, B, C, D = types
    A, p = maps or A, pose_elements
    prepare = PrepareImages(image_size, crop, standardise, brightness, contrast)
    convolutions = [(5, 2), (1, 1), (3, 2), (3, 1)]
    grid = grid_after(prepare.size, convolutions)
    centres = receptive_field_centres(prepare.size, convolutions)
    offset = coordinate_offset(centres, p, pose) if coordinate_addition else None
    return CapsuleClassifier(
        backbone=nn.Sequential(prepare, nn.Conv2d(channels, A, 5, 2), nn.ReLU()),
        primary=MatrixPrimaryCapsules(A, B, p),
        capsule_layers=nn.Sequential(
            CapsuleConv2d(B, p, C, p, 3, 2, pose=pose, routing=routing),
            CapsuleConv2d(C, p, D, p, 3, 1, pose=pose, routing=routing),
            DenseCapsules(grid, D, p, len(classes), p, tied=True, pose=pose, vote_offset=offset, routing=routing),
        ),
        decoder=DenseDecoder(len(classes), p, (channels, *prepare.drawn_size())) if reconstruction else None,
        logits=logits,
    )


register_variant(
    "hinton2018_matrix_capsnet",
    "The network of Figure 1, A = B = C = D = 32: 316,394 parameters at one channel, 5 classes (paper: 310 K).",
    _matrix_capsnet,
    (32, 32, 32, 32),
)
register_variant(
    "hinton2018_matrix_capsnet_small",
    "The paper's smaller network, A = 64, B = 8, C = D = 16: 67,154 parameters (paper: 68 K; 2.2 % test error).",
    _matrix_capsnet,
    (64, 8, 16, 16),
)


@register_model
def hinton2018_cnn(
    *,
    image_size: tuple[int, int] = (32, 32),
    channels: int = 1,
    classes: tuple[str, ...] = SMALLNORB,
    crop: int | None = None,
    standardise: bool = True,
    brightness: float = 0.0,
    contrast: float = 0.0,
    dropout: float = 0.5,
) -> ConvolutionalClassifier:
    """CNN baseline of §5: 5×5 convolutions with 32 and 64 channels, FC 1024; 4.2 M parameters.

    A 2×2 max-pool follows each convolution. The paper gives neither the padding nor the dropout rate. Only "same"
    padding has its 4.2 M parameters at 32×32 ("valid" has 1.7 M); the default rate here is 0.5.

    Args:
        image_size: (height, width), at least 4×4; the paper's is 32×32, cut from 48×48.
        crop, standardise, brightness, contrast: as for `hinton2018_matrix_capsnet`.
        dropout: probability of zeroing an element before the last layer.
    """
    prepare = PrepareImages(image_size, crop, standardise, brightness, contrast)
    rows, columns = grid_after(prepare.size, [(2, 2), (2, 2)])
    network = nn.Sequential(
        prepare,
        *conv_relu(channels, 32, 5, pool=True),
        *conv_relu(32, 64, 5, pool=True),
        *dense_layers(64 * rows * columns, 1024, classes=len(classes), dropout=dropout),
    )
    return ConvolutionalClassifier(network)


@register_model
def batchnorm_matrix_capsnet(
    *,
    image_size: tuple[int, int] = (48, 48),
    channels: int = 1,
    classes: tuple[str, ...] = SMALLNORB,
    routing: Routing = EMRouting(iterations=2),
    width: int = 64,
    types: int = 16,
    crop: int | None = None,
    standardise: bool = True,
    brightness: float = 0.0,
    contrast: float = 0.0,
) -> CapsuleClassifier:
    """Our own network: three 3×3 convolutions with batch normalisation, then the capsules of Hinton et al. 2018.

    Capsules are batch-normalised, as in Ribeiro et al. 2020. It has 121,578 parameters for two channels and 5 classes.

    Args:
        image_size: (height, width), large enough for all kernels.
        channels: channels of the images; 2 for both cameras of smallNORB.
        routing: routing of all three routed layers, with log-odds.
        width: channels of the last two convolutions; the first has half as many. The first and the last convolution
            halve the image.
        types: capsule types of each capsule convolution; there are half as many types of primary capsules.
        crop: crop a square of this many pixels, at random in training and at the centre otherwise.
        standardise: bring each image to zero mean and unit variance first.
        brightness, contrast: as for `hinton2018_matrix_capsnet`.

    Raises:
        ArgumentError: an image too small for the kernels; `width` or `types` that is odd or below 2.
    """
    check_argument(width > 0 and width % 2 == 0, "be even and at least 2", width=width)
    check_argument(types > 0 and types % 2 == 0, "be even and at least 2", types=types)
    prepare = PrepareImages(image_size, crop, standardise, brightness, contrast)
    strides, p = (2, 1, 2), 16
    stem: list[nn.Module] = [prepare]
    for (before, after), stride in zip(pairwise((channels, width // 2, width, width)), strides, strict=True):
        stem += [nn.Conv2d(before, after, 3, stride, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    convolutions = [*((3, stride) for stride in strides), (1, 1), (3, 2), (3, 1)]
    grid = grid_after(prepare.size, convolutions)
    offset = coordinate_offset(receptive_field_centres(prepare.size, convolutions), p)
    return CapsuleClassifier(
        backbone=nn.Sequential(*stem),
        primary=MatrixPrimaryCapsules(width, types // 2, p, norm="batch"),
        capsule_layers=nn.Sequential(
            CapsuleConv2d(types // 2, p, types, p, 3, 2, pose="matrix", routing=routing, norm="batch"),
            CapsuleConv2d(types, p, types, p, 3, 1, pose="matrix", routing=routing, norm="batch"),
            DenseCapsules(
                *(grid, types, p, len(classes), p),
                tied=True,
                pose="matrix",
                vote_offset=offset,
                routing=routing,
                norm="batch",
            ),
        ),
    )


class MultiCrop(ImageClassifier):
    """A network whose activations are averaged over several crops of each image (multiple crops in Table 1).

    Args:
        model: a trained network that was created with a `crop`.
        offsets: (rows down, columns right) of each crop from the centre.

    Raises:
        ValueError: the model does not crop, or an offset reaches beyond the image.
    """

    def __init__(self, model: ImageClassifier, offsets: Sequence[tuple[int, int]] = CROPS) -> None:
        super().__init__(model.image_size, model.channels, model.classes)
        crops = [module for module in model.modules() if isinstance(module, CropImages)]
        check_argument(bool(crops), "be created with a crop", model=model.name)
        room = min(crops[0].room) // 2
        fits = all(abs(shift) <= room for offset in offsets for shift in offset)
        check_argument(fits, f"be of at most {room} pixels for this crop", offsets=offsets)
        self.model, self.offsets = model, tuple(offsets)
        self.name, self.options = model.name, model.options
        self.value_range, self.cut, self.fit = model.value_range, model.cut, model.fit

    def forward(self, images: Float[Tensor, "b c h w"], labels: Int[Tensor, " b"] | None = None) -> Output:
        """Return activations averaged over crops; poses and reconstructions cannot be averaged, so there are none."""
        if self.training:
            raise RuntimeError("MultiCrop is for evaluation; call eval() first")
        # The centre crop of a rolled image is an off-centre crop of the image itself, because `offsets` stay inside it.
        crops = (torch.roll(images, (-rows, -columns), (2, 3)) for rows, columns in self.offsets)
        return Output(torch.stack([self.model(crop).activations for crop in crops]).mean(0))
