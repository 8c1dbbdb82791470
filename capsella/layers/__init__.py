"""Modules that hold weights and call the functions in `capsella.routing`."""

from capsella.layers.convolution import (
    AttentionCapsules,
    AttentionStack,
    CapsuleConv2d,
    ClusterCapsules,
    DenseCapsules,
    MeanCapsules,
    PixelCapsules,
)
from capsella.layers.decoders import (
    ConvolutionalDecoder,
    DenseDecoder,
    LogActivations,
    PoseScores,
    UpsizedConv2d,
    mask_all_but,
)
from capsella.layers.fast_convolution import FastConv2d
from capsella.layers.images import (
    CoordinateChannels,
    CropImages,
    EnlargeImages,
    JitterImages,
    PrepareImages,
    StandardiseImages,
    coordinate_addition,
    receptive_field_centres,
)
from capsella.layers.norms import NormalisePoses, PadCapsules, he_init_, trunc_normal_init_
from capsella.layers.primary import (
    DepthwisePrimaryCapsules,
    LayerNormPrimaryCapsules,
    MatrixPrimaryCapsules,
    NormalisedPrimaryCapsules,
    PrimaryCapsules,
)
