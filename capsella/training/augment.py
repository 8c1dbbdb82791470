"""Random changes of a batch of training images, on its device."""

from jaxtyping import Float
from torch import Tensor, nn

from capsella.training.recipe import AugmentOptions


class Augment(nn.Module):
    """`AugmentOptions` as a module: images [b c h w] → the same shape. Draws from torch's global generator."""

    def __init__(self, options: AugmentOptions, image_size: tuple[int, int]) -> None:
        super().__init__()
        import kornia.augmentation as K  # over a second to import: only where training needs it

        steps: list[nn.Module] = []
        if options.flip:
            steps += [K.RandomHorizontalFlip(p=0.5), K.RandomVerticalFlip(p=0.5)]
        if options.rotation:
            steps.append(K.RandomRotation(options.rotation, p=1.0))
        if options.shift:
            # Padding by the shift and cropping back moves by whole pixels, so nothing is blurred.
            steps.append(K.RandomCrop(image_size, padding=options.shift, cropping_mode="slice"))
        self.steps = nn.Sequential(*steps)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """A changed copy; the images themselves where nothing is to be changed."""
        changed: Tensor = self.steps(images)
        return changed
