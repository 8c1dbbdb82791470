"""Modules that hold weights and call the functions in `capsella.routing`."""

from capsella.layers.attention_stack import AttentionCapsules, AttentionStack
from capsella.layers.between import NormalisePoses, PadCapsules
from capsella.layers.cluster import ClusterCapsules, PixelCapsules
from capsella.layers.convolution import CapsuleConv2d, DenseCapsules
from capsella.layers.coordinates import CoordinateChannels, coordinate_addition, receptive_field_centres
from capsella.layers.decoders import ConvolutionalDecoder, DenseDecoder, mask_all_but
from capsella.layers.images import CropImages, EnlargeImages, JitterImages, PrepareImages, StandardiseImages
from capsella.layers.initial_weights import start_for_relus, start_truncated
from capsella.layers.large_kernels import LargeConv2d
from capsella.layers.mean_capsules import MeanCapsules
from capsella.layers.normalised_primary import LayerNormPrimaryCapsules, NormalisedPrimaryCapsules
from capsella.layers.primary import DepthwisePrimaryCapsules, MatrixPrimaryCapsules, PrimaryCapsules
from capsella.layers.scores import LogActivations, PoseScores
from capsella.layers.upsized import UpsizedConv2d
