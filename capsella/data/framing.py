"""Fit an image of another aspect ratio into the size of a network. Exported folders contain a copy of this module.

The default for a user's own images is `pad`: nothing is lost, and shapes keep their proportions. The centre crop, usual
elsewhere, cuts off objects near the border; recipes of papers keep it.
"""

import numpy as np
from PIL import Image, ImageOps


def fit_image(image: Image.Image, size: tuple[int, int], fit: str) -> Image.Image:
    """Resize a grey or RGB image to `size` with Pillow's antialiased bicubic filter.

    Args:
        image: the image.
        size: (height, width).
        fit: `crop` cuts off both ends of the longer side. `pad` keeps the whole image in the middle, and fills the rest
            with the median colour of its border. `squash` resizes each side by its own factor.
    """
    height, width = size
    if fit == "crop":
        return ImageOps.fit(image, (width, height), method=Image.Resampling.BICUBIC)
    if fit == "squash" or image.width * height == image.height * width:
        return image.resize((width, height), Image.Resampling.BICUBIC)
    scale = min(width / image.width, height / image.height)
    inner = image.resize(
        (max(1, int(image.width * scale + 0.5)), max(1, int(image.height * scale + 0.5))), Image.Resampling.BICUBIC
    )
    pixels = np.asarray(image)
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    colour = np.sort(border, axis=0)[len(border) // 2].reshape(-1).tolist()
    padded = Image.new(image.mode, (width, height), tuple(colour))
    padded.paste(inner, ((width - inner.width) // 2, (height - inner.height) // 2))
    return padded


def cropped_share(image_size: tuple[int, int], size: tuple[int, int]) -> float:
    """Return the fraction of an image of (width, height) that `crop` to (height, width) cuts off."""
    ratio = (image_size[0] / image_size[1]) / (size[1] / size[0])
    return 1 - min(ratio, 1 / ratio)
