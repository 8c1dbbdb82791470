"""Modules that hold weights and call the functions in `capsella.routing`."""

from capsella.layers.convolution import CapsuleConv2d, DenseCapsules
from capsella.layers.coordinates import CoordinateChannels, coordinate_addition, receptive_field_centres
from capsella.layers.decoders import ConvolutionalDecoder, DenseDecoder, mask_all_but
from capsella.layers.images import CropImages, EnlargeImages, JitterImages, PrepareImages, StandardiseImages
from capsella.layers.initial_weights import start_for_relus, start_truncated
from capsella.layers.primary import DepthwisePrimaryCapsules, MatrixPrimaryCapsules, PrimaryCapsules
from capsella.layers.upsized import UpsizedConv2d
