"""Bring a decoded image into the colours and the size of a network. Exported folders contain a copy of this module.

The default for a user's own images is `pad`: nothing is lost, and shapes keep their proportions. The centre crop, usual
elsewhere, cuts off objects near the border; recipes of papers keep it.
"""

from functools import lru_cache
from io import BytesIO

import numpy as np
from PIL import Image, ImageCms, ImageOps


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


def in_srgb(image: Image.Image) -> Image.Image:
    """Convert colours by the image's colour profile, as viewers and browsers do."""
    profile = image.info.get("icc_profile")
    if not profile or image.mode not in ("RGB", "RGBA", "P") or (transform := _srgb_transform(profile)) is None:
        return image
    image = image.convert("RGBA" if image.has_transparency_data else "RGB")
    converted = ImageCms.applyTransform(image.convert("RGB"), transform)
    assert converted is not None  # None is for transforms in place
    if image.mode == "RGBA":
        converted.putalpha(image.getchannel("A"))
    return converted


@lru_cache(maxsize=32)
def _srgb_transform(profile: bytes) -> ImageCms.ImageCmsTransform | None:
    """Return the transform from a profile to sRGB; None for sRGB itself, and for a profile that cannot be used."""
    try:
        source, srgb = ImageCms.ImageCmsProfile(BytesIO(profile)), ImageCms.createProfile("sRGB")
        transform = ImageCms.buildTransform(source, srgb, "RGB", "RGB")
    except (ImageCms.PyCMSError, OSError, ValueError):
        return None
    levels = np.arange(0, 256, 51)
    colours = np.stack(np.meshgrid(levels, levels, levels), -1).reshape(36, 6, 3).astype(np.uint8)
    converted = np.asarray(ImageCms.applyTransform(Image.fromarray(colours), transform))
    return transform if np.abs(converted.astype(int) - colours).max() > 2 else None


def to_grey_or_rgb(image: Image.Image) -> Image.Image:
    """Convert an image to grey or RGB, on a black background if it has transparency."""
    mode = "L" if image.mode in ("1", "L", "LA", "La") else "RGB"
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image)
    return image.convert(mode)
