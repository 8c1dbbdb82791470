"""Modules that hold weights and call the functions in `capsella.routing`."""

from capsella.layers.convolution import CapsuleConv2d, DenseCapsules
from capsella.layers.coordinates import coordinate_addition, receptive_field_centres
from capsella.layers.decoders import DenseDecoder, mask_all_but
from capsella.layers.images import CropImages, JitterImages, PrepareImages, StandardiseImages
from capsella.layers.primary import MatrixPrimaryCapsules, PrimaryCapsules

__all__ = [
    "CapsuleConv2d",
    "CropImages",
    "DenseCapsules",
    "DenseDecoder",
    "JitterImages",
    "MatrixPrimaryCapsules",
    "PrepareImages",
    "PrimaryCapsules",
    "StandardiseImages",
    "coordinate_addition",
    "mask_all_but",
    "receptive_field_centres",
]
