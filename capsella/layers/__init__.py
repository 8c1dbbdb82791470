"""Modules that hold weights and call the functions in `capsella.routing`."""

from capsella.layers.convolution import CapsuleConv2d, DenseCapsules
from capsella.layers.decoders import DenseDecoder, mask_all_but
from capsella.layers.primary import PrimaryCapsules

__all__ = ["CapsuleConv2d", "DenseCapsules", "DenseDecoder", "PrimaryCapsules", "mask_all_but"]
