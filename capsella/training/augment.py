"""Augmentation of a batch of training images, on the device of the batch.

Most steps are kornia's; this module adds those whose distributions kornia lacks. Each takes images [b c h w] in [0, 1]
and draws from PyTorch's global generator.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from capsella.errors import ArgumentError, CapsellaError
from capsella.losses import MixupTargets
from capsella.training.config import AugmentOptions

Images = Float[Tensor, "b c h w"]
# Half a grey level: anything darker is the rounding error of a resampling, and counts as black.
BLACK_BELOW = 0.5 / 255
DARKEST = 1 / 255
# Haematoxylin, eosin and DAB: optical density in red, green and blue (Ruifrok and Johnston 2001).
STAINS = ((0.650, 0.704, 0.286), (0.072, 0.990, 0.105), (0.268, 0.570, 0.776))
# A stain's colour changes by up to this fraction of the largest relative change of its amount.
COLOUR_SHARE = 0.3


class Augment(nn.Module):
    """The augmentation that `AugmentOptions` describe; images keep their shape."""

    def __init__(self, options: AugmentOptions, image_size: tuple[int, int]) -> None:
        super().__init__()
        if 3 * options.erase > min(image_size):
            size = f"{image_size[0]}×{image_size[1]}"
            raise ArgumentError("erase", f"be at most a third of the image's {size}", options.erase)
        self.geometric = _geometric(options, image_size)
        self.microscope = _microscope(options)
        self.keep_prob, self.erase = options.microscope_keep_prob, options.erase

    @property
    def domain_shift(self) -> nn.Module | None:
        """The steps that imitate another microscope, stain or camera; None if the options have none."""
        return self.microscope if len(self.microscope) else None

    def forward(self, images: Images) -> Images:
        """Return augmented images; if every option is off, the input itself."""
        images = self.geometric(images)
        if self.keep_prob and len(self.microscope):
            keep = torch.rand(len(images), 1, 1, 1, device=images.device) < self.keep_prob
            images = torch.where(keep, images, self.microscope(images))
        else:
            images = self.microscope(images)
        return random_erasing(images, self.erase) if self.erase else images


class Step(nn.Module):
    """A module that calls a function with fixed options, so that it can stand beside kornia's modules."""

    def __init__(self, function: Callable[..., Images], *options: float) -> None:
        super().__init__()
        self.function, self.options = function, options

    def forward(self, images: Images) -> Images:
        """Change each image."""
        return self.function(images, *self.options)


def _geometric(options: AugmentOptions, image_size: tuple[int, int]) -> nn.Sequential:
    import kornia.augmentation as K  # takes over a second to import

    steps: list[nn.Module] = []
    if options.flip:
        steps += [K.RandomHorizontalFlip(p=0.5), K.RandomVerticalFlip(p=0.5)]
    if options.mirror:
        steps.append(K.RandomHorizontalFlip(p=0.5))
    if options.rotation or options.stretch:
        scale = (1 - options.stretch, 1 + options.stretch) * 2
        steps.append(K.RandomAffine(options.rotation, scale=scale, padding_mode="border", align_corners=True, p=1.0))
    if options.rotation_sd or options.narrow:
        steps.append(Step(random_normal_rotation, options.rotation_sd, options.narrow))
    if options.shift:
        # Padding by the shift and cropping back moves by whole pixels, so nothing is blurred.
        mode = {"zeros": "constant", "border": "replicate"}[options.padding_mode]
        steps.append(K.RandomCrop(image_size, padding=options.shift, padding_mode=mode, cropping_mode="slice"))
    if options.margin_shift:
        steps.append(Step(random_margin_shift))
    return nn.Sequential(*steps)


def _microscope(options: AugmentOptions) -> nn.Sequential:
    """Return the steps that imitate another microscope, stain or camera."""
    steps: list[nn.Module] = []
    if options.zoom > 1:
        steps.append(Step(random_zoom, options.zoom))
    if options.stain:
        steps.append(Step(random_stain, options.stain))
    if options.white_balance or options.gamma:
        steps.append(Step(random_gamma, options.gamma, options.white_balance))
    if options.blur:
        import kornia.augmentation as K

        size = 2 * max(1, math.ceil(3 * options.blur)) + 1
        steps.append(K.RandomGaussianBlur((size, size), (1e-3, options.blur), border_type="replicate", p=1.0))
    if options.noise:
        steps.append(Step(random_noise, options.noise))
    if options.downscale > 1 or options.jpeg < 100:
        steps.append(Step(random_downscale_jpeg, options.downscale, options.jpeg))
    return nn.Sequential(*steps)


def random_normal_rotation(images: Images, degrees_sd: float, narrow: float) -> Images:
    """Rotate half of the images by normally distributed angles and narrow all of them; what moves in is black.

    This follows the authors' code of Mazzia et al. 2021, but resamples once instead of twice. Angles are clipped at
    three standard deviations. Each width shrinks by a half-normally distributed fraction below `narrow`.
    """
    batch, _, height, width = images.shape
    is_rotated = torch.rand(batch, device=images.device) < 0.5
    degrees = degrees_sd * torch.randn(batch, device=images.device).clamp(-3, 3)
    angle = torch.deg2rad(degrees) * is_rotated
    factor = 1 / (1 - narrow * _half_normal(batch, images.device))
    # Map positions in the new image to positions in the old one; coordinates run from −1 to 1 along each axis.
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    x = torch.stack([cos * factor, -sin * (height / width), zero], 1)
    y = torch.stack([sin * factor * (width / height), cos, zero], 1)
    return _resample(images, torch.stack([x, y], 1), "zeros")


def random_margin_shift(images: Images) -> Images:
    """Shift the non-black content by whole pixels within its black margins, along each axis in a random direction.

    The shift is a half-normally distributed fraction of the margin (σ = 1/3, below 1), as in the authors' code of
    Mazzia et al. 2021. A black image stays as it is.
    """
    lit = (images > BLACK_BELOW).any(1)  # [b h w]
    rows, columns = (_shifted_indices(lit.any(axis)) for axis in (2, 1))
    b = torch.arange(len(images), device=images.device)
    return images[b[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def _shifted_indices(lit: Tensor) -> Tensor:
    """Return the source index [b n] of each row or column after the shift; `lit` [b n] marks those not black."""
    batch, n = lit.shape
    before = lit.int().argmax(1)
    after = lit.flip(1).int().argmax(1)
    forward = torch.rand(batch, device=lit.device) < 0.5
    margin = torch.where(forward, after, before)
    steps = (_half_normal(batch, lit.device) * (margin + 1)).floor().long()
    steps = torch.where(forward, steps, -steps) * lit.any(1)
    return (torch.arange(n, device=lit.device) - steps[:, None]) % n  # what wraps around is black


def random_erasing(images: Images, side: int) -> Images:
    """Black out a square of `side` pixels at a random place, at least `side` from the border (Mazzia et al. 2021)."""
    covered = []
    for n in images.shape[2:]:
        first = side + torch.randint(n - 3 * side + 1, (len(images), 1), device=images.device)
        places = torch.arange(n, device=images.device)
        covered.append((places >= first) & (places < first + side))
    return images.masked_fill((covered[0][:, :, None] & covered[1][:, None, :])[:, None], 0.0)


def random_zoom(images: Images, factor: float) -> Images:
    """Magnify or shrink each image by a log-uniform factor up to `factor`; the border's pixels are repeated.

    Shrunk images are sampled bilinearly without antialiasing.
    """
    scale = (math.log(factor) * _uniform(len(images), like=images)).exp()
    zero = torch.zeros_like(scale)
    rows = torch.stack([torch.stack([1 / scale, zero, zero], 1), torch.stack([zero, 1 / scale, zero], 1)], 1)
    return _resample(images, rows, "border")


def random_stain(images: Images, strength: float) -> Images:
    """Change amounts and colours of two stains, in optical density; white stays white (Tellez et al. 2018).

    A pixel x has the optical density −ln x, a sum of the stains' colours. Each stain's amount is multiplied by a number
    from 1 − strength to 1 + strength, one per image; the residual component keeps its amount.
    """
    if images.shape[1] != 3:
        raise CapsellaError(f"stain: must be 0 for images that are not RGB, got {images.shape[1]} channels")
    stains = torch.tensor(STAINS, device=images.device)
    stains = stains / torch.linalg.vector_norm(stains, dim=1, keepdim=True)
    density = -images.clamp(min=DARKEST).log()
    amounts = torch.einsum("bchw,cs->bshw", density, torch.linalg.inv(stains))
    factors = 1 + strength * _uniform(len(images), 3, like=images)
    factors[:, 2] = 1
    colours = stains + COLOUR_SHARE * strength * _uniform(len(images), 3, 3, like=images)
    changed = torch.einsum("bshw,bs,bsc->bchw", amounts, factors, colours)
    return (-changed).exp().clamp(0, 1)


def random_gamma(images: Images, gamma: float, white_balance: float) -> Images:
    """Multiply each channel by a log-uniform factor (white balance), then raise all to a log-uniform power (gamma)."""
    batch, channels = images.shape[:2]
    factors = (white_balance * _uniform(batch, channels, 1, 1, like=images)).exp()
    powers = (gamma * _uniform(batch, 1, 1, 1, like=images)).exp()
    return (images * factors).clamp(0, 1) ** powers


def random_noise(images: Images, most: float) -> Images:
    """Add Gaussian noise with a standard deviation that is drawn uniformly up to `most`, one per image."""
    sd = most * torch.rand(len(images), 1, 1, 1, device=images.device, dtype=images.dtype)
    return (images + sd * torch.randn_like(images)).clamp(0, 1)


def random_downscale_jpeg(images: Images, downscale: float, jpeg: int) -> Images:
    """Shrink images, compress them as JPEG, and enlarge them again, in half of the batches.

    Each batch is shrunk by one log-uniform factor from 1 to `downscale`. Each image's JPEG quality is uniform from
    `jpeg` to 100.
    """
    if jpeg < 100 and images.shape[1] not in (1, 3):
        raise CapsellaError(f"jpeg: must be 100 for images that are not grey or RGB, got {images.shape[1]} channels")
    share, half = torch.rand(2).tolist()
    if half < 0.5:
        return images
    size = images.shape[2:]
    fewer = [max(8, round(side / downscale**share)) for side in size]
    small = functional.interpolate(images, fewer, mode="bilinear", antialias=True, align_corners=False)
    if jpeg < 100:
        from kornia.enhance import jpeg_codec_differentiable  # takes over a second to import

        quality = jpeg + (100 - jpeg) * torch.rand(len(images), device=images.device)
        rgb = small.expand(-1, 3, -1, -1)
        small = jpeg_codec_differentiable(rgb.clamp(0, 1), quality.clamp(max=99))[:, : images.shape[1]]
    return functional.interpolate(small, size, mode="bicubic", align_corners=False).clamp(0, 1)


def mixup(
    images: Float[Tensor, "b c h w"], labels: Int[Tensor, " b"], alpha: float
) -> tuple[Float[Tensor, "b c h w"], MixupTargets]:
    """Return s·image + (1 − s)·another image of the batch, s from Beta(α, α) for each image (Zhang et al. 2018, Eq. 1).

    s is at least one half, so that an image keeps the label of its larger part. This leaves the distribution as it is:
    each pair is drawn in both orders, and the blend with 1 − s is that of the swapped pair with s.

    Returns:
        The blended images, and the labels and shares of what was mixed into each.
    """
    share = torch.distributions.Beta(alpha, alpha).sample((len(images),)).to(images.device)
    share = torch.maximum(share, 1 - share)
    other = torch.randperm(len(images), device=images.device)
    s = share[:, None, None, None].to(images.dtype)
    return s * images + (1 - s) * images[other], MixupTargets(labels[other], 1 - share)


def _resample(images: Images, matrices: Float[Tensor, "b 2 3"], padding_mode: str) -> Images:
    grid = functional.affine_grid(matrices, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode=padding_mode, align_corners=False)


def _uniform(*shape: int, like: Tensor) -> Tensor:
    """Return numbers drawn uniformly from −1 to 1."""
    return 2 * torch.rand(shape, device=like.device, dtype=like.dtype) - 1


def _half_normal(number: int, device: torch.device) -> Tensor:
    """Return absolute values of normal numbers with standard deviation 1/3, clipped below 1."""
    return (torch.randn(number, device=device).abs() / 3).clamp(max=0.9999)
