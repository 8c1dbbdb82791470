"""Random changes of a batch of training images, on its device."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsella.errors import ArgumentError
from capsella.training.microscope import Camera, Focus, Light, StainJitter, Zoom
from capsella.training.recipe import AugmentOptions

# Half a grey level: less is the rounding error of a resampling, and counts as black.
LEAST_LIGHT = 0.5 / 255


class Augment(nn.Module):
    """`AugmentOptions` as a module: images [b c h w] → the same shape. Draws from torch's global generator."""

    def __init__(self, options: AugmentOptions, image_size: tuple[int, int]) -> None:
        super().__init__()
        import kornia.augmentation as K  # over a second to import: only where training needs it

        steps: list[nn.Module] = []
        if options.flip:
            steps += [K.RandomHorizontalFlip(p=0.5), K.RandomVerticalFlip(p=0.5)]
        if options.mirror:
            steps.append(K.RandomHorizontalFlip(p=0.5))
        if options.rotation or options.stretch:
            range_of_axis = (1 - options.stretch, 1 + options.stretch)
            steps.append(
                K.RandomAffine(
                    options.rotation, scale=range_of_axis * 2, padding_mode="border", align_corners=True, p=1.0
                )
            )
        if options.rotation_sd or options.squeeze:
            steps.append(TurnAndSqueeze(options.rotation_sd, options.squeeze))
        if options.shift:
            # Padding by the shift and cropping back moves by whole pixels, so nothing is blurred.
            border = {"zero": "constant", "repeat": "replicate"}[options.border]
            steps.append(K.RandomCrop(image_size, padding=options.shift, padding_mode=border, cropping_mode="slice"))
        if options.margin_shift:
            steps.append(ShiftWithinMargins())
        others = _of_another_laboratory(options)
        steps += [Sometimes(others, options.own_microscope)] if others and options.own_microscope else others
        if options.erase:
            if 3 * options.erase > min(image_size):
                size = f"{image_size[0]}×{image_size[1]}"
                raise ArgumentError("erase", f"be at most a third of the image's {size}", options.erase)
            steps.append(EraseSquare(options.erase))
        self.steps = nn.Sequential(*steps)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """A changed copy; the images themselves where nothing is to be changed."""
        changed: Tensor = self.steps(images)
        return changed


def _of_another_laboratory(options: AugmentOptions) -> list[nn.Module]:
    steps: list[nn.Module] = []
    if options.zoom > 1:
        steps.append(Zoom(options.zoom))
    if options.stain:
        steps.append(StainJitter(options.stain))
    if options.white_balance or options.gamma:
        steps.append(Light(options.white_balance, options.gamma))
    if options.blur or options.noise:
        steps.append(Focus(options.blur, options.noise))
    if options.coarse > 1 or options.jpeg < 100:
        steps.append(Camera(options.coarse, options.jpeg))
    return steps


class Sometimes(nn.Module):
    """Steps for a part of the images; the others, a share drawn one by one, stay as they are."""

    def __init__(self, steps: list[nn.Module], unchanged: float) -> None:
        super().__init__()
        self.steps, self.unchanged = nn.Sequential(*steps), unchanged

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """Change some images."""
        kept = torch.rand(len(images), 1, 1, 1, device=images.device) < self.unchanged
        return torch.where(kept, images, self.steps(images))


class TurnAndSqueeze(nn.Module):
    """Turn half of the images and narrow all, in one bilinear resampling; black moves in.

    After the authors' code of Mazzia et al. 2021, which resamples once for each. kornia draws evenly only.
    """

    def __init__(self, rotation_sd: float, squeeze: float) -> None:
        super().__init__()
        self.rotation_sd, self.squeeze = rotation_sd, squeeze

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """Change each image."""
        batch, _, height, width = images.shape
        turned = torch.rand(batch, device=images.device) < 0.5
        angle = torch.deg2rad(self.rotation_sd * torch.randn(batch, device=images.device).clamp(-3, 3)) * turned
        narrow = 1 / (1 - self.squeeze * _half_normal(batch, images.device))
        # From a place in the new image to its place in the old one, in coordinates from −1 to 1 along each axis.
        cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
        x = torch.stack([cos * narrow, -sin * (height / width), zero], 1)
        y = torch.stack([sin * narrow * (width / height), cos, zero], 1)
        grid = nn.functional.affine_grid(torch.stack([x, y], 1), list(images.shape), align_corners=False)
        return nn.functional.grid_sample(images, grid, align_corners=False)


class ShiftWithinMargins(nn.Module):
    """Move what is not black by whole pixels, never beyond the border, along each axis in a random direction.

    By a share of the margin that is below 1, from a half-normal distribution with standard deviation 1/3 (authors' code
    of Mazzia et al. 2021). An image that is black all over stays as it is.
    """

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """Move each image."""
        lit = (images > LEAST_LIGHT).any(1)  # [b h w]
        rows, columns = (self._places(lit.any(axis)) for axis in (2, 1))
        b = torch.arange(len(images), device=images.device)
        return images[b[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)

    def _places(self, lit: Tensor) -> Tensor:
        """[b n], which rows or columns have light → [b n], where each row or column of the moved image comes from."""
        batch, n = lit.shape
        before = lit.int().argmax(1)
        after = lit.flip(1).int().argmax(1)
        forward = torch.rand(batch, device=lit.device) < 0.5
        margin = torch.where(forward, after, before)
        steps = (_half_normal(batch, lit.device) * (margin + 1)).floor().long()
        steps = torch.where(forward, steps, -steps) * lit.any(1)
        return (torch.arange(n, device=lit.device) - steps[:, None]) % n  # what comes around is black


class EraseSquare(nn.Module):
    """Black out a square of `side` pixels in each image, at a random place at least as far from the border.

    Mazzia et al. 2021: 4×4 pixels.
    """

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """Black out a part of each image."""
        batch, _, height, width = images.shape
        rows, columns = (self._hit(batch, n, images.device) for n in (height, width))
        return images.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], 0.0)

    def _hit(self, batch: int, n: int, device: torch.device) -> Tensor:
        """[b n], the rows or columns that the squares cover."""
        first = self.side + torch.randint(n - 3 * self.side + 1, (batch, 1), device=device)
        places = torch.arange(n, device=device)
        return (places >= first) & (places < first + self.side)


def _half_normal(number: int, device: torch.device) -> Tensor:
    """Sizes from a normal distribution with standard deviation 1/3, below 1."""
    return (torch.randn(number, device=device).abs() / 3).clamp(max=0.9999)
